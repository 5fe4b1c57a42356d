"""What is inserted for a fill. `|` is the cursor; the result is the whole text with the insertion in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caesura.server.context.context import context
from caesura.server.infill.insert import ends, finish, is_half

from ..support.marked import marked

CLOSED_BY_WORDS = "if b then\n    if c then\n      if d then\n        e()\n      end\n    end\n  end"


@pytest.mark.parametrize(
    ("source", "fill", "inserted"),
    [
        # as it is
        ("def f(a):\n    return |a", "a + ", "a + "),
        ("ret|", "urn 1", "urn 1"),  # mid-token
        ("ma|x)", "max", "max"),  # a word's end is no repetition
        ("|", "import os\n", "import os"),  # empty file
        ("x = 1\n|", "y = 2", "y = 2"),  # end of file
        ("x = '😀'\ny = |", "x + '😀'", "x + '😀'"),
        ("a\x0cb = |\n", "1\x0c+ 2", "1\x0c+ 2"),
        # nothing beyond the kind of hole
        ("x = |\n", "1\ny = 2", "1"),
        ("x = |\n", "\n1", ""),
        ("foo(|, b)", "a\n, c", "a"),
        ("def f():\n    |\n", "x = 1\n    return x\n\ndef g():\n    pass\n", "x = 1\n    return x"),
        ("def f():|\n", "\n    return 1\nx = 2\n", "\n    return 1"),
        ("if a:\n    |\n", "b()\nelse:\n    c()", "b()"),
        # the first line goes on at the cursor's column
        ("def f():\n    |\n", "    return 1", "return 1"),
        ("def f():\n|\n", "    return 1\n    # end", "    return 1\n    # end"),
        ("return |\n", " 1", "1"),
        ("return|\n", " 1", " 1"),
        # white space
        ("x = |\n", "1  ", "1"),
        ("x = |y\n", "a + ", "a + "),
        ("x = | + y\n", "a ", "a"),
        ("def f():\n    |\n", "a = 1   \n    \n    b = 2", "a = 1\n\n    b = 2"),
        ("x = |\n", "   ", ""),
        # what follows on the line
        ("foo(|)", "a, b)", "a, b"),
        ("foo(|)", "bar()", "bar()"),
        ("foo(bar(|)", "a)", "a)"),  # one bracket is missing
        ("foo(bar(|))", "a))", "a"),
        ("foo(|, c)", "a)", "a"),
        ("x = [|]", "1, 2]", "1, 2"),
        ('print("|")', 'hello")', "hello"),
        ("print(|)", '"hi")', '"hi"'),
        ("foo(|x + y)", "x + y", ""),
        ("foo(|x + y)", "a, x", "a, "),
        ("x = f(|);", "1);", "1"),
        # what follows on the next lines
        ("def f():\n    |\n    return x\n", "x = 1\n    return x", "x = 1"),
        ("def f():\n    a()\n    |\n    return x\n", "return x", ""),
        # invisible characters
        ("x = |\n", "1\u200b\u202e\x07\ufeff", "1"),
        ("y = '\u200b'\nx = |\n", "'\u200b\u200c'", "'\u200b'"),
        ("x = '|'\n", "❤\ufe0f\u3164\u2800", "❤\ufe0f"),
        # line ends
        ("def f():\r\n    |\r\n", "a = 1\n    return a\n", "a = 1\r\n    return a"),
        ("def f():\n    |\n", "a = 1\r\n    return a\r\n", "a = 1\n    return a"),
        ("def f():\n    |x = 1\n    y = 1|\n    return x\n", "x = 2\n    y = 2\n    return x", "x = 2\n    y = 2"),
        # what a model says beyond the text
        ("x = |\n", "1<|fim_suffix|>2", "1"),
        ("x = |\n", "<｜fim▁begin｜>1", "1"),
        ("STOP = '</s>'\nx = |\n", "'</s>'", "'</s>'"),
        ("def f():\n    |\n", "```\n    return 1\n```", "return 1"),
        ("x = |\n", "${1:name}$0", "name"),
        ("x = |\n", "f('${1}', '$0')", "f('${1}', '$0')"),  # alone they are code
        ("x = |\n", "$0", "$0"),
        ("def f():\n    |\n", "a = 1\n    # File: other.py\n    b = 2", "a = 1"),
        # the lines around once more
        ("import os\n|\n", "import os", ""),
        ("import os\nimport |\n", "os", ""),
        ("|\nimport os\n", "import os", ""),
        ("a()\nb()\n|\n", "a()", "a()"),
        ("x = [\n    [\n        1\n    ]\n|\n", "]", "]"),
        ("def f():\n    |\n", "a()\n    b()\n" * 3, "a()\n    b()"),
        ("def f():\n    |\n", "a()\n    a()", "a()\n    a()"),
        # in front of a word, and in the middle of one
        ("return os.|getsize\n", "path.", "path."),
        ("return os.|getsize\n", "path.getsizes", "path."),
        ("return os.|getsize\n", "paths", ""),
        ("x = |y\n", "z + ", "z + "),
        ("x = |y\n", "z", ""),
        ("x = get|size()\n", "file_", "file_"),
        ("x = get|size()\n", "file(1).", "file(1)."),
        ("x = |co|unt\n", "disc", "disc"),
        # a docstring without a word
        ("def f():\n    |\n", '""""""', ""),
        ("def f():\n    |\n", '"""\n    """', ""),
        ('def f():\n    "|\n', '"', ""),
        ("def f()|\n", ' -> int:\n    ""', " -> int:"),
        ("def f():\n    |\n", '"""A word."""', '"""A word."""'),
        ('x = """a\n|\n', '"""', '"""'),
        ("f(\n    |\n)\n", '""', '""'),
        # what a token limit has cut
        ("def f():\n    |\n", "a = 1\n    b = g(a,", "a = 1"),
        ("def f():\n    |\n", "a = 1\n    if a:\n        for b in a:", "a = 1"),
        ("def f():\n    |\n", "x = [\n        1,\n    ]", "x = [\n        1,\n    ]"),
        # inside the bracket or string that the hole is in
        ("foo(|)", "a) + bar(b", "a"),
        ("foo(bar(|)", "a), b)", "a), b"),
        ("x = '|'\n", "it\\'s'", "it\\'s"),
        ('"""First |\n"""\n', 'line."""\nimport os', "line."),
        ('"""First |\n', 'line."""\nimport os', 'line."""'),
        ("# see (|\n", "below", "below"),
        # a block no higher than its neighbours, up to where it closes what it opened
        (
            "def f():\n    a()\n    b()\n\n\ndef g():\n    |\n",
            "a()\n    b()\n    c()\n    d()\n    e()\n    g()\n    h()",
            "a()\n    b()\n    c()\n    d()\n    e()\n    g()",
        ),
        (
            "def f():\n    a()\n\n\ndef g():\n    |\n",
            "a()\n    b(\n        1,\n        2,\n        3,\n        4,\n    )",
            "a()",
        ),
        # the depth of a body
        ("def f():\n|\n", "return 1", "    return 1"),
        ("def f():\n|\n", "\n    return 1", "\n    return 1"),
        ("def f():\n|\n", "a = 1\nreturn a", "    a = 1\n    return a"),
        ("def f(a,\n      b):\n    |\n", "c = 1\n    return c", "c = 1\n    return c"),
        # no deeper than a finished statement above
        ("x = 1\n|\ny = 2", "    z = 2", ""),
        ("import a\n\n|\n\ndef f(): pass", "    return a", ""),
        ("x = f(\n    a,\n)\n|\ny = 2\n", "    z = 2", ""),
        ("def f():\n    |\n", "a = 1\n        b = 2", "a = 1"),
        ("def f():\n    a()\n\n|\n", "    b()", "    b()"),
        ("if a and \\\n        b:\n|\n", "            c()", "            c()"),
        ('class A:\n    x = """a\nb"""\n|\n', "    y = 1", "    y = 1"),
        ("x = [\n|\n]\n", "    1", "    1"),
        # tabs and spaces
        ("class C:\n\tdef f():\n\t\t|\n", "a = 1\n        return a", "a = 1\n\t\treturn a"),
        ("class C:\n  def f():\n    |\n", "if a:\n\t\t\treturn a", "if a:\n      return a"),
    ],
)
def test_python(source: str, fill: str, inserted: str) -> None:
    assert finish(fill, marked(source)) == inserted


@pytest.mark.parametrize(
    ("language", "source", "fill", "inserted"),
    [
        # what the next line says, or how it begins
        ("sql", "SELECT a\nFROM t\n|\nWHERE a > 3 AND b < 4;\n", "WHERE a > 3", ""),
        ("sql", "INSERT INTO t (a, b)\n|\nVALUES (1, 2);\n", "VALUES (1, 2)", ""),
        ("sql", "SELECT a\nFROM t\n|\nWHERE a > 3;\n", "JOIN u USING (id)\nWHERE a > 3", "JOIN u USING (id)"),
        ("python", "c = {\n    'a': 1,\n    |\n    'b': 3,\n}\n", "'b': 3", ""),
        ("css", "|\n.card {\n  padding: 0;\n}\n", ".card {", ""),
        ("css", "|\n.card {\n  padding: 0;\n}\n", ".card {\n  margin: 0;\n}\n", ""),
        ("javascript", "app.use(json());\n|\napp.listen(3000, () => 1);\n", "app.listen(3000", ""),
        ("markdown", "- one\n|\n- two and three\n", "- two", ""),
        ("python", "import os\n|\nimport sys\n", "import sys", ""),
        # a line that only shares a word with it, is deeper, or opens a block whose body may differ
        ("javascript", "app.use(json());\n|\napp.listen(3000, () => 1);\n", "app.use(cors());", "app.use(cors());"),
        ("python", "if a:\n    |\nreturn None\n", "return None", "return None"),
        ("python", "|\nimport system\n", "import sys", "import sys"),
        (
            "python",
            "|\ntry:\n    b()\nfinally:\n    c()\n",
            "try:\n    a()",
            "try:\n    a()",
        ),
        # a second import
        ("go", 'import (\n\t"os"\n\t|\n\t"path"\n\n\t"strings"\n)\n', '"strings"', ""),
        ("go", 'import (\n\t|\n\t"path"\n)\n', '"os"\n\t"io"\n\t"os"', '"os"\n\t"io"'),
        ("python", "import os\n\nimport sys\n|\n\nx = 1\n", "import os", ""),
        ("python", "import os\n\ndef f():\n    |\n", "import os", "import os"),
        ("c", "#include <a.h>\n|\n#include <b.h>\n#include <c.h>\n", "#include <c.h>", ""),
        # what looks like a second key in a text
        ("yaml", "a: >\n  Note: first.\n  |\n", "Note: second.", "Note: second."),
        ("yaml", "- a: >-  # all\n    Note: first.\n\n    |\n", "Note: second.", "Note: second."),
        ("toml", 'a = """\nb = 1\n|\n"""\n', "b = 2", "b = 2"),
        # lines that close blocks
        ("html", "<p>\n<p>\n</p>\n|\n", "</p>", "</p>"),
        ("lua", "while a do\n  |\nend\n", CLOSED_BY_WORDS, CLOSED_BY_WORDS),
        # a second key
        ("yaml", "a:\n  b: 1\n  |\n  steps:\n  - run: x\n", "steps: []", ""),
        ("yaml", "a:\n  b: 1\n  |\nc: 2\n", "b: 2", ""),
        ("yaml", "a:\n  - b: 1\n    |\n", "b: 2", ""),
        ("yaml", "a:\n  - b: 1\n  |\n", "- b: 2", "- b: 2"),
        ("yaml", "a:\n  b: 1\nc:\n  |\n", "b: 2", "b: 2"),
        ("yaml", "a:\n  |\n", "b: 1\n  c: 2\n  b: 3", "b: 1\n  c: 2"),
        ("toml", '[a]\nname = "a"\n|\nversion = "1"\n', 'version = "2"', ""),
        ("toml", '[a]\nname = "a"\n|\n[b]\nversion = "1"\n', 'version = "2"', 'version = "2"'),
    ],
)
def test_what_the_document_says_already_is_not_said_again(language: str, source: str, fill: str, inserted: str) -> None:
    assert finish(fill, marked(source, language, kind="block")) == inserted


@pytest.mark.parametrize(
    ("language", "source", "fill", "inserted"),
    [
        # only a tab begins a recipe, whatever the file shows
        ("makefile", "build:\n|\n", "    gcc -o build", "\tgcc -o build"),
        ("makefile", "build:\n|\n", "gcc -o build", "\tgcc -o build"),
        ("makefile", "CFLAGS = -O2 \\\n    -g\n\nmain.o: main.c\n|\n", "    gcc -c main.c", "\tgcc -c main.c"),
        # the language's own step in a file that shows none
        ("go", "func f() {\n|\n}\n", "    return 1", "\treturn 1"),
        ("javascript", "function f() {\n|\n}\n", "return 1;", "  return 1;"),
        ("rust", "fn f() {\n|\n}\n", "return 1;", "    return 1;"),
        # a body as flat as the others of its kind
        ("cpp", "namespace a {\n|\n}\n", "void f();", "void f();"),
        ("cpp", 'extern "C"\n{\n|\n}\n', "void f();", "void f();"),
        ("cpp", "namespace a {\n  int b;\n}\nnamespace a {\n|\n}\n", "void f();", "  void f();"),
        ("cpp", "namespace a {\nvoid f() {\n|\n}\n}\n", "g();", "    g();"),
        ("html", "<head>\n<title>a</title>\n</head>\n<body>\n|\n</body>\n", "<p>a</p>", "<p>a</p>"),
        ("html", "<html>\n<head>\n  <title>a</title>\n</head>\n<body>\n|\n</body>\n", "<p>a</p>", "  <p>a</p>"),
        # what the file shows comes first
        ("javascript", "function g() {\n    h();\n}\nfunction f() {\n|\n}\n", "return 1;", "    return 1;"),
        ("go", "func g() {\n    h()\n}\nfunc f() {\n|\n}\n", "return 1", "    return 1"),
    ],
)
def test_a_body_has_the_step_of_the_file_or_of_its_language(
    language: str, source: str, fill: str, inserted: str
) -> None:
    assert finish(fill, marked(source, language)) == inserted


@pytest.mark.parametrize(
    ("source", "fill", "inserted"),
    [
        ("function f() {\n  |\n}\n", "return 1;\n}", "return 1;"),
        ("function f() {\n  |", "return 1;\n}", "return 1;\n}"),  # the brace is not there yet
        ("if (a) {\n  if (b) {\n    |\n  }\n}\n", "c();\n  }\n}\n", "c();"),
        ("function f() {\n\t|\n}\n", "let a = 1;\n    return a;", "let a = 1;\n\treturn a;"),
        ("f(`|`)", "a${b}`", "a${b}"),
        ("function f() {|}\n", "\n  return 1;\n}", "\n  return 1;\n"),
        ("function f() {|}\n", " return 1; ", " return 1; "),
        ("f(() => {|})\n", "\n  a();\n});", "\n  a();\n"),
        ("function f() {\n  |\n", "return 1;\n};\n", "return 1;\n};"),
        ("class A {\n  f() {\n    a();\n  |\n\n  g() {\n  }\n}\n", "}", "}"),  # a shallower brace is another's
        ("a = {\n  b: 1,\n  |\n};\n", "c: 2,\n},", "c: 2,"),
    ],
)
def test_javascript(source: str, fill: str, inserted: str) -> None:
    assert finish(fill, marked(source, "javascript")) == inserted


def test_a_bracket_that_opened_beyond_the_context_does_not_lend_its_closer() -> None:
    methods = "  m() {\n    a();\n  }\n\n" * 400
    begun = f"class A {{\n{methods}  f(a) {{\n    if (a) {{\n      "
    hole = marked(begun + "b();\n    |\n    c();\n  }\n}\n", "javascript")
    assert "class" not in hole.prefix
    assert finish("}", hole) == "}"
    hole = marked(begun + "|\n    }\n    c();\n  }\n}\n", "javascript")
    assert finish("b();\n    }\n    c();\n  }", hole) == "b();"


def test_prose_keeps_its_apostrophes() -> None:
    assert finish("don't (you) think?", marked("I |\n", "markdown")) == "don't (you) think?"


texts = st.text("ab (){}[]\"'\n\r\t:😀\u200b\x0c", max_size=30)


@given(texts, texts, texts, st.sampled_from(["python", "javascript", "markdown"]))
def test_an_insertion_keeps_its_bounds(before: str, after: str, fill: str, language: str) -> None:
    hole = context(before + after, len(before), len(before), language=language)
    done = finish(fill, hole)
    assert "\u200b" not in done or "\u200b" in before + after
    assert hole.kind == "block" or not {"\n", "\r"} & set(done)
    assert done == "" or done.strip()


@pytest.mark.parametrize(
    ("language", "source", "fill", "half"),
    [
        ("python", "x = 1\n|\ny = 2\n", "f(", True),
        ("python", "x = f(\n    |\n)\n", "a, b", False),
        ("python", "x = |\n    1,\n)\n", "f(", False),  # the suffix closes it
        ("python", "x = 1\n|\ny = 2\n", "if x:", True),
        ("python", "x = 1\n|\n    y = 2\n", "if x:", False),
        ("python", "x = 1\n|\ny = 2\n", "if x:\n    x = 2", False),
        ("python", "x = 1\n|\ny = 2\n", "# ---", True),
        ("python", "x = [\n    1,\n|\n", "]", False),
        ("python", "# |\n", "---", False),  # prose may be so
        ("python", "x = '|\n", "a'", False),
        ("javascript", "f();\n|\ng();\n", "if (x) {", True),
        ("javascript", "f();\n|\n  g();\n}\n", "if (x) {", False),
        ("go", "f()\n|\ng()\n", "x := `a", True),
        ("ruby", "def f(a)\n  |\n  a\nend\n", "return if a.empty?", False),
        ("ruby", "def f(a)\n  |\n  a\nend\n", "return case a", True),
    ],
)
def test_a_fill_that_opens_what_nothing_closes_or_says_nothing_is_half(
    language: str, source: str, fill: str, half: bool
) -> None:
    before, _, after = source.partition("|")
    assert is_half(fill, context(before + after, len(before), len(before), language=language)) is half


@pytest.mark.parametrize("source", ["def f():\n    |\n", 'def f():\n    "|\n', 'def f():\n    ""|\n'])
def test_a_docstring_is_not_cut_within_its_marks_nor_before_its_first_word(source: str) -> None:
    text = '"""Render "a" table."""'.removeprefix(source.partition("    ")[2].partition("|")[0])
    assert min(end for end, _ in ends(text, marked(source))) > text.index("R")


@pytest.mark.parametrize(
    ("source", "fill", "kept"),
    [
        ("usage() {\n  |\n}\n", "cat <<EOF\ntool 1.0\nEOF", "cat <<EOF\ntool 1.0\nEOF"),
        ("usage() {\n  |\n}\n", "cat <<EOF\ntool 1.0", ""),
        ("usage() {\n|\n}\n", "cat <<EOF\ntool 1.0\nEOF", "    cat <<EOF\ntool 1.0\nEOF"),
        ("usage() {\n  |\n}\n", "cat <<EOF\n  tool 1.0\n  EOF", ""),  # its last line ends nothing
        ("usage() {\n  |\n}\n", "cat <<-EOF\n  tool 1.0\n  EOF", ""),  # nor after blanks
        ("usage() {\n  |\n}\n", "cat <<-EOF\n\ttool 1.0\n\tEOF", "cat <<-EOF\n\ttool 1.0\n\tEOF"),
        ("usage() {\n  |\n}\n", "echo one\n  cat <<-'END'\n  two", "echo one"),
        ("while getopts ab o; do\n  case $o in\n    a) x=1 ;;\n    |\n", "b) y=2 ;;", "b) y=2 ;;"),
        ("for f in *; do\n  |\n", 'echo "$f"\ndone', 'echo "$f"\ndone'),
        ("if a; then\n  |\nfi\n", "b\nfi", "b"),
    ],
)
def test_a_shell_script_keeps_what_belongs_together(source: str, fill: str, kept: str) -> None:
    around = marked(source, "shellscript", following=True)
    found = finish(fill, around)
    assert found == kept
    assert all(found[:end].count("<<") in (0, found[:end].count("EOF") / 2) for end, _ in ends(found, around))


@pytest.mark.parametrize(
    ("language", "source", "fill"),
    [
        ("shellscript", "f() {\n  |\n}\n", "awk '\n/x/ { print }\n' \"$1\""),
        ("python", "def f():\n    |\n\n\ny = 1\n", 'x = """\nabc (\n"""\n    return x'),
        ("javascript", "function f() {\n  |\n}\n", "const x = `\nabc (\n`;\n  return x;"),
        ("go", "func f() {\n\t|\n}\n", "x := `a (\n{`"),
        ("rust", "fn f() {\n    |\n}\n", 'let x = r#"a " (\n"#;'),
        ("cpp", "void f() {\n  |\n}\n", 'auto x = R"-(a " (\n)-";'),
        ("lua", "function f()\n  |\nend\n", "local x = [==[\nit's (\n]==]"),
        ("lua", "function f()\n  |\nend\n", "--[[ it's (\n  b ]]"),
        ("lua", "function f()\n  |\nend\n", "local x = a[b[1]]"),
        ("csharp", "void F()\n{\n    |\n}\n", 'var x = @"c:\\";'),
        ("csharp", "void F()\n{\n    |\n}\n", 'var x = @"a ""b"" (\nc";'),
        ("csharp", "void F()\n{\n    |\n}\n", 'var x = """\n    a " (\n    """;'),
        ("java", "void f() {\n    |\n}\n", 'var x = """\n        a " (\n        """;'),
        ("hcl", 'a "b" {\n  |\n}\n', "c = <<EOF\nhello (\nEOF"),
        ("cpp", "void f() {\n  |\n}\n", "#ifdef X\n  y();\n#endif"),
        (
            "csharp",
            "void F()\n{\n    |\n}\n",
            "try\n    {\n        x();\n    }\n    catch (E e)\n    {\n        y();\n    }",
        ),
        ("go", 'import (\n\t"fmt"\n\t|\n)\n', '"os"\n\t"strings"'),
    ],
)
def test_lines_left_of_the_hole_and_lines_that_others_need_stay(language: str, source: str, fill: str) -> None:
    assert finish(fill, marked(source, language, parse=True, following=True)) == fill
