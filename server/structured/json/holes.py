"""The grammars of the holes of one JSON edit, and the schema document that they point into. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from caesura import wire
from caesura.schema.document import Schema
from caesura.schema.instances import Field, child, skeleton
from caesura.server.structured.json.layout import Style
from caesura.server.structured.offer import NoOffer

# Tokens of a hole
STRING, LONG_STRING, SMALL, FREE = 24, 48, 8, 96

LONG = 16  # code points that a string has at least, to be long
MAX_TAKEN = 3000  # bytes of the keys that a grammar refuses; each may cost it a state
MAX_POINTER = 4096  # code points


# Keywords of a schema by which members depend on each other.
BINDING = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "minProperties")
) | {"maxProperties", "propertyNames", "unevaluatedProperties", "$dynamicRef"}


class Grammars:
    """`exact`: what the grammars take keeps a valid document valid, as far as the server knows. `instance` is what has
    the schema, as it is: what else is in it tells branches of the schema apart."""

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
        """The subschema of a value of the document; None without a schema."""
        if self._schema is None:
            return None
        self._schema, at, exact = child(self._schema, "", path, self._instance)
        self.exact &= exact
        if len(at) > MAX_POINTER:
            raise NoOffer("This place lies too deep in its schema; edit it by hand.")
        return at

    def own(self, schema: Mapping[str, Any]) -> str | None:
        """A subschema that says what siblings have in common, where there is no schema; None if it says nothing."""
        if not schema:
            return None
        assert self._schema is None
        if schema not in self._own:
            self._own.append(schema)
        return f"/$defs/{self._own.index(schema)}"

    def kinds(self, at: str) -> frozenset[str]:
        """The types that a value of a subschema may have, as far as it says."""
        kinds = self._words(at).get("type", ("object",))
        return frozenset((kinds,) if isinstance(kinds, str) else kinds)

    def full(self, at: str | None, keys: Sequence[str], count: int) -> bool:
        """True if a container with these keys, or so many elements, surely has all that its schema allows."""
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
        """False if a schema does not allow `count` members. Where it binds members to each other, the written keys are
        no guarantee, and the outcome has to be checked."""
        words = self._words(at)
        if not BINDING.isdisjoint(words):
            self.exact = False
        inner = [self.tied(field.at, field.fields, len(field.fields)) for field in fields if field.fields]
        return words.get("minProperties", 0) <= count <= words.get("maxProperties", count) and all(inner)

    def fields(self, at: str) -> tuple[Field, ...]:
        """The keys that a schema requires of an object."""
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
        """`level` as the grammar has it; None: on one line."""
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
    """True if a text has no half of a surrogate pair, which JSON's escapes can make."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _size(words: Mapping[str, Any]) -> int:
    """The tokens of a value of a subschema."""
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
