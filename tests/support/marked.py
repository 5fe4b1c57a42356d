"""`|` marks the hole in the sources of tests: once for a cursor, twice for a selection."""

from typing import Any

from caesura.server.context.context import Context, context
from caesura.server.languages import language as row
from caesura.server.text.trees import SyntaxTree


def marked(source: str, language: str = "python", *, parse: bool = False, **more: Any) -> Context:
    first, *rest = source.split("|")
    text, start = first + "".join(rest), len(first)
    end = start + len(rest[0]) if len(rest) == 2 else start
    tree = SyntaxTree(row(language))
    if parse:
        tree.parse(text)
    return context(text, start, end, language=language, tree=tree.tree, **more)
