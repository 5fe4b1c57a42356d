"""What is inserted for a fill. `|` is the cursor; the result is the whole text with the insertion in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caesura.server.completion import finish
from caesura.server.context import context

from .marked import marked


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
        # line ends
        ("def f():\r\n    |\r\n", "a = 1\n    return a\n", "a = 1\r\n    return a"),
        ("def f():\n    |\n", "a = 1\r\n    return a\r\n", "a = 1\n    return a"),
        # tabs and spaces
        ("class C:\n\tdef f():\n\t\t|\n", "a = 1\n        return a", "a = 1\n\t\treturn a"),
        ("class C:\n  def f():\n    |\n", "if a:\n\t\t\treturn a", "if a:\n      return a"),
    ],
)
def test_python(source: str, fill: str, inserted: str) -> None:
    assert finish(fill, marked(source)) == inserted


@pytest.mark.parametrize(
    ("source", "fill", "inserted"),
    [
        ("function f() {\n  |\n}\n", "return 1;\n}", "return 1;"),
        ("function f() {\n  |", "return 1;\n}", "return 1;\n}"),  # the brace is not there yet
        ("if (a) {\n  if (b) {\n    |\n  }\n}\n", "c();\n  }\n}\n", "c();"),
        ("function f() {\n\t|\n}\n", "let a = 1;\n    return a;", "let a = 1;\n\treturn a;"),
        ("f(`|`)", "a${b}`", "a${b}"),
    ],
)
def test_javascript(source: str, fill: str, inserted: str) -> None:
    assert finish(fill, marked(source, "javascript")) == inserted


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
