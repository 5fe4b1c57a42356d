"""JSON and its layout: the white space of a file is part of the grammar, so a fill looks like the text around it.

A container has its items on one line without any line break inside, or each on a line of its own. `loose` accepts any
white space and any depth.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from json import loads as decode

from caesura import wire
from caesura.automata.dfa import ANY, CACHED, Dfa, escaped, lengths, literals, without
from caesura.automata.regex import matching
from caesura.engine.grammar.expressions import (
    NEVER,
    Expression,
    Regular,
    Rule,
    RuleSet,
    Shared,
    chain,
    choice,
    literal,
    many,
    one_of,
    repeat,
)
from caesura.engine.grammar.numbers import decimals
from caesura.recent import remembered

DEPTH = 8  # nested containers that are generated
ON_A_LINE = 2  # nested containers inside one on a single line, in a file that indents
UNCOUNTED = 64  # items above which a bound on their count is ignored

BLANKS = many(one_of(" \t\r\n"))
NUMBER = Rule(Shared(Regular(decimals(None, None))))


@dataclass(frozen=True)
class Spacing:
    """The layout of a value whose line is indented `level` times, with at most `depth` nested containers."""

    indent: str | None = None
    level: int = 0
    colon: str = ": "
    comma: str = ", "
    newline: str = "\n"
    loose: bool = False
    depth: int = DEPTH

    @staticmethod
    def of(spec: wire.Json) -> "Spacing":
        level = spec.level if spec.indent else 0
        return Spacing(spec.indent, level, spec.colon, spec.comma, spec.newline, spec.loose)

    def places(self) -> "tuple[Place, ...]":
        """The possible layouts of a container's items; none if it is too deep for items."""
        if self.loose:
            return (Place(self, BLANKS, BLANKS, chain(BLANKS, literal(","), BLANKS)),)
        if not self.depth:
            return ()
        deep = self.depth - 1 if self.indent is None else min(self.depth - 1, ON_A_LINE)
        line = replace(self, indent=None, level=0, depth=deep)
        places = [Place(line, chain(), chain(), literal(self.comma))]
        if self.indent is not None:
            inner = replace(self, level=self.level + 1, depth=self.depth - 1)
            start, end = self._line(inner.level), self._line(self.level)
            places.append(Place(inner, start, end, chain(literal(self.comma.rstrip(" \t")), start)))
        return tuple(places)

    def _line(self, level: int) -> Expression:
        return literal(self.newline + (self.indent or "") * level)

    @property
    def pair(self) -> Expression:
        """The text between a key and its value."""
        return chain(BLANKS, literal(":"), BLANKS) if self.loose else literal(self.colon)


@dataclass(frozen=True)
class Place:
    """Inside a container: the layout of items, and the text before the first, after the last and between two."""

    layout: Spacing
    before: Expression
    after: Expression
    between: Expression


@remembered(CACHED, lambda _, texts=ANY: 2 * texts.nbytes)  # twice, for escaped texts
def string(texts: Dfa = ANY) -> Expression:
    """A JSON string that means one of the texts."""
    inside = escaped(texts)
    return NEVER if inside.empty else Rule(Shared(chain(literal('"'), Regular(inside), literal('"'))))


def container(
    brackets: str, layout: Spacing, body: Callable[[Place], Expression], *, empty: bool, filled: bool = True
) -> Expression:
    """A container that may be `empty` or `filled`; `body` are its items and the text between them."""
    opening, closing = map(literal, brackets)
    gap = BLANKS if layout.loose else chain()
    forms = [chain(opening, gap, closing)] if empty else []
    if filled:
        forms += [chain(opening, at.before, body(at), at.after, closing) for at in layout.places()]
    return choice(*forms)


def value(layout: Spacing) -> Expression:
    """Any value."""
    return Rule(("value", layout))


def member(key: Expression, layout: Spacing, body: Expression) -> Expression:
    return chain(key, layout.pair, body)


def several(item: Expression, between: Expression, least: int, most: int | None) -> Expression:
    """`least` (at least 1) to `most` items, with `between` between any two."""
    end = None if most is None or most >= UNCOUNTED else most - 1
    return chain(item, repeat(chain(between, item), least - 1, end))


@cache
def new_keys() -> Dfa:
    """What a new key may be: one character or more, none of them a control character."""
    return without(lengths(1, None), matching(r"[\x00-\x1f\x7f-\x9f]"))


def free_keys(taken: tuple[str, ...] = (), *, loose: bool = False) -> Expression:
    """A key that is not taken; any key at all if `loose`."""
    keys = ANY if loose else new_keys()
    return string(without(keys, literals(taken)) if taken else keys)


def body(name: Hashable) -> Expression:
    """The rules of free JSON: ("value" | "member", layout)."""
    assert isinstance(name, tuple)
    what, layout = name
    if what == "member":
        return member(free_keys(loose=layout.loose), layout, value(layout))
    scalars = (string(), NUMBER, *map(literal, ("true", "false", "null")))
    array = container("[]", layout, lambda at: several(value(at.layout), at.between, 1, None), empty=True)
    obj = container("{}", layout, lambda at: several(Rule(("member", at.layout)), at.between, 1, None), empty=True)
    return choice(*scalars, array, obj)


def inside(layout: Spacing) -> Place:
    """The place of new items in a container: on lines of their own if it has an indent."""
    return layout.places()[-1]


def language(spec: wire.Json) -> RuleSet:
    """JSON that no schema restricts."""
    layout = Spacing.of(spec)
    place = inside(layout)
    taken = free_keys(spec.taken, loose=spec.loose)

    def rule(name: Hashable) -> Expression:
        return member(taken, place.layout, value(place.layout)) if name == "new member" else body(name)

    if spec.start == "value":
        return RuleSet(value(layout), rule)
    if spec.start == "key":
        return RuleSet(taken, rule)
    item = Rule("new member") if spec.start == "members" else value(place.layout)
    return RuleSet(several(item, place.between, spec.least, spec.most), rule)


_CLOSED = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^"])*+', re.DOTALL)
_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)


def distinct_keys(text: str, *, members: bool = False) -> bool:
    """True if no object of a text that may end anywhere has a duplicate key. With `members` the text begins inside an
    object. Other objects that began before the text do not count."""
    containers: list[set[str] | None] = [set() if members else None]  # the keys of an object, None for an array
    key = members
    for found in _PART.finditer(text):
        part, keys = found.group(), containers[-1]
        if part in ("{", "["):
            containers.append(set() if part == "{" else None)
            key = part == "{"
        elif part in ("}", "]"):
            if len(containers) > 1:
                containers.pop()
            key = False
        elif part == ",":
            key = keys is not None
        elif key and keys is not None:
            name = decode(part)
            if name in keys:
                return False
            keys.add(name)
            key = False
    return True


def open_key(text: str) -> str | None:
    """The unfinished key at the end of members, or of a key alone; None if no key of theirs is open."""
    closed = _CLOSED.match(text)
    assert closed is not None, "it matches an empty text too"
    before, rest = closed[0].rstrip(), text[closed.end() + 1 :]
    depth = sum((part in "{[") - (part in "}]") for part in _PART.findall(before))
    return None if closed.end() == len(text) or depth or before[-1:] not in ("", ",") else rest
