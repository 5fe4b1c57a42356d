"""Structured edits of Markdown tables: rows, columns, cells. Bars are fixed text. An aligned table stays aligned: if a
fill makes a column wider, every row is padded.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from caesura import wire
from caesura.server.structured.markdown.blocks import Block, MarkdownTree, Row, cells
from caesura.server.structured.markdown.changes import MarkdownChange, Piece, hole_of, newline_of, tried
from caesura.server.structured.markdown.links import inline_of
from caesura.server.structured.markdown.patterns import except_for
from caesura.server.structured.offer import NoOffer, Offer

MOST_HOLES = 16  # in one job
_CELL_TOKENS = 24
_CANVAS = 480  # tokens from the first hole to the last: a little less than an engine takes

Cell = tuple[int, int]  # row, column


class Table:
    """A table's rows, measured. The user is writing the row in line `typed`, so the layout comes from the others."""

    def __init__(self, document: MarkdownTree, block: Block, typed: int | None = None) -> None:
        self.document, self.block = document, block
        self.numbers = sorted(block.starts)
        self.typed = None if typed is None else self.numbers.index(typed)
        self.rows = [cells(document.lines[n].text, block.starts[n]) for n in self.numbers]
        self.columns = cast(int, block.detail[0])
        self.sides = [cell.strip(" \t") for cell in self.rows[1].cells]
        inner = [cell for row in self.rows for cell in (row.cells if row.lead.endswith("|") else row.cells[1:])]
        self.margin = " " if any(cell[:1] == " " for cell in inner if cell.strip()) else ""
        kept = [row for n, row in zip(self.numbers, self.rows, strict=True) if n != typed]
        self.widths = [max(_width(row.cells[c]) for row in kept if c < len(row.cells)) for c in range(self.columns)]
        padded = self.margin or any(cell != cell.strip(" ") for row in kept for cell in row.cells)
        self.aligned = bool(padded) and all(self._is_aligned(row) for row in kept)
        self.inline = inline_of(document, block.first)

    def __repr__(self) -> str:
        return f"<Table of {len(self.rows)} rows, {self.columns} columns{', aligned' if self.aligned else ''}>"

    # Offers

    def row_below(self, line: int) -> Offer:
        here = max(self.numbers.index(line), 1)  # a row stands below the delimiters
        model = self.rows[here] if here > 1 else self.rows[0]
        delimiters = self.numbers[1]
        barred, tail = model.lead.endswith("|"), model.tail.strip()
        lead = self.document.lines[delimiters].text[: self.block.starts[delimiters]] + "|" * barred
        newline = newline_of(self.document, line)
        places = [(here + 1, column) for column in range(self.columns)]
        row = Row(lead, ("",) * self.columns, tail)
        pieces = list[Piece]([newline, lead])
        for column, hole in enumerate(self._holes(places, row, 4 * self.columns, self._names(here))):
            left, right = self._margins(column, row)
            pieces += ["|" * (column > 0), left, hole, right]
        at = self.document.lines[self.numbers[here]].end
        change = self._change(self.numbers[here], {self.numbers[here] + 1: self.columns})
        if not self.aligned:
            return tried("Add a row below", self.document.text, change, (at, at), [*pieces, tail])
        rows = [*self.rows[: here + 1], row, *self.rows[here + 1 :]]
        endings = [self.document.lines[n].ending or newline for n in self.numbers]
        endings.insert(here, newline)
        start, end = self._span()
        return tried(
            "Add a row below",
            self.document.text,
            change,
            (start, end),
            [self.document.text[start:at], *pieces, tail, self.document.text[at:end]],
            assemble=lambda fills: self._laid(rows, dict(zip(places, fills, strict=True)), endings),
        )

    def column_after(self, line: int, offset: int) -> Offer:
        short = next(
            (n for n, row in zip(self.numbers, self.rows, strict=True) if len(row.cells) != self.columns), None
        )
        if short is not None:
            raise NoOffer(f"The row in line {short + 1} does not have {self.columns} cells; complete it first.")
        column = self._column(self.numbers.index(line), offset)
        texts, places = [self.document.lines[n].text for n in self.numbers], list[int]()
        gaps, begin = list[str](), self._start(0) + self.rows[0].spans()[column][1]
        last = column + 1 == self.columns
        for r, (row, text) in enumerate(zip(self.rows, texts, strict=True)):
            at = row.spans()[column][1]
            glue = self.margin if last and not row.tail.strip() and text[at - 1 : at] != " " else ""
            before = "" if r == 0 else self.document.text[self._start(r - 1) + places[-1] : self._start(r) + at]
            gaps.append(f"{before}{glue}|")
            places.append(at)
        end = self._start(len(self.rows) - 1) + places[-1]
        tails = [self.margin if not last or row.tail.strip() else "" for row in self.rows]
        dashes = "-" * max(3, len(self.sides[column]))
        filled = [r for r in range(len(self.rows)) if r != 1]
        known = [cell.strip(" \t") for cell in self.rows[0].cells]
        holes = iter(self._holes([(r, column + 1) for r in filled], self.rows[0], end - begin, known))
        pieces = list[Piece]()
        for r, gap in enumerate(gaps):
            rule = self._dashes(len(dashes), tails[r])
            pieces += [gap, rule] if r == 1 else [gap, self.margin, next(holes), tails[r]]

        def laid(fills: Sequence[str]) -> str:
            width = max(3, *map(_width, fills))
            raws = [self.margin + fill + " " * (width - _width(fill)) * bool(tails[r]) + tails[r] for r, fill in
                    zip(filled, fills, strict=True)]  # fmt: skip
            raws.insert(1, self._dashes(width, tails[1]))
            return "".join(gap + raw for gap, raw in zip(gaps, raws, strict=True))

        change = self._change(self.block.last, dict.fromkeys(self.numbers, self.columns + 1), self.columns + 1)
        assemble = laid if self.aligned else None
        return tried("Add a column to the right", self.document.text, change, (begin, end), pieces, assemble=assemble)

    def empty_cells(self, line: int) -> Offer | None:
        """Fill the empty cells of the row, or of the table if the row has none; None if no cell is empty."""
        empty = [
            (r, c)
            for r, row in enumerate(self.rows)
            for c, cell in enumerate(row.cells[: self.columns])
            if r != 1 and not cell.strip(" \t")
        ]
        here = self.numbers.index(line)
        places = [cell for cell in empty if cell[0] == here] or empty
        if not places:
            return None
        return self._fill(places, "Fill the empty cell" if len(places) == 1 else f"Fill the {len(places)} empty cells")

    def selected(self, start: int, end: int) -> Offer:
        """Replace the selected cells. Raises NoOffer if the selection holds only a part of a cell."""
        places = list[Cell]()
        for r, row in enumerate(self.rows):
            for c, (a, b) in enumerate(row.spans()[: self.columns]):
                raw, base = row.cells[c], self._start(r)
                a, b = base + a + len(raw) - len(raw.lstrip()), base + b - len(raw) + len(raw.rstrip())
                if r == 1 or b <= start or a >= end or not raw.strip():
                    continue
                if a < start or b > end:
                    raise NoOffer("The selection cuts a cell; select the whole text of each cell that is to change.")
                places.append((r, c))
        if not places or self.document.line_of(end) > self.block.last:
            raise NoOffer("The selection has no whole cell of one table; select the whole text of a cell.")
        return self._fill(places, "Replace the cell" if len(places) == 1 else f"Replace the {len(places)} cells")

    def rest_of_row(self, offset: int) -> Offer | None:
        """Fill the rest of the cell at the cursor, and of the row if nothing stands after the cursor."""
        number = self.document.line_of(offset)
        line, here = self.document.lines[number], self.numbers.index(number)
        before, after = line.text[: offset - line.start], line.text[offset - line.start :]
        begun = cells(before, self.block.starts[number])
        column, typed = len(begun.cells) - 1, begun.cells[-1]
        if begun.tail:  # the cursor is after a bar
            column, typed = column + 1, begun.tail[1:]
        barred = begun.lead.endswith("|")
        pattern = self.inline.rest(typed)
        if here < 2 or column >= self.columns or pattern is None or barred != self.rows[0].lead.endswith("|"):
            return None
        if not barred and column == 0:  # it may still become another block
            return None
        glue = "" if typed else self.margin
        begins = typed.lstrip(" \t")
        known = [name[len(begins) :] for name in self._names(here) if name.startswith(begins)] if column == 0 else []
        hole = hole_of(except_for(known, pattern), _CELL_TOKENS, "span")
        if after.strip(" \t"):
            change = self._change(self.block.last, {number: len(self.rows[here].cells)})
            right = "" if after[0] == " " else self.margin
            if after.startswith("`") and self.inline.open_code(typed) is not None:  # the editor closed it
                hole, right = hole_of(self.inline.rest_of_code, _CELL_TOKENS, "span"), ""
            elif not after.lstrip(" \t").startswith("|"):
                return None
            return tried("Fill the cell", self.document.text, change, (offset, offset), [glue, hole, right])
        row = Row("|" * barred, ("",) * self.columns, self.rows[0].tail.strip())
        places = [(here, c) for c in range(column + 1, self.columns)]
        end = self._margins(column, row)[1]
        pieces = list[Piece]([glue, hole, end])
        for (_, c), more in zip(places, self._holes(places, row, 4 * self.columns), strict=True):
            left, right = self._margins(c, row)
            pieces += ["|", left, more, right]

        def padded(fills: Sequence[str]) -> str:
            room = self.widths[column] - _width(typed + glue + fills[0] + end)
            first = glue + fills[0] + end + " " * (room if column + 1 < self.columns or row.tail else 0)
            return (
                "|".join([first, *(self._cell(fill, c, row) for (_, c), fill in zip(places, fills[1:], strict=True))])
                + row.tail
            )

        change = self._change(self.block.last, {number: self.columns})
        assemble = padded if self.aligned else None
        span = offset, line.end
        return tried("Fill the row", self.document.text, change, span, [*pieces, row.tail], assemble=assemble)

    # Layout and holes

    def _fill(self, places: Sequence[Cell], title: str) -> Offer:
        """New text for these cells."""
        start, end = self._span()
        edges = [(self._start(r) + a, self._start(r) + b) for r, c in places for a, b in [self.rows[r].spans()[c]]]
        if not self.aligned:
            start, end = edges[0][0], edges[-1][1]
        pieces, at = list[Piece](), start
        first, column = places[0]
        known = self._names(first) if column == 0 and first >= 2 else ()
        holes = self._holes(places, self.rows[first], edges[-1][1] - edges[0][0], known)
        for (r, c), (a, b), hole in zip(places, edges, holes, strict=True):
            raw = self.rows[r].cells[c]
            left, right = self._margins(c, self.rows[r])
            if raw.strip(" \t"):
                left, right = raw[: len(raw) - len(raw.lstrip(" \t"))], raw[len(raw.rstrip(" \t")) :]
            pieces += [self.document.text[at:a], left, hole, right]
            at = b
        change = self._change(self.block.last, {self.numbers[r]: len(self.rows[r].cells) for r, _ in places})
        endings = [self.document.lines[n].ending for n in self.numbers]
        assemble: Callable[[Sequence[str]], str] | None = None
        if self.aligned:

            def assemble(fills: Sequence[str]) -> str:
                return self._laid(self.rows, dict(zip(places, fills, strict=True)), endings)

        return tried(
            title, self.document.text, change, (start, end), [*pieces, self.document.text[at:end]], assemble=assemble
        )

    def _names(self, here: int) -> list[str]:
        """The texts of the rows' first cells, nearest to row `here` first; empty if two of them are equal."""
        near = sorted(set(range(2, len(self.rows))) - {self.typed}, key=lambda r: abs(r - here))
        texts = (self.rows[r].cells[0].strip(" \t") for r in near if self.rows[r].cells)
        found = [text for text in texts if text]
        return found if len(set(found)) == len(found) else []

    def _holes(self, places: Sequence[Cell], row: Row, between: int, known: Sequence[str] = ()) -> list[wire.Hole]:
        """A hole for each place. All fit on one canvas with the text `between` the first and the last; the first takes
        none of the `known` texts."""
        if len(places) > MOST_HOLES:
            raise NoOffer(
                f"This edit needs {len(places)} cells and can fill {MOST_HOLES} at once; select some of them."
            )
        if not places:
            return []
        tokens = min(_CELL_TOKENS, (_CANVAS - between // 2) // len(places))
        if tokens < 6:
            raise NoOffer("The cells are too far apart to fill at once; select some of them.")
        bare = not row.lead.endswith("|")
        first, *others = (self.inline.first_cell if bare and c == 0 else self.inline.cell for _, c in places)
        return [hole_of(pattern, tokens, "span") for pattern in (except_for(known, first), *others)]

    def _change(self, below: int, rows: Mapping[int, int], columns: int | None = None) -> MarkdownChange:
        """The allowed change: `rows` maps lines of the new table to the number of cells that each must have."""

        def inside(new: MarkdownTree) -> str | None:
            table = next(block for block in new.block_at(self.block.first).ancestors() if block.kind == "table")
            found = ((n, len(cells(new.lines[n].text, table.starts[n]).cells)) for n in rows)
            bad = next((n for n, count in found if count != rows[n]), None)
            return None if bad is None else f"The row in line {bad + 1} would not have {rows[bad]} cells."

        details = {self.block: (columns,)} if columns else {}
        return MarkdownChange(self.document, below, frozenset(self.block.ancestors()), details=details, inside=inside)

    def _laid(self, rows: Sequence[Row], fills: Mapping[Cell, str], endings: Sequence[str]) -> str:
        """The whole table with the fills, each column as wide as its widest cell."""
        grid = [
            [self._cell(fills[r, c], c, row) if (r, c) in fills else cell for c, cell in enumerate(row.cells)]
            for r, row in enumerate(rows)
        ]
        for c in range(self.columns):
            width = max(_width(line[c]) for line in grid)
            for r, line in enumerate(grid):
                if c + 1 < self.columns or rows[r].tail.strip():
                    line[c] = self._widened(line[c], width - _width(line[c]), c, r == 1)
        texts = [Row(row.lead, tuple(line), row.tail).text() for row, line in zip(rows, grid, strict=True)]
        return "".join(text + ending for text, ending in zip(texts, [*endings[: len(texts) - 1], ""], strict=True))

    def _widened(self, cell: str, more: int, column: int, is_rule: bool) -> str:
        if is_rule:
            return cell.replace("-", "-" * (more + 1), 1)
        left, right = self._padding(more, column)
        return " " * left + cell + " " * right

    def _cell(self, fill: str, column: int, row: Row) -> str:
        """The text between its margins, padded if the table is aligned."""
        left, right = self._margins(column, row)
        room = max(0, self.widths[column] - _width(left + fill + right)) if self.aligned else 0
        before, after = self._padding(room, column)
        if column + 1 == self.columns and not row.tail.strip():
            after = 0
        return " " * before + left + fill + right + " " * after

    def _padding(self, room: int, column: int) -> tuple[int, int]:
        side = self.sides[column]
        left = 0 if not side.endswith(":") else room // 2 if side.startswith(":") else room
        return left, room - left

    def _margins(self, column: int, row: Row) -> tuple[str, str]:
        left = "" if column == 0 and not row.lead.endswith("|") else self.margin
        return left, "" if column + 1 == self.columns and not row.tail.strip() else self.margin

    def _dashes(self, width: int, tail: str) -> str:
        """The delimiters of a new column, with margins if the other delimiters have them."""
        spaced = any(cell[:1] == " " for cell in self.rows[1].cells[1:] or self.rows[1].cells)
        if spaced or not self.margin:
            return self.margin * spaced + "-" * width + tail * spaced
        return "-" * (width + len(self.margin) + len(tail))

    def _is_aligned(self, row: Row) -> bool:
        free = (
            self.columns - 1 if not self.rows[0].tail.strip() else self.columns
        )  # a last column without a bar may have any width
        return (
            len(row.cells) == self.columns
            and all(_width(row.cells[c]) == self.widths[c] for c in range(free))
            and bool(row.tail.strip()) == bool(self.rows[0].tail.strip())
            and row.lead.endswith("|") == self.rows[0].lead.endswith("|")
        )

    def _column(self, row: int, offset: int) -> int:
        at = offset - self._start(row)
        inside = (c for c, (_, end) in enumerate(self.rows[row].spans()) if at <= end)
        return min(next(inside, self.columns - 1), self.columns - 1)

    def _start(self, row: int) -> int:
        return self.document.lines[self.numbers[row]].start

    def _span(self) -> tuple[int, int]:
        return self._start(0), self.document.lines[self.numbers[-1]].end


def _width(text: str) -> int:
    """The width on a screen: wide characters take two columns, combining characters none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(mark) else 2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in text
    )
