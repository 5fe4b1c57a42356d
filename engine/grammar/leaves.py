"""The strings, numbers and keys that a schema allows, as automata, each made once for all schemas.

Each comes with the keywords that it does not enforce for lack of an automaton; it then accepts too much.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from math import ceil, floor
from typing import NamedTuple

from caesura.automata.dfa import (
    ANY,
    CACHED,
    MAX_WORK,
    Dfa,
    TooLarge,
    Unsupported,
    both,
    either,
    escaped,
    explore,
    lengths,
    literals,
    of_bytes,
    weight,
    without,
)
from caesura.automata.regex import matching
from caesura.engine.grammar.formats import FORMATS
from caesura.engine.grammar.json import new_keys
from caesura.engine.grammar.numbers import decimals, integers
from caesura.recent import remembered

LONGEST = 256  # code points of a string of bounded length
PARTS = 64  # groups of keys, by the patterns that they match


class Leaf(NamedTuple):
    dfa: Dfa
    loose: frozenset[str] = frozenset()  # keywords that it does not enforce


class Texts(NamedTuple):
    """Strings that match some patterns and not others, with bounds on their code points, valid in all known formats."""

    patterns: frozenset[tuple[str, bool]] = frozenset()
    formats: frozenset[str] = frozenset()
    shortest: int = 0
    longest: int | None = None
    excluded: frozenset[str] = frozenset()


class Numbers(NamedTuple):
    """Numbers between bounds, inclusive unless `open`; only integers, or all but integers."""

    whole: bool | None = None
    least: Fraction | None = None
    least_open: bool = False
    most: Fraction | None = None
    most_open: bool = False
    steps: frozenset[Fraction] = frozenset()
    excluded: frozenset[Fraction] = frozenset()

    @property
    def any(self) -> bool:
        """True if there is a number between the bounds."""
        if self.least is None or self.most is None:
            return True
        if self.whole:
            return _whole(self.least, self.least_open) <= -_whole(-self.most, self.most_open)
        return self.least < self.most or (self.least == self.most and not self.least_open and not self.most_open)


@remembered(CACHED, lambda leaf, _: leaf.dfa.nbytes)
def texts(spec: Texts) -> Leaf:
    """The strings, unquoted. Some long ones are left out, and so is a format that does not fit the rest."""
    dfa, loose = ANY, set()
    for pattern, holds in sorted(spec.patterns):
        matched = _tried(partial(matching, pattern))
        made = matched and _tried(partial(both if holds else without, dfa, matched))
        dfa = made or dfa
        loose |= set() if made else {"pattern"}
    if spec.excluded:
        dfa = without(dfa, literals(sorted(spec.excluded)))
    if spec.shortest or spec.longest is not None:
        made = next(filter(None, map(partial(_bounded, dfa, spec), _bounds(spec))), None)
        dfa = made or dfa
        loose |= set() if made else {"minLength" if spec.longest is None else "maxLength"}
    for name in sorted(spec.formats & FORMATS.keys()):
        made = _tried(partial(both, dfa, FORMATS[name]))
        dfa = made if made and not made.empty else dfa
    if _tried(partial(escaped, dfa)) is None:
        return Leaf(ANY, frozenset(("pattern", *loose)))
    return Leaf(dfa, frozenset(loose))


def _bounds(spec: Texts) -> Iterator[int | None]:
    """Length limits to try; strings above them are longer than most fills."""
    if spec.shortest <= 2 * LONGEST:  # else it is too large in any case
        yield spec.longest if spec.longest is None or spec.longest <= LONGEST else max(spec.shortest, LONGEST)
        yield max(spec.shortest, LONGEST // 4 if spec.longest is None else min(spec.longest, LONGEST // 4))


def _bounded(dfa: Dfa, spec: Texts, longest: int | None) -> Dfa | None:
    """The strings up to a length; None if the automaton is too large or the lower bound leaves nothing."""
    bound = partial(lengths, spec.shortest, longest)
    made = _tried(bound if dfa is ANY else lambda: both(dfa, bound()))
    if made is None or (made.empty and longest != spec.longest) or _tried(partial(escaped, made)) is None:
        return None
    return made


@remembered(CACHED, lambda leaf, _: leaf.dfa.nbytes)
def numbers(spec: Numbers) -> Leaf:
    """The numbers as written."""
    if spec == Numbers():
        return Leaf(decimals(None, None))
    if spec.whole:
        least = None if spec.least is None else _whole(spec.least, spec.least_open)
        most = None if spec.most is None else -_whole(-spec.most, spec.most_open)
        dfa = integers(least, most)
    else:
        dfa = decimals(spec.least, spec.most, least_open=spec.least_open, most_open=spec.most_open)
        plain = r"-?\d+\.\d*[1-9]\d*" if spec.whole is False else r"-?\d+(\.\d+)?"
        dfa = both(dfa, matching(plain, whole=True))
    loose = set()
    for step in sorted(spec.steps):
        multiple = _tried(partial(multiples, step))
        made = multiple and _tried(partial(both, dfa, multiple))
        dfa = made or dfa
        loose |= set() if made else {"multipleOf"}
    for one in sorted(spec.excluded):
        dfa = without(dfa, _written(one))
    return Leaf(dfa, frozenset(loose))


MAX_PAIRS = 20_000


@remembered(CACHED, lambda found, *_: sum(dfa.nbytes for dfa, _ in found[0]))
def keys(
    named: frozenset[str], patterns: tuple[str, ...], names: tuple[frozenset[str] | Texts, ...] | None
) -> tuple[tuple[tuple[Dfa, frozenset[str]], ...], frozenset[str]]:
    """All keys but those named, grouped by the patterns they match, and the keywords that are not enforced. `names` are
    the allowed ones. A pattern without an automaton leaves out the keys that match and those that do not."""
    free = new_keys() if names is None else lengths(1, None)
    dfa = without(free, literals(sorted(named))) if named else free
    loose: frozenset[str] = frozenset()
    if names is not None:
        allowed = literals(())
        for one in names:
            leaf = texts(one) if isinstance(one, Texts) else Leaf(literals(sorted(one)))
            loose |= {"propertyNames"} if leaf.loose else set()
            allowed = either(allowed, leaf.dfa)
        dfa = both(dfa, allowed)
    parts: list[tuple[Dfa, frozenset[str]]] = [(dfa, frozenset())]
    pairs = 0  # pairs of states combined
    for pattern in patterns:
        split, found = [], _tried(partial(matching, pattern))
        for part, matched in parts:
            pairs += len(part.rows) * len(found.rows) if found else 0
            if pairs > MAX_PAIRS:
                return (), loose  # only the named keys are left
            inside = found and _tried(partial(both, part, found))
            outside = found and _tried(partial(without, part, found))
            split += [(inside, matched | {pattern}), (outside, matched)] if inside and outside else []
        parts = [(part, matched) for part, matched in split if part and not part.empty][:PARTS]
    return tuple(one for one in parts if not one[0].empty and _tried(partial(escaped, one[0]))), loose


def _tried(make: Callable[[], Dfa]) -> Dfa | None:
    try:
        return make()
    except (TooLarge, Unsupported):
        return None


def _whole(least: Fraction, is_open: bool) -> int:
    """The least integer that a lower bound allows."""
    return floor(least) + 1 if is_open else ceil(least)


def _places(number: Fraction) -> int | None:
    """How many digits a number has after the point; None if they are endless or too many."""
    return next((n for n in range(40) if (number * 10**n).denominator == 1), None)


@remembered(CACHED, weight)
def _written(number: Fraction) -> Dfa:
    """A number in plain decimal notation, with any number of trailing zeros."""
    places = _places(number)
    if places is None:
        return literals(())  # has no decimal notation
    digits = str(abs(int(number * 10**places))).rjust(places + 1, "0")
    head, tail = digits[: len(digits) - places], digits[len(digits) - places :]
    sign = "-" if number < 0 else "" if number else "-?"
    return matching(rf"{sign}{head}\.{tail}0*" if tail else rf"{sign}{head}(\.0+)?", whole=True)


@remembered(CACHED, weight)
def multiples(step: Fraction) -> Dfa:
    """The multiples of a step, in plain decimal notation. Raises TooLarge, and Unsupported for a step like 1/3."""
    places = _places(step)
    if places is None:
        raise Unsupported(f"{step} has no end in decimal notation.")
    modulus = int(step * 10**places)
    if modulus > MAX_WORK:
        raise TooLarge
    digits = [of_bytes(b"%d" % digit) for digit in range(10)]

    def edges(state: tuple[str, int, int]) -> Iterator[tuple[int, tuple[str, int, int]]]:
        """A state: the current part of the number, the remainder so far, and how many digits may follow the point."""
        part, rest, left = state
        if part == "sign":
            yield of_bytes(b"-"), ("start", 0, places)
        if part == "whole":
            yield of_bytes(b"."), ("point", rest, left)
        for digit, mask in enumerate(digits):
            if part in ("sign", "start", "whole"):
                yield mask, ("whole", (rest * 10 + digit) % modulus, left)
            elif left:
                yield mask, ("decimals", (rest * 10 + digit) % modulus, left - 1)
            elif not digit:
                yield mask, ("decimals", rest, 0)

    def accepts(state: tuple[str, int, int]) -> bool:
        part, rest, left = state
        return part in ("whole", "decimals") and not rest * 10**left % modulus

    return explore(("sign", 0, places), edges, accepts)
