"""Offer the structured edits of JSON, JSON with comments and JSON Lines at a cursor or for a selection.

Only text that the edit must invent is a hole with a grammar. Keys, commas, line breaks and indentation that follow from
the surroundings are fixed text. Pure."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from typing import Literal

from caesura import wire
from caesura.schema.document import Schema
from caesura.server import languages
from caesura.server.structured.json.checks import Checks
from caesura.server.structured.json.holes import Grammars
from caesura.server.structured.json.items import Insertion, Spot, Variant, evidence, insertion, lacking, variants
from caesura.server.structured.json.layout import Style, begins_line, indent_at, style
from caesura.server.structured.json.siblings import Segment, joined, siblings
from caesura.server.structured.offer import NoOffer, Offer
from caesura.server.text.json import JsonPath, JsonTree, NotJson, commented, line_column, read

MAX_TEXT = 5_000_000  # most code points of a document
KEPT = 1_000_000  # most code points of a document whose tree is cached
MAX_DEPTH = 500  # most nested containers
LINES = 32  # most JSON Lines that are read on each side of the place
TITLE = 40  # most code points of a key in a title

STAND_INS = ("null", '"\\u0000": null')  # for a missing value, for a missing member


def offers(text: str, start: int, end: int, *, language: str, schema: Schema | None = None) -> list[Offer]:
    """The edits that make sense for a cursor (start == end) or a selection, best first. The row of `language` has
    "json" for `edits`. Raises NoOffer."""
    if len(text) > MAX_TEXT:
        raise NoOffer(f"The document has more than {MAX_TEXT:,} characters; only smaller ones can be edited this way.")
    row = languages.language(language)
    if row.lines:
        return _of_lines(text, start, end, schema)
    known = row.comment is not None
    tree, missing = _read(text, start, end, known or commented(text), commas=known)
    checks = Checks(text, relaxed=tree.relaxed, schema=schema)
    return _Site(tree, schema, checks, real=(start, end) if missing else None).offers(start, end)


def _read(text: str, start: int, end: int, relaxed: bool, *, commas: bool = True) -> tuple[JsonTree, bool]:
    """The document's tree, and False. If only the text at start:end is missing or wrong: the tree with a stand-in
    there, and True. Without `commas`, a comma before a cursor is one before a missing item, and no trailing one."""
    stood_in = (tree for one in STAND_INS if (tree := _stood_in(text, start, end, one, relaxed)))
    try:
        tree, missing = (_kept if len(text) <= KEPT else read)(text, relaxed=relaxed), False
    except NotJson as fault:
        tree, missing = next(stood_in, None), True
        if tree is None:
            where = line_column(text, fault.offset)
            raise NoOffer(f"The document is broken at {where}: {fault.what}; correct this first.") from None
    else:
        if tree.commas and not commas and start == end:
            tree, missing = next(((one, True) for one in stood_in if not one.commas), (tree, False))
    if tree.depth > MAX_DEPTH:
        raise NoOffer(
            f"The document is nested deeper than {MAX_DEPTH} levels; only flatter ones can be edited this way."
        )
    return tree, missing


@lru_cache(maxsize=1)  # a cursor moves more often than its document changes
def _kept(text: str, *, relaxed: bool) -> JsonTree:
    return read(text, relaxed=relaxed)


def _stood_in(text: str, start: int, end: int, stand_in: str, relaxed: bool) -> JsonTree | None:
    if text[:start].endswith(":"):
        stand_in = " " + stand_in  # the usual blank, so that this place does not count as the file's layout
    try:
        tree = read(text[:start] + stand_in + text[end:], relaxed=relaxed)
    except NotJson:
        return None
    value = bisect_left(tree.starts, start)
    there = value < len(tree.kinds) and tree.ends[value] == start + len(stand_in)
    return tree if there else None


def _of_lines(text: str, start: int, end: int, schema: Schema | None) -> list[Offer]:
    """The edits if each line is a document: the line is read as an element of an array, between the valid lines around
    it."""
    if text[start:end].strip():
        start += len(text[start:end]) - len(text[start:end].lstrip())
        end = start + len(text[start:end].rstrip())
    else:
        end = start
    first, last = _line(text, start)
    if end > last:
        raise NoOffer("The selection holds several lines; select one value, or put the cursor into an empty line.")
    line, lead = text[first:last], ""
    if start == end == last and line.strip():
        _read(line, 0, 0, False)
        tree, missing, lead = read("null", relaxed=False), True, "\r\n" if "\r\n" in text else "\n"
        above = [*_whole(text[:first].split("\n")[-LINES - 1 : -1]), line.strip()]
    else:
        tree, missing = _read(line, start - first, end - first, False)
        above = _whole(text[:first].split("\n")[-LINES - 1 : -1])
    below = _whole(islice(_lines_after(text, last), LINES))
    head = "[" + "".join(one + ",\n" for one in above)
    together = read(head + tree.text + "".join(",\n" + one for one in below) + "]", relaxed=False)
    checks = Checks(text, schema=schema, lines=True)
    site = _Site(together, schema, checks, real=(start, end) if missing else None, shift=first - len(head), lead=lead)
    begin = len(head) + (0 if lead else start - first)
    return site.offers(begin, begin if missing else begin + end - start)


def _line(text: str, offset: int) -> tuple[int, int]:
    """The line of an offset, without its end."""
    first, last = text.rfind("\n", 0, offset) + 1, text.find("\n", offset)
    last = len(text) if last < 0 else last
    return first, last - 1 if last > first and text[last - 1] == "\r" and last > offset else last


def _lines_after(text: str, offset: int) -> Iterator[str]:
    while (offset := text.find("\n", offset)) >= 0:
        offset += 1
        yield text[offset : _line(text, offset)[1]]


def _whole(lines: Iterable[str]) -> list[str]:
    """The lines that are valid JSON."""
    found = []
    for line in map(str.strip, lines):
        with suppress(NotJson):
            read(line, relaxed=False)
            found.append(line)
    return found


@dataclass(frozen=True)
class _Site:
    """A document with its schema and checks. `real` is the span of the user's text for which `tree` has a stand-in;
    without one, add `shift` to an offset of `tree` for the offset in the user's text. `lead` is written before the
    value. With lines, value 0 is the array of all lines.
    """

    tree: JsonTree
    schema: Schema | None
    checks: Checks
    real: tuple[int, int] | None = None
    shift: int = 0
    lead: str = ""

    def offers(self, start: int, end: int) -> list[Offer]:
        if self.real is not None:
            return self._missing(start)
        if start == end or not self.tree.text[start:end].strip():
            return self._at_cursor(start)
        return self._of_selection(start, end)

    # Places

    def _missing(self, at: int) -> list[Offer]:
        """The edits at the stand-in, which is a value or a member."""
        tree, value = self.tree, bisect_left(self.tree.starts, at)
        container = tree.parents[value]
        if tree.keys[value] is None or tree.item_start(value) < at:
            return self.values(value, at, at, missing=True)
        alone = begins_line(tree.text, at) and style(tree, container).item is not None
        around = Insertion(at, at, "", "", indent_at(tree.text, at), alone)
        return self.items(container, around, old=[value], missing=True)

    def _at_cursor(self, at: int) -> list[Offer]:
        tree = self.tree
        if any(start < at < end for start, end in tree.comments):
            raise NoOffer("The cursor is inside a comment; put it between two items, or select a value.")
        value = bisect_right(tree.starts, at) - 1
        if value >= 0 and tree.starts[value] == at:
            return self.values(value, at, tree.ends[value])
        if value >= 0 and at < tree.ends[value] and tree.kinds[value] not in ("object", "array"):
            kind = tree.kinds[value]
            what = f"`{tree.source(value)}`" if kind == "literal" else f"a {kind}"
            raise NoOffer(f"The cursor is inside {what}; select all of it to replace it.")
        following = value + 1
        if following < len(tree.kinds) and (key := tree.keys[following]) is not None:
            if key[0] < at < key[1]:
                raise NoOffer("The cursor is inside a key; select all of it to replace it.")
            if key[1] <= at:
                return self.values(following, tree.starts[following], tree.ends[following])
        container = tree.innermost(at, at)
        if container < (1 if self.checks.lines else 0):
            raise NoOffer("The cursor is outside of the document's value; put it inside, or select what to replace.")
        return self.items(container, insertion(tree, container, at, style(tree, container)))

    def _of_selection(self, start: int, end: int) -> list[Offer]:
        start, end = _trimmed(self.tree.text, start, end)
        for begin, stop in ((start, end), _trimmed(self.tree.text, start, end, ",")):
            if any(begin < last and first < stop for first, last in self.tree.comments):
                raise NoOffer("The selection holds a comment, which would be lost; select values without one.")
            if found := self._whole(begin, stop):
                return found
        raise NoOffer("The selection cuts a value in two; select whole values, members or elements, or one key.")

    def _whole(self, start: int, end: int) -> list[Offer] | None:
        tree = self.tree
        value = bisect_left(tree.starts, start)
        if value < len(tree.kinds) and (tree.starts[value], tree.ends[value]) == (start, end):
            return self.values(value, start, end)
        value = bisect_left(tree.starts, end)
        if value < len(tree.kinds) and tree.keys[value] == (start, end):
            return self._key(value)
        container = tree.innermost(start, end)
        if container < (1 if self.checks.lines else 0):
            return None
        inside = [one for one in tree.children(container) if start <= tree.starts[one] < end]
        if not inside or tree.item_start(inside[0]) != start or tree.ends[inside[-1]] != end:
            return None
        alone = style(tree, container).item is not None and begins_line(tree.text, start)
        around = Insertion(start, end, "", "", indent_at(tree.text, start), alone)
        return self.items(container, around, old=inside)

    # Offers

    def _offer(
        self,
        title: str,
        start: int,
        end: int,
        pieces: Iterable[Segment],
        grammars: Grammars,
        path: JsonPath | None = None,
        shown: tuple[wire.Neighbour, ...] = (),
    ) -> Offer:
        """`path` leads to the value that is replaced."""
        start, end = self.real or (start + self.shift, end + self.shift)
        return Offer(
            title,
            start,
            end,
            joined([wire.Text(self.lead), *pieces]),
            grammars.schemas,
            shown,
            check=self.checks.of(start, end, path, self.tree),
            level="valid" if grammars.exact else "checked",
        )

    def _path(self, value: int) -> tuple[str | int, ...]:
        path = self.tree.path(value)
        return path[1:] if self.checks.lines else path

    def _key(self, value: int) -> list[Offer]:
        tree, container = self.tree, self.tree.parents[value]
        grammars, layout, span = Grammars(self.schema), style(tree, container), tree.keys[value]
        assert span is not None
        taken, named = self._keys(container, [value]), _named(tree, value)
        at = grammars.at(self._path(container))
        found = [("", grammars.hole(layout, None, at, start="key", taken=taken), grammars)]
        if self.schema is None and (usual := self._usual_keys(container, taken)):
            alike = Grammars(None)
            at = alike.own({"properties": dict.fromkeys(usual, True), "additionalProperties": False})
            hole = alike.hole(layout, None, at, start="key", taken=taken)
            found.insert(0, (" like its siblings", hole, alike))
        return [self._offer(f"Replace the key {named}{how}", *span, [hole], used) for how, hole, used in found]

    def _usual_keys(self, container: int, taken: Sequence[str]) -> list[str]:
        """The keys that most of the object's siblings have and that the object lacks."""
        tree, parent = self.tree, self.tree.parents[container]
        if parent < 0:
            return []
        near = siblings(tree, parent, tree.key(container), tree.starts[container], container)
        alike = [self._keys(other, ()) for other in near if tree.kinds[other] == "object"]
        said = Counter(key for keys in alike for key in set(keys))
        return [key for key in dict.fromkeys(chain(*alike)) if 2 * said[key] > len(alike) and key not in taken]

    def _keys(self, container: int, excluded: Sequence[int]) -> list[str]:
        keys = (self.tree.key(child) for child in self.tree.children(container) if child not in excluded)
        return [key for key in keys if key is not None]

    def values(self, value: int, start: int, end: int, *, missing: bool = False) -> list[Offer]:
        """The edits that replace a value by a new one. If it is `missing`, the old one is a stand-in."""
        tree, container = self.tree, self.tree.parents[value]
        if any(start <= first < end for first, _ in tree.comments):
            raise NoOffer("There is a comment in this value, which would be lost; select a value without one.")
        layout, path = style(tree, container), self._path(value)
        level = None if layout.indent is None else 0 if container < 0 else layout.level + 1
        line = indent_at(tree.text, start)
        spot = Spot(container, tree.key(value), value, start, end, line, layout, level, path)
        lead = layout.colon.partition(":")[2] if start and tree.text[start - 1] == ":" else ""
        title, shown = self._title(value, missing), evidence(tree, spot)
        return [
            self._offer(title + way.how, start, end, [wire.Text(lead), *way.pieces], way.grammars, path, shown)
            for way in variants(tree, self.schema, spot)
        ]

    def _title(self, value: int, missing: bool) -> str:
        if (container := self.tree.parents[value]) < 0:
            return "Write the document" if missing else "Replace the document"
        if named := _named(self.tree, value):
            return f"{'Fill' if missing else 'Replace'} the value of {named}"
        what = "line" if self.checks.lines and container == 0 else "element"
        return f"Replace the {what}" if not missing else f"Add a{'n' if what == 'element' else ''} {what}"

    def items(
        self, container: int, around: Insertion, *, old: Sequence[int] = (), missing: bool = False
    ) -> list[Offer]:
        """The edits that insert members or elements, with the text around them, instead of the `old` ones. If they are
        `missing`, the old ones are a stand-in."""
        tree, path = self.tree, self._path(container)
        layout, keyed = style(tree, container), tree.kinds[container] == "object"
        if not around.alone:
            layout = replace(layout, indent=None)
        level = None if layout.indent is None else layout.level
        adds, found, shown = missing or not old, list[tuple[str, Variant]](), tuple[wire.Neighbour, ...]()
        if keyed and adds and (way := lacking(self.schema, path, self._keys(container, old), layout, level)):
            found.append(("Add the required members", way))
        if not keyed and len(old) < 2:
            index = sum(1 for child in tree.children(container) if tree.ends[child] <= around.start)
            below, replaced = None if level is None else level + 1, old[0] if old else -1
            where = (around.start, around.end, around.indent, layout, below, (*path, index))
            spot = Spot(container, None, replaced, *where)
            shown, title = evidence(tree, spot), f"{'Add' if adds else 'Replace'} an element"
            found += [(title + way.how, way) for way in variants(tree, self.schema, spot)[:-1]]
        found += self._free(container, old, adds, layout, level)
        if not found:
            raise NoOffer("The schema allows nothing more here; remove something first, or select what to replace.")
        before, after = wire.Text(around.before), wire.Text(around.after)
        return [
            self._offer(title, around.start, around.end, [before, *way.pieces, after], way.grammars, None, shown)
            for title, way in found
        ]

    def _free(
        self, container: int, old: Sequence[int], adds: bool, layout: Style, level: int | None
    ) -> Iterator[tuple[str, Variant]]:
        """Free members or elements: first a single one, then several."""
        tree, taken = self.tree, self._keys(container, old)
        count = sum(1 for _ in tree.children(container)) - len(old)
        what: Literal["members", "elements"] = "members" if tree.kinds[container] == "object" else "elements"
        for most in (1, 64) if count and adds else (64,):
            grammars = Grammars(self.schema)
            at = grammars.at(self._path(container))
            if grammars.full(at, taken, count):
                return
            hole = grammars.hole(layout, level, at, start=what, taken=taken, most=most)
            one = f"{'a' if what == 'members' else 'an'} {what[:-1]}"
            some = one if most == 1 else what if adds else f"the {what}"
            yield f"{'Add' if adds else 'Replace'} {some}", Variant("", [hole], grammars)


def _trimmed(text: str, start: int, end: int, also: str = "") -> tuple[int, int]:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip(" \t\r\n" + also)), start + len(piece.rstrip(" \t\r\n" + also))


def _named(tree: JsonTree, value: int) -> str:
    """The key of a member, quoted, for a title."""
    key = tree.key(value)
    if key is None:
        return ""
    key = key if len(key) <= TITLE else key[:TITLE] + "…"
    return f'"{key.encode(errors="replace").decode()}"'
