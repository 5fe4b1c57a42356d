"""Where structured.py puts holes: any value, key, string, number, run of members or elements of a document, the whole
of it, or a place for new ones; one or several in a job. Found here without the server's reader; and, beside these, what
the server offers at a place.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from caesura import wire
from caesura.schema.dialects import SchemaError
from caesura.schema.document import Schema
from caesura.schema.reader import read_schema
from caesura.server.structured.json.edits import offers
from caesura.server.structured.offer import NoOffer, Offer

from documents import Document  # isort: skip  (next to this script)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\r\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL)
_LETTER = re.compile(r"\\u[dD][89abAB]..\\u....|\\u....|\\.|.", re.DOTALL)  # of a string, whole
_INDENT = re.compile(r"[{\[]\s*[\r\n]+([ \t]+)")
ROOM = (2, 6, 8, 12, 16, 24, 48)  # tokens of a hole at most
TOGETHER = 8  # holes of a job at most
SEVERAL = 6  # as likely as so many of the other kinds together
TRIES = 20  # to find a place of the kind drawn
LONG = 40_000  # code points that a grammar may hold of a document


@dataclass(eq=False)
class Node:
    """A value: text[start:end]. Of a container `items` are its values, and `keys` the spans of their keys."""

    start: int
    end: int
    parent: "Node | None" = None
    items: "list[Node]" = field(default_factory=list)
    keys: list[tuple[int, int]] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1


@dataclass(frozen=True)
class Piece:
    """Segments in the place of text[start:end]. `owner` is the container that gets new items or keys, `reach` the span
    that the grammars speak of, with what stays of it."""

    start: int
    end: int
    segments: tuple[wire.Text | wire.Hole, ...]
    owner: Node | None
    reach: tuple[int, int]


@dataclass(frozen=True)
class Edit:
    """What a job does to a document: `segments` replace text[start:end]."""

    kind: str
    start: int
    end: int
    segments: tuple[wire.Text | wire.Hole, ...]
    schemas: tuple[str, ...] = ()
    ruled: bool = False  # by the document's schema
    offer: Offer | None = None  # of the server


def nodes(text: str) -> list[Node]:
    """All values of a valid document, of JSON Lines too, in the order of their starts."""
    found, inside, key = list[Node](), list[Node](), None
    for match in _TOKEN.finditer(text):
        token, parent = match.group(), inside[-1] if inside else None
        if token[0] == "/" or token in ",:":
            continue
        if token in "}]":
            inside.pop().end = match.end()
        elif parent and text[parent.start] == "{" and key is None:
            key = match.span()
        else:
            found.append(node := Node(*match.span(), parent))
            if parent:
                parent.items.append(node)
                parent.keys += [key] if key else []
            key = None
            inside += [node] if token in "{[" else []
    return found


def apart(piece: Piece, other: Piece) -> bool:
    """Whether two pieces share no text, and no object to give keys to."""
    (a, b), (c, d) = piece.reach, other.reach
    return (a >= d or b <= c) and a != c and (piece.owner is None or piece.owner is not other.owner)


def schema_of(document: Document) -> Schema | None:
    """The schema that goes with a document, where we can read it."""
    try:
        return read_schema(document.schema) if document.schema else None
    except SchemaError:
        return None


class Places:
    """Places of one document."""

    def __init__(self, document: Document, draw: random.Random) -> None:
        self.document, self.text, self._draw = document, document.text, draw
        self.nodes = nodes(document.text)
        found = _INDENT.search(self.text) if document.language != "jsonl" else None
        self._indent = found[1] if found else None
        self._schema = schema_of(document)
        self._newline: Literal["\n", "\r\n"] = "\r\n" if "\r\n" in self.text else "\n"
        self._kinds: dict[str, Callable[[], Piece | None]] = {
            "value": self._value,
            "key": self._key,
            "inside a string or number": self._inside,
            "run of items": self._run,
            "new items": self._new,
            "document": self._document,
            "rest of a document": self._rest,
        }

    def edit(self) -> Edit | None:
        """One piece of a kind, or several, or an offer; None where the document has no such place."""
        kind = self._draw.choice((*self._kinds, *["several"] * SEVERAL, "offer", "offer"))
        if kind == "offer":
            return self._offered()
        if kind != "several":
            pieces = [piece for _ in range(TRIES) if (piece := self._kinds[kind]())][:1]
        else:
            pieces = self._several()
        if not pieces:
            return None
        segments, at = list[wire.Text | wire.Hole](), pieces[0].start
        for piece in pieces:
            segments += [wire.Text(self.text[at : piece.start])] if at < piece.start else []
            segments += piece.segments
            at = piece.end
        schemas = (self.document.schema,) if kind == "document" and self.document.schema else ()
        return Edit(kind, pieces[0].start, at, tuple(segments), schemas, ruled=bool(schemas))

    def _several(self) -> list[Piece]:
        pieces = list[Piece]()
        kinds = ("value", "key", "inside a string or number", "run of items", "new items")
        for _ in range(TRIES):
            piece = self._kinds[self._draw.choice(kinds)]()
            if piece and len(pieces) < TOGETHER and all(apart(piece, other) for other in pieces):
                pieces.append(piece)
        return sorted(pieces, key=lambda piece: piece.reach) if len(pieces) > 1 else []

    def _offered(self) -> Edit | None:
        """What the server offers for a selected value, at the start of one, or at a cursor anywhere."""
        for _ in range(TRIES):
            node, anywhere = self._draw.choice(self.nodes), self._draw.randint(0, len(self.text))
            spans = ((node.start, node.end), (node.start, node.start), (anywhere, anywhere))
            try:
                found = offers(
                    self.text, *self._draw.choice(spans), language=self.document.language, schema=self._schema
                )
            except NoOffer:
                continue
            offer = self._draw.choice(found)
            ruled = self._schema is not None
            return Edit("offer", offer.start, offer.end, offer.segments, offer.schemas, ruled, offer)
        return None

    # Kinds

    def _hole(self, spec: wire.Json) -> wire.Hole:
        lines = spec.indent is not None or spec.loose
        return wire.Hole(self._draw.choice(ROOM), "block" if lines else "span", spec)

    def _json(self, level: int, **more: object) -> wire.Json:
        """A grammar in the document's layout, on one line, or in any."""
        if self._draw.random() < 0.15 and self.document.language != "jsonl":
            return wire.Json(loose=True, **more)  # type: ignore[arg-type]
        lines = self._indent is not None and self._draw.random() < 0.7
        colon, comma = (":", ",") if '":"' in self.text else (": ", ", ")
        indent = self._indent if lines else None
        return wire.Json(
            indent=indent,
            level=level if lines else 0,
            colon=colon,
            comma=comma,
            newline=self._newline,
            **more,  # type: ignore[arg-type]
        )

    def _value(self) -> Piece:
        node = self._draw.choice(self.nodes)
        return Piece(node.start, node.end, (self._hole(self._json(node.depth)),), None, (node.start, node.end))

    def _document(self) -> Piece | None:
        node = self._draw.choice([node for node in self.nodes if node.parent is None])
        schema = 0 if self.document.schema else None
        return Piece(node.start, node.end, (self._hole(self._json(0, schema=schema)),), None, (node.start, node.end))

    def _container(self, brackets: str, least: int) -> Node | None:
        fit = [n for n in self.nodes if self.text[n.start] in brackets and len(n.items) >= least]
        return self._draw.choice(fit) if fit else None

    def _taken(self, node: Node, start: int, end: int) -> tuple[str, ...]:
        """Keys of an object outside of text[start:end]."""
        return tuple(json.loads(self.text[a:b]) for a, b in node.keys if b <= start or a >= end)

    def _key(self) -> Piece | None:
        node = self._container("{", 1)
        if node is None:
            return None
        start, end = self._draw.choice(node.keys)
        spec = self._json(node.depth, start="key", taken=self._taken(node, start, end))
        a, b = self._cut(start, end) if self._draw.random() < 0.4 else (start, end)
        return self._between(spec, (start, a), (b, end), node)

    def _inside(self) -> Piece | None:
        fit = [n for n in self.nodes if self.text[n.start] in '"-0123456789']
        if not fit:
            return None
        node = self._draw.choice(fit)
        a, b = self._cut(node.start, node.end)
        return self._between(self._json(node.depth), (node.start, a), (b, node.end), None)

    def _cut(self, start: int, end: int) -> tuple[int, int]:
        """Two places in a string, between whole characters, or in a number: behind its first character at least."""
        if self.text[start] != '"':
            a = self._draw.randint(start + 1, end)
            return a, self._draw.choice((a, end))
        ends = [start + 1, *(match.end() for match in _LETTER.finditer(self.text, start + 1, end - 1))]
        a, b = sorted(self._draw.choices(ends, k=2))
        return a, self._draw.choice((b, end))

    def _between(self, spec: wire.Json, typed: tuple[int, int], then: tuple[int, int], owner: Node | None) -> Piece:
        """A hole behind text[typed] and before text[then], which stay."""
        fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
        fields |= {"typed": self.text[slice(*typed)], "then": self.text[slice(*then)]}
        return Piece(typed[1], then[0], (self._hole(wire.Json(**fields)),), owner, (typed[0], then[1]))

    def _run(self) -> Piece | None:
        node = self._container("{[", 1)
        if node is None:
            return None
        first, last = sorted(self._draw.choices(range(len(node.items)), k=2))
        start, end = node.keys[first][0] if node.keys else node.items[first].start, node.items[last].end
        return Piece(start, end, (self._hole(self._items(node, start, end)),), node, (start, end))

    def _items(self, node: Node, start: int, end: int) -> wire.Json:
        least = self._draw.choice((1, 1, 1, 2))
        most = self._draw.choice((least, 3, 64))
        if self.text[node.start] == "[":
            return self._json(node.depth, start="elements", least=least, most=most)
        taken = self._taken(node, start, end)
        return self._json(node.depth, start="members", taken=taken, least=least, most=most)

    def _new(self) -> Piece | None:
        """Items before the first, behind any, or in an empty container."""
        node = self._container("{[", 0)
        if node is None:
            return None
        number = self._draw.randint(0, len(node.items))
        at = node.items[number - 1].end if number else node.start + 1
        hole = self._hole(self._items(node, at, at))
        comma = (wire.Text(", "),)
        return Piece(at, at, (*comma, hole) if number else (hole, *comma) if node.items else (hole,), node, (at, at))

    def _rest(self) -> Piece | None:
        """A hole for a value within brackets that are part of the grammar."""
        node = self._draw.choice(self.nodes)
        root = node
        while root.parent:
            root = root.parent
        if self.document.language != "json" or root is node or root.end - root.start > LONG:
            return None
        return self._between(wire.Json(loose=True), (root.start, node.start), (node.end, root.end), None)
