"""The keywords of JSON Schema and their opposites as `Case`: restrictions of a value, without logic in them.

A case lists in `loose` the keywords that it cannot express, and then accepts invalid values.
"""

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from caesura.engine.grammar.leaves import Numbers, Texts
from caesura.schema.dialects import Value
from caesura.schema.validation import exact, matches

ANYTHING = frozenset(("null", "boolean", "number", "string", "object", "array"))
INFINITE = float("inf")

Term = tuple[str, bool]  # a pointer to a subschema, and whether it has to hold
Terms = tuple[Term, ...]  # all of them, for one value


@dataclass(frozen=True, eq=False)
class Group:
    """One subschema's terms for the values of keys; `rest` is for keys that are neither listed nor match a pattern."""

    known: Mapping[str, Terms]
    patterns: tuple[tuple[str, Terms], ...] = ()
    rest: Terms | None = None
    evaluates: bool = True  # for `unevaluatedProperties`


@dataclass(frozen=True, eq=False)
class Items:
    """One subschema's terms for the first items, and for the rest; None means no restriction."""

    first: tuple[Terms, ...]
    rest: Terms | None = None
    evaluates: bool = True


@dataclass(frozen=True, eq=False)
class Case:
    """A restriction on one kind binds values of that kind only. Bounds are inclusive unless `open`."""

    kinds: frozenset[str] = ANYTHING
    values: tuple[Value, ...] | None = None
    excluded: tuple[Value, ...] = ()
    whole: bool | None = None  # numbers: integers only; False: no integers
    least: Fraction | None = None
    least_open: bool = False
    most: Fraction | None = None
    most_open: bool = False
    steps: frozenset[Fraction] = frozenset()
    patterns: frozenset[tuple[str, bool]] = frozenset()
    formats: frozenset[str] = frozenset()
    shortest: int = 0
    longest: int | None = None
    groups: tuple[Group, ...] = ()
    required: tuple[str, ...] = ()
    forbidden: frozenset[str] = frozenset()
    names: Terms = ()
    fewest_members: int = 0
    most_members: int | None = None
    items: tuple[Items, ...] = ()
    fewest: int = 0
    most_items: int | None = None
    contains: tuple[tuple[Term, int, int | None], ...] = ()
    unique: bool = False
    loose: frozenset[tuple[str, str]] = frozenset()  # (kind, keyword)

    def __and__(self, other: "Case") -> "Case":
        def higher(name: str) -> Any:
            return max(getattr(self, name), getattr(other, name))

        def lower(name: str) -> Any:
            return min((one for one in (getattr(self, name), getattr(other, name)) if one is not None), default=None)

        kinds, loose = self.kinds & other.kinds, self.loose | other.loose
        whole = self.whole if other.whole is None else other.whole
        if None not in (self.whole, other.whole) and self.whole != other.whole:
            kinds -= {"number"}
        least, least_open = max(self._least, other._least)
        most, most_closed = min(self._most, other._most)
        return Case(
            kinds,
            _common(self.values, other.values),
            self.excluded + other.excluded,
            whole,
            least if least != -INFINITE else None,
            least_open,
            most if most != INFINITE else None,
            not most_closed,
            self.steps | other.steps,
            self.patterns | other.patterns,
            self.formats | other.formats,
            higher("shortest"),
            lower("longest"),
            self.groups + other.groups,
            tuple(dict.fromkeys(self.required + other.required)),
            self.forbidden | other.forbidden,
            terms(*self.names, *other.names),
            higher("fewest_members"),
            lower("most_members"),
            self.items + other.items,
            higher("fewest"),
            lower("most_items"),
            self.contains + other.contains,
            self.unique or other.unique,
            loose,
        )

    @property
    def texts(self) -> Texts:
        excluded = frozenset(value for value in self.excluded if isinstance(value, str))
        return Texts(self.patterns, self.formats, self.shortest, self.longest, excluded)

    @property
    def numbers(self) -> Numbers:
        excluded = frozenset(exact(value) for value in self.excluded if kind_of(value) == "number")
        return Numbers(self.whole, self.least, self.least_open, self.most, self.most_open, self.steps, excluded)

    @property
    def named(self) -> tuple[str, ...]:
        """The keys with a name of their own: in the order of `properties`, then of `required`."""
        known = (key for group in self.groups for key in group.known)
        return tuple(dict.fromkeys((*known, *self.required, *sorted(self.forbidden))))

    def extra(self, matched: frozenset[str]) -> Terms:
        """Terms for the value of a key that is not named and matches these patterns."""
        found: list[Term] = []
        for group in self.groups:
            said = [part for pattern, part in group.patterns if pattern in matched]
            found += itertools.chain(*said) if said else group.rest or ()
        return terms(*found)

    @property
    def _least(self) -> tuple[Any, bool]:
        return (-INFINITE if self.least is None else self.least), self.least_open

    @property
    def _most(self) -> tuple[Any, bool]:
        return (INFINITE if self.most is None else self.most), not self.most_open

    def child(self, key: str) -> Terms:
        """Terms for the value of a key."""
        found: list[Term] = []
        for group in self.groups:
            said = [group.known[key]] if key in group.known else []
            said += [part for pattern, part in group.patterns if matches(pattern, key)]
            found += itertools.chain(*said) if said else group.rest or ()
        return terms(*found)

    def item(self, index: int | None) -> Terms:
        """Terms for an item; None asks for the items after those with terms of their own."""
        found: list[Term] = []
        for one in self.items:
            found += one.first[index] if index is not None and index < len(one.first) else one.rest or ()
        return terms(*found)

    @property
    def places(self) -> int:
        """How many of the first items have terms of their own."""
        return max((len(one.first) for one in self.items), default=0)


def terms(*parts: Term) -> Terms:
    return tuple(sorted(set(parts)))


def _common(a: tuple[Value, ...] | None, b: tuple[Value, ...] | None) -> tuple[Value, ...] | None:
    if a is None or b is None:
        return b if a is None else a
    kept = {same(value) for value in b}
    return tuple(value for value in a if same(value) in kept)


def same(value: Value) -> Hashable:
    """A key that is equal for values that are equal in JSON."""
    match value:
        case bool() | None | str():
            return type(value), value
        case dict():
            return dict, frozenset((key, same(one)) for key, one in value.items())
        case list():
            return list, tuple(same(one) for one in value)
    return exact(value)


def kind_of(value: Value) -> str:
    names = {bool: "boolean", str: "string", dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), "number")


def loose(word: str, *kinds: str) -> Case:
    """Any value of these kinds, since the keyword cannot be expressed."""
    return Case(kinds=frozenset(kinds) or ANYTHING, loose=frozenset((kind, word) for kind in kinds or ANYTHING))


def lacking(key: str) -> Case:
    """Without a key; a value that is not an object lacks them all."""
    return Case(forbidden=frozenset((key,)))


def having(*keys: str) -> Case:
    return Case(kinds=frozenset(("object",)), required=keys)


def facts(node: Mapping[str, Any]) -> Case:
    """The restrictions of a subschema itself, without logic and references."""
    kinds, whole = _types(node.get("type"))
    values = tuple(node["enum"]) if "enum" in node else None
    if "const" in node:
        values = _common((node["const"],), values)
    lower = [(exact(node[word]), word != "minimum") for word in ("minimum", "exclusiveMinimum") if word in node]
    upper = [(exact(node[word]), word == "maximum") for word in ("maximum", "exclusiveMaximum") if word in node]
    least, least_open = max(lower, default=(None, False))  # of equal bounds the open one
    most, most_closed = min(upper, default=(None, True))
    return Case(
        kinds=kinds,
        values=values,
        whole=whole or None,
        least=least,
        least_open=least_open,
        most=most,
        most_open=not most_closed,
        steps=frozenset([exact(node["multipleOf"])] if "multipleOf" in node else []),
        patterns=frozenset([(node["pattern"], True)] if "pattern" in node else []),
        formats=frozenset([node["format"]] if isinstance(node.get("format"), str) else []),
        shortest=_count(node, "minLength") or 0,
        longest=_count(node, "maxLength"),
        groups=_groups(node),
        required=tuple(node.get("required", ())),
        names=_one(node["propertyNames"]) if "propertyNames" in node else (),
        fewest_members=_count(node, "minProperties") or 0,
        most_members=_count(node, "maxProperties"),
        items=_items(node),
        fewest=_count(node, "minItems") or 0,
        most_items=_count(node, "maxItems"),
        contains=_contains(node),
        unique=node.get("uniqueItems", False),
    )


def _one(at: str) -> Terms:
    return ((at, True),)


def _types(given: str | list[str] | None) -> tuple[frozenset[str], bool]:
    """The kinds, and True if numbers have to be whole."""
    if given is None:
        return ANYTHING, False
    names = {given} if isinstance(given, str) else set(given)
    return frozenset("number" if name == "integer" else name for name in names), not names & {"number"}


def _count(node: Mapping[str, Any], word: str) -> int | None:
    return int(node[word]) if word in node else None


def _groups(node: Mapping[str, Any]) -> tuple[Group, ...]:
    if node.keys().isdisjoint(("properties", "patternProperties", "additionalProperties")):
        return ()
    known = {key: _one(at) for key, at in node.get("properties", {}).items()}
    patterns = tuple((pattern, _one(at)) for pattern, at in node.get("patternProperties", {}).items())
    rest = _one(node["additionalProperties"]) if "additionalProperties" in node else None
    return (Group(known, patterns, rest),)


def _items(node: Mapping[str, Any]) -> tuple[Items, ...]:
    if node.keys().isdisjoint(("prefixItems", "items")):
        return ()
    rest = _one(node["items"]) if "items" in node else None
    return (Items(tuple(_one(at) for at in node.get("prefixItems", ())), rest),)


def _contains(node: Mapping[str, Any]) -> tuple[tuple[Term, int, int | None], ...]:
    if "contains" not in node:
        return ()
    least, most = node.get("minContains", 1), node.get("maxContains")
    return (((node["contains"], True), int(least), None if most is None else int(most)),)


def unevaluated(node: Mapping[str, Any], case: Case) -> Case:
    """Add `unevaluatedProperties` and `unevaluatedItems`, for keys and items that nothing else evaluates."""
    if "unevaluatedProperties" in node:
        said = [group for group in case.groups if group.evaluates]
        if all(group.rest is None for group in said):
            known = {key: () for group in said for key in group.known}
            patterns = tuple((pattern, ()) for group in said for pattern, _ in group.patterns)
            more = Group(known, patterns, _one(node["unevaluatedProperties"]))
            case = replace(case, groups=(*case.groups, more))
    if "unevaluatedItems" in node:
        seen = [one for one in case.items if one.evaluates]
        if all(one.rest is None for one in seen):
            first: tuple[Terms, ...] = ((),) * max((len(one.first) for one in seen), default=0)
            case = replace(case, items=(*case.items, Items(first, _one(node["unevaluatedItems"]))))
    return case


def silent(case: Case) -> Case:
    """The case as part of a `not`, where nothing counts as evaluated."""
    groups = tuple(replace(group, evaluates=False) for group in case.groups)
    return replace(case, groups=groups, items=tuple(replace(one, evaluates=False) for one in case.items))


def opposites(word: str, node: Mapping[str, Any]) -> Iterator[Case]:
    """The ways to violate one keyword, without logic and references."""
    number, string, thing, array = (frozenset((kind,)) for kind in ("number", "string", "object", "array"))
    value = node[word]
    match word:
        case "type":
            kinds, whole = _types(value)
            if ANYTHING - kinds:
                yield Case(kinds=ANYTHING - kinds)
            if whole and "number" in kinds:
                yield Case(kinds=number, whole=False)
        case "enum":
            yield Case(excluded=tuple(value))
        case "const":
            yield Case(excluded=(value,))
        case "minimum" | "exclusiveMinimum":
            yield Case(kinds=number, most=exact(value), most_open=word == "minimum")
        case "maximum" | "exclusiveMaximum":
            yield Case(kinds=number, least=exact(value), least_open=word == "maximum")
        case "pattern":
            yield Case(kinds=string, patterns=frozenset(((value, False),)))
        case "minLength" if value >= 1:
            yield Case(kinds=string, longest=int(value) - 1)
        case "maxLength":
            yield Case(kinds=string, shortest=int(value) + 1)
        case "required":
            yield from (Case(kinds=thing, forbidden=frozenset((key,))) for key in value)
        case "properties":
            for key, at in value.items():
                yield Case(kinds=thing, required=(key,), groups=(Group({key: ((at, False),)}, evaluates=False),))
        case "dependentRequired":
            for key, needed in value.items():
                yield from (having(key) & lacking(one) for one in needed)
        case "minProperties" if value >= 1:
            yield Case(kinds=thing, most_members=int(value) - 1)
        case "maxProperties":
            yield Case(kinds=thing, fewest_members=int(value) + 1)
        case "minItems" if value >= 1:
            yield Case(kinds=array, most_items=int(value) - 1)
        case "maxItems":
            yield Case(kinds=array, fewest=int(value) + 1)
        case "prefixItems":
            for index, at in enumerate(value):
                yield Case(
                    kinds=array, fewest=index + 1, items=(Items((*((),) * index, ((at, False),)), evaluates=False),)
                )
        case "contains":
            term, least, most = _contains(node)[0]
            if least:
                yield Case(kinds=array, contains=((term, 0, least - 1),))
            if most is not None:
                yield Case(kinds=array, contains=((term, most + 1, None),))
        case "multipleOf":
            yield loose("not", "number")
        case "additionalProperties" | "patternProperties" | "propertyNames" | "unevaluatedProperties":
            yield loose("not", "object")
        case "items" | "unevaluatedItems":
            yield loose("not", "array")
        case "uniqueItems" if value:
            yield loose("not", "array")
        case "$dynamicRef":
            yield loose(word)
