"""Trees: every grammar loads, an edited tree equals a new one, and parsing is put off and shared."""

import asyncio
import re
import tomllib
from pathlib import Path

import pytest
import tree_sitter
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.server import languages
from caesura.server.languages import grammar, language
from caesura.server.text import trees
from caesura.server.text.document import Document
from caesura.server.text.trees import SyntaxTree

WHEELS = [row.id for row in languages.LANGUAGES.values() if row.wheel]
BUNDLED = [row.id for row in languages.LANGUAGES.values() if row.bundled and not row.wheel]
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
SOURCE = 'def f(a):\r\n    """Ünï 😀"""\r\n    return [a, (1, 2)]\r\n\x0c\r\nclass C:\r\n\tx = {"k": 1}\r\n'
pieces = st.sampled_from(["x", "(", '"', "\n", "\r", "    ", "def g():", "😀", "\x0c", "#", ""])
places = st.tuples(st.integers(0, 7), st.integers(0, 22))


def test_every_wheel_comes_with_the_package() -> None:
    needed = {re.split(r"[<>=~ ]", line)[0] for line in PROJECT["dependencies"]}
    wheels = {row.wheel[0].replace("_", "-") for row in languages.LANGUAGES.values() if row.wheel}
    assert wheels == {name for name in needed if name.startswith("tree-sitter-")}


@pytest.mark.parametrize("name", WHEELS)
def test_every_wheel_parses(name: str) -> None:
    known = grammar(language(name))
    assert known is not None
    assert tree_sitter.Parser(known).parse(b"x\n").root_node.end_byte > 0


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_grammar_parses(name: str) -> None:
    pytest.importorskip("tree_sitter_languages")
    known = grammar(language(name))
    assert known is not None
    tree_sitter.Parser(known).parse(b"x\n")


def test_a_missing_wheel_is_replaced_by_the_bundle_or_by_nothing() -> None:
    row = languages.Language("python", ("tree_sitter_no_such", "language"), "python")
    if languages._bundle():
        assert grammar(row) is not None
    assert grammar(languages.Language("odd", ("tree_sitter_no_such", "language"))) is None
    assert grammar(languages.Language("odd", None, "no_such")) is None


def test_language_ids_aliases_and_extensions() -> None:
    assert language("sh") is language("shellscript") is language("", "file:///a/b.sh")
    assert language("plaintext", "untitled:x").id == "plaintext"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(places, places, pieces), min_size=1, max_size=6))
def test_an_edited_tree_equals_a_new_one(changes: list) -> None:
    document = Document("file:///a.py", "python", 1, SOURCE)
    tree = SyntaxTree(language("python"))
    tree.parse(document.text)
    for one, other, new in changes:
        tree.edit(document.edit(min(one, other), max(one, other), new))
    tree.parse(document.text)
    fresh = SyntaxTree(language("python"))
    fresh.parse(document.text)
    assert tree.tree is not None
    assert fresh.tree is not None
    assert shape(tree.tree.root_node) == shape(fresh.tree.root_node)


def shape(node: tree_sitter.Node) -> list:
    return [(node.type, node.byte_range, node.start_point, node.end_point), [shape(child) for child in node.children]]


async def test_parsing_is_put_off_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "DELAY", 0)
    reads = []
    tree = SyntaxTree(language("json"))
    for _ in range(3):
        tree.schedule(lambda: reads.append(1) or "[1, 2]")
    assert tree.tree is None
    while tree.tree is None:
        await asyncio.sleep(0)
    assert reads == [1]


async def test_a_closed_tree_is_not_parsed() -> None:
    tree = SyntaxTree(language("json"))
    tree.schedule(lambda: pytest.fail("parsed"))
    tree.close()
    assert tree._pending is not None
    assert tree._pending.cancelled()


def test_no_tree_for_an_unknown_language_or_a_very_long_document() -> None:
    tree = SyntaxTree(language("klingon"))
    tree.parse("x")
    assert tree.tree is None
    tree = SyntaxTree(language("json"))
    tree.parse(" " * (trees.MAX_CHARACTERS + 1))
    assert tree.tree is None
