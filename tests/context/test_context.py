"""Contexts: what is cut, and what kind of hole a place is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caesura import wire
from caesura.server.context.context import Budget, context, hole
from caesura.server.languages import language as row
from caesura.server.text.document import Document
from caesura.server.text.trees import SyntaxTree

from ..support.marked import marked


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
        # a body of a docstring or comments alone is still empty
        ('def f():\n    """Doc."""\n    |\n\nx = 1', "python", "block"),
        ('def f():\n    """Doc.\n\n    More.\n    """\n    |\n', "python", "block"),
        ('def f():\n    """Doc."""\n    |\n    return 1\n', "python", "line"),
        ('x = """a"""\n|\n', "python", "line"),
        ("def f():\n    # first\n    # second\n    |\n", "python", "block"),
        ("function f() {\n  // first\n  |\n}\n", "javascript", "block"),
        ("function f() {\n  /* first\n  second */\n  |\n}\n", "javascript", "block"),
        # between braces, but not in a string or behind a name
        ("if (a) {|}", "javascript", "block"),
        ("f(() => {|})", "typescript", "block"),
        ("fn f() {|}", "rust", "block"),
        ('println!("{|}")', "rust", "line"),
        ("const a = `${|}`", "javascript", "line"),
        ("import {|} from 'a'", "javascript", "span"),
        ("x = {|}", "python", "line"),
        # what only looks like the header of a block
        ("x: |", "python", "line"),
        ('d = {\n    "a":|\n}', "python", "line"),
        ("f = lambda x:|", "python", "line"),
        ("def f(\n    a: int,\n    b: int):\n    |\n", "python", "block"),
        ("@decorator\n|\n", "python", "line"),
        # prose is one line
        ('"""First line: |\n"""', "python", "line"),
        ("/* when: |\n*/", "c", "line"),
    ],
)
def test_kinds(source: str, language: str, kind: str) -> None:
    assert marked(source if "|" in source else source + "|", language).kind == kind


def test_the_tree_knows_an_empty_body_that_the_text_does_not_show() -> None:
    source = "void f()\n{ /* nothing yet */\n\n  // still nothing\n  |\n}\n"
    assert marked(source, "c").kind == "line"
    assert marked(source, "c", parse=True).kind == "block"
    assert marked(source.replace("  // still", "  int a; // still"), "c", parse=True).kind == "line"


@pytest.mark.parametrize("parse", [False, True])
@pytest.mark.parametrize(
    ("source", "language", "scope"),
    [
        ("x = |", "python", "code"),
        ("f(|)", "python", "arguments"),
        ("f(\n    a,\n    |\n)", "python", "arguments"),
        ("def f(|):", "python", "arguments"),
        ("f([|])", "python", "code"),
        ("x = (|)", "python", "code"),
        ("if (|) {}", "c", "code"),
        ("println!(|)", "rust", "arguments"),
        ("f('|')", "python", "string"),
        ("f('a' |)", "python", "arguments"),
        ("x = 'it\\'s |'", "python", "string"),
        ("f(f'{|}')", "python", "code"),
        ("`a ${|}`", "javascript", "code"),
        ("`a ${b} |`", "javascript", "string"),
        ('echo "$(|)"', "shellscript", "code"),
        ("x = 1  # don't |", "python", "comment"),
        ("x = '#' |", "python", "code"),
        ("/* don't\n|\n*/", "c", "comment"),
        ("// a\n|\n", "c", "code"),
        ('def f():\n    """Doc\n    |\n    """', "python", "string"),
        ("x = `a\n|\n`", "go", "string"),
        ("note: don't |", "yaml", "code"),
        ('{"a": "|"}', "json", "string"),
        ("don't (|)", "markdown", "code"),
        ("let c = '\"'; |", "rust", "code"),
        ("fn f<'a>(x: &'a str|)", "rust", "arguments"),
    ],
)
def test_scopes(source: str, language: str, scope: str, parse: bool) -> None:
    assert marked(source, language, parse=parse).scope == scope


def test_the_tree_knows_the_string_that_began_far_above() -> None:
    source = 'x = """\n' + "it's prose\n" * 400 + '|\n"""\n'
    assert marked(source, parse=True).scope == "string"
    assert marked(source.replace('"""', "#"), parse=True).scope == "code"


def test_a_tree_that_is_behind_does_not_stretch_a_comment_over_a_line_end() -> None:
    before, typed, after = "x = 1  # a", " note\ny = ", "\nz = 2\n"
    document = Document("file:///a.py", "python", 0, before + after, "utf-32")
    tree = SyntaxTree(row("python"))
    tree.parse(document.text)
    at = document.position(len(before))
    tree.edit(document.edit(at, at, typed))
    offset = len(before + typed)
    assert context(document.text, offset, offset, language="python", tree=tree.tree).scope == "code"


def test_a_block_takes_as_many_lines_as_the_bodies_around_it() -> None:
    two, nine = "    a = 1\n    return a\n\n\n", "    a = 1\n" * 9 + "\n\n"
    assert marked("def f():\n    |\n").lines == 6  # nothing to go by
    assert marked(f"def f():\n{two}def g():\n    |\n\n\ndef h():\n{two}").lines == 3
    assert marked(f"def f():\n{nine}def g():\n    |\n\n\ndef h():\n{two}").lines == 9
    assert marked(f"def f():\n{nine * 3}def g():\n    |\n").lines == 12  # at most
    assert marked(f"for x in y:\n{nine}def g():\n    |\n\n\ndef h():\n{two}").lines == 3  # bodies of one kind
    assert (
        marked("function f() {\n  a();\n  b();\n  c();\n  d();\n}\nfunction g() {\n  |\n}\n", "javascript").lines == 4
    )
    assert marked("x = |\n").lines == 1
    assert marked("|a\nb\nc\nd\ne\n|").lines == 6  # a selection may grow by a line


def test_a_hole_is_as_large_as_its_place_needs() -> None:
    two = "def f():\n    a = 1\n    return a\n\n\n"
    assert hole(marked("x = |\n"), 64) == wire.Hole(max_tokens=32, kind="line")
    assert hole(marked("f(|, b)"), 20) == wire.Hole(max_tokens=20, kind="span")
    assert hole(marked("def f():\n    |\n"), 256) == wire.Hole(max_tokens=96, kind="block")
    assert hole(marked(two + "def g():\n    |\n"), 256) == wire.Hole(max_tokens=48, kind="block")
    assert hole(marked("x = |\n", kind="block"), 64).kind == "block"


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
