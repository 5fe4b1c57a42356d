"""The grammars of the holes of one JSON edit, and the schema that they refer to. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from caesura import wire
from caesura.schema.document import Schema
from caesura.schema.instances import Field, child, skeleton
from caesura.server.structured.json.layout import Style
from caesura.server.structured.offer import NoOffer

# Tokens of a hole, by its content
STRING, LONG_STRING, SMALL, FREE = 24, 48, 8, 96

LONG = 16  # code points; a string with a larger minimum length is long
MAX_TAKEN = 3000  # most bytes of the keys that a grammar refuses; each byte may cost it a state
MAX_POINTER = 4096  # most code points of a pointer into a schema


# Keywords of a schema that make members depend on each other.
BINDING = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "minProperties")
) | {"maxProperties", "propertyNames", "unevaluatedProperties", "$dynamicRef"}


class Grammars:
    """`exact`: to the server's knowledge, any fill in these grammars keeps a valid document valid. `instance` is the
    current value of the schema; its other members tell the schema's branches apart."""

    def __init__(self, schema: Schema | None, instance: Any = None) -> None:
        self._schema, self._instance = schema, instance
        self._own: list[Mapping[str, Any]] = []
        self.exact = True

    def __repr__(self) -> str:
        return f"<Grammars {self._schema} and {len(self._own)} of siblings>"

    @property
    def schemas(self) -> tuple[str, ...]:
        if self._schema is not None:
            return (self._schema.text,)
        return (json.dumps({"$defs": dict(enumerate(self._own))}, ensure_ascii=False),) if self._own else ()

    def at(self, path: Sequence[str | int]) -> str | None:
        """A pointer to the subschema of the value at `path`; None without a schema."""
        if self._schema is None:
            return None
        self._schema, at, exact = child(self._schema, "", path, self._instance)
        self.exact &= exact
        if len(at) > MAX_POINTER:
            raise NoOffer("This place lies too deep in its schema; edit it by hand.")
        return at

    def own(self, schema: Mapping[str, Any]) -> str | None:
        """Add a subschema made from siblings, which replaces the missing schema. Returns a pointer to it; None if it is
        empty."""
        if not schema:
            return None
        assert self._schema is None
        if schema not in self._own:
            self._own.append(schema)
        return f"/$defs/{self._own.index(schema)}"

    def kinds(self, at: str) -> frozenset[str]:
        """The types that a subschema names for its value; "object" if it names none."""
        kinds = self._words(at).get("type", ("object",))
        return frozenset((kinds,) if isinstance(kinds, str) else kinds)

    def full(self, at: str | None, keys: Sequence[str], count: int) -> bool:
        """True if a container with these keys, or `count` elements, certainly has all that its schema allows."""
        if at is None or self._schema is None:
            return False
        words = self._words(at)
        if "object" not in self.kinds(at):
            return bool(count >= words.get("maxItems", count + 1))
        others = words.get("additionalProperties")
        if not isinstance(others, str) or self._schema.at(others) is not False or "patternProperties" in words:
            return False
        return set(words.get("properties", {})) <= set(keys)

    def tied(self, at: str, fields: Sequence[Field], count: int) -> bool:
        """False if a schema does not allow `count` members. If it makes members depend on each other, the grammars are
        no longer `exact`, and the result needs a check."""
        words = self._words(at)
        if not BINDING.isdisjoint(words):
            self.exact = False
        inner = [self.tied(field.at, field.fields, len(field.fields)) for field in fields if field.fields]
        return words.get("minProperties", 0) <= count <= words.get("maxProperties", count) and all(inner)

    def fields(self, at: str) -> tuple[Field, ...]:
        """The members that a schema requires of an object."""
        assert self._schema is not None
        self._schema, fields = skeleton(self._schema, at)
        return fields

    def hole(
        self,
        layout: Style,
        level: int | None,
        at: str | None,
        *,
        start: Literal["value", "members", "elements", "key"] = "value",
        typed: str = "",
        then: str = "",
        taken: Sequence[str] = (),
        most: int = 64,
    ) -> wire.Hole:
        """A hole with the grammar of a value, members, elements or a key. `level` as in wire.Json; None: on one
        line."""
        indent = None if level is None else layout.indent
        grammar = wire.Json(
            start=start,
            typed=typed,
            then=then,
            most=most,
            taken=self._taken(taken),
            indent=indent,
            level=level or 0 if indent else 0,
            colon=layout.colon,
            comma=layout.comma,
            newline=layout.newline,
            schema=None if at is None else 0,
            at=at or "",
        )
        size = STRING if start == "key" else _size(self._words(at)) if start == "value" else FREE
        return wire.Hole(size, "block" if indent and size == FREE else "span", grammar)

    def _taken(self, keys: Sequence[str]) -> tuple[str, ...]:
        left, taken = MAX_TAKEN, list[str]()
        for key in keys:
            left -= len(key.encode("utf-8", "surrogatepass"))
            if left < 0 or not sound(key):
                self.exact = False
            else:
                taken.append(key)
        return tuple(taken)

    def _words(self, at: str | None) -> Mapping[str, Any]:
        if at is None:
            return {}
        if self._schema is None:
            return self._own[int(at.rpartition("/")[2])]
        node = self._schema.at(at)
        for _ in range(4):
            if not isinstance(node, Mapping) or "$ref" not in node:
                break
            node = self._schema.at(node["$ref"])
        return node if isinstance(node, Mapping) else {}


def sound(text: str) -> bool:
    """True if a text has no lone surrogate, which JSON's escapes can make."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _size(words: Mapping[str, Any]) -> int:
    """The number of tokens of a hole for a value of a subschema."""
    if "const" in words or "enum" in words:
        texts = map(json.dumps, words.get("enum", [words.get("const")]))
        return min(LONG_STRING, max(SMALL, max(map(len, texts), default=0) // 2))
    kinds = words.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if kinds and kinds <= {"number", "integer", "boolean", "null"}:
        return SMALL
    if kinds and kinds <= {"string", "number", "integer", "boolean", "null"}:
        long = "pattern" in words or "format" in words or words.get("minLength", 0) > LONG
        return LONG_STRING if long else STRING
    return FREE
