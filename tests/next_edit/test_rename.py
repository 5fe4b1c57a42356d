"""A name that the user changes where it is declared: its uses follow."""

import pytest

from tests.support.typist import Typist

CASES = {
    "a parameter of Python": (
        "python",
        'def area(width, height):\n    # width in metres\n    log("width")\n    return width * height\n\n\nwidth = 3\n',
        ("width", "breadth"),
        "def area(breadth, height):\n    # width in metres\n"
        '    log("width")\n    return breadth * height\n\n\nwidth = 3\n',
    ),
    "a function of Python": (
        "python",
        "def load(path):\n    return path\n\n\ndef run():\n    return load(1)\n",
        ("load", "read"),
        "def read(path):\n    return path\n\n\ndef run():\n    return read(1)\n",
    ),
    "a constant of JavaScript": (
        "javascript",
        "const limit = 3;\nfunction f(n) {\n  return n < limit ? { limit } : obj.limit;\n}\n",
        ("limit", "most"),
        "const most = 3;\nfunction f(n) {\n  return n < most ? { limit: most } : obj.limit;\n}\n",
    ),
    "a parameter of TypeScript": (
        "typescript",
        "function f(size: number): number {\n  return size + g({ size: 1 });\n}\n",
        ("size", "count"),
        "function f(count: number): number {\n  return count + g({ size: 1 });\n}\n",
    ),
    "a field of Go, whose column moves": (
        "go",
        "package a\n\ntype Book struct {\n\tPageCount int\n"
        "\tTitle     string\n}\n\nfunc long(b Book) bool { return b.PageCount > 400 }\n",
        ("PageCount", "Pages    "),
        "package a\n\ntype Book struct {\n\tPages     int\n"
        "\tTitle     string\n}\n\nfunc long(b Book) bool { return b.Pages > 400 }\n",
    ),
    "a variable of Rust": (
        "rust",
        "fn f(list: &[u32]) -> u32 {\n    let total = 1;\n    total + list[0]\n}\n",
        ("total", "sum"),
        "fn f(list: &[u32]) -> u32 {\n    let sum = 1;\n    sum + list[0]\n}\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_uses_of_a_renamed_declaration_follow(case: str) -> None:
    name, before, (old, new), after = CASES[case]
    user = Typist(before, name)
    user.replace(old, new)
    assert user.taken() == after
    assert {one.kind for one in user.proposed()} == {"rename"}


def test_a_proposal_says_why() -> None:
    user = Typist("x = 0\ndef area(width):\n    return width\n")
    user.replace("width", "breadth")
    assert [one.why for one in user.proposed()] == ["`width` is now `breadth`, by your edit in line 2."]


def test_a_proposal_has_the_lines_for_a_judge() -> None:
    user = Typist("def area(width):\n    return width * width\n")
    user.replace("width", "breadth")
    (one,) = user.proposed()
    assert (one.row, one.old, one.new) == (1, ("    return width * width",), ("    return breadth * breadth",))


def test_a_half_typed_name_is_no_renaming() -> None:
    user = Typist("def area(width):\n    return width\n")
    user.replace("width", "bre")
    assert user.history.edits == ()


def test_the_name_of_a_nested_declaration_stays() -> None:
    user = Typist("def f(n):\n    def g(n):\n        return n\n    return g(n)\n")
    user.replace("n", "count", after="f(")
    assert user.taken() == "def f(count):\n    def g(n):\n        return n\n    return g(count)\n"


def test_a_function_that_bears_the_name_of_its_local_stays() -> None:
    user = Typist("def total(rows):\n    total = 0\n    return total\n")
    user.replace("total", "amount", after="rows):\n    ")
    assert user.taken() == "def total(rows):\n    amount = 0\n    return amount\n"


def test_a_renaming_that_is_finished_proposes_nothing() -> None:
    user = Typist("def total(rows):\n    total = 0\n    return total\n")
    user.replace("total", "amount", after="rows):\n    ")
    user.replace("total", "amount", after="return ")
    assert user.proposed() == ()


def test_a_name_that_is_declared_again_is_another_one() -> None:
    user = Typist("def f():\n    a = 1\n    a = 2\n    return a\n")
    user.replace("a", "b", after="    ")
    assert user.proposed() == ()


def test_line_breaks_of_windows_stay() -> None:
    user = Typist("def f(n):\r\n    return n\r\n")
    user.replace("n", "count", after="f(")
    assert user.taken() == "def f(count):\r\n    return count\r\n"
