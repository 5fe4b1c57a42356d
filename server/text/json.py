"""JSON text read with positions: what stands where, and the layout that it is written in.

Plain JSON as json.loads takes it (without NaN), or relaxed: with comments and trailing commas, as JSONC has them. One
pass in linear time, without recursion. Offsets are code points. Pure."""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

Kind = Literal["object", "array", "string", "number", "literal"]

BLANK = 16  # code points of white space that a grammar's layout may have in one place
SAMPLE = 2000  # nodes that are looked at for the layout of a whole document

_BLANKS = r"[ \t\n\r]*+"
_PLAIN = r'[^"\\\x00-\x1f]*+'
CHARACTERS = rf'{_PLAIN}(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{{4}}){_PLAIN})*+'  # of a string, without its quotes
NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
COMMENT = r"//[^\n\r]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/"
TOKEN = re.compile(
    rf'{_BLANKS}(?:("{CHARACTERS}")({_BLANKS}:)?|({NUMBER}|true|false|null)|([{{\[])|([}}\]])|(,)|(:)|({COMMENT})|(.)|\Z)',
    re.DOTALL,
)
QUOTED, KEY, SCALAR, OPEN, CLOSE, COMMA, COLON, REMARK, OTHER = range(1, 10)  # its groups; KEY: a string with its colon
LINE_END = re.compile("\r\n|[\n\r]")
_INDENT = re.compile("[ \t]*")

# What may come next
_VALUE, _FIRST, _ITEM, _MEMBER, _COLON_NEXT, _AFTER, _END = range(7)
_EXPECTED = {
    _VALUE: "a value is missing here",
    _FIRST: "a value or the closing bracket is missing here",
    _ITEM: "a value is missing after the comma",
    _MEMBER: "a key in double quotes is missing here",
    _COLON_NEXT: "the colon after a key is missing here",
    _AFTER: "a comma or the closing bracket is missing here",
    _END: "there is text after the end of the document",
}


class Broken(Exception):
    """The text is no JSON. `offset` is where that shows; `what` says why, without a capital and a full stop."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset, self.what = offset, what


@dataclass
class Document:
    """The values of a text in the order in which they begin: value 0 is the whole document.

    Lists by value: its `kinds`, where it `starts` and `ends`, its container in `parents` (-1: none), the span of its
    key in `keys`, and in `after` the first value behind all that it contains. `comments` and trailing `commas` stand
    only in relaxed documents. `depth` is that of the deepest container.
    """

    text: str
    kinds: list[Kind] = field(default_factory=list, repr=False)
    starts: list[int] = field(default_factory=list, repr=False)
    ends: list[int] = field(default_factory=list, repr=False)
    parents: list[int] = field(default_factory=list, repr=False)
    keys: list[tuple[int, int] | None] = field(default_factory=list, repr=False)
    after: list[int] = field(default_factory=list, repr=False)
    comments: list[tuple[int, int]] = field(default_factory=list, repr=False)
    commas: list[int] = field(default_factory=list, repr=False)
    depth: int = 0

    def children(self, container: int) -> Iterator[int]:
        child = container + 1
        while child < self.after[container]:
            yield child
            child = self.after[child]

    def item_start(self, value: int) -> int:
        """Where a member or element begins: at its key if it has one."""
        key = self.keys[value]
        return self.starts[value] if key is None else key[0]

    def key(self, value: int) -> str | None:
        """The key of a member, as it reads without quotes and escapes."""
        span = self.keys[value]
        return None if span is None else decoded(self.text[span[0] : span[1]])

    def source(self, value: int) -> str:
        return self.text[self.starts[value] : self.ends[value]]

    def innermost(self, start: int, end: int) -> int:
        """The deepest container with start:end between its brackets; -1 where there is none."""
        value = bisect_right(self.starts, start) - 1
        while value >= 0 and not (
            self.kinds[value] in ("object", "array") and self.starts[value] < start and end < self.ends[value]
        ):
            value = self.parents[value]
        return value

    def path(self, value: int) -> tuple[str | int, ...]:
        """The keys and indices that lead to a value."""
        steps: list[str | int] = []
        while (parent := self.parents[value]) >= 0:
            key = self.key(value)
            steps.append(sum(1 for child in self.children(parent) if child < value) if key is None else key)
            value = parent
        return tuple(reversed(steps))

    def repeated(self, container: int) -> tuple[int, int] | None:
        """The span of the first key of an object that it has before already."""
        known = set[str]()
        for child in self.children(container):
            key = self.key(child)
            if key is not None:
                if key in known:
                    return self.keys[child]
                known.add(key)
        return None

    def value(self, value: int = 0) -> Any:
        """What json.loads makes of a value. Raises ValueError for a number of more digits than Python reads."""
        start, end = self.starts[value], self.ends[value]
        pieces, done = list[str](), start
        for at, until in sorted([*self.comments, *((comma, comma + 1) for comma in self.commas)]):
            if start <= at < end:
                pieces.append(self.text[done:at])
                done = until
        return json.loads("".join([*pieces, self.text[done:end]]))


def decoded(string: str) -> str:
    """What a quoted string says."""
    return str(json.loads(string)) if "\\" in string else string[1:-1]


def read(text: str, *, relaxed: bool) -> Document:
    """The values of a whole document. Raises Broken."""
    document = Document(text)
    kinds, starts, ends, parents = document.kinds, document.starts, document.ends, document.parents
    keys, after = document.keys, document.after
    stack: list[int] = []
    parent, inside, state, key, comma = -1, "", _VALUE, None, -1  # comma: the one just before, in _MEMBER and _ITEM
    for match in TOKEN.finditer(text):
        token = match.lastindex
        if token is None:
            break
        at = match.start(QUOTED if token == KEY else token)
        if token == KEY and state == _MEMBER:
            key, state = match.span(QUOTED), _VALUE
        elif token == QUOTED and state == _MEMBER:
            key, state = match.span(QUOTED), _COLON_NEXT
        elif token in (QUOTED, SCALAR, OPEN) and state <= _ITEM:
            parents.append(parent)
            starts.append(at)
            ends.append(match.end())
            keys.append(key)
            key = None
            if token == OPEN:
                stack.append(parent)
                parent, inside = len(kinds), text[at]
                kinds.append("object" if inside == "{" else "array")
                after.append(0)
                document.depth = max(document.depth, len(stack))
                state, comma = _MEMBER if inside == "{" else _FIRST, -1
            else:
                kinds.append("string" if token == QUOTED else "literal" if text[at] in "tfn" else "number")
                after.append(len(kinds))
                state = _AFTER if inside else _END
        elif token == CLOSE and (text[at] == "}") == (inside == "{") and _may_close(state, comma, relaxed):
            if state != _AFTER and comma >= 0:
                document.commas.append(comma)
            ends[parent], after[parent] = match.end(), len(kinds)
            parent = stack.pop()
            inside = text[starts[parent]] if stack else ""
            state = _AFTER if inside else _END
        elif token == COMMA and state == _AFTER:
            state, comma = _MEMBER if inside == "{" else _ITEM, at
        elif token == COLON and state == _COLON_NEXT:
            state = _VALUE
        elif token == REMARK and relaxed:
            document.comments.append((at, match.end()))
        else:
            raise Broken(at, _fault(token, text[at], state, comma))
    if state != _END:
        where = (
            f"the text ends before the bracket of {place(text, starts[parent])} is closed"
            if stack
            else _EXPECTED[_VALUE]
        )
        raise Broken(len(text), where)
    return document


def repeats_key(text: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a key that lies at least partly in one of the spans is in its object twice. False where the text cannot
    be read."""
    try:
        document = read(text, relaxed=True)
    except Broken:
        return False
    keys = [
        (document.parents[value], decoded(text[start:end]), start, end)
        for value, (start, end) in enumerate(key or (0, 0) for key in document.keys)
        if end
    ]
    counted = Counter(key[:2] for key in keys)
    return any(counted[key[:2]] > 1 and any(start < key[3] and key[2] < end for start, end in spans) for key in keys)


def _may_close(state: int, comma: int, relaxed: bool) -> bool:
    return state in (_AFTER, _FIRST) or (state in (_MEMBER, _ITEM) and (relaxed or comma < 0))


def _fault(token: int, mark: str, state: int, comma: int) -> str:
    """What is wrong about a token that may not stand where it does."""
    if token == OTHER and mark == '"':
        return "the string that begins here is not closed, or has a character that JSON does not allow"
    if token == REMARK or (token == OTHER and mark == "/"):
        return "JSON has no comments, or the comment that begins here is not closed"
    if token == CLOSE and state in (_MEMBER, _ITEM) and comma >= 0:
        return "there is a comma too many before this bracket"
    return _EXPECTED[state]


def place(text: str, offset: int) -> str:
    """`line:column`, both from 1, the column in code points."""
    line, start = 1, 0
    for end in LINE_END.finditer(text, 0, offset):
        line, start = line + 1, end.end()
    return f"{line}:{offset - start + 1}"


# Layout


@dataclass(frozen=True)
class Style:
    """How what stands in a container is laid out. `base` is the white space before the container's line, and `item`
    that before each of its items, None where they share a line. `indent` is one step of it, None: what is written there
    goes on one line, and `level` the steps of the container's line. `pad` stands inside of brackets on one line."""

    indent: str | None
    level: int
    base: str
    item: str | None
    colon: str
    comma: str
    newline: Literal["\n", "\r\n", "\r"]
    pad: str


def style(document: Document, container: int) -> Style:
    """The layout of a container's items (-1: of the document): as it is there, else as elsewhere, else as is usual."""
    text, sample = document.text, range(min(SAMPLE, len(document.kinds)))
    near = [] if container < 0 else list(islice(document.children(container), SAMPLE))
    newline = match[0] if (match := LINE_END.search(text)) else "\n"
    colon = _commonest(_colons(document, near)) or _commonest(_colons(document, sample)) or ": "
    usual = "," if colon == ":" else ", "
    comma = _commonest(_commas(document, near)) or _commonest(_commas(document, sample)) or usual
    if container < 0:
        base, item, pad = "", None, ""
        indent = _step(document, sample) or (None if len(sample) > 1 and match is None else "  ")
    else:
        base, pad = indent_at(text, document.starts[container]), _pad(document, document.kinds[container], sample)
        item = _item_indent(document, container, near, sample, base)
        indent = item[len(base) :] or None if item is not None and item.startswith(base) else None
    level = len(base) // len(indent) if indent else 0
    if indent is not None and (base != indent * level or len(indent) > BLANK):
        indent, level = None, 0
    return Style(indent, level, base, item, colon, comma, newline, pad)  # type: ignore[arg-type]


def indent_at(text: str, offset: int) -> str:
    """The white space that begins the line of an offset."""
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1
    return _INDENT.match(text, start)[0]  # type: ignore[index]


def begins_line(text: str, offset: int) -> bool:
    """Whether nothing but white space stands before it in its line."""
    while offset and text[offset - 1] in " \t":
        offset -= 1
    return offset == 0 or text[offset - 1] in "\r\n"


def _commonest(found: Counter[str]) -> str | None:
    return max(found, key=found.__getitem__, default=None)


def _colons(document: Document, values: Sequence[int]) -> Counter[str]:
    spans = ((document.keys[value], document.starts[value]) for value in values)
    return _blanks(document.text[key[1] : start] for key, start in spans if key is not None)


def _commas(document: Document, values: Sequence[int]) -> Counter[str]:
    """What stands between items on one line."""
    pairs = ((value, document.after[value], document.parents[value]) for value in values)
    return _blanks(
        document.text[document.ends[value] : document.item_start(next)]
        for value, next, parent in pairs
        if parent >= 0 and next < document.after[parent]
    )


def _blanks(found: Iterable[str]) -> Counter[str]:
    """Those that are a comma or a colon with blanks around it."""
    return Counter(one for one in found if len(one) <= BLANK and one.strip(" \t") in (",", ":"))


def _item_indent(
    document: Document, container: int, near: Sequence[int], sample: Sequence[int], base: str
) -> str | None:
    """The white space before each item that has a line of its own; None where items share one."""
    text = document.text
    if near:
        alone = [value for value in near if begins_line(text, document.item_start(value))]
        return indent_at(text, document.item_start(alone[-1])) if 2 * len(alone) > len(near) else None
    inside = text[document.starts[container] + 1 : document.ends[container] - 1]
    alike = [value for value in _containers(document, sample) if document.kinds[value] == document.kinds[container]]
    spread = sum(begins_line(text, document.item_start(value + 1)) for value in alike)
    if LINE_END.search(inside) or 2 * spread > len(alike) or (len(sample) == 1 and LINE_END.search(text)):
        return base + (_step(document, sample) or "  ")
    return None


def _containers(document: Document, values: Sequence[int]) -> list[int]:
    """Those that hold something."""
    return [value for value in values if document.after[value] > value + 1]


def _step(document: Document, sample: Sequence[int]) -> str | None:
    """What an item stands deeper than the line of its container, mostly."""
    steps = Counter[str]()
    for value in _containers(document, sample):
        first = document.item_start(value + 1)
        if begins_line(document.text, first):
            base, item = indent_at(document.text, document.starts[value]), indent_at(document.text, first)
            steps[item[len(base) :] if item.startswith(base) else ""] += 1
    return _commonest(steps)


def _pad(document: Document, kind: str, sample: Sequence[int]) -> str:
    """What stands between a bracket and the first item on its line."""
    pads = Counter[str]()
    for value in _containers(document, sample):
        if document.kinds[value] == kind:
            pads[document.text[document.starts[value] + 1 : document.item_start(value + 1)]] += 1
    pad = _commonest(pads) or ""
    return pad if not pad.strip(" \t") else ""
