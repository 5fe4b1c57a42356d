"""JSON Schema documents: read, checked, and followed from subschema to subschema. No text of an instance is made here.

A subschema is named by its JSON pointer (RFC 6901) into the document. `Schema.at` shows it in the words of the dialect
2020-12, whatever it is written in, with pointers in the place of its own subschemas. Nothing is fetched: references
lead inside the document, or to the meta-schema of its dialect.
"""

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urljoin

from caesura.automata import regex_syntax
from caesura.automata.dfa import Dfa, TooLarge, Unsupported
from caesura.automata.regex import matching
from caesura.automata.regex_syntax import Ahead, Alternatives, Repeated, Tree, parse
from caesura.recent import Recent, remembered
from caesura.wire import Impossible

MAX_BYTES = 1 << 20
MAX_SUBSCHEMAS = 20_000
KEPT = 24 << 20  # bytes of schemas that were read last
PATTERNS = 8 << 20  # bytes of automata of patterns: a document is checked against all of its schema's in turn
COST = 20  # bytes that a schema takes for each of its text's, and
LEAST_COST = 200_000  # beyond that
DEPTH = 16  # required objects inside one another in a skeleton
IN_PLACE = 100  # subschemas of one value inside one another
OWN = "$caesura"  # the key of the document under which subschemas are added

Value = Any  # of JSON
Node = Mapping[str, Any] | bool

DIALECTS = {
    "json-schema.org/draft/2020-12/schema": 2020,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-04/schema": 4,
}
VALIDATORS = {
    2020: "Draft202012Validator",
    2019: "Draft201909Validator",
    7: "Draft7Validator",
    6: "Draft6Validator",
    4: "Draft4Validator",
}
SINGLE = {  # keywords that hold one subschema; many; and some by name
    *("additionalProperties", "propertyNames", "unevaluatedProperties"),
    *("items", "additionalItems", "contains", "unevaluatedItems"),
    *("not", "if", "then", "else"),
}
LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
SINCE = {  # the first dialect of a keyword, and the last
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("$recursiveRef", "dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), 2019),
    **dict.fromkeys(("$dynamicRef", "prefixItems"), 2020),
}
UNTIL = {"dependencies": 7, "additionalItems": 2019, "$recursiveRef": 2019}
ELSEWHERE = {  # keywords by which values depend on others
    *("const", "enum", "not", "if", "dependentSchemas", "$dynamicRef", "unevaluatedProperties", "unevaluatedItems")
}


class SchemaError(Impossible):
    """A schema that cannot be used: one sentence with the next step."""


@dataclass(frozen=True)
class Field:
    """A required key: the subschema of its value, the one JSON value that it may have, or the keys required in it."""

    key: str
    at: str
    only: str | None = None
    fields: "tuple[Field, ...]" = ()


class Schema:
    """A schema document. Objects with additions share what was read."""

    def __init__(self, document: Value) -> None:
        self.document = document
        self.dialect = _dialect(document)
        self._resources: dict[str, str] = {}  # absolute URI -> pointer
        self._bases: dict[str, str] = {}  # pointer of a resource -> its URI
        self._anchors: dict[tuple[str, str], str] = {}  # URI and name -> pointer
        self._dynamic: dict[str, list[str]] = {}  # name of a dynamic anchor -> pointers
        self._seen: set[str] = set()
        self._apart: list[str] = []  # subschemas where the meta-schema expects none
        self._nodes: dict[str, Node] = {}
        self._read()

    def __repr__(self) -> str:
        return f"<Schema {self.dialect}, {len(self._seen)} subschemas>"

    @staticmethod
    def read(text: str) -> "Schema":
        """Raises SchemaError. The last ones are kept."""
        found = _kept.get(text)
        if found is None:
            found = Schema._parsed(text)
            _kept.put(text, found)
        return found

    @staticmethod
    def _parsed(text: str) -> "Schema":
        if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise SchemaError("The schema is larger than 1 MiB; use a smaller one.")
        try:
            document = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except RecursionError:
            raise SchemaError(
                "The schema is nested too deeply; move parts of it to the top and refer to them."
            ) from None
        except ValueError as error:
            raise SchemaError(f"The schema is not JSON ({error}); correct it.") from None
        if not isinstance(document, dict | bool):
            raise SchemaError("The schema is neither an object nor true or false; correct it.")
        try:
            schema = Schema(document)
            schema._check()
            schema._check_depth()
            schema._check_patterns()
        except RecursionError:
            raise SchemaError(
                "The schema is nested too deeply; move parts of it to the top and refer to them."
            ) from None
        return schema

    @cached_property
    def text(self) -> str:
        """The document with all additions, for `read`."""
        if not isinstance(self.document, dict):
            return json.dumps(self.document)
        rest = {key: part for key, part in self.document.items() if key != OWN}
        own = {OWN: {"parts": added}} if (added := self._added()) else {}
        return json.dumps({**rest, **own}, ensure_ascii=False)

    # Reading

    def _read(self) -> None:
        self._resources[""] = ""
        waiting = list(self._walk("", self.document, ""))
        for number, part in enumerate(self._added()):
            self._apart.append(f"/{OWN}/parts/{number}")
            waiting += self._walk(self._apart[-1], part, self._bases.get("", ""))
        while waiting:
            at, reference = waiting.pop()
            target = self._find(self._base(at), reference)
            if target is None:
                target = self._include(urljoin(self._base(at), reference))
                waiting += self._walk(target, self.raw(target), "")
                target = self._find(self._base(at), reference) or target
            if target not in self._seen:
                self._apart.append(target)
                waiting += self._walk(target, self.raw(target), self._base(target))

    def _added(self) -> list[Value]:
        """The subschemas that `plus` has added."""
        own = self.document.get(OWN) if isinstance(self.document, dict) else None
        parts = own.get("parts") if isinstance(own, dict) else None
        return parts if isinstance(parts, list) else []

    def _walk(self, at: str, value: Value, base: str) -> Iterator[tuple[str, str]]:
        """Note the subschemas from here on; their references."""
        stack = [(at, value, base)]
        while stack:
            at, value, base = stack.pop()
            if at in self._seen:
                continue
            self._seen.add(at)
            if len(self._seen) > MAX_SUBSCHEMAS:
                raise SchemaError(f"The schema has more than {MAX_SUBSCHEMAS:,} subschemas; use a smaller one.")
            if isinstance(value, bool):
                continue
            if not isinstance(value, dict):
                raise SchemaError(f"At {at} the schema has something that is not a schema; correct it.")
            if not self._refers(value):
                base = self._identify(at, value, base)
            for word in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(value.get(word), str) and self._knows(word):
                    yield at, value[word]
            stack += ((where, part, base) for where, part in self._parts(at, value))

    def _identify(self, at: str, value: dict[str, Value], base: str) -> str:
        """Note the names that a subschema gives itself; its base URI."""
        name = value.get("id" if self.dialect == 4 else "$id")
        if at and isinstance(name, str) and "$schema" in value and _dialect(value) != self.dialect:
            raise SchemaError(f"At {at} the schema changes its dialect; write all of it in one.")
        if isinstance(name, str):
            uri, _, anchor = name.partition("#")
            if uri:
                base = _join(base, uri)
                self._resources.setdefault(base, at)
                self._bases[at] = base
            if anchor and self.dialect <= 7:
                self._anchors[base, anchor] = at
        for word in ("$anchor", "$dynamicAnchor"):
            if self.dialect >= 2019 and isinstance(value.get(word), str):
                self._anchors[base, value[word]] = at
        if self.dialect == 2020 and isinstance(value.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(value["$dynamicAnchor"], []).append(at)
        if self.dialect == 2019 and value.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(at)
        return base

    def _parts(self, at: str, value: dict[str, Value]) -> Iterator[tuple[str, Value]]:
        """The subschemas of a subschema, with their pointers."""
        for word, part in value.items():
            here = f"{at}/{_escape(word)}"
            if word in SINGLE and not (word == "items" and isinstance(part, list)):
                yield here, part
            elif (word in LISTS or word == "items") and isinstance(part, list):
                yield from ((f"{here}/{i}", one) for i, one in enumerate(part))
            elif word in MAPS and isinstance(part, dict):
                for key, one in part.items():
                    if not (word == "dependencies" and isinstance(one, list)):
                        yield f"{here}/{_escape(key)}", one

    def _check(self) -> None:
        """Against the meta-schema of the dialect."""
        check = self._validator_class(self._validator_class.META_SCHEMA)
        for at in ("", *self._apart):
            for error in check.iter_errors(self.raw(at)):
                where = at + "".join(f"/{_escape(str(step))}" for step in error.absolute_path)
                message = error.message if len(error.message) <= 200 else f"{error.message[:200]}…"
                raise SchemaError(f"The schema is invalid at {where or 'its top'}: {message}; correct it.")

    def _check_patterns(self) -> None:
        """The library looks for keys that nobody evaluates with Python's patterns."""
        parts = [part for part in map(self.raw, ("", *self._seen)) if isinstance(part, dict)]
        if any("unevaluatedProperties" in part for part in parts):
            for pattern in {pattern for part in parts for pattern in part.get("patternProperties", {})}:
                if _automaton(pattern) is None or _backtracks(parse(pattern)):
                    raise SchemaError(f"Beside `unevaluatedProperties` the pattern {pattern[:80]!r} is too costly.")

    def _check_depth(self) -> None:
        """No subschema asks for itself of one and the same value, and none for too many: a validator would not end."""
        heights: dict[str, int] = {}  # of a subschema over the last of those that it asks for
        entered: set[str] = set()
        stack = list(self._seen)
        while stack:
            at = stack[-1]
            inner = () if at in heights else tuple(self._same_value(at))
            waiting = [one for one in inner if one not in heights]
            if waiting and at in entered:
                raise SchemaError(f"At {at or 'its top'} the schema asks for itself without end; cut the circle.")
            if waiting:
                entered.add(at)
                stack += waiting
                continue
            stack.pop()
            heights.setdefault(at, 1 + max((heights[one] for one in inner), default=0))
            if heights[at] > IN_PLACE:
                raise SchemaError(f"At {at} more than {IN_PLACE} subschemas of one value are nested; use fewer.")

    def _same_value(self, at: str) -> Iterator[str]:
        """The subschemas of a subschema that hold, or do not, for the same value."""
        node = self._words(at)
        for word in ("$ref", "not", "if", "then", "else"):
            if word in node:
                yield node[word]
        for word in ("allOf", "anyOf", "oneOf"):
            yield from node.get(word, ())
        yield from node.get("dependentSchemas", {}).values()

    def _knows(self, word: str) -> bool:
        return SINCE.get(word, 0) <= self.dialect <= UNTIL.get(word, 9999)

    def _refers(self, value: dict[str, Value]) -> bool:
        """It is a reference and nothing else, whatever stands beside it."""
        return self.dialect <= 7 and isinstance(value.get("$ref"), str)

    # References

    def _base(self, at: str) -> str:
        """The URI of the resource that a subschema belongs to."""
        if len(self._bases) > ("" in self._bases):
            here = at
            while here:
                if here in self._bases:
                    return self._bases[here]
                here = here.rpartition("/")[0]
        return self._bases.get("", "")

    def _find(self, base: str, reference: str) -> str | None:
        """Where a reference leads; None where its document is not here. Raises SchemaError where only that is."""
        uri, _, fragment = _join(base, reference).partition("#")
        start = "" if uri == self._bases.get("", "") else self._resources.get(uri)
        if start is None:
            return None
        fragment = unquote(fragment)
        if not fragment:
            return start
        target = start + fragment if fragment.startswith("/") else self._anchors.get((uri, fragment))
        try:
            self.raw(target if target is not None else "/")
        except SchemaError:
            target = None
        if target is None:
            raise SchemaError(f'"{reference}" leads nowhere in the schema; correct the reference.')
        return target

    def _include(self, uri: str) -> str:
        """Put the meta-schema with this URI into the document; its pointer. Raises SchemaError for any other."""
        from jsonschema_specifications import REGISTRY

        uri = uri.partition("#")[0]
        found = REGISTRY.get(uri) or REGISTRY.get(f"{uri}#")
        if found is None or not isinstance(self.document, dict) or found.contents.get("$schema") is None:
            raise SchemaError(f'"{uri}" is not in the schema, and nothing is fetched; copy it into the "$defs".')
        if _dialect(found.contents) != self.dialect:
            raise SchemaError(f'"{uri}" is in another dialect than the schema; set "$schema" to the same.')
        self.document = {**self.document, OWN: {**self.document.get(OWN, {}), uri: found.contents}}
        self._resources.setdefault(uri, f"/{OWN}/{_escape(uri)}")
        self._bases.setdefault(self._resources[uri], uri)
        return self._resources[uri]

    def _dynamically(self, at: str, word: str, reference: str) -> str | None:
        """Where a dynamic reference leads if that is the same from everywhere."""
        target = self._find(self._base(at), reference)
        name = "" if word == "$recursiveRef" else reference.rpartition("#")[2]
        others = self._dynamic.get(name, [])
        return target if target not in others or len(others) == 1 else None

    # Subschemas

    def __contains__(self, at: str) -> bool:
        """There is a subschema at a pointer."""
        return at in self._seen

    def raw(self, at: str) -> Value:
        """What stands at a pointer, as it is written. Raises SchemaError."""
        value = self.document
        for step in at.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                raise SchemaError(f'The schema has nothing at "{at}"; choose another part of it.')
        return value

    def at(self, at: str) -> Node:
        """One of the subschemas, with pointers in the place of its subschemas and of the targets of `$ref`.

        `$dynamicRef` stays only where its target depends on the way that led to it, then as it is written."""
        found = self._nodes.get(at)
        if found is None:
            found = self._nodes[at] = self._node(at, self.raw(at))
        return found

    def _node(self, at: str, value: Value) -> Node:
        if not isinstance(value, dict):
            return value is not False
        if self._refers(value):
            return {"$ref": self._find(self._base(at), value["$ref"])}
        node: dict[str, Any] = {}
        for word, part in value.items():
            here = f"{at}/{_escape(word)}"
            if not self._knows(word):
                continue
            if word == "$ref":
                node["$ref"] = self._find(self._base(at), part)
            elif word in ("$dynamicRef", "$recursiveRef"):
                target = self._dynamically(at, word, part)
                node["$dynamicRef" if target is None or "$ref" in value else "$ref"] = (
                    part if target is None else target
                )
            elif word == "items" and isinstance(part, list):
                node["prefixItems"] = tuple(f"{here}/{i}" for i in range(len(part)))
            elif word in SINGLE:
                node[word] = here
            elif word in LISTS:
                node[word] = tuple(f"{here}/{i}" for i in range(len(part)))
            elif word == "dependencies":
                node["dependentRequired"] = {key: one for key, one in part.items() if isinstance(one, list)}
                node["dependentSchemas"] = {
                    key: f"{here}/{_escape(key)}" for key, one in part.items() if not isinstance(one, list)
                }
            elif word in MAPS:
                node[word] = {key: f"{here}/{_escape(key)}" for key in part}
            else:
                node[word] = part
        additional = node.pop("additionalItems", None)
        if additional is not None and isinstance(value.get("items"), list):
            node["items"] = additional
        if self.dialect == 4:
            for side in ("Minimum", "Maximum"):
                exclusive = node.pop(f"exclusive{side}", False)
                if exclusive is True and side.lower() in node:
                    node[f"exclusive{side}"] = node.pop(side.lower())
        return node

    def plus(self, part: Value) -> "tuple[Schema, str]":
        """With one more subschema, which only refers to others; its pointer."""
        if isinstance(part, bool) and self.dialect < 6:
            part = {} if part else {"not": {}}  # as that dialect says it
        if not isinstance(self.document, dict):
            return self, ""
        parts = self._added()
        number = parts.index(part) if part in parts else len(parts)
        at = f"/{OWN}/parts/{number}"
        if number < len(parts):
            return self, at
        more = copy.copy(self)
        for made in ("text", "_validator"):
            more.__dict__.pop(made, None)
        more.document = {**self.document, OWN: {**self.document.get(OWN, {}), "parts": [*parts, part]}}
        more._nodes, more._seen = {}, self._seen | {at}
        return more, at

    # Instances

    def child(self, at: str, path: Sequence[str | int], instance: Value = None) -> "tuple[Schema, str, bool]":
        """The subschema of the value at `path` inside an instance of the subschema at `at`: the schema that has it, its
        pointer, and whether a value that is valid there keeps a valid instance valid.

        The branches of `anyOf` and `oneOf` that fit with what else is in the `instance` are a choice. If there are
        several, or something else depends on other values, the answer is False."""
        schema, exact = self, True
        for step in path:
            terms, sure = schema._below(at, step, instance)
            exact &= sure
            schema, at = schema._conjunction(terms)
            try:
                instance = instance[step]
            except (TypeError, LookupError):
                instance = None  # there is none yet
        return schema, at, exact

    def _conjunction(self, terms: list[Value]) -> "tuple[Schema, str]":
        """All of these subschemas as one; a pointer is a subschema of its own."""
        terms = list(dict.fromkeys(terms)) if all(isinstance(term, str) for term in terms) else terms
        if len(terms) == 1 and isinstance(terms[0], str):
            return self, terms[0]
        return self.plus(_written(terms))

    def _below(self, at: str, step: str | int, instance: Value) -> tuple[list[Value], bool]:
        """What holds for the value under a key or index: pointers and written choices."""
        node = self.at(at)
        if isinstance(node, bool):
            return ([] if node else [at]), True
        terms: list[Value] = list(self._member(node, step) if isinstance(step, str) else self._element(node, step))
        loose = ELSEWHERE | ({"uniqueItems", "contains"} if isinstance(step, int) else set())
        exact = loose.isdisjoint(node)
        inner = [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ())]
        for word in ("anyOf", "oneOf"):
            fitting = [one for one in node.get(word, ()) if self._fits(one, step, instance)]
            if len(fitting) == 1:
                inner += fitting
            elif word in node:
                exact = False
                branches = [self._below(one, step, instance)[0] for one in fitting]
                if all(branches):
                    terms.append({"anyOf": [_written(branch) for branch in branches]} if branches else False)
        for one in inner:
            more, sure = self._below(one, step, instance)
            terms += more
            exact &= sure
        return terms, exact

    def _fits(self, at: str, step: str | int, instance: Value) -> bool:
        """A branch is possible for a container, as far as its kind and what it has beside one key tell."""
        if ("object" if isinstance(step, str) else "array") not in self._kinds(at):
            return False
        beside = instance.items() if isinstance(step, str) and isinstance(instance, dict) else ()
        return all(
            self._validator.evolve(schema=_written(self._below(at, key, None)[0])).is_valid(value)
            for key, value in beside
            if key != step
        )

    def _member(self, node: Mapping[str, Any], key: str) -> Iterator[str]:
        known = key in node.get("properties", {})
        if known:
            yield node["properties"][key]
        for pattern, part in node.get("patternProperties", {}).items():
            if matches(pattern, key):
                known = True
                yield part
        if not known and "additionalProperties" in node:
            yield node["additionalProperties"]

    def _element(self, node: Mapping[str, Any], index: int) -> Iterator[str]:
        prefix = node.get("prefixItems", ())
        if index < len(prefix):
            yield prefix[index]
        elif "items" in node:
            yield node["items"]

    def skeleton(self, at: str) -> "tuple[Schema, tuple[Field, ...]]":
        """The keys that an object has to have, in the order of `properties`: of `anyOf` and `oneOf` the first branch
        that is possible. The schema returned is the one that their pointers are for."""
        return self._skeleton([at], DEPTH)

    def _skeleton(self, ats: list[str], depth: int) -> "tuple[Schema, tuple[Field, ...]]":
        schema, nodes = self, list(self._in_place(ats))
        known = dict.fromkeys(key for at in nodes for key in self._words(at).get("properties", {}))
        required = dict.fromkeys(key for at in nodes for key in self._words(at).get("required", ()))
        fields = []
        for key in (*(key for key in known if key in required), *(key for key in required if key not in known)):
            terms: list[Value] = [term for at in nodes for term in self._member(self._words(at), key)]
            schema, where = schema._conjunction(list(dict.fromkeys(terms)))
            inner: tuple[Field, ...] = ()
            only = schema._only(where)
            if only is None and depth and schema._kinds(where) == {"object"}:
                schema, inner = schema._skeleton([where], depth - 1)
            fields.append(Field(key, where, only, inner))
        return schema, tuple(fields)

    def _words(self, at: str) -> Mapping[str, Any]:
        node = self.at(at)
        return {} if isinstance(node, bool) else node

    def _in_place(self, ats: Sequence[str]) -> Iterator[str]:
        """These subschemas and those that hold for the same value: `$ref`, `allOf`, the first possible branches."""
        seen: set[str] = set()
        waiting = list(reversed(ats))
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            yield at
            node = self._words(at)
            chosen = [
                next((one for one in node[word] if self._kinds(one) - self._outside(at)), node[word][0])
                for word in ("anyOf", "oneOf")
                if node.get(word)
            ]
            waiting += reversed([*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ()), *chosen])

    KINDS = frozenset(("null", "boolean", "number", "string", "object", "array"))

    def _outside(self, at: str) -> frozenset[str]:
        """The kinds of values that the `type` beside a choice rules out."""
        return self.KINDS - _types(self._words(at).get("type"))

    def _kinds(self, at: str) -> frozenset[str]:
        """The kinds of values that `type` leaves."""
        kinds = self.KINDS if self.at(at) is not False else frozenset()
        for one in self._in_place([at]) if kinds else ():
            node = self._words(one)
            kinds &= _types(node.get("type")) if self.at(one) is not False else frozenset()
            if "type" not in node and "required" in node and "properties" in node:
                kinds &= {"object"}
        return kinds

    def _only(self, at: str) -> str | None:
        """The one value that `const`, an `enum` of one, or the type null allows, as JSON text."""
        for one in self._in_place([at]):
            node = self._words(one)
            if "const" in node or len(node.get("enum", ())) == 1:
                return json.dumps(node["const"] if "const" in node else node["enum"][0], ensure_ascii=False)
            if node.get("type") == "null":
                return "null"
        return None

    # Validation

    @property
    def _validator_class(self) -> Any:
        import jsonschema

        return getattr(jsonschema, VALIDATORS[self.dialect])

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import validators
        from jsonschema_specifications import REGISTRY

        ours = {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional}
        ours |= {"multipleOf": _multiple_of, "uniqueItems": _unique}
        return validators.extend(self._validator_class, ours)(self.document, registry=REGISTRY)

    def validator(self, at: str = "") -> Any:
        """A `jsonschema` validator of the whole schema or of a subschema. `format` is an annotation, `multipleOf` is
        exact, and a text that a pattern without an automaton is for is wrong."""
        return self._validator.evolve(schema=_written([at])) if at else self._validator


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _join(base: str, reference: str) -> str:
    """urljoin, also for a base that is a URN."""
    return base.partition("#")[0] + reference if reference.startswith("#") else urljoin(base, reference)


def _written(terms: Sequence[Value]) -> Value:
    """All the terms as one subschema: pointers are referred to."""
    parts = [{"$ref": _reference(term)} if isinstance(term, str) else term for term in terms]
    return True if not parts else parts[0] if len(parts) == 1 else {"allOf": parts}


def _reference(at: str) -> str:
    """To a pointer; inside a meta-schema by its own URI."""
    uri, start = "", at.split("/")[1:3]
    if len(start) == 2 and start[0] == OWN and start[1] != "parts":
        uri, at = start[1].replace("~1", "/").replace("~0", "~"), at[sum(map(len, start)) + 2 :]
    return uri + "#" + quote(at, safe="/~!$&'()*+,;=:@")


def _dialect(document: Value) -> int:
    """The dialect that `$schema` names; 2020-12 without it."""
    name = document.get("$schema") if isinstance(document, dict) else None
    if name is None:
        return 2020
    found = DIALECTS.get(re.sub("^https?://|#$", "", name)) if isinstance(name, str) else None
    if found is None:
        raise SchemaError(f'The dialect of the schema, {json.dumps(name)}, is not known; set "$schema" to 2020-12.')
    return found


_kept = Recent[str, Schema](KEPT, lambda text, _: LEAST_COST + COST * len(text))


def _types(kinds: str | Sequence[str] | None) -> frozenset[str]:
    if kinds is None:
        return Schema.KINDS
    return frozenset("number" if one == "integer" else one for one in ([kinds] if isinstance(kinds, str) else kinds))


# Patterns


@remembered(PATTERNS, lambda found, _: found.nbytes if found else 0)
def _automaton(pattern: str) -> Dfa | None:
    """The automaton of an ECMA-262 pattern, or None. Python's own engine may take time without end for a pattern."""
    try:
        return matching(pattern)
    except (Unsupported, TooLarge):
        return None


def matches(pattern: str, text: str) -> bool:
    """True if an ECMA-262 pattern is found in a text; a pattern that has no automaton is, in every text."""
    automaton = _automaton(pattern)
    return automaton is None or automaton.accepts(text)


def _backtracks(tree: Tree, *, repeated: bool = False) -> bool:
    """True if a pattern repeats what itself may be read in several ways: then Python's engine may not end."""
    match tree:
        case regex_syntax.Sequence(parts):
            return any(_backtracks(part, repeated=repeated) for part in parts)
        case Alternatives(parts):
            return repeated or any(_backtracks(part) for part in parts)
        case Repeated(part, least, most):
            several = most is None or most > 1
            return (repeated and least != most) or _backtracks(part, repeated=repeated or several)
        case Ahead(part):
            return _backtracks(part, repeated=repeated)
    return False


# Keywords of the validator


def _pattern(validator: Any, pattern: str, instance: Value, schema: Value) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not (_automaton(pattern) and matches(pattern, instance)):
        yield ValidationError(f"{instance!r} does not match {pattern!r}, as far as that can be told")


def _additional(validator: Any, extra: Value, instance: Value, schema: dict[str, Any]) -> Iterator[Any]:
    from jsonschema import ValidationError

    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items() if isinstance(instance, dict) else ():
        if key in known or any(matches(pattern, key) for pattern in patterns):
            continue
        if extra is False:
            yield ValidationError(f"The key {key!r} is not allowed")
        else:
            yield from validator.descend(value, extra, path=key)


def _pattern_properties(validator: Any, patterns: dict[str, Value], instance: Value, schema: Value) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, part in patterns.items():
            for key, value in instance.items():
                if matches(pattern, key):
                    yield from validator.descend(value, part, path=key, schema_path=pattern)


def _unique(validator: Any, unique: bool, instance: Value, schema: Value) -> Iterator[Any]:
    """In one go: the library compares every two."""
    from jsonschema import ValidationError

    if unique and isinstance(instance, list) and len(set(map(_canonical, instance))) < len(instance):
        yield ValidationError("Two items of an array are the same")


def _canonical(value: Value) -> Any:
    """Equal for values that are the same in JSON."""
    if isinstance(value, dict):
        return ("object", frozenset((key, _canonical(one)) for key, one in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(_canonical, value)))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number", exact(value)) if number else (type(value), value)


def _multiple_of(validator: Any, step: float, instance: Value, schema: Value) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "number") and exact(instance) % exact(step):
        yield ValidationError(f"{instance!r} is not a multiple of {step!r}")


def exact(number: float) -> Fraction:
    """A number of a document as it is written there, within the precision of a float."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))
