"""The place of new items in a JSON container, the text around them (commas, line breaks, indentation), and the ways to
write a value: like its siblings, with the members that its schema requires, or freely.

Comments and trailing commas stay. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from caesura import wire
from caesura.schema.document import Schema
from caesura.schema.instances import Field
from caesura.server.structured.json.holes import Grammars
from caesura.server.structured.json.layout import STEP, Style, indent_at
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
from caesura.server.text.json import JsonPath, JsonTree

NEAR = 1500  # code points; a sibling this near to a hole is in its context already
EVIDENCE, MAX_EVIDENCE = 4, 2000  # most far siblings sent as neighbours, and most code points of one


# The place of new items


@dataclass(frozen=True)
class Insertion:
    """New items, between `before` and `after`, replace start:end. `indent` is the white space of their line; `alone`:
    they have lines of their own."""

    start: int
    end: int
    before: str
    after: str
    indent: str
    alone: bool


def insertion(tree: JsonTree, container: int, offset: int, style: Style) -> Insertion:
    """The insertion of items at `offset`, which is inside no item and no comment of the container."""
    return _Between(tree, container, offset, style).insertion()


class _Between:
    """The text between two items, or between a bracket and an item; in `code` its comments are masked."""

    def __init__(self, tree: JsonTree, container: int, offset: int, style: Style) -> None:
        self.tree, self.style = tree, style
        self.left = self.right = -1
        for child in tree.children(container):
            if tree.ends[child] <= offset:
                self.left = child
            else:
                self.right = child
                break
        self.start = tree.starts[container] + 1 if self.left < 0 else tree.ends[self.left]
        self.end = tree.ends[container] - 1 if self.right < 0 else tree.item_start(self.right)
        self.code = tree.covered(self.start, self.end)
        self.comma = self.code.find(",")
        self.offset = offset - self.start
        self.line = max(self.code.rfind("\n", 0, self.offset), self.code.rfind("\r", 0, self.offset)) + 1
        ends = [at for mark in "\r\n" if (at := self.code.find(mark, self.offset)) >= 0]
        self.line_end = min(ends, default=len(self.code))

    def __repr__(self) -> str:
        return f"<Between {self.code!r} at {self.offset}>"

    def insertion(self) -> Insertion:
        style, line = self.style, self.code[self.line : self.line_end]
        below = style.newline + (style.base if style.item is None else style.item)
        if not self.code.strip(" \t") and self.left < 0 and self.right < 0:
            if style.item is None:
                return self._at(0, style.pad, style.pad, to=len(self.code))
            return self._at(0, below, style.newline + style.base, to=len(self.code), alone=True)
        if self.line and self.line_end < len(self.code) and not line.strip(" \t"):
            return self._at(self.line, style.item or line, "", to=self.line_end, alone=style.item is not None)
        if style.item is None or ("\n" not in self.code and "\r" not in self.code):
            return self._in_line(below)
        if self.line_end == len(self.code) and self.right < 0:  # the line of the closing bracket
            return self._at(self._content(self.line), below, "", alone=True)
        margin = len(line) - len(line.lstrip(" \t"))
        if self.line and (self.line_end == len(self.code) or self.offset <= self.line + margin):
            return self._at(max(self.offset, self.line + margin), "", style.newline + line[:margin], alone=True)
        return self._at(self._content(self.line_end), below, "", alone=True)

    def _in_line(self, below: str) -> Insertion:
        style = self.style
        blank = self.style.comma.partition(",")[2]
        ahead = self.left >= 0 and (self.comma < 0 or self.comma >= self.offset)
        if not ahead and self.right >= 0 and not self.code[self.offset :].strip(" \t"):
            return self._at(len(self.code), "", blank)
        at = self._content(self.offset)
        lead = blank if at or self.left >= 0 else ""
        if (at + self.start) in {end for start, end in self.tree.comments if self.tree.text[start + 1] == "/"}:
            lead = below + ((style.indent or STEP) if style.item is None else "")
        return self._at(at, lead, "" if ahead or self.code[at : at + 1].isspace() or at == len(self.code) else blank)

    def _content(self, end: int) -> int:
        """The end of the text before `end`, without the white space there."""
        return len(self.code[:end].rstrip(" \t\r\n"))

    def _at(self, at: int, before: str, after: str, *, to: int | None = None, alone: bool = False) -> Insertion:
        """The insertion at `at`, replacing the text up to `to`, with a comma on the side that lacks one."""
        start, end = self.start + at, self.start + (at if to is None else to)
        if 0 <= self.comma < at or (self.left < 0 and self.right >= 0):
            after = "," + after
        elif self.left >= 0:
            before = "," + self.tree.text[self.start : start] + before
            start = self.start
        line = self.tree.text[:start] + before
        indent = indent_at(line, len(line))
        return Insertion(start, end, before, after, indent, alone)


# The ways to write a value


@dataclass(frozen=True)
class Spot:
    """The place of a value: under `key` (None: an element) in `container` (-1: none), replacing start:end and the value
    `replaced` (-1: none). `indent` is the white space of its line, and `level` its steps of indentation; None: the
    value stays on one line. `path` leads to it from the value of the schema."""

    container: int
    key: str | None
    replaced: int
    start: int
    end: int
    indent: str
    layout: Style
    level: int | None
    path: JsonPath


@dataclass(frozen=True)
class Variant:
    """One way to write a value or items; `how` ends its title."""

    how: str
    pieces: Segments
    grammars: Grammars


def variants(tree: JsonTree, schema: Schema | None, spot: Spot) -> list[Variant]:
    """The ways to write a value: the best first, the free one last."""
    instance = _instance(tree, spot) if schema else None
    found = [_alike(tree, schema, spot, instance), _as_required(schema, spot, instance)]
    grammars = Grammars(schema, instance)
    hole = grammars.hole(spot.layout, spot.level, grammars.at(spot.path))
    return [*(way for way in found if way is not None), Variant("", [hole], grammars)]


def _instance(tree: JsonTree, spot: Spot) -> Any:
    """The value of the schema, which contains the spot; None if it cannot be read."""
    value = spot.container if spot.path else -1
    for _ in spot.path[1:]:
        value = tree.parents[value]
    try:
        return tree.value(value) if value >= 0 else None
    except ValueError:
        return None


def _near(tree: JsonTree, spot: Spot) -> list[int]:
    if spot.container < 0:
        return []
    return siblings(tree, spot.container, spot.key, spot.start, excluded=spot.replaced)


def _alike(tree: JsonTree, schema: Schema | None, spot: Spot, instance: Any) -> Variant | None:
    """An object with the keys of its siblings, or one hole with a schema made from them."""
    grammars, alike = Grammars(schema, instance), _near(tree, spot)

    def leaf(keys: tuple[str, ...], those: Sequence[int], inside: Style) -> wire.Hole:
        at = grammars.own(schema_of(tree, those)) if schema is None else grammars.at((*spot.path, *keys))
        return grammars.hole(inside, None if inside.indent is None else inside.level + 1, at)

    how = " like its siblings"
    if pieces := like(tree, alike, spot.start, spot.indent, leaf):
        at = grammars.at(spot.path)
        keys = set(common(tree, alike))
        complete = at is None or (
            {field.key for field in grammars.fields(at)} <= keys and grammars.tied(at, grammars.fields(at), len(keys))
        )
        return Variant(how, pieces, grammars) if complete else None
    if schema is None and alike and (at := grammars.own(schema_of(tree, alike))):
        return Variant(how, [grammars.hole(spot.layout, spot.level, at)], grammars)
    return None


def _as_required(schema: Schema | None, spot: Spot, instance: Any) -> Variant | None:
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
    return Variant(" with all that is required", [next(outer), *inner, next(outer)], grammars)


def lacking(
    schema: Schema | None, path: JsonPath, taken: Sequence[str], layout: Style, level: int | None
) -> Variant | None:
    """The members that the schema requires and the object lacks. `level` is that of the object's line."""
    grammars = Grammars(schema)
    at = grammars.at(path)
    if at is None:
        return None
    fields = [field for field in grammars.fields(at) if field.key not in taken]
    for field in fields:
        grammars.at((*path, field.key))
    if taken and not grammars.exact:
        return None  # the object may belong to another branch of the schema, and be complete
    fit = grammars.tied(at, fields, len(taken) + len(fields))
    pieces = _fields(grammars, fields, layout, level) if fit else []
    return Variant("", pieces, grammars) if pieces else None


def _fields(grammars: Grammars, fields: Sequence[Field], layout: Style, level: int | None) -> Segments:
    """The segments of required members; none if they have no hole, or too many for one job."""
    if level is None:
        layout = replace(layout, indent=None)

    def leaf(field: Field, below: int) -> Segment:
        return wire.Text(field.only) if field.only else grammars.hole(layout, below, field.at)

    pieces = required(fields, layout, level or 0, leaf)
    return pieces if 0 < holes(pieces) <= MOST_HOLES else []


def evidence(tree: JsonTree, spot: Spot) -> tuple[wire.Neighbour, ...]:
    """The nearest siblings outside of the hole's context, as neighbours."""
    alike = _near(tree, spot)
    far = (one for one in alike if tree.starts[one] - spot.end > NEAR or spot.start - tree.ends[one] > NEAR)
    short = (one for one in far if tree.ends[one] - tree.starts[one] <= MAX_EVIDENCE)
    return tuple(
        wire.Neighbour("// " + "/".join(map(str, tree.path(one)))[-200:], shown(tree, one))
        for one in islice(short, EVIDENCE)
    )
