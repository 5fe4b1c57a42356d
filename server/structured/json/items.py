"""The ways to write a value of a JSON document: like its siblings, with what its schema requires, or freely. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from caesura import wire
from caesura.schema.document import Schema
from caesura.schema.instances import Field
from caesura.server.structured.json.holes import Grammars
from caesura.server.structured.json.siblings import (
    MOST_HOLES,
    Segment,
    Segments,
    bracket,
    common,
    holes,
    like,
    required,
    schema_of,
    shown,
    siblings,
)
from caesura.server.text.json import Document, Style

NEAR = 1500  # code points from a hole to a sibling that is in its context anyway
EVIDENCE, MAX_EVIDENCE = 4, 2000  # siblings that are shown besides, and code points of one

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Spot:
    """Where a value goes: under `key` (None: as an element) in a container (-1: none), in the place of start:end, and
    of the value `besides` if that is not -1. `indent` is the white space of its line; `path` leads to it from what has
    the schema. `level` is that of its line; None: it is written on one."""

    container: int
    key: str | None
    besides: int
    start: int
    end: int
    indent: str
    layout: Style
    level: int | None
    path: Path


@dataclass(frozen=True)
class Way:
    """What is written, and how: the end of a title."""

    how: str
    pieces: Segments
    grammars: Grammars


def ways(document: Document, schema: Schema | None, spot: Spot) -> list[Way]:
    """The best first, the free one last."""
    instance = _instance(document, spot) if schema else None
    found = [_alike(document, schema, spot, instance), _as_required(schema, spot, instance)]
    grammars = Grammars(schema, instance)
    hole = grammars.hole(spot.layout, spot.level, grammars.at(spot.path))
    return [*(way for way in found if way is not None), Way("", [hole], grammars)]


def _instance(document: Document, spot: Spot) -> Any:
    """The whole value that has the schema and the spot in it; None where it cannot be read."""
    value = spot.container if spot.path else -1
    for _ in spot.path[1:]:
        value = document.parents[value]
    try:
        return document.value(value) if value >= 0 else None
    except ValueError:
        return None


def _near(document: Document, spot: Spot) -> list[int]:
    if spot.container < 0:
        return []
    return siblings(document, spot.container, spot.key, spot.start, besides=spot.besides)


def _alike(document: Document, schema: Schema | None, spot: Spot, instance: Any) -> Way | None:
    """An object with the keys of its siblings, or one hole for what they have in common."""
    grammars, alike = Grammars(schema, instance), _near(document, spot)

    def leaf(keys: tuple[str, ...], those: Sequence[int], inside: Style) -> wire.Hole:
        at = grammars.own(schema_of(document, those)) if schema is None else grammars.at((*spot.path, *keys))
        return grammars.hole(inside, None if inside.indent is None else inside.level + 1, at)

    how = " like its siblings"
    if pieces := like(document, alike, spot.start, spot.indent, leaf):
        at = grammars.at(spot.path)
        keys = set(common(document, alike))
        complete = at is None or (
            {field.key for field in grammars.fields(at)} <= keys and grammars.tied(at, grammars.fields(at), len(keys))
        )
        return Way(how, pieces, grammars) if complete else None
    if schema is None and alike and (at := grammars.own(schema_of(document, alike))):
        return Way(how, [grammars.hole(spot.layout, spot.level, at)], grammars)
    return None


def _as_required(schema: Schema | None, spot: Spot, instance: Any) -> Way | None:
    """An object with the keys that its schema requires."""
    grammars = Grammars(schema, instance)
    at = grammars.at(spot.path)
    if at is None or "object" not in grammars.kinds(at):
        return None
    fields = grammars.fields(at)
    inner = _fields(grammars, fields, spot.layout, spot.level)
    if not inner or not grammars.tied(at, fields, len(fields)):
        return None
    layout = spot.layout if spot.level is not None else replace(spot.layout, indent=None)
    outer = (wire.Text(bracket(layout, spot.level or 0, mark)) for mark in "{}")
    return Way(" with all that is required", [next(outer), *inner, next(outer)], grammars)


def lacking(schema: Schema | None, path: Path, taken: Sequence[str], layout: Style, level: int | None) -> Way | None:
    """The members that its schema requires of an object and that it lacks. `level` is that of the object's line."""
    grammars = Grammars(schema)
    at = grammars.at(path)
    if at is None:
        return None
    fields = [field for field in grammars.fields(at) if field.key not in taken]
    for field in fields:
        grammars.at((*path, field.key))
    if taken and not grammars.exact:
        return None  # it may be an object of another branch of the schema, and lack nothing
    fit = grammars.tied(at, fields, len(taken) + len(fields))
    pieces = _fields(grammars, fields, layout, level) if fit else []
    return Way("", pieces, grammars) if pieces else None


def _fields(grammars: Grammars, fields: Sequence[Field], layout: Style, level: int | None) -> Segments:
    """Required members; none if they have no open value, or too many for one job."""
    if level is None:
        layout = replace(layout, indent=None)

    def leaf(field: Field, below: int) -> Segment:
        return wire.Text(field.only) if field.only else grammars.hole(layout, below, field.at)

    pieces = required(fields, layout, level or 0, leaf)
    return pieces if 0 < holes(pieces) <= MOST_HOLES else []


def evidence(document: Document, spot: Spot) -> tuple[wire.Neighbour, ...]:
    """The nearest siblings that are too far away to be in the hole's context."""
    alike = _near(document, spot)
    far = (one for one in alike if document.starts[one] - spot.end > NEAR or spot.start - document.ends[one] > NEAR)
    short = (one for one in far if document.ends[one] - document.starts[one] <= MAX_EVIDENCE)
    return tuple(
        wire.Neighbour("// " + "/".join(map(str, document.path(one)))[-200:], shown(document, one))
        for one in islice(short, EVIDENCE)
    )
