"""JSON objects with fixed keys and holes as values: like their siblings, or as a schema requires.

Siblings are the other elements of an array, or the values of the same key in the siblings of its object. Siblings also
make a schema: the types seen, and values that repeat. Pure."""

import json
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any

from caesura import wire
from caesura.schema.instances import Field
from caesura.server.context.secrets import masked
from caesura.server.structured.json.holes import sound
from caesura.server.structured.json.layout import Style, indent_at, style
from caesura.server.text.json import JsonTree, decoded

MOST_SIBLINGS = 32  # most siblings that are read, the nearest first
MOST_HOLES = wire.MAX_HOLES
LEVELS = 4  # most containers upwards that are searched for siblings, and most levels down that are compared
DISTINCT = 8  # most distinct strings that become an enum, each seen twice on average
MAX_VALUE = 64  # most code points of such a string

Segment = wire.Text | wire.Hole
Segments = list[Segment]
MakeLeaf = Callable[
    [tuple[str, ...], Sequence[int], Style], Segment
]  # keys of its path, the siblings' values, its object's layout


def siblings(tree: JsonTree, container: int, key: str | None, at: int, excluded: int = -1) -> list[int]:
    """The siblings of a value in a container, those nearest to the offset first: for an element (`key` is None) the
    other elements, else the values of `key` in the container's siblings, else the other values of a map of objects."""
    found = _siblings(tree, container, key, at, excluded, LEVELS)
    if not found and key is not None:
        others = _nearest(tree, (one for one in tree.children(container) if one != excluded), at)
        if len(others) > 1 and common(tree, others):
            found = others
    return found


def _siblings(tree: JsonTree, container: int, key: str | None, at: int, excluded: int, levels: int) -> list[int]:
    kind, parent = tree.kinds[container], tree.parents[container]
    found = []
    if key is None:
        found = [child for child in tree.children(container) if child != excluded]
    if not found and parent >= 0 and levels:
        alike = _siblings(tree, parent, tree.key(container), at, container, levels - 1)
        for other in (one for one in alike if tree.kinds[one] == kind):
            found += [child for child in tree.children(other) if tree.key(child) == key]
    return _nearest(tree, found, at)


def _nearest(tree: JsonTree, values: Iterable[int], at: int) -> list[int]:
    return nsmallest(MOST_SIBLINGS, values, key=lambda value: _distance(tree, value, at))


def _distance(tree: JsonTree, value: int, at: int) -> int:
    return max(tree.starts[value] - at, at - tree.ends[value], 0)


def common(tree: JsonTree, values: Sequence[int]) -> list[str]:
    """The keys that all values share, in the order of the first; none if the values are no objects, or differ too
    much."""
    if not values or any(tree.kinds[value] != "object" for value in values):
        return []
    keys = [[str(tree.key(child)) for child in tree.children(value)] for value in values]
    shared = [key for key in keys[0] if all(key in other for other in map(set, keys))]
    return shared if 2 * len(shared) * len(keys) >= sum(map(len, keys)) else []


# A schema made from siblings


def schema_of(tree: JsonTree, values: Sequence[int], levels: int = LEVELS) -> dict[str, Any]:
    """A schema for a further value like these."""
    types = sorted({_type(tree, value) for value in values})
    if "integer" in types and "number" in types:
        types.remove("integer")
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types} if types else {}
    if not levels or len(types) != 1:
        return schema
    if types == ["string"]:
        texts = [tree.source(value) for value in values]
        some = dict.fromkeys(texts)
        if len(some) <= DISTINCT and 2 * len(some) <= len(texts) and max(map(len, some)) <= MAX_VALUE:
            told = all(sound(decoded(text)) for text in some) and all(
                shown(tree, value) == tree.source(value) for value in values
            )
            schema |= {"enum": list(map(decoded, some))} if told else {}
    elif types == ["array"]:
        items = [child for value in values for child in islice(tree.children(value), MOST_SIBLINGS)]
        schema |= {"items": schema_of(tree, items[:MOST_SIBLINGS], levels - 1)} if items else {}
    elif types == ["object"] and (keys := common(tree, values)):
        members = {key: [_member(tree, value, key) for value in values] for key in keys}
        properties = {key: schema_of(tree, those, levels - 1) for key, those in members.items()}
        schema |= {"properties": properties, "required": keys, "additionalProperties": False}
    return schema


def shown(tree: JsonTree, value: int) -> str:
    """The text of a value with its secrets masked; its key helps to find them."""
    key = f"{json.dumps(tree.key(value))}: "
    return masked(key + tree.source(value))[len(key) :]


def _type(tree: JsonTree, value: int) -> str:
    kind, source = tree.kinds[value], tree.source(value)
    if kind == "number":
        return "number" if any(mark in source for mark in ".eE") else "integer"
    if kind == "literal":
        return "null" if source == "null" else "boolean"
    return kind


def _member(tree: JsonTree, value: int, key: str) -> int:
    return next(child for child in tree.children(value) if tree.key(child) == key)


# Segments


def like(tree: JsonTree, values: Sequence[int], at: int, indent: str, leaf: MakeLeaf) -> Segments | None:
    """An object with the keys that all values share, in the layout of the last value before `at`; `indent` is the white
    space of its line. None if they share too few keys, or too many for one job."""
    if not common(tree, values):
        return None
    before = [value for value in values if tree.ends[value] <= at]
    model = max(before) if before else values[0]
    text = tree.source(model)
    if ("\n" in text or "\r" in text) and indent_at(tree.text, tree.starts[model]) != indent:
        return None
    pieces = _like(tree, values, model, (), leaf)
    return pieces if holes(pieces) <= MOST_HOLES else None


def _like(tree: JsonTree, values: Sequence[int], model: int, path: tuple[str, ...], leaf: MakeLeaf) -> Segments:
    layout, keys = style(tree, model), set(common(tree, values))
    line = "" if layout.item is None else layout.newline
    opening, closing = (layout.pad, layout.pad) if layout.item is None else (line + layout.item, line + layout.base)
    between = layout.comma if layout.item is None else "," + opening
    done, pieces = tree.item_start(model + 1), Segments()
    first = _text(tree, tree.starts[model], done, "{" + opening)
    for child in tree.children(model):
        start, end = tree.keys[child] or (done, done)
        if (key := tree.key(child)) in keys and key is not None:
            pieces.append(wire.Text(_text(tree, done, start, between) if pieces else first))
            name = tree.text[start:end]
            pieces.append(wire.Text(_text(tree, start, tree.starts[child], name + layout.colon)))
            those = [_member(tree, value, key) for value in values]
            if tree.kinds[child] == "object" and common(tree, those) and len(path) < LEVELS:
                pieces += _like(tree, those, child, (*path, key), leaf)
            else:
                pieces.append(leaf((*path, key), those, layout))
        done = tree.ends[child]
    return [*pieces, wire.Text(_text(tree, done, tree.ends[model], closing + "}"))]


def _text(tree: JsonTree, start: int, end: int, usual: str) -> str:
    """The text of a span; `usual` if it has a comment."""
    return usual if "\0" in tree.covered(start, end) else tree.text[start:end]


def required(fields: Sequence[Field], layout: Style, level: int, leaf: Callable[[Field, int], Segment]) -> Segments:
    """The members that a schema requires, without the braces. `level` is that of the object's line; `leaf` gets the
    level of the value."""
    below = "" if layout.indent is None else layout.newline + layout.indent * (level + 1)
    pieces = Segments()
    for field in fields:
        lead = "" if not pieces else layout.comma if layout.indent is None else "," + below
        pieces.append(wire.Text(lead + json.dumps(field.key, ensure_ascii=False) + layout.colon))
        if field.fields:
            pieces += [wire.Text(bracket(layout, level + 1, "{"))]
            pieces += [*required(field.fields, layout, level + 1, leaf), wire.Text(bracket(layout, level + 1, "}"))]
        else:
            pieces.append(leaf(field, level + 1))
    return pieces


def bracket(layout: Style, level: int, mark: str) -> str:
    """The brace of a non-empty object, with the white space on its inner side."""
    if layout.indent is None:
        return "{" + layout.pad if mark == "{" else layout.pad + "}"
    inside = layout.newline + layout.indent * (level + (mark == "{"))
    return "{" + inside if mark == "{" else inside + "}"


def joined(pieces: Iterable[Segment]) -> tuple[Segment, ...]:
    """The segments, with adjacent texts joined and empty ones left out."""
    found: Segments = []
    for piece in pieces:
        if isinstance(piece, wire.Text) and found and isinstance(found[-1], wire.Text):
            found[-1] = wire.Text(found[-1].text + piece.text)
        elif piece != wire.Text(""):
            found.append(piece)
    return tuple(found)


def holes(pieces: Iterable[Segment]) -> int:
    return sum(isinstance(piece, wire.Hole) for piece in pieces)
