"""Subschemas that hold for one value together, as cases without logic in them: a value is valid if it is of one case.

`not` is pushed inwards until it meets a keyword with an opposite. A case lists in `loose` the keywords that it cannot
express, and then accepts invalid values. It may accept fewer values than it could, but no others unlisted.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from caesura.automata.dfa import Dfa, TooLarge
from caesura.engine.grammar.keywords import (
    ANYTHING,
    INFINITE,
    Case,
    Term,
    Terms,
    facts,
    having,
    kind_of,
    lacking,
    loose,
    opposites,
    same,
    silent,
    terms,
    unevaluated,
)
from caesura.engine.grammar.leaves import Texts, keys, numbers, texts
from caesura.schema.dialects import Value
from caesura.schema.document import Schema
from caesura.schema.validation import exact, matches

MAX_CASES = 64  # cases of one set of terms
MAX_WORK = 60_000  # pairs of cases combined: a second or two
MAX_INSIDE = 50  # nested sets of terms
MAX_TERMS = 4_000  # sets of terms searched for undecided keywords


class Cases:
    """The cases of a schema's subschemas, each computed once."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._found: dict[Terms, tuple[Case, ...]] = {}
        self._parts: dict[Term, list[Case]] = {}
        self._busy: set[Terms] = set()
        self._extras: dict[Case, tuple[tuple[Dfa, Terms], ...]] = {}
        self._work = 0  # pairs of cases that were combined

    def __repr__(self) -> str:
        return f"<Cases {len(self._found)} of {self.schema!r}>"

    def of(self, asked: Terms) -> tuple[Case, ...]:
        """The cases of a value for which all the terms hold; none if there seems to be no such value."""
        if asked not in self._found:
            if asked in self._busy or len(self._busy) > MAX_INSIDE:
                return (Case(),)  # a value inside itself: it is possible if anything is
            self._busy.add(asked)
            found = self._product([self._term(term) for term in asked])
            self._found[asked] = tuple(self._possible(asked, found))
            self._busy.discard(asked)
        return self._found[asked]

    # Logic

    def _product(self, factors: Iterable[list[Case]]) -> list[Case]:
        """The cases of all the factors at once. A factor that makes too many is left out and noted as loose."""
        found = [Case()]
        for factor in sorted(factors, key=len):
            self._work += len(found) * len(factor)
            if self._work > MAX_WORK:
                raise TooLarge("The schema has too many combinations for a grammar; use a smaller part of it.")
            product = [case for a in found for b in factor if (case := self._trim(a & b)).kinds]
            if len(product) > max(MAX_CASES, len(found), len(factor)):
                left_out = frozenset((kind, "logic") for kind in ANYTHING)
                product = [replace(case, loose=case.loose | left_out) for case in found]
            found = product
        return found

    def _term(self, term: Term) -> list[Case]:
        if term not in self._parts:
            at, holds = term
            node = self.schema.at(at)
            if isinstance(node, bool):
                self._parts[term] = [Case()] if node == holds else []
            else:
                self._parts[term] = self._holding(node) if holds else list(map(silent, self._failing(node)))
        return self._parts[term]

    def _any(self, ats: Iterable[str], holds: bool = True) -> list[Case]:
        return [case for at in ats for case in self._term((at, holds))]

    def _all(self, *parts: Term) -> list[Case]:
        return self._product([self._term(part) for part in parts])

    def _holding(self, node: Mapping[str, Any]) -> list[Case]:
        factors = [[facts(node)]]
        inner = [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ())]
        factors += [self._term((at, True)) for at in inner]
        if "anyOf" in node:
            factors.append(self._any(node["anyOf"]))
        if "oneOf" in node:
            factors.append(self._one(node["oneOf"]))
        if "not" in node:
            factors.append(self._term((node["not"], False)))
        if "if" in node and ("then" in node or "else" in node):
            factors.append(self._branches(node, True))
        for key, needed in node.get("dependentRequired", {}).items():
            factors.append([lacking(key), having(key, *needed)])
        for key, at in node.get("dependentSchemas", {}).items():
            factors.append([lacking(key), *(case & having(key) for case in self._term((at, True)))])
        if "$dynamicRef" in node:
            factors.append([loose("$dynamicRef")])
        found = self._product(factors)
        return [unevaluated(node, case) for case in found]

    def _one(self, ats: tuple[str, ...]) -> list[Case]:
        """Exactly one of these. Two that exclude each other need no `not`."""
        if len(ats) > MAX_CASES:
            return [case & loose("oneOf") for case in self._any(ats)]
        found = []
        for at in ats:
            others = [one for one in ats if one != at and self._meet(at, one)]
            found += self._all((at, True), *((other, False) for other in others))
        return found

    def _meet(self, a: str, b: str) -> bool:
        """True if a value may be valid for both: no required key differs in type or in listed values."""
        both = self._all((a, True), (b, True))
        return any(all(map(self._plain, map(case.child, case.required))) for case in both)

    def _plain(self, asked: Terms) -> bool:
        """True if the terms may hold for a value, logic apart."""
        found, waiting = Case(), [at for at, holds in asked if holds]
        while waiting and found.kinds:
            node = self.schema.at(waiting.pop())
            if isinstance(node, bool):
                found = found if node else replace(found, kinds=frozenset())
            else:
                found = self._trim(found & facts(node))
                waiting += [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ())]
        return bool(found.kinds)

    def _branches(self, node: Mapping[str, Any], holds: bool) -> list[Case]:
        """`if` with `then` and `else`, or its opposite."""
        found: list[Case] = []
        for word, condition in (("then", True), ("else", False)):
            if word in node:
                found += self._all((node["if"], condition), (node[word], holds))
            elif holds:
                found += self._term((node["if"], condition))
        return found

    def _failing(self, node: Mapping[str, Any]) -> list[Case]:
        found = [case for word in node for case in opposites(word, node)]
        inner = [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ())]
        found += self._any(inner, False)
        if "anyOf" in node:
            found += self._all(*((at, False) for at in node["anyOf"]))
        if "oneOf" in node:
            ats = node["oneOf"]
            found += self._all(*((at, False) for at in ats))
            for a, b in itertools.combinations(ats[:MAX_CASES], 2):
                found += self._all((a, True), (b, True))
        if "not" in node:
            found += self._term((node["not"], True))
        if "if" in node:
            found += self._branches(node, False)
        for key, at in node.get("dependentSchemas", {}).items():
            found += [case & having(key) for case in self._term((at, False))]
        if len(found) > MAX_CASES:
            return [loose("not")]
        return [case for case in found if self._trim(case).kinds]

    # What is possible at all

    def _trim(self, case: Case) -> Case:
        """Drop the kinds of which it takes no value, judged by its numbers and names."""
        gone = set()
        if not case.numbers.any:
            gone.add("number")
        if case.longest is not None and case.shortest > case.longest:
            gone.add("string")
        needed = max(len(case.required), case.fewest_members)
        if not case.forbidden.isdisjoint(case.required) or (
            case.most_members is not None and needed > case.most_members
        ):
            gone.add("object")
        if case.most_items is not None and case.fewest > case.most_items:
            gone.add("array")
        if case.values is not None:
            case = replace(case, values=tuple(value for value in case.values if kind_of(value) in case.kinds - gone))
            gone |= case.kinds - {kind_of(value) for value in case.values or ()}
        return replace(case, kinds=case.kinds - gone) if gone else case

    def _possible(self, asked: Terms, found: list[Case]) -> Iterator[Case]:
        """Put the valid values of `enum` and `const` into one case, and drop cases that need the impossible."""
        listed: dict[Hashable, Value] = {}
        for case in found:
            if case.values is not None:
                listed |= {same(value): value for value in case.values if self._takes(asked, case, value)}
        if listed:
            values = tuple(listed.values())
            yield Case(kinds=frozenset(kind_of(value) for value in values), values=values)
        for case in found:
            if case.values is not None:
                continue
            gone = set()
            needed = case.required if "object" in case.kinds else ()
            if not all(self.allows(case, key) and self.of(case.child(key)) for key in needed):
                gone.add("object")
            if "array" in case.kinds and not all(
                self.of(case.item(i)) for i in range(min(case.fewest, case.places + 1))
            ):
                gone.add("array")
            if any(value is None for value in case.excluded):
                gone.add("null")
            if {True, False} <= {value for value in case.excluded if isinstance(value, bool)}:
                gone.add("boolean")
            if case.kinds - gone:
                yield replace(case, kinds=case.kinds - gone)

    def _takes(self, asked: Terms, case: Case, value: Value) -> bool:
        """True if a listed value is valid. The validator decides for containers, and where the case is loose."""
        kind = kind_of(value)
        if isinstance(value, dict | list) or any(one == kind for one, _ in case.loose):
            return all(self.schema.validator(at).is_valid(value) == holds for at, holds in asked)
        if same(value) in map(same, case.excluded):
            return False
        if isinstance(value, str):
            longest = INFINITE if case.longest is None else case.longest
            fits = case.shortest <= len(value) <= longest
            return fits and all(matches(pattern, value) == holds for pattern, holds in case.patterns)
        if kind == "number":
            number = exact(value)
            above = case.least is None or (number > case.least if case.least_open else number >= case.least)
            below = case.most is None or (number < case.most if case.most_open else number <= case.most)
            right = case.whole is None or (number.denominator == 1) == case.whole
            return above and below and right and not any(number % step for step in case.steps)
        return True

    # Keys without a name of their own

    def extras(self, case: Case) -> tuple[tuple[Dfa, Terms], ...]:
        """Those keys, grouped by the terms of their values."""
        if case not in self._extras:
            self._extras[case] = tuple(self._extra(case))
        return self._extras[case]

    def _extra(self, case: Case) -> Iterator[tuple[Dfa, Terms]]:
        patterns = tuple(dict.fromkeys(pattern for group in case.groups for pattern, _ in group.patterns))
        if not patterns and not self.of(case.extra(frozenset())):
            return
        for dfa, matched in keys(frozenset(case.named), patterns, self.names(case))[0]:
            if self.of(asked := case.extra(matched)):
                yield dfa, asked

    def names(self, case: Case) -> tuple[frozenset[str] | Texts, ...] | None:
        """The keys that `propertyNames` allows; None: all."""
        if not case.names:
            return None
        return tuple(
            one.texts if one.values is None else frozenset(value for value in one.values if isinstance(value, str))
            for one in self.of(case.names)
            if "string" in one.kinds
        )

    def allows(self, case: Case, key: str) -> bool:
        """True if `propertyNames` allows a key."""
        names = self.names(case)
        return names is None or any(
            texts(one).dfa.accepts(key) if isinstance(one, Texts) else key in one for one in names
        )

    # Left to a validator

    def undecided(self, *asked: Terms) -> frozenset[str]:
        """The keywords below these terms that the cases do not enforce; "size" if there is too much to search."""
        found: set[str] = set()
        seen = set(asked)
        waiting = list(asked)
        while waiting:
            for case in self.of(waiting.pop()):
                if case.values is not None:
                    continue
                found |= self.own(case)
                for inner in self._inside(case):
                    if inner and inner not in seen:
                        seen.add(inner)
                        waiting.append(inner)
            if len(seen) > MAX_TERMS:
                return frozenset((*found, "size"))
        return frozenset(found)

    def own(self, case: Case) -> frozenset[str]:
        """The keywords that the case itself does not enforce."""
        found = frozenset(word for kind, word in case.loose if kind in case.kinds)
        if "string" in case.kinds:
            found |= texts(case.texts).loose
        if "number" in case.kinds:
            found |= numbers(case.numbers).loose
        if "object" in case.kinds and case.names:
            found |= {word for one in self.of(case.names) for kind, word in one.loose if kind == "string"}
            found |= keys(frozenset(case.named), (), self.names(case))[1]
        if "array" in case.kinds and case.unique and (case.most_items is None or case.most_items > 1):
            found |= {"uniqueItems"}
        if "array" in case.kinds and len(case.contains) > 1:
            found |= {"contains"}
        if any(isinstance(value, dict | list) and kind_of(value) in case.kinds for value in case.excluded):
            found |= {"not"}
        return found

    def _inside(self, case: Case) -> Iterator[Terms]:
        """The terms of values inside."""
        if "object" in case.kinds:
            for key in case.named:
                if key not in case.forbidden:
                    yield case.child(key)
            for _, inner in self.extras(case):
                yield inner
        if "array" in case.kinds:
            for index in (*range(case.places), None):
                yield case.item(index)
                for term, least, most in case.contains[:1]:
                    if least or most is not None:
                        yield terms(*case.item(index), term)
                    if most is not None:
                        yield terms(*case.item(index), (term[0], not term[1]))
