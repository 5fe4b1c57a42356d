"""Carries an edit over to other lines: the tokens of its old lines are aligned with those of its new lines, to see what
it kept, and with those of the other lines, to see what stands for what."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from caesura.server.next_edit.history import PastEdit
from caesura.server.next_edit.tokens import Change, CodeTokens, aligned, changes, dedented, indent, tokens

MIN_SIMILARITY = 0.5
MAX_EDIT = 12  # lines of an edit that is carried over, before or after it
REACH = 400  # rows before and after the newest edit; more would take too long
MAX_ROW = 400  # characters; a longer row is data
SHORT = 4  # tokens: what an edit drops of at most so many must stand together in the other lines
_OF_TOKENS, _OF_CHANGED = 0.6, 0.4  # weights of a similarity
_CLOSERS = frozenset(")]},;:\n")


class Transfer(NamedTuple):
    """An edit carried over to the rows from `row` on: the lines `old` become `new`. `similarity`: of these lines with
    the edit's old ones, 0 to 1. `peers`: the edits of the history that make the same change, this one too."""

    edit: PastEdit
    row: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    similarity: float
    peers: tuple[PastEdit, ...]

    @property
    def end(self) -> int:
        """The row after the old lines."""
        return self.row + len(self.old)


class EditPattern:
    """An edit as a pattern. `changes` are those of its tokens, without the common indentation."""

    def __init__(self, edit: PastEdit) -> None:
        self.edit = edit
        margin = indent(edit.old[0])
        old, new = dedented(edit.old, margin), dedented(edit.new, margin)
        self._relative = old is not None and new is not None
        self._old, self._new = tokens(old if old and new else edit.old), tokens(new if old and new else edit.new)
        self._operations = aligned(self._old, self._new)
        self.changes: Sequence[Change] = changes(self._old, self._new)

    @cached_property
    def signature(self) -> frozenset[tuple[CodeTokens, CodeTokens]]:
        """The set of its token changes, by which two edits are the same change."""
        return frozenset((self._old[one.start : one.end], one.new) for one in self.changes)

    @cached_property
    def _lines(self) -> list["_Line"]:
        """The old lines, each with the tokens that changed in it."""
        lines, at = list[_Line](), 0
        anchors = {token for one in self.changes for token in self._anchors(one)}
        for row in (tokens([line]) for line in self.edit.old):
            spans = [self._old[max(at, one.start) : min(at + len(row), one.end)] for one in self.changes]
            dropped = {token for span in spans for token in span if token.strip()}
            lines.append(_Line(row[1:], dropped or anchors))
            at += len(row)
        return lines

    def _anchors(self, change: Change) -> Iterator[str]:
        """The nearest tokens around a change that only adds."""
        if change.start == change.end:
            yield from [token for token in self._old[: change.start] if token.strip()][-1:]
            yield from [token for token in self._old[change.end :] if token.strip()][:1]

    def similarity(self, rows: Sequence["RowTokens"]) -> float:
        """The mean similarity of line pairs; 0 where it is below MIN_SIMILARITY."""
        least, total = MIN_SIMILARITY * len(rows), 0.0
        bounds = [line.bound(row) for line, row in zip(self._lines, rows, strict=True)]
        rest = sum(bounds)
        for line, row, bound in zip(self._lines, rows, bounds, strict=True):
            if total + rest < least:
                return 0.0
            rest -= bound
            total += line.similarity(row) if bound else 0.0
        return total / len(rows) if total >= least else 0.0

    def applied(self, lines: Sequence[str]) -> tuple[str, ...] | None:
        """The lines as the edit would have changed them; None if it does not fit."""
        margin = indent(lines[0]) if self._relative else ""
        inner = dedented(lines, margin)
        place = tokens(inner) if inner is not None else ()
        new = self._applied(place) if place else None
        if new is None:
            return None
        return tuple(margin + line if line else "" for line in "".join(new).split("\n")[1:])

    def _applied(self, place: CodeTokens) -> CodeTokens | None:
        counterparts = _Counterparts(self._old, place)
        adds = {start for _, start, end, _, _ in self._operations if start == end}
        text: list[str] = []
        for kind, start, end, first, last in self._operations:
            if kind != "equal":
                if not counterparts.holds(start, end):
                    return None
                text += self._new[first:last]
                continue
            begin = counterparts.cut(start) if start in adds else counterparts.low[start]
            stop = counterparts.cut(end) if end in adds else counterparts.high[end]
            if begin is None or stop is None:
                return None
            text += place[begin:stop]
        glued = any(one[-1].isalnum() and other[0].isalnum() for one, other in pairwise(text))
        return None if glued else tuple(text)


class RowTokens(NamedTuple):
    """A row of the document, prepared to be compared. `counts` has its tokens without indentation."""

    tokens: CodeTokens
    counts: Counter[str]


def row_of(line: str) -> RowTokens:
    found = tokens([line])[1:] if len(line) <= MAX_ROW else ()
    return RowTokens(found, Counter(found))


class _Line:
    """A line of an edit's old text, with the tokens by which other lines are like it."""

    def __init__(self, row: CodeTokens, telling: set[str]) -> None:
        self._tokens, self._telling, self._counts = row, telling, Counter(row)
        self._known: dict[CodeTokens, float] = {}
        self._matcher = SequenceMatcher(None, "", row, autojunk=False)  # caches what it finds of the second text

    def bound(self, row: RowTokens) -> float:
        """At least the similarity, and cheap."""
        if not row.tokens or not self._tokens:
            return float(row.tokens == self._tokens)
        fewer, more = (self._counts, row.counts) if len(self._counts) < len(row.counts) else (row.counts, self._counts)
        common = sum(min(number, more[token]) for token, number in fewer.items() if token in more)
        return _OF_TOKENS * 2 * common / (len(row.tokens) + len(self._tokens)) + self._share(row)

    def similarity(self, row: RowTokens) -> float:
        if not row.tokens or not self._tokens:
            return float(row.tokens == self._tokens)
        if row.tokens not in self._known:
            self._matcher.set_seq1(row.tokens)
            self._known[row.tokens] = _OF_TOKENS * self._matcher.ratio() + self._share(row)
        return self._known[row.tokens]

    def _share(self, row: RowTokens) -> float:
        present = len(self._telling & row.counts.keys())
        return _OF_CHANGED * present / len(self._telling) if self._telling else 0.0


class _Counterparts:
    """The counterparts in `place` of the tokens of `old`. For each boundary of tokens of `old`: `low` is the place
    after the counterpart of the token before it, `high` the one before the counterpart of the token after it; `place`
    may have more tokens between the two. Both are None inside of a span that `place` replaces as a whole."""

    def __init__(self, old: CodeTokens, place: CodeTokens) -> None:
        self._old = old
        self.low: list[int | None] = [None] * (len(old) + 1)
        self.high: list[int | None] = [None] * (len(old) + 1)
        self.low[0], self.high[-1] = 0, len(place)
        self._missing: set[int] = set()
        for kind, start, end, first, last in aligned(old, place):
            if kind == "replace":
                self.high[start], self.low[end] = first, last
                continue
            step = 1 if kind == "equal" else 0
            for at in range(end - start):
                self.high[start + at], self.low[start + at + 1] = first + at * step, first + (at + 1) * step
            if kind == "delete":
                self._missing.update(range(start, end))

    def cut(self, boundary: int) -> int | None:
        """Where to insert at a boundary. The tokens that only `place` has belong to the token after them, as a
        receiver does, unless that one closes a list."""
        ends = boundary == len(self._old) or self._old[boundary][0] in _CLOSERS
        return self.high[boundary] if ends else self.low[boundary]

    def holds(self, start: int, end: int) -> bool:
        """True if all tokens of a span have counterparts and, in a short one, stand together."""
        if any(at in self._missing and self._old[at].strip() for at in range(start, end)):
            return False
        return end - start > SHORT or all(self.low[at] == self.high[at] for at in range(start + 1, end))


def transfers(rows: Sequence[str], history: Sequence[PastEdit]) -> Iterator[Transfer]:
    """The edits of a history, which has one, carried over to each run of rows that is like their old lines, within
    REACH of the newest edit, but not to their own places. The most similar first, of those the nearest."""
    newest = history[-1].at
    patterns = [EditPattern(edit) for edit in history if len(edit.old) <= MAX_EDIT and len(edit.new) <= MAX_EDIT]
    peers: dict[Hashable, tuple[PastEdit, ...]] = {}
    for pattern in patterns:
        peers[pattern.signature] = (*peers.get(pattern.signature, ()), pattern.edit)
    ranked = sorted(_similar(rows, history, patterns), key=lambda found: (-found[0], abs(found[1] - newest)))
    for similarity, first, pattern in ranked:
        old = tuple(rows[first : first + len(pattern.edit.old)])
        new = pattern.applied(old)
        if new is not None:
            yield Transfer(pattern.edit, first, old, new, similarity, peers[pattern.signature])


def _similar(
    rows: Sequence[str], history: Sequence[PastEdit], patterns: Sequence[EditPattern]
) -> Iterator[tuple[float, int, EditPattern]]:
    """Similarity, first row and pattern, of each run of rows that is like the old lines of a pattern."""
    reach = range(max(0, history[-1].at - REACH), min(len(rows), history[-1].end + REACH))
    edited = {row for edit in history for row in range(edit.at, edit.end)}
    prepared = {row: row_of(rows[row]) for row in reach}
    for pattern in patterns:
        size = len(pattern.edit.old)
        for first in reach[: len(reach) - size + 1]:
            place = range(first, first + size)
            if not prepared[first].tokens or any(row in edited for row in place):
                continue
            if similarity := pattern.similarity([prepared[row] for row in place]):
                yield similarity, first, pattern
