"""The text of an open document, with LSP's line model and its three position encodings.

Lines end at `\\r\\n`, `\\n` or `\\r` and nowhere else. An offset counts code points from the start of the text; a
position is (line, units of the client's encoding). Only `offset` and `position` convert between the two.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from itertools import accumulate, pairwise
from operator import add, attrgetter
from typing import Literal, NamedTuple

Encoding = Literal["utf-8", "utf-16", "utf-32"]
Position = tuple[int, int]  # line, units within the line
Point = tuple[int, int]  # row (tree-sitter counts `\n` only), bytes within the row
Span = tuple[int, int]  # start and end, code points

BLOCK = 4096  # code points per block of the line index; a block is split when it reaches twice this size

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNITS: dict[Encoding, Callable[[str], int]] = {
    "utf-8": lambda c: 1 if c < "\x80" else 2 if c < "\u0800" else 3 if c < "\U00010000" else 4,
    "utf-16": lambda c: 1 if c < "\U00010000" else 2,
}


class InvertedRange(ValueError):
    """An edit ends before it starts: our text may differ from the editor's."""


@dataclass(frozen=True)
class Edit:
    """One applied replacement: `start:end` of the old text became `text`. Trees need the UTF-8 bytes and points."""

    start: int
    end: int
    text: str
    start_byte: int
    old_end_byte: int
    new_end_byte: int
    start_point: Point
    old_end_point: Point
    new_end_point: Point


class Document:
    """`version` is the editor's. Only `edit` and `replace` change the text."""

    def __init__(self, uri: str, language: str, version: int, text: str, encoding: Encoding = "utf-16") -> None:
        self.uri = uri
        self.language = language
        self.version = version
        self.encoding: Encoding = encoding
        self._text: str | None = _SURROGATE.sub("\ufffd", text)
        self._length = len(self._text)
        self._lines = _split(self._text)
        self._index = _Index(self._lines)

    def __len__(self) -> int:
        """Code points, without joining the lines."""
        return self._length

    def __repr__(self) -> str:
        return f"<Document {self.language} v{self.version} {len(self._lines)} lines>"

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = "".join(self._lines)
        return self._text

    def replace(self, text: str) -> Edit:
        """Make `text` the whole document. The edit covers only the part that differs: some editors send the whole
        document at every key."""
        text, old = _SURROGATE.sub("\ufffd", text), self.text
        head = _shared_head(old, text)
        tail = _shared_tail(old, text, min(len(old), len(text)) - head)
        return self._change(head, len(old) - tail, text[head : len(text) - tail])

    def edit(self, start: Position, end: Position, text: str) -> Edit:
        """Apply one incremental change. Raises InvertedRange, and changes nothing, if `end` lies before `start`.

        The edit leaves out the unchanged start: an accepted popup item that repeats the typed word only extends it."""
        if end < start:
            raise InvertedRange
        first, last = self._locate(start), self._locate(end)
        text = _SURROGATE.sub("\ufffd", text)
        begin, stop = self._offset(first), self._offset(last)
        head = _shared_head(self._between(first, last), text) if begin < stop and text else 0
        return self._change(begin + head, stop, text[head:])

    def _change(self, begin: int, stop: int, text: str) -> Edit:
        first, last = self._find(begin), self._find(stop)
        start_byte, start_point = self._byte(first)
        old_end_byte, old_end_point = self._byte(last)
        self._splice(first, last, text)
        self._length += len(text) - (stop - begin)
        new_end_byte, new_end_point = self._byte(self._find(begin + len(text)))
        return Edit(
            begin, stop, text, start_byte, old_end_byte, new_end_byte, start_point, old_end_point, new_end_point
        )

    def offset(self, position: Position) -> int:
        """The offset of an LSP position, clamped to its line and to the text."""
        return self._offset(self._locate(position))

    def position(self, offset: int) -> Position:
        """The LSP position of an offset. An offset inside a `\\r\\n` counts as before it."""
        line, column = self._find(offset)
        content = _content(self._lines[line])
        return line, _units_before(content, min(column, len(content)), self.encoding)

    def _locate(self, position: Position) -> tuple[int, int]:
        """(line, code point column) of an LSP position."""
        line, units = position
        if line < 0:
            return 0, 0
        if line >= len(self._lines):
            return len(self._lines) - 1, len(self._lines[-1])
        return line, _column(_content(self._lines[line]), max(0, units), self.encoding)

    def _between(self, first: tuple[int, int], last: tuple[int, int]) -> str:
        """The text between two (line, code point column), without joining the other lines."""
        lines = self._lines[first[0] : last[0] + 1]
        lines[-1] = lines[-1][: last[1]]
        lines[0] = lines[0][first[1] :]
        return "".join(lines)

    def _find(self, offset: int) -> tuple[int, int]:
        """(line, code point column) of an offset."""
        offset = max(0, offset)
        line, start = self._index.holding(offset)
        return line, min(offset - start, len(self._lines[line]))

    def _offset(self, position: tuple[int, int]) -> int:
        line, column = position
        return self._index.chars(line) + column

    def _byte(self, position: tuple[int, int]) -> tuple[int, Point]:
        line, column = position
        before = self._index.before(line)
        head = self._lines[line][:column]
        row_start = line
        while row_start and not self._lines[row_start - 1].endswith("\n"):  # a lone `\r` does not end a row
            row_start -= 1
        row = _byte_length("".join(self._lines[row_start:line]) + head)
        return before.bytes + _byte_length(head), (before.rows, row)

    def _splice(self, first: tuple[int, int], last: tuple[int, int], text: str) -> None:
        top, bottom = first[0], last[0] + 1
        middle = self._lines[top][: first[1]] + text + self._lines[last[0]][last[1] :]
        if top and self._lines[top - 1].endswith("\r"):  # an inserted `\n` would complete its line break
            top -= 1
            middle = self._lines[top] + middle
        lines = _split(middle)
        if bottom < len(self._lines):
            lines.pop()  # empty, since `middle` ends in a line break
        self._index.splice(top, bottom, lines)
        self._text = None


class _Count(NamedTuple):
    lines: int
    chars: int
    bytes: int
    rows: int


class _Index:
    """Totals before each block of lines, so that an edit or a query counts at most one block. The sums are valid up to
    the block of the last edit and extended on demand. `lines` is the document's own list."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._counts = _blocks(lines)
        self._sums = [_Count(0, 0, 0, 0)]  # before each block

    def before(self, line: int) -> _Count:
        known = self._sums[self._block(line, attrgetter("lines"))]
        return _Count(*map(add, known, _count(self._lines[known.lines : line])))

    def chars(self, line: int) -> int:
        """`before(line).chars`, but cheaper."""
        known = self._sums[self._block(line, attrgetter("lines"))]
        return known.chars + sum(map(len, self._lines[known.lines : line]))

    def holding(self, offset: int) -> tuple[int, int]:
        """The line that holds an offset, and the offset of its start. An offset past the end is in the last line."""
        block = self._block(offset, attrgetter("chars"))
        known = self._sums[block]
        lines = self._lines[known.lines : known.lines + self._counts[block].lines]
        starts = list(accumulate(map(len, lines[:-1]), initial=known.chars))
        line = bisect_right(starts, offset) - 1
        return known.lines + line, starts[line]

    def splice(self, top: int, bottom: int, lines: list[str]) -> None:
        """Replace the lines `top:bottom`, at least one, by `lines`."""
        first, last = (self._block(line, attrgetter("lines")) for line in (top, bottom - 1))
        start, stop = self._sums[first].lines, self._sums[last].lines + self._counts[last].lines
        self._lines[top:bottom] = lines
        self._counts[first : last + 1] = _blocks(self._lines[start : stop + len(lines) - (bottom - top)])
        del self._sums[first + 1 :]

    def _block(self, amount: int, of: Callable[[_Count], int]) -> int:
        """The last block with at most `amount` before it."""
        while len(self._sums) < len(self._counts) and of(self._sums[-1]) <= amount:
            self._sums.append(_Count(*map(add, self._sums[-1], self._counts[len(self._sums) - 1])))
        return bisect_right(self._sums, amount, key=of) - 1


def _blocks(lines: list[str]) -> list[_Count]:
    """Count lines in blocks of about equal size, at least BLOCK unless there is only one."""
    ends = list(accumulate(map(len, lines)))
    many = max(1, ends[-1] // BLOCK)
    cuts = {bisect_left(ends, ends[-1] * number // many) + 1 for number in range(1, many)}
    return [_count(lines[a:b]) for a, b in pairwise(sorted(cuts | {0, len(lines)}))]


def _count(lines: list[str]) -> _Count:
    text = "".join(lines)
    return _Count(len(lines), len(text), _byte_length(text), text.count("\n"))


def _shared_head(old: str, new: str) -> int:
    """The length of the common prefix, which never ends in `\r`: that may be half of a line break."""
    size = _bisect(min(len(old), len(new)), lambda a, b: old[a:b] == new[a:b])
    return size - (old[size - 1 : size] == "\r")


def _shared_tail(old: str, new: str, most: int) -> int:
    """The length of the common suffix, at most `most`, which never starts inside a line break."""
    a, b = len(old), len(new)
    size = _bisect(most, lambda low, high: old[a - high : a - low] == new[b - high : b - low])
    halved = old[a - size : a - size + 1] == "\n" and "\r" in old[: a - size][-1:] + new[: b - size][-1:]
    return size - halved


def _bisect(most: int, equal: Callable[[int, int], bool]) -> int:
    """The largest n up to `most` for which the first n are equal; `equal(low, high)` compares that range."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if equal(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _split(text: str) -> list[str]:
    """Lines with their line breaks; the last one, possibly empty, has none. StringIO splits exactly as LSP does."""
    lines = StringIO(text, newline="").readlines()
    if not lines or lines[-1][-1] in "\r\n":
        lines.append("")
    return lines


def _content(line: str) -> str:
    return line.rstrip("\r\n")


def _byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _column(content: str, units: int, encoding: Encoding) -> int:
    """The code point column at, or around, an offset in units; clamped to the end."""
    if encoding == "utf-32" or content.isascii():
        return min(units, len(content))
    return bisect_right(_unit_map(content, encoding), units) - 1


def _units_before(content: str, column: int, encoding: Encoding) -> int:
    if encoding == "utf-32" or content.isascii():
        return column
    return _unit_map(content, encoding)[column]


@lru_cache(maxsize=2)  # one line before and after an edit: a document may be a single long line
def _unit_map(content: str, encoding: Encoding) -> Sequence[int]:
    """Units before each code point of a line, and at its end."""
    return array("I", accumulate(map(_UNITS[encoding], content), initial=0))
