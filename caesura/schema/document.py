"""A JSON Schema document: its subschemas, and the references between them.

A subschema is named by its JSON pointer (RFC 6901) into the document. `Schema.at` shows it in the keywords of dialect
2020-12, in whichever dialect it is written, with pointers instead of its own subschemas. Nothing is fetched: references
lead inside the document, or to the meta-schema of its dialect.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urljoin

from caesura.schema import validation
from caesura.schema.dialects import LISTS, MAPS, SINGLE, SchemaError, SchemaNode, Value, dialect_of, knows

MAX_SUBSCHEMAS = 20_000
OWN = "$caesura"  # the key of the document that holds the subschemas we add


class Schema:
    """A schema document. Documents with subschemas added share what was read."""

    def __init__(self, document: dict[str, Value] | bool) -> None:
        """Raises SchemaError."""
        self.document = document
        self.dialect = dialect_of(document)
        self.apart: list[str] = []  # pointers of subschemas that the meta-schema does not reach
        self._resources: dict[str, str] = {}  # absolute URI -> pointer
        self._bases: dict[str, str] = {}  # pointer of a resource -> its URI
        self._anchors: dict[tuple[str, str], str] = {}  # URI and name -> pointer
        self._dynamic: dict[str, list[str]] = {}  # name of a dynamic anchor -> pointers
        self._seen: set[str] = set()
        self._nodes: dict[str, SchemaNode] = {}
        self._read()

    def __repr__(self) -> str:
        return f"<Schema {self.dialect}, {len(self._seen)} subschemas>"

    @cached_property
    def text(self) -> str:
        """The document with all additions, as JSON."""
        if not isinstance(self.document, dict):
            return json.dumps(self.document)
        rest = {key: part for key, part in self.document.items() if key != OWN}
        own = {OWN: {"parts": added}} if (added := self._added()) else {}
        return json.dumps({**rest, **own}, ensure_ascii=False)

    # Subschemas

    @property
    def pointers(self) -> Set[str]:
        """Every subschema."""
        return self._seen

    def __contains__(self, at: str) -> bool:
        """True if there is a subschema at a pointer."""
        return at in self._seen

    def raw(self, at: str) -> Value:
        """The value at a pointer, as it is written. Raises SchemaError."""
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

    def at(self, at: str) -> SchemaNode:
        """A subschema, with pointers instead of its own subschemas and of the targets of `$ref`.

        `$dynamicRef` stays as it is written if its target depends on the path that leads to it."""
        found = self._nodes.get(at)
        if found is None:
            found = self._nodes[at] = self._node(at, self.raw(at))
        return found

    def _node(self, at: str, value: Value) -> SchemaNode:
        if not isinstance(value, dict):
            return value is not False
        if self._refers(value):
            return {"$ref": self._find(self._base(at), value["$ref"])}
        node: dict[str, Any] = {}
        for word, part in value.items():
            here = f"{at}/{escape(word)}"
            if not knows(self.dialect, word):
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
                    key: f"{here}/{escape(key)}" for key, one in part.items() if not isinstance(one, list)
                }
            elif word in MAPS:
                node[word] = {key: f"{here}/{escape(key)}" for key in part}
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

    def words(self, at: str) -> Mapping[str, Any]:
        """The keywords of a subschema; none for true and false."""
        node = self.at(at)
        return {} if isinstance(node, bool) else node

    def plus(self, part: Value) -> "tuple[Schema, str]":
        """A schema with one more subschema, which only refers to others, and its pointer."""
        if isinstance(part, bool) and self.dialect < 6:
            part = {} if part else {"not": {}}  # draft 4 has no true and false
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

    # Reading

    def _read(self) -> None:
        self._resources[""] = ""
        waiting = list(self._walk("", self.document, ""))
        for number, part in enumerate(self._added()):
            self.apart.append(f"/{OWN}/parts/{number}")
            waiting += self._walk(self.apart[-1], part, self._bases.get("", ""))
        while waiting:
            at, reference = waiting.pop()
            target = self._find(self._base(at), reference)
            if target is None:
                target = self._include(urljoin(self._base(at), reference))
                waiting += self._walk(target, self.raw(target), "")
                target = self._find(self._base(at), reference) or target
            if target not in self._seen:
                self.apart.append(target)
                waiting += self._walk(target, self.raw(target), self._base(target))

    def _added(self) -> list[Value]:
        """The subschemas that `plus` has added."""
        own = self.document.get(OWN) if isinstance(self.document, dict) else None
        parts = own.get("parts") if isinstance(own, dict) else None
        return parts if isinstance(parts, list) else []

    def _walk(self, at: str, value: Value, base: str) -> Iterator[tuple[str, str]]:
        """Record the subschemas from here on; yield the pointer and the text of each reference."""
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
                if isinstance(value.get(word), str) and knows(self.dialect, word):
                    yield at, value[word]
            stack += ((where, part, base) for where, part in self._parts(at, value))

    def _identify(self, at: str, value: dict[str, Value], base: str) -> str:
        """Record the names that a subschema gives itself. Returns its base URI."""
        name = value.get("id" if self.dialect == 4 else "$id")
        if at and isinstance(name, str) and "$schema" in value and dialect_of(value) != self.dialect:
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
            here = f"{at}/{escape(word)}"
            if word in SINGLE and not (word == "items" and isinstance(part, list)):
                yield here, part
            elif (word in LISTS or word == "items") and isinstance(part, list):
                yield from ((f"{here}/{i}", one) for i, one in enumerate(part))
            elif word in MAPS and isinstance(part, dict):
                for key, one in part.items():
                    if not (word == "dependencies" and isinstance(one, list)):
                        yield f"{here}/{escape(key)}", one

    def _refers(self, value: dict[str, Value]) -> bool:
        """True for a reference: until draft 7 it hides all keywords next to it."""
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
        """The target of a reference; None if its document is not here. Raises SchemaError if the document is here and
        has no such part."""
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
        """Add the meta-schema with this URI to the document. Returns its pointer. Raises SchemaError for other URIs."""
        from jsonschema_specifications import REGISTRY

        uri = uri.partition("#")[0]
        found = REGISTRY.get(uri) or REGISTRY.get(f"{uri}#")
        if found is None or not isinstance(self.document, dict) or found.contents.get("$schema") is None:
            raise SchemaError(f'"{uri}" is not in the schema, and nothing is fetched; copy it into the "$defs".')
        if dialect_of(found.contents) != self.dialect:
            raise SchemaError(f'"{uri}" is in another dialect than the schema; set "$schema" to the same.')
        self.document = {**self.document, OWN: {**self.document.get(OWN, {}), uri: found.contents}}
        self._resources.setdefault(uri, f"/{OWN}/{escape(uri)}")
        self._bases.setdefault(self._resources[uri], uri)
        return self._resources[uri]

    def _dynamically(self, at: str, word: str, reference: str) -> str | None:
        """The target of a dynamic reference; None if it depends on the path that leads to the reference."""
        target = self._find(self._base(at), reference)
        name = "" if word == "$recursiveRef" else reference.rpartition("#")[2]
        others = self._dynamic.get(name, [])
        return target if target not in others or len(others) == 1 else None

    # Validation

    def validator(self, part: Value = "") -> Any:
        """A `jsonschema` validator of one part: a pointer, or a subschema of pointers."""
        return self._validator if part == "" else self._validator.evolve(schema=all_of([part]))

    @cached_property
    def _validator(self) -> Any:
        return validation.validator(self.document, self.dialect)


def escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _join(base: str, reference: str) -> str:
    """urljoin, also for a base that is a URN."""
    return base.partition("#")[0] + reference if reference.startswith("#") else urljoin(base, reference)


def all_of(terms: Sequence[Value]) -> Value:
    """All terms as one subschema; pointers become references."""
    parts = [{"$ref": _reference(term)} if isinstance(term, str) else term for term in terms]
    return True if not parts else parts[0] if len(parts) == 1 else {"allOf": parts}


def _reference(at: str) -> str:
    """A reference to a pointer; inside a meta-schema, by the URI of the meta-schema."""
    uri, start = "", at.split("/")[1:3]
    if len(start) == 2 and start[0] == OWN and start[1] != "parts":
        uri, at = start[1].replace("~1", "/").replace("~0", "~"), at[sum(map(len, start)) + 2 :]
    return uri + "#" + quote(at, safe="/~!$&'()*+,;=:@")
