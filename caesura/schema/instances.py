"""The values inside an instance, by a schema: their subschemas, and the keys that an object must have."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caesura.schema.dialects import Value
from caesura.schema.document import Schema, all_of
from caesura.schema.validation import matches

DEPTH = 16  # required objects in a skeleton, one inside the other
DEPENDENT = {  # keywords that make values depend on each other
    *("const", "enum", "not", "if", "dependentSchemas", "$dynamicRef", "unevaluatedProperties", "unevaluatedItems")
}
KINDS = frozenset(("null", "boolean", "number", "string", "object", "array"))


@dataclass(frozen=True)
class Field:
    """A required key, with the pointer of its value's subschema: `only` is the one JSON text that the value may be,
    `fields` are the keys that it requires in turn."""

    key: str
    at: str
    only: str | None = None
    fields: "tuple[Field, ...]" = ()


def child(schema: Schema, at: str, path: Sequence[str | int], instance: Value = None) -> tuple[Schema, str, bool]:
    """Find the subschema of the value at `path` in an instance of the subschema `at`. Returns the schema that holds it,
    its pointer, and whether every value that is valid there keeps a valid instance valid.

    Branches of `anyOf` and `oneOf` are left out if the rest of the `instance` rules them out. The last answer is False
    if several branches are left, or if the value depends on others in another way."""
    exact = True
    for step in path:
        terms, sure = _below(schema, at, step, instance)
        exact &= sure
        schema, at = _conjunction(schema, terms)
        try:
            instance = instance[step]
        except (TypeError, LookupError):
            instance = None  # not written yet
    return schema, at, exact


def _conjunction(schema: Schema, terms: list[Value]) -> tuple[Schema, str]:
    """All terms as one subschema; a single pointer stays as it is."""
    terms = list(dict.fromkeys(terms)) if all(isinstance(term, str) for term in terms) else terms
    if len(terms) == 1 and isinstance(terms[0], str):
        return schema, terms[0]
    return schema.plus(all_of(terms))


def _below(schema: Schema, at: str, step: str | int, instance: Value) -> tuple[list[Value], bool]:
    """The terms (pointers and subschemas) that apply to the value under a key or index, and whether they are exact."""
    node = schema.at(at)
    if isinstance(node, bool):
        return ([] if node else [at]), True
    terms: list[Value] = list(_member(node, step) if isinstance(step, str) else _element(node, step))
    loose = DEPENDENT | ({"uniqueItems", "contains"} if isinstance(step, int) else set())
    exact = loose.isdisjoint(node)
    inner = [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ())]
    for word in ("anyOf", "oneOf"):
        fitting = [one for one in node.get(word, ()) if _fits(schema, one, step, instance)]
        if len(fitting) == 1:
            inner += fitting
        elif word in node:
            exact = False
            branches = [_below(schema, one, step, instance)[0] for one in fitting]
            if all(branches):
                terms.append({"anyOf": [all_of(branch) for branch in branches]} if branches else False)
    for one in inner:
        more, sure = _below(schema, one, step, instance)
        terms += more
        exact &= sure
    return terms, exact


def _fits(schema: Schema, at: str, step: str | int, instance: Value) -> bool:
    """True if a branch fits a container, judged by its kind and by its values under all other keys."""
    if ("object" if isinstance(step, str) else "array") not in _kinds(schema, at):
        return False
    others = instance.items() if isinstance(step, str) and isinstance(instance, dict) else ()
    return all(
        schema.validator(all_of(_below(schema, at, key, None)[0])).is_valid(value)
        for key, value in others
        if key != step
    )


def _member(node: Mapping[str, Any], key: str) -> Iterator[str]:
    known = key in node.get("properties", {})
    if known:
        yield node["properties"][key]
    for pattern, part in node.get("patternProperties", {}).items():
        if matches(pattern, key):
            known = True
            yield part
    if not known and "additionalProperties" in node:
        yield node["additionalProperties"]


def _element(node: Mapping[str, Any], index: int) -> Iterator[str]:
    prefix = node.get("prefixItems", ())
    if index < len(prefix):
        yield prefix[index]
    elif "items" in node:
        yield node["items"]


def skeleton(schema: Schema, at: str) -> tuple[Schema, tuple[Field, ...]]:
    """The required keys of an object, in the order of `properties`, and the schema that their pointers are for. Takes
    the first possible branch of `anyOf` and `oneOf`."""
    return _skeleton(schema, [at], DEPTH)


def _skeleton(schema: Schema, ats: list[str], depth: int) -> tuple[Schema, tuple[Field, ...]]:
    nodes = list(_in_place(schema, ats))
    known = dict.fromkeys(key for at in nodes for key in schema.words(at).get("properties", {}))
    required = dict.fromkeys(key for at in nodes for key in schema.words(at).get("required", ()))
    fields = []
    for key in (*(key for key in known if key in required), *(key for key in required if key not in known)):
        terms: list[Value] = [term for at in nodes for term in _member(schema.words(at), key)]
        schema, where = _conjunction(schema, list(dict.fromkeys(terms)))
        inner: tuple[Field, ...] = ()
        only = _only(schema, where)
        if only is None and depth and _kinds(schema, where) == {"object"}:
            schema, inner = _skeleton(schema, [where], depth - 1)
        fields.append(Field(key, where, only, inner))
    return schema, tuple(fields)


def _words(schema: Schema, at: str) -> Mapping[str, Any]:
    node = schema.at(at)
    return {} if isinstance(node, bool) else node


def _in_place(schema: Schema, ats: Sequence[str]) -> Iterator[str]:
    """These subschemas and those that apply to the same value: `$ref`, `allOf`, the first possible branches."""
    seen: set[str] = set()
    waiting = list(reversed(ats))
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        yield at
        node = schema.words(at)
        chosen = [
            next((one for one in node[word] if _kinds(schema, one) - _outside(schema, at)), node[word][0])
            for word in ("anyOf", "oneOf")
            if node.get(word)
        ]
        waiting += reversed([*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ()), *chosen])


def _outside(schema: Schema, at: str) -> frozenset[str]:
    """The kinds of values that the `type` next to a choice rules out."""
    return KINDS - _types(schema.words(at).get("type"))


def _kinds(schema: Schema, at: str) -> frozenset[str]:
    """The kinds of values that `type` allows."""
    kinds = KINDS if schema.at(at) is not False else frozenset()
    for one in _in_place(schema, [at]) if kinds else ():
        node = schema.words(one)
        kinds &= _types(node.get("type")) if schema.at(one) is not False else frozenset()
        if "type" not in node and "required" in node and "properties" in node:
            kinds &= {"object"}
    return kinds


def _only(schema: Schema, at: str) -> str | None:
    """The one value that `const`, an `enum` of one, or the type null allows, as JSON text."""
    for one in _in_place(schema, [at]):
        node = schema.words(one)
        if "const" in node or len(node.get("enum", ())) == 1:
            return json.dumps(node["const"] if "const" in node else node["enum"][0], ensure_ascii=False)
        if node.get("type") == "null":
            return "null"
    return None


def _types(kinds: str | Sequence[str] | None) -> frozenset[str]:
    if kinds is None:
        return KINDS
    return frozenset("number" if one == "integer" else one for one in ([kinds] if isinstance(kinds, str) else kinds))
