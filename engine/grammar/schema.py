"""JSON as a schema allows it, in the layout of a file.

The keys that a schema names come in its order, all others after them: so the state of an object is an index into that
list. Keys after the list are not compared with each other.
"""

import json
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

from caesura import wire
from caesura.automata.dfa import Dfa, literals, without
from caesura.engine.grammar import json as free
from caesura.engine.grammar.cases import Cases
from caesura.engine.grammar.expressions import (
    EMPTY,
    NEVER,
    Expression,
    Regular,
    Rule,
    RuleSet,
    chain,
    choice,
    literal,
    repeat,
    separated,
)
from caesura.engine.grammar.json import Place, Spacing
from caesura.engine.grammar.keywords import Case, Terms, terms
from caesura.engine.grammar.leaves import numbers, texts
from caesura.schema.dialects import SchemaError, Value
from caesura.schema.document import Schema

KEPT = 8  # schemas whose cases are kept
MAX_COUNT = 64  # items or members; a greater bound on a count is lowered to it if allowed


@dataclass(frozen=True)
class Members:
    """The members or elements written at one place; `ways` is the number of that place in the layout."""

    case: Case
    layout: Spacing
    ways: int
    fewest: int
    most: int | None
    taken: frozenset[str] = frozenset()

    @property
    def place(self) -> Place:
        return _places(self.layout)[self.ways]

    @property
    def counted(self) -> int:
        """The count from which more members or elements make no difference."""
        return max(self.fewest, 1 if self.most is None else self.most, self.case.places)


class Writer:
    """The rules of a schema's values. The name of a rule holds what its body is made from."""

    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self._keys: dict[tuple[Case, frozenset[str]], tuple[tuple[str, Terms, bool], ...]] = {}

    def __repr__(self) -> str:
        return f"<Writer of {self._cases!r}>"

    def rule(self, name: Hashable) -> Expression:
        assert isinstance(name, tuple)
        match name:
            case ("valid", asked, layout):
                return choice(*(self._case(case, layout) for case in self._cases.of(asked)))
            case ("string", spec):
                return free.string(texts(spec).dfa)
            case ("number", spec):
                return Regular(numbers(spec).dfa)
            case ("key", case, number, taken):
                return free.string(_untaken(self._cases.extras(case)[number][0], taken))
            case ("members", span, index, count, first):
                return self._members(span, index, count, first)
            case ("extra", span):
                return self._extra(span)
            case ("elements", span, index, found, first):
                return self._elements(span, index, found, first)
        return free.body(name)

    def value(self, asked: Terms, layout: Spacing) -> Expression:
        """A value for which the terms hold."""
        if not self._cases.of(asked):
            return NEVER
        return Rule(("valid", asked, layout)) if asked else free.value(layout)

    def _case(self, case: Case, layout: Spacing) -> Expression:
        if case.values is not None:
            return self._listed(case.values, layout)
        forms: list[Expression] = []
        if "string" in case.kinds:
            forms.append(Rule(("string", case.texts)))
        if "number" in case.kinds:
            forms.append(Rule(("number", case.numbers)))
        for word, kind, value in (("true", "boolean", True), ("false", "boolean", False), ("null", "null", None)):
            if kind in case.kinds and not any(value is one for one in case.excluded):
                forms.append(literal(word))
        if "array" in case.kinds:
            forms.append(self._array(case, layout))
        if "object" in case.kinds:
            forms.append(self._object(case, layout))
        return choice(*forms)

    # Listed values

    def _listed(self, values: tuple[Value, ...], layout: Spacing) -> Expression:
        scalars = [_json(value) for value in values if not isinstance(value, dict | list)]
        forms: list[Expression] = [Regular(literals(scalars))] if scalars else []
        return choice(*forms, *(self._written(value, layout) for value in values if isinstance(value, dict | list)))

    def _written(self, value: Value, layout: Spacing) -> Expression:
        if not isinstance(value, dict | list):
            return literal(_json(value))

        def body(at: Place) -> Expression:
            if isinstance(value, list):
                items = [self._written(one, at.layout) for one in value]
            else:
                items = [
                    free.member(_key_of(key), at.layout, self._written(one, at.layout)) for key, one in value.items()
                ]
            return separated(items, at.between)

        brackets = "{}" if isinstance(value, dict) else "[]"
        return free.container(brackets, layout, body, empty=not value, filled=bool(value))

    # Objects

    def _object(self, case: Case, layout: Spacing) -> Expression:
        fewest = case.fewest_members if case.fewest_members > len(case.required) else 0
        most = case.most_members
        if most is not None:
            most = min(most, max(MAX_COUNT, fewest, len(case.required)))

        def body(at: Place) -> Expression:
            return Rule(("members", Members(case, layout, _places(layout).index(at), fewest, most), 0, 0, True))

        empty = not case.required and not fewest
        return free.container("{}", layout, body, empty=empty, filled=most != 0)

    def members(self, span: Members) -> Expression:
        """At least one member after those that are taken, which count."""
        return self._members(span, 0, min(len(span.taken), span.counted), True)

    def _members(self, span: Members, index: int, count: int, first: bool) -> Expression:
        """The members from the key at `index` on, after `count` others; the `first` has none before it in its place."""
        place, full = span.place, span.most is not None and count >= span.most
        keys = self.keys(span.case, span.taken)
        before = EMPTY if first else place.between
        more = min(count + 1, span.counted)
        if index < len(keys):
            key, inner, required = keys[index]
            taken = free.member(_key_of(key), place.layout, self.value(inner, place.layout))
            with_it = chain(before, taken, Rule(("members", span, index + 1, more, False)))
            without_it = NEVER if required else Rule(("members", span, index + 1, count, first))
            return choice(*([] if full else [with_it]), without_it)
        end = EMPTY if count >= span.fewest and not first else NEVER
        if full or not self._cases.extras(span.case):
            return end
        return choice(end, chain(before, Rule(("extra", span)), Rule(("members", span, index, more, False))))

    def _extra(self, span: Members) -> Expression:
        layout = span.place.layout
        return choice(
            *(
                free.member(Rule(("key", span.case, number, span.taken)), layout, self.value(inner, layout))
                for number, (_, inner) in enumerate(self._cases.extras(span.case))
            )
        )

    def keys(self, case: Case, taken: frozenset[str]) -> tuple[tuple[str, Terms, bool], ...]:
        """The named keys in order, with the terms of their values, and True if they are required."""
        if (case, taken) not in self._keys:
            found = [
                (key, case.child(key), key in case.required)
                for key in case.named
                if key not in taken and key not in case.forbidden and self._cases.allows(case, key)
            ]
            self._keys[case, taken] = tuple(one for one in found if one[2] or self._cases.of(one[1]))
        return self._keys[case, taken]

    # Arrays

    def _array(self, case: Case, layout: Spacing) -> Expression:
        fewest = case.fewest
        most = case.most_items
        if most is not None and most > MAX_COUNT:
            most = max(fewest, MAX_COUNT)
        simple = not case.places and not case.contains
        inner = case.item(None)

        def body(at: Place) -> Expression:
            if simple:
                return _several(self.value(inner, at.layout), at.between, max(1, fewest), most)
            return Rule(("elements", Members(case, layout, _places(layout).index(at), fewest, most), 0, 0, True))

        contained = any(least for _, least, _ in case.contains[:1])
        return free.container("[]", layout, body, empty=not fewest and not contained, filled=most != 0)

    def _elements(self, span: Members, index: int, found: int, first: bool) -> Expression:
        """The elements from `index` on, after `found` of those that `contains` asks for."""
        case, place = span.case, span.place
        term, least, most = case.contains[0] if case.contains else (None, 0, None)
        ended = index >= span.fewest and found >= least and not first
        if span.most is not None and index >= span.most:
            return EMPTY if ended else NEVER
        before = EMPTY if first else place.between
        inner = case.item(index if index < case.places else None)
        following = min(index + 1, span.counted)
        forms: list[Expression] = [EMPTY] if ended else []

        def element(asked: Terms, count: int) -> Expression:
            rest = Rule(("elements", span, following, count, False))
            return chain(before, self.value(asked, place.layout), rest)

        if term is None or (found >= least and most is None):
            return choice(*forms, element(inner, found))
        if most is None:
            forms.append(element(inner, found))
        else:
            forms.append(element(terms(*inner, (term[0], not term[1])), found))
        if most is None or found < most:
            forms.append(element(terms(*inner, term), found + 1))
        return choice(*forms)


def language(spec: wire.Json, schema: Schema) -> RuleSet:
    """The texts of a hole whose values have a schema. Raises SchemaError if that has no subschema at `spec.at`."""
    if spec.at not in schema:
        raise SchemaError(f'The schema has no subschema at "{spec.at}"; choose another part of it.')
    cases = _cases(schema)
    writer = Writer(cases)
    layout = Spacing.of(spec)
    asked: Terms = ((spec.at, True),)
    if spec.start == "value":
        return RuleSet(writer.value(asked, layout), writer.rule, not cases.undecided(asked))
    start, exact = {"members": _members, "key": _key, "elements": _elements}[spec.start](spec, writer, cases, layout)
    return RuleSet(start, writer.rule, exact and not cases.undecided(asked))


@lru_cache(KEPT)
def _cases(schema: Schema) -> Cases:
    """Cases are kept, since a job's holes and the next jobs have the same schema."""
    return Cases(schema)


def _members(spec: wire.Json, writer: Writer, cases: Cases, layout: Spacing) -> tuple[Expression, bool]:
    """New members of an object. Its case may depend on the members it has, so only a single case is exact."""
    taken = frozenset(spec.taken)
    found = [case for case in _of(cases, spec.at, "object") if case.forbidden.isdisjoint(taken)]
    ways = len(_places(layout)) - 1
    forms = []
    for case in found:
        fewest = max(case.fewest_members, len(taken) + spec.least)
        most = case.most_members
        if spec.most < free.UNCOUNTED:
            most = len(taken) + spec.most if most is None else min(most, len(taken) + spec.most)
        forms.append(writer.members(Members(case, layout, ways, fewest, most, taken)))
    return choice(*forms), len(found) <= 1


def _key(spec: wire.Json, writer: Writer, cases: Cases, layout: Spacing) -> tuple[Expression, bool]:
    """A key of an object whose value is already there and has to fit."""
    taken = frozenset(spec.taken)
    found = _of(cases, spec.at, "object")
    names = [_json(key) for case in found for key, _, _ in writer.keys(case, taken)]
    others = [_untaken(keys, taken) for case in found for keys, _ in cases.extras(case)]
    forms = [Regular(literals(names))] if names else []
    return choice(*forms, *map(free.string, others)), not any(case.groups or case.required for case in found)


def _elements(spec: wire.Json, writer: Writer, cases: Cases, layout: Spacing) -> tuple[Expression, bool]:
    """New elements of an array, after all that have terms of their own. Its other elements are not known here."""
    found = _of(cases, spec.at, "array")
    place = free.inside(layout)
    forms = [
        free.several(writer.value(case.item(None), place.layout), place.between, spec.least, spec.most)
        for case in found
    ]
    bound = any(case.places or case.contains or case.unique or case.most_items is not None for case in found)
    return choice(*forms), len(found) <= 1 and not bound


def _of(cases: Cases, at: str, kind: str) -> list[Case]:
    return [case for case in cases.of(((at, True),)) if kind in case.kinds and case.values is None]


def _untaken(keys: Dfa, taken: frozenset[str]) -> Dfa:
    return without(keys, literals(sorted(taken))) if taken else keys


def _several(item: Expression, between: Expression, least: int, most: int | None) -> Expression:
    return chain(item, repeat(chain(between, item), least - 1, None if most is None else most - 1))


@lru_cache(4096)
def _key_of(key: str) -> Expression:
    return literal(_json(key))


@lru_cache(256)
def _places(layout: Spacing) -> tuple[Place, ...]:
    return layout.places()


def _json(value: Value) -> str:
    """The value as JSON text; a lone surrogate is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if any("\ud800" <= c <= "\udfff" for c in text) else text
