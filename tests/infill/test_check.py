"""The syntax gate: what it lets through, what it shortens, and how it judges a text that is broken already."""

import time

import pytest
import tree_sitter

from caesura import wire
from caesura.server.context.context import Context, context
from caesura.server.infill import check, window
from caesura.server.infill.check import SyntaxGate
from caesura.server.infill.readers import reads
from caesura.server.infill.site import Site
from caesura.server.languages import language
from caesura.server.text.document import Document, Span
from caesura.server.text.trees import SyntaxTree


def gate(source: str, name: str = "python", *, parse: bool = True, finished: bool = False) -> SyntaxGate:
    """For the hole at `¦`."""
    before, after = source.split("¦")
    tree = SyntaxTree(language(name))
    if parse:
        tree.parse(before + after)
    hole = context(before + after, len(before), len(before), language=name, tree=tree.tree)
    return gate_at(before + after, (len(before), len(before)), hole, tree.tree, finished=finished)


def gate_at(
    text: str, span: Span, around: Context, tree: tree_sitter.Tree | None = None, *, finished: bool = False
) -> SyntaxGate:
    return SyntaxGate(Site(text, *span, around, wire.Hole(1), tree, finished=finished))


@pytest.mark.parametrize("parse", [False, True])
@pytest.mark.parametrize(
    ("source", "name", "insert", "left"),
    [
        ("x = ¦\n", "python", "a + b", "a + b"),
        ("x = ¦\n", "python", "a + b +", "a + b"),
        ("x = ¦\n", "python", "a + f(b, [c", "a"),
        ("x = ¦\n", "python", ") + 1", ""),
        ("def f():\n    ¦\n\n\ny = 2\n", "python", "a = 1\n    b = ) 2", "a = 1"),
        ("f(¦)\n", "python", "a, b", "a, b"),
        ("f(¦)\n", "python", "a, b)", "a, b"),
        ("void f() {\n  ¦\n}\n", "c", "int a = 1;", "int a = 1;"),
        ("void f() {\n  ¦\n}\n", "c", "int a = 1", ""),
        ('{"a": ¦}\n', "json", "[1, 2]", "[1, 2]"),
        ('{"a": 1¦}\n', "json", ", b", ""),
        ("a ¦\n", "klingon", ") (", ") ("),  # no grammar, no judgement
        # a word that the grammar reads as a name
        ("f() {\n  ¦\n}\n", "shellscript", "done < <(find .)", ""),
        ("f() {\n  ¦\n}\n", "shellscript", "x=1\n  else\n  y=1", "x=1"),
        ("if a; then\n  b\n¦\nfi\n", "shellscript", "else\n  c", "else\n  c"),
        ("def f\n  ¦\nend\n", "ruby", "when 1", ""),
        ("function f()\n  ¦\nend\n", "lua", "else", ""),
        ("void f() {\n  ¦\n}\n", "cpp", "#endif", ""),
        ("#if A\nint a;\n¦\n", "cpp", "#endif", "#endif"),
        ("#if A\n#else\n¦\n#endif\n", "c", "#else\nint c;", ""),
        ("#if A\n¦\n#else\n#endif\n", "c", "int a;\n#else\nint c;", "int a;"),
        ("#if A\n¦\n#else\n#endif\n", "c", "#if B\n#else\nint c;\n#endif", "#if B\n#else\nint c;\n#endif"),
        ("#if A\n#elif B\n¦\n#endif\n", "c", "#else\nint c;", "#else\nint c;"),
        ("class A\n{\n    #if A\n    ¦\n    #endif\n}\n", "csharp", "#endregion", ""),
        ("class A\n{\n    #region a\n    ¦\n}\n", "csharp", "#endregion", "#endregion"),
        ("¦\necho b\n", "shellscript", "}", ""),
        ("f() {\n  a\n¦\n", "shellscript", "}", "}"),
        ("¦\n", "shellscript", "awk '{\n}' a\nb <<EOF\n}\nEOF", "awk '{\n}' a\nb <<EOF\n}\nEOF"),
        ("cat <<EOF\nif a\nEOF\n¦\n", "shellscript", "fi", ""),
        ("if a; then\n  cat <<EOF\nfi\nEOF\n¦\n", "shellscript", "fi", "fi"),
        ("=begin\nif a\n=end\n¦\n", "ruby", "end", ""),
        ("<div>\n  ¦\n</div>\n", "html", "</span>", ""),
        ("<div>\n  <b>¦\n</div>\n", "html", "x</b>", "x</b>"),
        # half a keyword, or half an element
        ("¦\nf();\n", "javascript", "export const q = (a => {\n  return a;\n", ""),
        ("¦\nf();\n", "typescript", "export default (a => {\n  return a;\n", ""),
        ("x = 1\n¦", "python", "async def f(:\n    pass", ""),
        ("¦\n", "html", "<p>it's a < b</p>", ""),
        ("f();\n¦\n", "javascript", "return\nx = (;", "return"),
        # a start that is another command, or that takes the next line
        ("f() {\n  ¦\n}\n", "shellscript", "awk '", ""),
        ("f() {\n  ¦\n  y\n}\n", "shellscript", "foo |", ""),
        ("function f()\n  ¦\n  y()\nend\n", "lua", "return x", ""),
        ("function f()\n  ¦\nend\n", "lua", "return x", "return x"),
        ("def f\n  ¦\n  y\nend\n", "ruby", "x +", "x"),
        ("def f\n  ¦\nend\n", "ruby", "x = /a", ""),
        ("void f() {\n  ¦\n  y();\n}\n", "cpp", "int x", ""),
        ("void f() {\n  ¦\n  y();\n}\n", "cpp", "if (x)", "if (x)"),
        ("fn f() {\n    ¦\n    y();\n}\n", "rust", 'let x = r#"a', ""),
        ("func f() {\n\t¦\n\ty()\n}\n", "go", "if x {\n\t\tz()", ""),  # no header, though it ends in a bracket
    ],
)
def test_no_new_error_stands_beside_an_insertion(source: str, name: str, insert: str, left: str, parse: bool) -> None:
    assert gate(source, name, parse=parse).shortened(insert) == left
    assert gate(source, name, parse=parse).sound(left)


def test_a_text_that_is_broken_at_the_cursor_may_stay_so() -> None:
    assert gate("y = 1\nfoo(a, ¦\nz = 2\n").shortened("b") == "b"
    assert gate("function f() {\n  if (a¦\n", "javascript").shortened(" && b") == " && b"


def test_what_mends_a_broken_text_is_taken_rather_than_what_does_not() -> None:
    assert gate("def f():\n    x = ¦\n    return x\n").shortened("a * (b") == "a"
    assert gate("f(a, ¦\ny = 1\n").shortened("b)") == "b)"
    assert gate("g(¦)\n").shortened("abc(a, ") == "abc"  # and no blank that stood behind what is gone


def test_a_text_that_is_whole_with_something_in_the_hole_is_not_left_broken() -> None:
    assert gate("def f():\n    return ¦\n").shortened("= = 1") == ""
    assert not gate("x = ¦\n").sound("= 1")
    assert gate("x = ¦\n").sound("")


@pytest.mark.parametrize(
    ("source", "name", "insert", "left"),
    [
        ("def f(a):\n    ¦\n", "python", "b = a\n    if b:", "b = a"),
        ("def f(a):\n    ¦\n", "python", "b = a\n    if b:  # so", "b = a"),
        ("function f() {\n  ¦\n}\n", "javascript", "a();\n  if (b) {", "a();"),
        ("#include <a.h>\n¦\n", "c", "#if A", ""),
        ("def f(:\n    pass\n\n\nx = 1\n¦\n", "python", "if x:", ""),
    ],
)
def test_a_block_is_open_in_ghost_text_and_closed_in_a_fill(source: str, name: str, insert: str, left: str) -> None:
    assert gate(source, name).shortened(insert) == insert
    assert gate(source, name, finished=True).shortened(insert) == left
    assert not gate(source, name, finished=True).sound(insert)


def test_php_is_code_in_every_part_of_a_file() -> None:
    above = "<?php\n" + "".join(f"function f{n}($a) {{\n    return $a;\n}}\n" for n in range(9))
    source = f"{above}function g() {{\n    ¦\n}}\nfunction h() {{\n    return 1;\n}}\n"
    assert gate(source, "php").shortened("$a = f1(1);") == "$a = f1(1);"
    assert gate(source, "php").shortened("$a = = ;") == ""


def test_a_line_may_begin_a_block() -> None:
    opened = gate("function f(a) {\n  ¦\n  return a;\n}\n", "javascript")
    assert opened.sound("if (a) {")
    assert opened.sound("const b = call(a, (c) => {")
    assert not opened.sound("if (a")
    assert not opened.sound("if (a)) {")
    assert not gate("g(¦, b);\n", "javascript").sound("(")  # something follows on the line


def test_a_line_end_for_the_closing_brace_outlives_the_cut() -> None:
    assert gate("function f() {¦}\n", "javascript").shortened("\n  a();\n  b(;\n") == "\n  a();\n"


def test_a_fault_elsewhere_changes_nothing() -> None:
    far = "def broken(:\n    pass\n\n\n" + "def f(a):\n    return a\n\n\n" * 5
    assert gate(far + "def g(a):\n    return ¦\n").shortened("a + 1") == "a + 1"
    assert gate(far + "def g(a):\n    return ¦\n").shortened("a +") == "a"


def test_what_was_typed_since_the_last_parse_is_judged_too() -> None:
    before, typed, after = "y = 1\n", "def f(a):\n    b = ", "\nz = 2\n"
    document = Document("file:///a.py", "python", 0, before + after, "utf-32")
    tree = SyntaxTree(language("python"))
    tree.parse(document.text)
    at = document.position(len(before))
    tree.edit(document.edit(at, at, typed))
    offset = len(before + typed)
    hole = context(document.text, offset, offset, language="python", tree=tree.tree)
    assert gate_at(document.text, (offset, offset), hole, tree.tree).shortened("a + f(1") == "a"


def test_a_statement_with_comments_in_it_is_judged_as_a_whole() -> None:
    assert gate("x\n#\n¦", "yaml").shortened("y: 1") == ""  # a text and a mapping


def test_a_replaced_selection_is_judged_against_what_it_was() -> None:
    text = "x = (1 + 2\ny = 3\n"
    hole = context(text, 4, 10, language="python")
    assert gate_at(text, (4, 10), hole).shortened("(1 + 2)") == "(1 + 2)"
    text = "x = (1 + 2)\ny = 3\n"
    assert gate_at(text, (4, 11), hole).shortened("(1 + 2") == ""


def test_a_text_too_long_to_parse_at_once_is_judged_by_the_statements_beside_the_hole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window, "MAX_WINDOW", 100)
    monkeypatch.setattr(check, "MAX_WHOLE", 100)
    long = "y = 1\n" * 50
    assert gate(f"{long}x = f()¦\n{long}").shortened(")") == ""
    assert gate(f"{long}x = f()¦\n{long}", parse=False).shortened(")") == ")"  # nobody knows where statements begin


@pytest.mark.parametrize("source", ["¦", "\n¦", "¦\n", "x = 1\n\n\n¦", "echo a\n¦", "é = '😀'; b = ¦", "\r\n¦\r\n"])
@pytest.mark.parametrize("name", ["python", "shellscript", "json", "markdown", "yaml", "go"])
def test_the_ends_of_a_text_are_places_too(source: str, name: str) -> None:
    assert gate(source, name).shortened("x") in ("", "x")


@pytest.mark.parametrize(
    ("source", "name", "header"),
    [
        ("# it\n¦\n\nint main() { return 0; }\n", "cpp", "struct Car {"),
        ("set -eu\n¦\n\necho ready\n", "shellscript", 'if [ ! -d "$HOME/tmp" ]; then'),
        ("¦\n\necho ready\n", "shellscript", "for picture in *.png; do"),
        ("x=1\n¦\n", "shellscript", 'case "$x" in'),
        (
            "package a\n\n// Order is what a customer buys.\n¦\n\tNumber int\n\tTotal  string\n}\n",
            "go",
            "type Order struct {",
        ),
        ("def f(x)\n  ¦\nend\n", "ruby", "x.each do |one|"),
        ("local M = {}\n¦\nreturn M\n", "lua", "function M.total(items)"),
        ("f(x);\n¦\nf(y);\n", "javascript", "list.forEach(x => {"),
        ("f(x);\n¦\nf(y);\n", "javascript", "try {"),
        ("fn f(x: u8) {\n    ¦\n}\n", "rust", "let y = match x {"),
        ("int f() {\n    ¦\n    return 1;\n}\n", "c", "do {"),
        ("int a;\n¦\nint b;\n", "c", "#ifdef DEBUG"),
        ("<body>\n¦\n</body>\n", "html", '<div class="card">'),
        ("class A\n{\n    ¦\n}\n", "csharp", "public int Size(int of)"),
        ("class A\n{\n    ¦\n}\n", "csharp", "[Fact]"),
        ("class A {\n    ¦\n}\n", "java", "@Override"),
        ("class A:\n    ¦\n", "python", "@property"),
        ("class A {\n  ¦\n};\n", "cpp", "template <typename T>"),
        ("struct A {\n    ¦\n}\n", "rust", "#[serde(default)]"),
    ],
)
def test_a_line_that_opens_a_block_or_a_declaration_stays(source: str, name: str, header: str) -> None:
    assert gate(source, name).shortened(header) == header


@pytest.mark.parametrize(
    ("name", "source", "line", "kept"),
    [
        ("toml", "[package]\nname = 'a'\n¦\nreadme.workspace = true\n", "readme.workspace = true", ""),
        ("toml", "[package]\nname = 'a'\n¦\nreadme = 'a'\n", "edition = '2021'\nreadme = 'b'", "edition = '2021'"),
        ("toml", "[a]\nx = 1\n\n¦\n", "[a]\ny = 2", ""),
        ("toml", "[a]\nx = 1\n\n¦\n", "[b]\ny = 2", "[b]\ny = 2"),
        ("toml", "[a]\nx = ¦\ny = 2\n", "3", "3"),
        ("toml", "[a]\nx =\n¦\n", "y = 2", "y = 2"),  # what is broken already is not the fill's fault
        ("toml", "[a]\n¦\ny = 2\n", "x = [", "x = ["),  # its elements come next
        ("yaml", "a:\n  b: 1\n¦\nc: 2\n", "a: 3", ""),
        ("yaml", "a:\n  b: 1\n  ¦\nc: 2\n", "d: 1\n  'b': 2", "d: 1"),
        ("yaml", "a:\n  b: 1\n  ¦\nc: 2\n", "d: {b: 1, c: 2}", "d: {b: 1, c: 2}"),
        ("yaml", "- b: 1\n¦\n", "- b: 1", "- b: 1"),
        ("yaml", "a: 1\n¦\nb: 2\n", "c: !Ref x", "c: !Ref x"),
        ("yaml", "a: 1\n¦\nb: 2\n", "c: d: e", "c: d"),
        ("yaml", "a: 1\n¦\nb: 2\n", "c: [", "c: ["),
        ("yaml", "a: {{ x }} y\n¦\nb: 2\n", "b: 1", "b: 1"),  # a template
    ],
)
def test_a_document_that_can_be_read_stays_so(name: str, source: str, line: str, kept: str) -> None:
    assert gate(source, name).shortened(line) == kept


@pytest.mark.parametrize(
    "hostile", ["[" * 29_000, "{a: " * 7_000, "- " * 14_000, "&a [*a, *a]\n" * 2_000, "\0", "\ud800"]
)
def test_a_hostile_document_is_read_soon(hostile: str) -> None:
    began = time.process_time()
    reads(f"a: {hostile}", "yaml")
    assert time.process_time() - began < 1
