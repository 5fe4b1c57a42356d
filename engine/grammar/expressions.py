"""Grammars as trees over bytes. A `Rule` is a named part and may be recursive; its body is made when first needed."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from caesura.automata.dfa import Dfa


@dataclass(frozen=True, slots=True)
class Byte:
    """One byte out of a set: bit b of `mask` stands for byte b."""

    mask: int


@dataclass(frozen=True, slots=True)
class Chain:
    parts: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    parts: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part` at least `least` and at most `most` times; None means no limit."""

    part: "Expression"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    name: Hashable


@dataclass(frozen=True, slots=True)
class Regular:
    dfa: Dfa


@dataclass(frozen=True, eq=False)
class Shared:
    """The name of a rule that is its own body: a part shared by many places."""

    body: "Expression"


Expression = Byte | Chain | Choice | Repeat | Rule | Regular

EMPTY = Chain(())
NEVER = Choice(())


@dataclass(frozen=True)
class RuleSet:
    """A start and its rules. If it is not `exact`, it accepts some invalid texts, and the client has to check."""

    start: Expression
    rule: Callable[[Hashable], Expression]
    exact: bool = True


@lru_cache(maxsize=4096)
def literal(text: str | bytes) -> Expression:
    raw = text.encode() if isinstance(text, str) else text
    return chain(*(Byte(1 << byte) for byte in raw))


def one_of(characters: str) -> Expression:
    """One ASCII character out of these."""
    return Byte(sum(1 << ord(c) for c in set(characters)))


def chain(*parts: Expression) -> Expression:
    """The parts one after another; impossible if one of them is."""
    flat: list[Expression] = []
    for part in parts:
        flat += part.parts if isinstance(part, Chain) else (part,)
    if NEVER in flat:
        return NEVER
    return flat[0] if len(flat) == 1 else Chain(tuple(flat))


def choice(*parts: Expression) -> Expression:
    """Any one of the parts, each once."""
    flat: list[Expression] = []
    for part in parts:
        flat += part.parts if isinstance(part, Choice) else (part,)
    different = tuple(dict.fromkeys(flat))
    return different[0] if len(different) == 1 else Choice(different)


def repeat(part: Expression, least: int, most: int | None) -> Expression:
    if most is not None and most < least:
        return NEVER
    if part == NEVER or most == 0:
        return EMPTY if least == 0 else NEVER
    return Repeat(part, least, most)


def optional(part: Expression) -> Expression:
    return choice(EMPTY, part)


def many(part: Expression) -> Expression:
    return repeat(part, 0, None)


def separated(items: Iterable[Expression], between: Expression) -> Expression:
    """The items with `between` between any two."""
    parts: list[Expression] = []
    for item in items:
        parts += [between, item] if parts else [item]
    return chain(*parts)
