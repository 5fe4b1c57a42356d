"""Golden cases: what a proposal becomes on its way to the editor, in every language of the table's core.

Each case of `data/golden/*.toml` goes the server's way: tree, context, `finish`, syntax gate, edit."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tree_sitter
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.server.context.context import context
from caesura.server.infill.insert import finish
from caesura.server.infill.site import Site
from caesura.server.languages import grammar, language
from caesura.server.text.document import Document
from caesura.server.text.trees import SyntaxTree

FILES = sorted((Path(__file__).parents[1] / "data" / "golden").glob("*.toml"))
CASES = [
    pytest.param(case, id=f"{file.stem}: {case['name']}")
    for file in FILES
    for case in tomllib.loads(file.read_text("utf-8"))["case"]
]


def inserted(name: str, before: str, proposed: str, after: str, behind: int = 0) -> str:
    """`behind` characters before the hole were typed since the tree was parsed."""
    text, at = before + after, len(before)
    typed = before[len(before) - behind :]
    document = Document("file:///a", name, 0, before.removesuffix(typed) + after, "utf-16")
    tree = SyntaxTree(language(name))
    tree.parse(document.text)
    if typed:
        start = document.position(at - len(typed))
        tree.edit(document.edit(start, start, typed))
    hole = context(text, at, at, language=name, tree=tree.tree)
    site = Site(text, at, at, hole, wire.Hole(1), tree.tree, finished=False)
    return site.sound_start(finish(proposed, hole))


def accepted(name: str, before: str, insert: str, after: str) -> str:
    """The document of an editor whose user accepts `insert`."""
    document = Document("file:///a", name, 0, before + after, "utf-16")
    at = document.position(len(before))
    document.edit(at, at, insert)
    return document.text


def errors(name: str, text: str) -> int:
    """ERROR and MISSING nodes, those inside of an ERROR apart."""
    known = grammar(language(name))
    assert known is not None

    def count(node: tree_sitter.Node) -> int:
        return 1 if node.is_error or node.is_missing else sum(map(count, node.children))

    return count(tree_sitter.Parser(known).parse(text.encode()).root_node)


@pytest.mark.parametrize("behind", [0, 8])
@pytest.mark.parametrize("case", CASES)
def test_a_proposal_becomes_what_fits(case: dict[str, Any], behind: int) -> None:
    name, before, after = case["language"], case["before"], case["after"]
    insert = inserted(name, before, case["proposed"], after, behind)
    assert insert == case["expected"], case["guards"]
    whole = accepted(name, before, insert, after).encode()
    assert whole.startswith(before.encode())
    assert whole.endswith(after.encode())
    assert len(whole) == len((before + insert + after).encode())
    assert errors(name, whole.decode()) <= errors(name, before + after)


PIECES = ["def f():", "\n", "\r\n", "    ", "\t", "x", "foo(", ")", "{", "}", "[", "]", '"', "'", "`", "#", "//", "/*"]
PIECES += ["*/", ": ", ", ", "é", "😀", "\u2028", "\x0c", "${", '"""', "- ", "|", "<|end|>", "```", "$1", "\\", "if x"]
NAMES = ["python", "typescript", "rust", "json", "yaml", "shellscript", "markdown"]
OPENING = ("(", "[", "{")  # a line may begin a block
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@settings(max_examples=150, deadline=None)
@given(texts, texts, texts, st.sampled_from(NAMES))
def test_the_text_around_a_hole_stays_byte_for_byte(before: str, proposed: str, after: str, name: str) -> None:
    insert = inserted(name, before, proposed, after)
    assert accepted(name, before, insert, after).encode() == (before + insert + after).encode()
    assert errors(name, before + after) or insert[-1:] in OPENING or not errors(name, before + insert + after)
