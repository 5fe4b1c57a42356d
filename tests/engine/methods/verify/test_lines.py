"""A fill is judged by the lines around its hole."""

import pytest

from caesura.engine.methods.verify.lines import copying, ending, lacks_body

ABOVE = "def f(a):\n    check(a)\n    "
BELOW = "\n\n    log(a)\n    return a\n"


@pytest.mark.parametrize(
    ("before", "text", "after", "copied"),
    [
        (ABOVE, "log(a)", BELOW, True),
        (ABOVE, "log(a)\n    return a", BELOW, True),
        (ABOVE, "a += 1\n    log(a)", BELOW, True),
        (ABOVE, "log(a)  ", BELOW.replace("\n", "\r\n"), True),
        (ABOVE, "check(a)", BELOW, True),
        (ABOVE + "lo", "g(a)", BELOW, True),
        (ABOVE, "log(a, 1)", BELOW, False),
        (ABOVE, "log(a)\n    a += 1", BELOW, False),
        (ABOVE, "return a", BELOW, False),
        ("f(\n    a\n", ")", "\n)\n", False),  # brackets repeat of themselves
        (ABOVE, "log(a)", ")" + BELOW, False),
        (ABOVE, "log(a)", "", False),
        ("", "log(a)", "", False),
    ],
)
def test_a_fill_that_ends_with_the_lines_below_or_is_the_lines_above_is_a_copy(
    before: str, text: str, after: str, copied: bool
) -> None:
    assert copying(before, after)(text) is copied


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("a += 1\n    a -= 1", None),
        ("a += 1\n", None),
        ("a += 1\n\n", "a += 1"),
        ("a += 1\n\n    a", "a += 1"),
        ("a += 1\nreturn", "a += 1"),
        ("if a:\n        a += 1\n    log", None),
        ("a += 1\n    log(a)\n", "a += 1"),
        ("log(a)\n    a += 1\n", None),
    ],
)
def test_a_block_ends_before_a_blank_line_a_dedent_and_what_follows(text: str, block: str | None) -> None:
    assert ending(ABOVE, copying(ABOVE, BELOW))(text) == block


@pytest.mark.parametrize(
    ("before", "after", "lacks"),
    [
        ("if a:\n    ", "\nelif b:\n    c()\n", True),
        ("if (a) {\n\n\t", "\n}\n", True),
        ("def f():\n    ", "", True),
        ("if a:\n    ", "\n    b()\n", False),
        ("if a:\n    b()\n    ", "\nelse:\n", False),
        ("if a:\n    b", "\nelse:\n", False),
        ("if a:\n    ", ")\nelse:\n", False),
        ("    ", "\na = 1\n", False),
    ],
)
def test_a_hole_deeper_than_the_lines_around_it_is_the_body_of_a_block(before: str, after: str, lacks: bool) -> None:
    assert lacks_body(before, after) is lacks
