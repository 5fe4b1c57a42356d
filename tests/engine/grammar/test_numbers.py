"""Numbers between bounds, against exact arithmetic."""

import json
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.automata.dfa import TooLarge
from caesura.engine.grammar.numbers import decimals, integers

from ...support.walks import walks

bounds = st.none() | st.integers(-1200, 1200)
written = st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?", fullmatch=True)
fractions = st.none() | written.map(Fraction)


@given(bounds, bounds, st.integers(-1300, 1300), st.randoms())
@settings(max_examples=100, deadline=None)
def test_integers_are_those_between_the_bounds(least: int | None, most: int | None, value: int, random: Random) -> None:
    dfa = integers(least, most)
    near = [value, *(bound + step for bound in (least, most) if bound is not None for step in (-1, 0, 1))]
    for number in near:
        inside = (least is None or number >= least) and (most is None or number <= most)
        assert dfa.accepts(str(number)) == inside
    for text in walks(dfa, random, 4, most=6):
        number = int(text)
        assert text == str(number)
        assert least is None or number >= least
        assert most is None or number <= most
    assert dfa.empty == (least is not None and most is not None and least > most)


@given(fractions, fractions, st.booleans(), st.booleans(), written, st.randoms())
@settings(max_examples=100, deadline=None)
def test_decimals_are_those_between_the_bounds(
    least: Fraction | None, most: Fraction | None, least_open: bool, most_open: bool, text: str, random: Random
) -> None:
    def inside(value: Fraction) -> bool:
        above = least is None or value > least or (value == least and not least_open)
        return above and (most is None or value < most or (value == most and not most_open))

    dfa = decimals(least, most, least_open=least_open, most_open=most_open)
    bounded = least is not None or most is not None
    for sample in [text, *walks(dfa, random, 4, most=7)]:
        value = Fraction(sample)
        minus_zero = bounded and value == 0 and sample.startswith("-")
        assert dfa.accepts(sample) == (inside(value) and not minus_zero)
        json.loads(sample)
    for bound in (least, most):
        if bound:
            exact = f"{float(bound):.3f}"  # which three decimals are
            assert dfa.accepts(exact) == dfa.accepts(exact + "00") == inside(bound)
            assert dfa.accepts(exact + "01") == inside(Fraction(exact + "01"))


@given(st.randoms())
@settings(max_examples=50, deadline=None)
def test_without_bounds_any_number_of_json_is_one(random: Random) -> None:
    dfa = decimals(None, None)
    for text in walks(dfa, random, 5):
        json.loads(text)
    assert all(map(dfa.accepts, ["0", "-0", "-0.0", "1e5", "1.50E-07", "12.5", "-3e+1"]))


@pytest.mark.parametrize("text", ["", "-", "+1", "01", "1.", ".5", "-01", "1e", "0x1", " 1", "1 ", "1_0", "NaN", "٣"])
def test_what_json_does_not_write_is_no_number(text: str) -> None:
    assert not integers(None, None).accepts(text)
    assert not decimals(None, None).accepts(text)
    assert not decimals(Fraction(-10), Fraction(10)).accepts(text)


def test_zero_has_no_sign_and_bounds_no_exponent() -> None:
    assert not integers(None, None).accepts("-0")
    assert not integers(-5, 5).accepts("-0")
    assert not decimals(Fraction(-1), None).accepts("-0.0")
    assert not decimals(Fraction(-1), None).accepts("1e1")


def test_the_range_of_a_double_and_its_smallest_value_are_bounds() -> None:
    widest = decimals(Fraction("-1.7976931348623157e308"), Fraction("1.7976931348623157e308"))
    assert widest.accepts("9" * 308)
    assert not widest.accepts("9" * 309)
    assert decimals(Fraction("5e-324"), None).accepts("0." + "0" * 323 + "5")
    assert integers(-(2**63), 2**63 - 1).accepts("9223372036854775807")
    assert not integers(-(2**63), 2**63 - 1).accepts("9223372036854775808")


@pytest.mark.parametrize("bound", [Fraction(10**5000), Fraction(1, 10**5000)])
def test_a_bound_of_thousands_of_digits_is_too_large(bound: Fraction) -> None:
    with pytest.raises(TooLarge):
        decimals(bound, None)
