"""Automata of JSON numbers between two bounds, exact: the digits are compared with those of the bound."""

from collections.abc import Iterator, Set
from fractions import Fraction
from typing import Literal, NamedTuple

from caesura.automata.dfa import CACHED, Dfa, TooLarge, both, either, explore, weight
from caesura.automata.regex import matching
from caesura.recent import remembered

LESS, SAME, MORE = -1, 0, 1
PLACES = 4096  # decimal digits of a bound, on each side of the point


@remembered(CACHED, weight)
def integers(least: int | None, most: int | None) -> Dfa:
    """Integers between the bounds, both included, without leading zeros; -0 is none."""
    low = None if least is None else Fraction(least)
    high = None if most is None else Fraction(most)
    return _signed(low, high, points=False)


@remembered(CACHED, weight)
def decimals(
    least: Fraction | None, most: Fraction | None, *, least_open: bool = False, most_open: bool = False
) -> Dfa:
    """JSON numbers between the bounds, excluding open ones: with a bound, in plain decimal notation with zero unsigned;
    without bounds, any JSON number. Bounds have finitely many decimals."""
    if least is None and most is None:
        return matching(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", whole=True)
    return _signed(least, most, least_open=least_open, most_open=most_open, points=True)


def _signed(
    least: Fraction | None,
    most: Fraction | None,
    *,
    least_open: bool = False,
    most_open: bool = False,
    points: bool,
) -> Dfa:
    """Numbers from zero on; below zero, a minus and numbers within the mirrored bounds."""
    if least is None or least <= 0:
        low, low_open = Fraction(0), least == 0 and least_open
    else:
        low, low_open = least, least_open
    positive = _between(low, low_open, most, most_open, points)
    # Below zero: -most to -least, and never zero itself.
    if most is None or most >= 0:
        low, low_open = Fraction(0), True
    else:
        low, low_open = -most, most_open
    negative = _between(low, low_open, None if least is None else -least, least_open, points)
    return either(positive, _preceded(ord("-"), negative))


def _between(least: Fraction, least_open: bool, most: Fraction | None, most_open: bool, points: bool) -> Dfa:
    """Unsigned numbers between bounds."""
    low = _compared(least, frozenset({MORE} if least_open else {MORE, SAME}), points)
    if most is None:
        return low
    return both(low, _compared(most, frozenset({LESS} if most_open else {LESS, SAME}), points))


def _preceded(byte: int, dfa: Dfa) -> Dfa:
    """This byte, then the automaton's texts."""
    return explore(-1, lambda key: [(1 << byte, 0)] if key < 0 else dfa.rows[key], lambda key: key in dfa.accepting)


class _Read(NamedTuple):
    """A number read so far: the part it ends in, the digits of that part up to the bound's number, and how they compare
    with the bound's."""

    part: Literal["nothing", "zero", "whole", "point", "decimals"]
    digits: int
    order: int


def _compared(bound: Fraction, wanted: Set[int], points: bool) -> Dfa:
    """Unsigned numbers whose comparison with the bound is wanted; with `points`, decimals too."""
    if bound < 0:
        return _compared(Fraction(0), frozenset({SAME, MORE} if MORE in wanted else ()), points)
    whole, decimal = _digits(bound)

    def digit(read: _Read, part: Literal["zero", "whole", "decimals"], value: int) -> _Read:
        """Read one more digit; after its last one, the bound's decimals are zeros."""
        against = decimal if part == "decimals" else whole
        digits = min(read.digits + 1, len(against) + 1)
        other = against[read.digits] if read.digits < len(against) else 0
        if read.order == SAME and value != other:
            return _Read(part, digits, LESS if value < other else MORE)
        return _Read(part, digits, read.order)

    def edges(read: _Read) -> Iterator[tuple[int, _Read]]:
        if read.part == "nothing":
            yield 1 << ord("0"), digit(read, "zero", 0)
        if read.part != "zero":
            part: Literal["whole", "decimals"] = "whole" if read.part in ("nothing", "whole") else "decimals"
            for value in range(1 if read.part == "nothing" else 0, 10):
                yield 1 << ord("0") + value, digit(read, part, value)
        if read.part in ("zero", "whole") and points:
            yield 1 << ord("."), _Read("point", 0, settled(read))

    def settled(read: _Read) -> int:
        """The order once all digits before the point are read: a longer number is greater."""
        if read.digits != len(whole):
            return LESS if read.digits < len(whole) else MORE
        return read.order

    def accepts(read: _Read) -> bool:
        if read.part in ("zero", "whole"):
            order = settled(read)
            missing = any(decimal)
        else:
            order = read.order
            missing = any(decimal[read.digits :])
        if order == SAME and missing:
            order = LESS
        return read.part not in ("nothing", "point") and order in wanted

    return explore(_Read("nothing", 0, SAME), edges, accepts)


def _digits(value: Fraction) -> tuple[list[int], list[int]]:
    """The digits of an unsigned number, before and after the point."""
    whole, rest = divmod(value, 1)
    if whole >= 10**PLACES:
        raise TooLarge
    decimal: list[int] = []
    while rest:
        if len(decimal) == PLACES:
            raise TooLarge
        number, rest = divmod(rest * 10, 1)
        decimal.append(int(number))
    return [int(c) for c in str(whole)], decimal
