"""Contexts: what is cut, and what kind of hole a place is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caesura import wire
from caesura.server.context import Budget, context

from .marked import marked


@pytest.mark.parametrize(
    ("source", "language", "kind"),
    [
        ("def f(a):\n    return |a", "python", "span"),
        ("return |", "python", "line"),
        ("foo(|)", "python", "line"),
        ("foo(|):", "python", "line"),
        ('print("|")', "python", "line"),
        ("foo(|, b)", "python", "span"),
        ("x = | # why", "python", "span"),
        ("", "python", "line"),
        ("x = 1\n", "python", "line"),
        ("def f():\n    |", "python", "block"),
        ("def f():  # why\n\n    |\n", "python", "block"),
        ("def f():|", "python", "block"),
        ("def f():\n    |\nx = 1", "python", "block"),
        ("def f():\n    |\n    return 1", "python", "line"),
        ("x = 1\n|\ny = 2", "python", "line"),
        ("if (a) {\n  |\n}", "javascript", "block"),
        ("if (a) {\n  |\n  b();\n}", "javascript", "line"),
        ("const f = () =>\n  |", "javascript", "block"),
        ("if x; then\n  |\nfi", "shellscript", "block"),
        ("echo lathen\n|", "shellscript", "line"),
        ("def f():\r\n    |\r\n", "python", "block"),
        ("f = 😀\n\x0c|", "python", "line"),
        ("a\n|b = 1\nc = |2\n", "python", "span"),
        ("a\n|b = 1\nc = 2|\n", "python", "block"),
        ("x = |1 + 2|\n", "python", "line"),
        ("anything:\n|", "klingon", "line"),
    ],
)
def test_kinds(source: str, language: str, kind: str) -> None:
    assert marked(source if "|" in source else source + "|", language).kind == kind


def test_the_tree_knows_an_empty_body_that_the_text_does_not_show() -> None:
    source = "void f()\n{ // nothing yet\n\n  // still nothing\n  |\n}\n"
    assert marked(source, "c").kind == "line"
    assert marked(source, "c", parse=True).kind == "block"
    assert marked(source.replace("  // still", "  int a; // still"), "c", parse=True).kind == "line"


def test_indent_is_the_white_space_before_the_hole() -> None:
    assert marked("if a:\n \t|").indent == " \t"
    assert marked("    return |a").indent == "    "
    assert marked("  |  x").indent == "  "


def test_context_is_cut_at_line_starts() -> None:
    cut = marked("first\nsecond\nthi|rd\nfourth\nfifth\n", budget=Budget(11, 11))
    assert (cut.prefix, cut.suffix) == ("second\nthi", "rd\nfourth\n")
    cut = marked("first\nsecond\nthi|rd\nfourth\nfifth\n", budget=Budget(10, 10))
    assert (cut.prefix, cut.suffix) == ("second\nthi", "rd\nfourth\n")
    cut = marked("first\nsecond\nthi|rd\nfourth\nfifth\n", budget=Budget(9, 9))
    assert (cut.prefix, cut.suffix) == ("thi", "rd\n")


def test_a_line_longer_than_the_budget_is_cut_inside() -> None:
    cut = marked("a" * 50 + "|" + "b" * 50, budget=Budget(10, 5))
    assert (cut.prefix, cut.suffix) == ("a" * 10, "b" * 5)


@given(st.text("ab \n\r\t😀(:", max_size=60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 40))
def test_a_context_is_a_part_of_the_text_around_the_hole(text: str, one: int, other: int, size: int) -> None:
    start, end = sorted((min(one, len(text)), min(other, len(text))))
    found = context(text, start, end, language="python", budget=Budget(size, size))
    assert text[:start].endswith(found.prefix)
    assert text[end:].startswith(found.suffix)
    assert max(len(found.prefix), len(found.suffix)) <= size


def test_the_wire_bounds_every_budget() -> None:
    text = "x" * (wire.MAX_CONTEXT + 5)
    prefix = context(text, len(text), len(text), language="", budget=Budget(10**9, 1)).prefix
    assert 3 / 4 * wire.MAX_CONTEXT <= len(prefix) <= wire.MAX_CONTEXT


@pytest.mark.parametrize("line", ["x = 1\n", "x", "a long line " * 9 + "\n"])
def test_the_cut_moves_once_a_stride_while_typing(line: str) -> None:
    text = line * 100
    typed = "".join(f"\nvalue_{number} = {number}" for number in range(20))
    cuts = []
    for size in range(len(typed) + 1):
        now = text + typed[:size]
        prefix = context(now, len(now), len(now), language="python", budget=Budget(80, 0)).prefix
        cuts.append(len(now) - len(prefix))
        assert 80 / 4 <= len(prefix) <= 80
    assert cuts == sorted(cuts)
    assert len(set(cuts)) <= len(typed) / 20 + 2
