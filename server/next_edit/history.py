"""The user's last edits of a document, each with its place: keystrokes coalesced to edits. Pure.

The keystrokes of one line region are one edit, until one begins elsewhere or the caller reports a pause. The history
keeps the lines of the document, since a keystroke does not tell the text that it replaced. A row is a line that ends at
`\\n`, as in tree-sitter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from caesura.server.next_edit.tokens import tokens
from caesura.server.text.document import Edit

MOST = 3  # edits that the rules see
KEPT = 12  # edits that a later keystroke may go on with, as with several cursors
MAX_LINE = 400  # code points of a line of an edit; a longer line is data, and its tokens take seconds to align
MAX_LINES = 40  # of an edit, before or after it; a longer one is no edit by hand
APART = 3  # unchanged lines between two changes that are two edits


@dataclass(frozen=True)
class PastEdit:
    """The lines `old` became `new`, without line breaks, which stand at the row `at` of the present text. A pure
    insertion or deletion has one unchanged line next to it on both sides."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    at: int

    @property
    def end(self) -> int:
        """The row after the new lines."""
        return self.at + len(self.new)


@dataclass
class _Region:
    """The rows `first:last` of the present text, which were the lines `old`."""

    first: int
    last: int
    old: list[str] = field(default_factory=list)

    def takes(self, first: int, last: int) -> bool:
        """True if a keystroke in the rows `first:last` continues this edit: it changes a row of it, or adds or removes
        whole rows next to rows that were added or removed."""
        if first < self.last and self.first < last:
            return True
        if first == last:
            return self.first < first < self.last or (not self.old and self.first <= first <= self.last)
        return self.first == self.last and first <= self.first <= last


class EditHistory:
    """The last edits of one document; drop it when the document closes."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._edits: list[PastEdit] = []  # oldest first
        self._open: _Region | None = None

    def __repr__(self) -> str:
        return f"<EditHistory {len(self._edits)} edits of {len(self._lines)} lines{', open' if self._open else ''}>"

    @property
    def edits(self) -> Sequence[PastEdit]:
        """The finished edits, at most MOST, oldest first."""
        return tuple(self._edits[-MOST:])

    def edited(self, edit: Edit) -> None:
        """Apply one keystroke. Costs as much as the lines that it touches."""
        first, left = edit.start_point
        bottom, right = edit.old_end_point
        if not left and not right and edit.text[-1:] in ("", "\n") and (edit.text or bottom > first):
            self._splice(first, bottom, edit.text.split("\n")[:-1])  # whole lines: the row after them is not touched
            return
        head = self._lines[first][: _column(self._lines[first], left)]
        tail = self._lines[bottom][_column(self._lines[bottom], right) :]
        self._splice(first, bottom + 1, f"{head}{edit.text}{tail}".split("\n"))

    def pause(self) -> None:
        """End the open edit: the user paused, or saved, or asks for the next edit."""
        region, self._open = self._open, None
        if region is None:
            return
        old, new = _bare(region.old), _bare(self._lines[region.first : region.last])
        for a, b, c, d in _hunks(old, new):
            longest = max(map(len, (*old[a:b], *new[c:d])), default=0)
            if b - a <= MAX_LINES and d - c <= MAX_LINES and longest <= MAX_LINE:
                self._add(self._framed(old[a:b], new[c:d], region.first + c))
        del self._edits[:-KEPT]

    def _splice(self, first: int, last: int, lines: list[str]) -> None:
        """Replace rows, as part of the open edit or of a new one."""
        if self._open is None or not self._open.takes(first, last):
            self.pause()
            self._open = _Region(first, first)
        region, added = self._open, len(lines) - (last - first)
        if first < region.first:
            region.old[:0] = self._lines[first : region.first]
        if last > region.last:
            region.old += self._lines[max(region.last, first) : last]
        region.first, region.last = min(first, region.first), max(last, region.last) + added
        if added:
            self._lines[first:last] = lines
            self._edits = [replace(e, at=e.at + added) if e.at >= last else e for e in self._edits]
        else:  # the usual key moves no other line
            for row, line in enumerate(lines, first):
                self._lines[row] = line

    def _framed(self, old: list[str], new: list[str], at: int) -> PastEdit:
        """The edit with one line next to it if it only adds or only removes lines, where there is one."""
        if not old or not new:
            if at:
                near = _bare(self._lines[at - 1 : at])
                return PastEdit((*near, *old), (*near, *new), at - 1)
            near = _bare(self._lines[at + len(new) : at + len(new) + 1])
            old, new = [*old, *near], [*new, *near]
        return PastEdit(tuple(old), tuple(new), at)

    def _add(self, edit: PastEdit) -> None:
        """Add an edit. One that goes on with an earlier one is one with it; one that undoes it removes both."""
        for earlier in self._edits:
            if both := _joined(earlier, edit):
                self._edits.remove(earlier)
                edit = both
                break
        if edit.old != edit.new:
            self._edits.append(edit)


def _joined(earlier: PastEdit, later: PastEdit) -> PastEdit | None:
    """One edit for two of the same lines; None if the later one changes another part of them."""
    first = later.at - earlier.at
    last = first + len(later.old)
    if first < 0 or earlier.new[first:last] != later.old:
        return None
    new = (*earlier.new[:first], *later.new, *earlier.new[last:])
    begin, _, end = _changed(earlier.old, earlier.new)
    start, _, stop = _changed(new, earlier.new)
    return PastEdit(earlier.old, new, earlier.at) if start <= end and begin <= stop else None


def _changed(old: Sequence[str], new: Sequence[str]) -> tuple[int, int, int]:
    """The first token that differs, and the end of the tokens that differ, in the old and in the new lines."""
    before, after = tokens(old), tokens(new)
    most = min(len(before), len(after))
    start = next((at for at in range(most) if before[at] != after[at]), most)
    tail = next((at for at in range(most - start) if before[-1 - at] != after[-1 - at]), most - start)
    return start, len(before) - tail, len(after) - tail


def _hunks(old: list[str], new: list[str]) -> list[tuple[int, int, int, int]]:
    """The lines that differ, `old[a:b]` and `new[c:d]`; changes close to each other are one."""
    if len(old) + len(new) > 4 * MAX_LINES:
        return []
    hunks: list[tuple[int, int, int, int]] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        if hunks and a - hunks[-1][1] < APART:
            a, c = hunks[-1][0], hunks[-1][2]
            hunks.pop()
        hunks.append((a, b, c, d))
    return hunks


def _bare(lines: Sequence[str]) -> list[str]:
    """The lines without the `\\r` of their line breaks."""
    return [line.removesuffix("\r") for line in lines]


def _column(line: str, size: int) -> int:
    """The column, in code points, after so many bytes of a line."""
    return size if line.isascii() else len(line.encode()[:size].decode(errors="ignore"))
