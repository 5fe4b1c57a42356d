"""The structured edits at a place of a text, by language. Pure. A language's module is imported at its first use, so
that `caesura lsp` starts at once.
"""

import re

import tree_sitter

from caesura.schema.document import Schema
from caesura.server import languages
from caesura.server.context.context import line_before
from caesura.server.structured.offer import NoOffer, Offer

MOST_BEFORE = 50_000  # code points of JSON before a cursor that are read for a completion, in about 30 ms
MOST_TEXT = 40_000  # code points of Markdown for a completion
MOST_LINES = 1_500  # lines of Markdown: about 10 ms, 25 for a table of 500 rows, 300 for hostile text

# A line up to the cursor that may be an empty item or heading, or part of a table row.
_BEGUN = re.compile(r"[ \t>]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]*+(?:\[[ xX]?\]?[ \t]*+)?|#{1,6}[ \t]*+|.*\|.*)")

_TARGET = re.compile(r"\]\([^)]*\Z")

_CODE = frozenset({"fenced_code_block", "indented_code_block", "minus_metadata", "plus_metadata"})

LANGUAGES = frozenset(row.id for row in languages.LANGUAGES.values() if row.edits)


def offers(text: str, start: int, end: int, *, language: str, schema: Schema | None = None) -> list[Offer]:
    """The edits of a selection, or at a cursor if `start` and `end` are equal; best first. Raises NoOffer."""
    match languages.language(language).edits:
        case "json":
            from caesura.server.structured.json import edits as json_edits

            return json_edits.offers(text, start, end, language=language, schema=schema)
        case "markdown":
            from caesura.server.structured.markdown import edits as markdown_edits

            return markdown_edits.offers(text, start, end)
        case "yaml" | "toml" as form:
            from caesura.server.structured import scalars

            return scalars.offers(text, start, end, language=form)
    raise NoOffer("Structured edits work in JSON, Markdown, YAML and TOML only.")


def completion(text: str, offset: int, *, language: str, schema: Schema | None = None) -> Offer | None:
    """The edit that completes the text at a cursor, if it can be found between two keystrokes. It replaces nothing but
    blanks."""
    found = _completion(text, offset, language, schema) if _written(text) else None
    return found if found and not text[offset : found.end].strip() else None


def is_prose(line: str) -> bool:
    """True if a cursor in Markdown is in running text, judged by the `line` before it: not in a code span, table,
    heading or link target, and not at the start of an item. `in_code` finds code blocks."""
    begun = _BEGUN.fullmatch(line) or line.lstrip(" \t>").startswith("#")
    return not (begun or line.count("`") % 2 or _TARGET.search(line))


def in_code(text: str, offset: int, tree: tree_sitter.Tree | None) -> bool:
    """True if a cursor in Markdown is in a code block or front matter; False without a tree. The character before the
    cursor decides, at a line start the line itself."""
    if tree is None:
        return False
    at = len(text[:offset].encode()) - bool(line_before(text, offset))
    node = tree.root_node.descendant_for_byte_range(at, at)
    while node is not None and not (node.type in _CODE and node.start_byte <= at < node.end_byte):
        node = node.parent
    return node is not None


def _completion(text: str, offset: int, language: str, schema: Schema | None) -> Offer | None:
    form = languages.language(language).edits
    if form == "json" and offset <= MOST_BEFORE:
        from caesura.server.structured.json import completion as json_completion

        return json_completion.completion(text, offset, language=language, schema=schema)
    if form == "markdown" and len(text) <= MOST_TEXT and text.count("\n") < MOST_LINES:
        from caesura.server.structured.markdown import edits as markdown_edits

        begin = text.rfind("\n", 0, offset) + 1
        return markdown_edits.completion(text, offset) if _BEGUN.fullmatch(text, begin, offset) else None
    return None


def _written(text: str) -> bool:
    """True if the text can be encoded: an editor may send half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
