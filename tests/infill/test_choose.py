"""How much of a fill is shown: what is expected to save the most keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caesura.server.infill.choose import Guess, ShowThreshold, keys

from ..support.marked import marked


def known(*parts: tuple[str, float]) -> tuple[str, list[tuple[int, float]]]:
    """A fill of parts with their probabilities, as the engine reports it."""
    text, tokens = "", []
    for part, probability in parts:
        text += part
        tokens.append((len(text), probability))
    return text, tokens


@pytest.mark.parametrize(
    ("source", "parts", "shown"),
    [
        ("x = |\n", [("foo", 0.9), ("(a)", 0.9)], "foo(a)"),  # likely as a whole
        ("x = |\n", [("foo", 0.3), ("(a)", 0.9)], ""),  # unlikely from the start
        ("x = |\n", [("foo(a)", 0.9), (" + bar", 0.3)], "foo(a)"),  # a whole expression
        ("x = |\n", [("foo(a)", 0.8), (" + b", 0.8), (" + c", 0.7)], "foo(a) + b"),  # unlikely together
        ("x = |\n", [("com", 0.9), ("pute", 0.3)], ""),  # never inside a word
        ("x = |\n", [("a", 0.9), (" + foo(b", 0.9), (", c)", 0.3)], "a + foo"),  # nor in a bracket of its own
        ("x = |\n", [("foo(b", 0.9), (", c)", 0.3)], "foo"),
        ("foo(|)\n", [("b", 0.9), (", c", 0.3)], "b"),  # the bracket is the file's
        ("x = |\n", [("'two words", 0.9), (" or'", 0.3)], "'two words"),  # a string of its own, for want of better
        ("x = '|'\n", [("two words", 0.9), (" or", 0.3)], "two words"),
        ("def f():\n    |\n", [("a = 1", 0.9), ("\n    b()", 0.6), (" + 1", 0.9)], "a = 1"),  # the longer loses more
        ("def f():\n    |\n", [("a = 1", 0.9), ("\n    b()", 0.9), (" + 1", 0.9)], "a = 1\n    b() + 1"),
        ("# why |\n", [("it isn't", 0.9), (" so", 0.3)], "it isn't"),
    ],
)
def test_the_start_is_shown_that_is_expected_to_save_the_most(
    source: str, parts: list[tuple[str, float]], shown: str
) -> None:
    text, probabilities = known(*parts)
    assert Guess(text, probabilities, marked(source)).best_start(ShowThreshold(0.5)) == shown


@pytest.mark.parametrize(
    ("source", "parts", "shown"),
    [
        ("x = fo|\n", [("o", 0.99), (" or", 0.9), (" default", 0.2)], ""),  # a word that goes on, and three keys
        ("x = fo|\n", [("o", 0.99), (" or bar", 0.9), (" default", 0.2)], "o or bar"),
        ("x = fo|\n", [("o_with_a_long_name", 0.99), (" + 1", 0.2)], ""),  # the word at the cursor alone
        ("x = fo|\n", [("o()", 0.9)], "o()"),  # it ends the line
        ("x = foo(|\n", [(")", 0.9)], ""),  # and yet saves no key
        ("# This suggest|\n", [("ion", 0.9)], "ion"),  # it ends the line
        ("# This sug|\n", [("gestion", 0.9), (" is", 0.1)], "gestion"),  # prose: a word is worth it
        ("x = |\n", [("value", 0.3)], ""),  # expected to cost more than it saves
    ],
)
def test_what_saves_too_few_keys_is_not_shown(source: str, parts: list[tuple[str, float]], shown: str) -> None:
    text, probabilities = known(*parts)
    assert Guess(text, probabilities, marked(source)).best_start(ShowThreshold(0.25, 4)) == shown


def test_what_is_typed_of_a_fill_is_neither_unsure_nor_saved() -> None:
    text, probabilities = known(("value", 1.0), (" = 1", 0.9), (" + other", 0.1))
    place = marked("x|\n")
    assert Guess(text, probabilities, place, typed=5).best_start(ShowThreshold(0.25, 4)) == "value = 1"
    assert Guess(text, probabilities, place, typed=5).best_start(ShowThreshold(0.25, 5)) == ""


def test_a_fill_without_probabilities_is_taken_as_it_is() -> None:
    assert Guess("a + b", (), marked("x = |\n")).best_start(ShowThreshold(0.9)) == "a + b"


def test_a_line_break_is_one_key_with_its_indentation() -> None:
    assert keys("if a:\r\n        b()\n\t\tc") == len("if a:") + 1 + len("b()") + 1 + len("c")


@given(st.lists(st.tuples(st.text("ab ()'\n.", min_size=1, max_size=4), st.floats(0, 1)), max_size=8), st.floats(0, 1))
def test_what_is_shown_is_as_likely_as_was_asked(parts: list[tuple[str, float]], least: float) -> None:
    text, probabilities = known(*parts)
    shown = Guess(text, probabilities, marked("x = |\n")).best_start(ShowThreshold(least))
    assert text.startswith(shown)
    chance, start = 1.0, 0
    for end, probability in probabilities:
        chance *= probability if start < len(shown) else 1
        start = end
    assert chance >= least - 1e-6 or not shown
