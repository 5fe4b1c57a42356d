"""The block structure of a Markdown text, line by line: CommonMark's containers and leaves, GFM's tables, front matter.

What is read: which block each line belongs to and where its content begins. Inline text is only searched for code
spans and link targets. Offsets are code points; lines end in \\n, \\r\\n or \\r.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

MAX_DEPTH = 100  # containers in one another; what is deeper is read as a paragraph

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_HEADING = re.compile(r"(#{1,6})(?:[ \t]|$)")
_FENCE = re.compile(r"(`{3,})([^`]*)$|(~{3,})(.*)$")
_RULE = re.compile(r"(?:\*[ \t]*){3,}$|(?:-[ \t]*){3,}$|(?:_[ \t]*){3,}$")
_UNDERLINE = re.compile(r"(?:=+|-+)[ \t]*$")
_MARKER = re.compile(r"(?:[-+*]|(\d{1,9})[.)])(?=[ \t]|$)")
_DELIMITERS = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_FRONT_KEY = re.compile(r"[^\s#:\-\[{][^:]*:(?:\s|$)|#")
_LABEL = r" {0,3}\[(?P<label>(?:[^\[\]\\]|\\.){1,999})\]:[ \t]*\n?[ \t]*(?P<target><(?:[^<>\n\\]|\\.)*>|[^\s<]\S*)"
_DEFINITION = re.compile(
    _LABEL
    + r"(?:(?:[ \t]+\n?|[ \t]*\n)[ \t]*(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\((?:[^()\\]|\\.)*\)))?[ \t]*(?:\n|$)"
)
_PLAIN_DEFINITION = re.compile(_LABEL + r"[ \t]*(?:\n|$)")  # what stands on the next line is no title
_HTML_BLOCKS = (
    "address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|dt|"
    "fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hr|html|iframe|legend|li|link|main|menu|"
    "menuitem|nav|noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr|"
    "track|ul"
)
_ATTRIBUTE = r"\s+[a-zA-Z_:][\w:.-]*(?:\s*=\s*(?:[^\s\"'=<>`]+|'[^']*'|\"[^\"]*\"))?"
_HTML: tuple[tuple[re.Pattern[str], re.Pattern[str] | None], ...] = tuple(
    (re.compile(begin, re.IGNORECASE), re.compile(end, re.IGNORECASE) if end else None)
    for begin, end in (
        (r"<(?:script|pre|style|textarea)(?:[ \t>]|$)", r"</(?:script|pre|style|textarea)>"),
        (r"<!--", r"-->"),
        (r"<\?", r"\?>"),
        (r"<![a-z]", r">"),
        (r"<!\[CDATA\[", r"\]\]>"),
        (rf"</?(?:{_HTML_BLOCKS})(?:[ \t]|/?>|$)", None),
        (rf"(?:<[a-z][a-z0-9-]*(?:{_ATTRIBUTE})*\s*/?>|</[a-z][a-z0-9-]*\s*>)[ \t]*$", None),
    )
)
_LAST_HTML = len(_HTML) - 1  # the kind that does not interrupt a paragraph
_VERBATIM = ("fence", "code", "html", "front")
_LEAVES = ("paragraph", "table")


class Line(NamedTuple):
    text: str  # without its end
    start: int
    ending: str

    @property
    def end(self) -> int:
        """Where the text ends and the line's end begins."""
        return self.start + len(self.text)


@dataclass(eq=False)
class Block:
    """`first` and `last` are lines, blank ones at the end not counted. `starts` has, for each line of a leaf, where its
    content begins in that line, and for an item where its marker stands. `detail` is what makes two blocks of a kind
    different in structure: the level of a heading, a list's marker, the columns of a table."""

    kind: str
    first: int
    last: int
    parent: "Block | None" = None
    children: "list[Block]" = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    detail: tuple[object, ...] = ()
    marker: str = ""  # of an item or a fence
    indent: int = 0  # columns that an item's lines are indented by, or that a fence is
    closed: bool = False  # a fence, or HTML, with its end

    def ancestors(self) -> "Iterator[Block]":
        """This block and what it lies in, outwards."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent


class Entry(NamedTuple):
    """A block, in the order of the text, as two readings are compared by."""

    depth: int
    kind: str
    detail: tuple[object, ...]
    first: int
    last: int


@dataclass(frozen=True)
class Document:
    text: str
    lines: list[Line]
    root: Block

    def line_of(self, offset: int) -> int:
        low, high = 0, len(self.lines) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.lines[middle].start <= offset else (low, middle - 1)
        return low

    def block_at(self, line: int) -> Block:
        """The innermost block that the line lies in; a blank line between two blocks lies in what holds both."""
        block = self.root
        while inner := next((child for child in block.children if child.first <= line <= child.last), None):
            block = inner
        return block

    def content(self, block: Block) -> str:
        """The text of a paragraph or heading, its lines without what their containers put before them."""
        return "\n".join(self.lines[line].text[at:].strip(" \t") for line, at in block.starts.items())

    @cached_property
    def blocks(self) -> list[tuple[int, Block]]:
        """All blocks with their depth, in the order of the text."""
        found, waiting = list[tuple[int, Block]](), [(0, self.root)]
        while waiting:
            depth, block = waiting.pop()
            found.append((depth, block))
            waiting += [(depth + 1, child) for child in reversed(block.children)]
        return found[1:]

    def shape(self) -> list[Entry]:
        return [Entry(depth, b.kind, b.detail, b.first, b.last) for depth, b in self.blocks]


def lines_of(text: str) -> list[Line]:
    """The lines; a text that ends in a line's end has an empty one behind it."""
    lines = [Line(match[1], match.start(), match[2]) for match in _LINE.finditer(text)]
    return lines[:-1] if len(lines) > 1 and not lines[-2].ending else lines  # the end matches once more


def read(text: str) -> Document:
    """Linear in the text. Never raises: every text is Markdown."""
    lines = lines_of(text)
    reader = _Reader(lines)
    for number in range(reader.front(), len(lines)):
        if number and number + 1 == len(lines) and not lines[number].text and reader.is_nested:
            break  # nothing behind the last line's end: it belongs to no item, even if code there is not closed
        reader.line(number)
    reader.close(1)
    for block in reader.lists:
        block.detail = (*block.detail, _is_tight(block))
    return Document(text, lines, reader.root)


class _Place:
    """How far a line is read: the index and column, and what is left of a tab that was taken in part."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.index = self.column = self.rest = 0
        self.find()

    def find(self) -> None:
        """The next character that is no blank, and how many columns of blanks stand before it."""
        index, column = self.index, self.column
        if self.rest:
            index, column = index + 1, column + self.rest
        while index < len(self.text) and (mark := self.text[index]) in " \t":
            column += 1 if mark == " " else 4 - column % 4
            index += 1
        self.next, self.indent, self.blank = index, column - self.column, index == len(self.text)

    def skip(self) -> None:
        """Over the blanks."""
        self.index, self.column, self.rest = self.next, self.column + self.indent, 0
        self.indent = 0

    def take(self, count: int) -> None:
        """Characters that are no blanks."""
        self.index, self.column = self.index + count, self.column + count
        self.find()

    def advance(self, columns: int) -> None:
        """Over at most so many columns of blanks."""
        while columns > 0 and self.index < len(self.text) and (mark := self.text[self.index]) in " \t":
            width = (self.rest or 4 - self.column % 4) if mark == "\t" else 1
            step = min(width, columns)
            self.column, columns, self.rest = self.column + step, columns - step, width - step
            self.index += not self.rest
        self.find()


class _Reader:
    """CommonMark's first phase: open blocks from the outermost to the innermost, one line at a time."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.root = Block("document", 0, 0)
        self.lists: list[Block] = []
        self._open = [self.root]

    @property
    def is_nested(self) -> bool:
        return len(self._open) > 2

    def front(self) -> int:
        """Read front matter, where there is some; the line behind it."""
        texts = (line.text.rstrip() for line in self.lines)
        if next(texts) != "---":
            return 0
        first = None
        for number, text in enumerate(texts, 1):
            if text in ("---", "..."):
                if first is None or not _FRONT_KEY.match(first):
                    return 0
                self._add(Block("front", 0, number))
                self.close(1)
                return number + 1
            first = first if first is not None or not text else text
        return 0

    def line(self, number: int) -> None:
        place = _Place(self.lines[number].text)
        kept = self._continued(place, number)
        if kept < 0:  # the line closed a fence
            return
        tip = self._open[-1]
        opened = False
        while self._open[kept - 1].kind not in _VERBATIM and len(self._open) < MAX_DEPTH:
            if place.indent >= 4:
                if not place.blank and tip.kind != "paragraph" and self._open[kept - 1].kind not in _LEAVES:
                    self.close(kept)
                    place.advance(4)
                    self._add(Block("code", number, number))
                    kept, opened = len(self._open), True
                break
            if place.blank or place.text[place.next] not in "#`~*+-_=<>|:0123456789":
                break
            begun = self._begun(place, number, kept)
            if begun is None:
                break
            if begun < 0:
                return
            kept, opened, tip = begun, True, self._open[-1]
        if kept < len(self._open) and not opened and not place.blank and tip.kind == "paragraph":
            self._extend(number, place.next)  # a lazy line
            return
        self.close(kept)
        self._content(place, number)

    def close(self, kept: int) -> None:
        """All open blocks but the `kept` outermost."""
        while len(self._open) > kept:
            block = self._open.pop()
            if block.kind == "paragraph":
                self._split_definitions(block)

    def _continued(self, place: _Place, number: int) -> int:
        """How many open blocks the line goes on with."""
        kept = 1
        for block in self._open[1:]:
            if block.kind == "quote":
                if place.indent > 3 or place.blank or place.text[place.next] != ">":
                    break
                place.skip()
                place.take(1)
                place.advance(1)
                for outer in self._open[: kept + 1]:  # a line of a quote is its own, also a blank one
                    outer.last = number
            elif block.kind == "item":
                if place.blank:
                    if not block.children:
                        break
                    place.skip()
                elif place.indent >= block.indent:
                    place.advance(block.indent)
                else:
                    break
            elif block.kind == "fence":
                run = place.text[place.next :].rstrip(" \t")
                if place.indent <= 3 and len(run) >= len(block.marker) and set(run) == {block.marker[0]}:
                    block.closed = True
                    block.detail = (block.marker, True)
                    self._extend(number, place.next)
                    self.close(kept)
                    return -1
                place.advance(block.indent)
            elif block.kind == "code":
                if not place.blank and place.indent < 4:
                    break
                place.advance(4)
            elif place.blank and (block.kind in _LEAVES or (block.kind == "html" and not block.marker)):
                break
            if block.kind == "table" and place.indent >= 4:
                break
            kept += 1
        return kept

    def _begun(self, place: _Place, number: int, kept: int) -> int | None:
        """Open what begins here: how many blocks are open then, -1 where the line is done; None where nothing does."""
        text, at, inside = place.text, place.next, self._open[kept - 1]
        paragraph = inside.kind == "paragraph"
        outer = kept - 1 if inside.kind in _LEAVES else kept  # a leaf gives way to what begins
        rest = text[at:]
        if rest[0] == ">":
            place.skip()
            place.take(1)
            place.advance(1)
            return self._start(Block("quote", number, number), outer)
        if match := _HEADING.match(rest):
            block = Block("heading", number, number, detail=(len(match[1]),), starts={number: at + len(match[1])})
            return self._finish(block, outer)
        if match := _FENCE.match(rest):
            marker = match[1] or match[3]
            block = Block("fence", number, number, detail=(marker, False), starts={number: at}, marker=marker)
            block.indent = place.indent
            self._start(block, outer)
            return -1
        if rest[0] == "<":
            for kind, (begin, end) in enumerate(_HTML):
                if begin.match(rest) and (kind != _LAST_HTML or not (paragraph or self._open[-1].kind == "paragraph")):
                    block = Block("html", number, number, detail=(kind,), marker=end.pattern if end else "")
                    if end and end.search(rest):
                        return self._finish(block, outer)
                    self._start(block, outer)
                    return -1
            return None
        if paragraph and (columns := self._columns(rest, inside)):
            return self._table(number, at, columns, outer)
        if paragraph and _UNDERLINE.match(rest) and not _is_definitions(self._joined(inside)):
            self._extend(number, at)
            self._heading_of(inside, rest)
            return -1
        if _RULE.match(rest):
            return self._finish(Block("rule", number, number), outer)
        if match := _MARKER.match(rest):
            return self._item(place, number, match, kept, outer)
        return None

    def _item(self, place: _Place, number: int, match: re.Match[str], kept: int, outer: int) -> int | None:
        empty = not place.text[place.next + match.end() :].strip(" \t")
        if self._open[kept - 1].kind == "paragraph" and (empty or (match[1] is not None and int(match[1]) != 1)):
            return None
        marker, at, indent = match[0], place.next, place.indent
        kind = marker[-1]
        above = self._open[outer - 1]
        fits = above.kind == "list" and above.marker == kind
        if above.kind == "list" and not fits:
            outer -= 1
        if not fits:
            start = int(match[1]) if match[1] else None
            outer = self._start(Block("list", number, number, detail=(kind, start), marker=kind), outer)
            self.lists.append(self._open[-1])
        place.skip()
        place.take(len(marker))
        blanks = place.indent if not place.blank and place.indent <= 4 else 1
        place.advance(blanks)
        block = Block("item", number, number, starts={number: at}, marker=marker, indent=indent + len(marker) + blanks)
        return self._start(block, outer)

    def _columns(self, delimiters: str, paragraph: Block) -> int:
        """Of the table whose header the paragraph's last line is; 0 where it is none."""
        if not _DELIMITERS.match(delimiters) or re.match(r"-[ \t]", delimiters):
            return 0
        last = paragraph.last
        header = self.lines[last].text[paragraph.starts[last] :]
        if "|" not in header:
            return 0
        columns = len(cells(delimiters, 0).cells)
        return columns if columns == len(cells(header, 0).cells) else 0

    def _table(self, number: int, at: int, columns: int, outer: int) -> int:
        paragraph = self._open[outer]
        header = paragraph.last
        start = paragraph.starts.pop(header)
        if paragraph.starts:
            paragraph.last = max(paragraph.starts)
            self.close(outer)
        else:
            self._open.pop()
            self._open[-1].children.pop()
        self._start(Block("table", header, header, detail=(columns,), starts={header: start}), outer)
        self._extend(number, at)
        return -1

    def _heading_of(self, paragraph: Block, underline: str) -> None:
        """A paragraph with a line under it is a heading, and definitions above it are none of it."""
        self._split_definitions(paragraph)
        paragraph.kind, paragraph.detail = "heading", (1 if underline[0] == "=" else 2, "underlined")
        paragraph.starts.pop(paragraph.last)
        self._open.remove(paragraph)

    def _content(self, place: _Place, number: int) -> None:
        """What is left of the line, in the innermost block."""
        block = self._open[-1]
        if block.kind in ("fence", "html", "code"):
            if not place.blank or block.kind != "code":
                self._extend(number, place.index)
            if block.kind == "html" and block.marker and re.search(block.marker, place.text, re.IGNORECASE):
                self.close(len(self._open) - 1)
        elif place.blank:
            return
        elif block.kind in _LEAVES:
            self._extend(number, place.next)
        else:
            self._add(Block("paragraph", number, number, starts={number: place.next}))
            self._extend(number, place.next)

    def _extend(self, number: int, at: int) -> None:
        self._open[-1].starts[number] = at
        for block in self._open:
            block.last = number

    def _add(self, block: Block) -> None:
        parent = self._open[-1]
        if parent.kind == "list" and block.kind != "item":  # what is no item ends the list
            self.close(len(self._open) - 1)
            parent = self._open[-1]
        block.parent = parent
        parent.children.append(block)
        self._open.append(block)
        for outer in self._open:
            outer.last = max(outer.last, block.last)

    def _start(self, block: Block, outer: int) -> int:
        self.close(outer)
        self._add(block)
        return len(self._open)

    def _finish(self, block: Block, outer: int) -> int:
        """A block of one line."""
        self._start(block, outer)
        self.close(len(self._open) - 1)
        return -1

    def _joined(self, paragraph: Block) -> str:
        return "\n".join(self.lines[line].text[at:] for line, at in paragraph.starts.items())

    def _split_definitions(self, paragraph: Block) -> None:
        """Link reference definitions at the start of a paragraph become blocks of their own."""
        text = self._joined(paragraph)
        numbers, at = list(paragraph.starts), 0
        parent = paragraph.parent
        assert parent is not None, "a paragraph lies in something"
        assert parent.children[-1] is paragraph, "it is closed before anything stands behind it"
        while text.startswith("[", at) and (match := _definition(text, at)):
            taken = text.count("\n", at, match.end()) + (not match[0].endswith("\n"))
            lines, numbers, at = numbers[:taken], numbers[taken:], match.end()
            detail = (" ".join(match["label"].split()).casefold(), match["target"])
            block = Block("definition", lines[0], lines[-1], parent, detail=detail)
            parent.children.insert(-1, block)
            if not numbers:
                parent.children.pop()
                return
        paragraph.first = numbers[0]
        paragraph.starts = {line: paragraph.starts[line] for line in numbers}


def _definition(text: str, at: int) -> re.Match[str] | None:
    match = _DEFINITION.match(text, at) or _PLAIN_DEFINITION.match(text, at)
    if match is None or not match["label"].strip():
        return None
    return match if match["target"].startswith("<") or _is_balanced(match["target"]) else None


def _is_balanced(target: str) -> bool:
    """Whether the parentheses that are not escaped come in pairs."""
    depth = 0
    for mark in re.sub(r"\\.", "", target):
        depth += (mark == "(") - (mark == ")")
        if depth < 0:
            return False
    return depth == 0


def _is_definitions(text: str) -> bool:
    """Whether a paragraph has nothing but definitions."""
    at = 0
    while text.startswith("[", at) and (match := _definition(text, at)):
        at = match.end()
    return at == len(text)


def _is_tight(block: Block) -> bool:
    """Whether no blank line stands between two items, or between two blocks of one."""
    groups = [block.children, *(item.children for item in block.children)]
    return all(b.first - a.last <= 1 for group in groups for a, b in pairwise(group))


# Rows of a table


class Row(NamedTuple):
    """A row is `lead`, its `cells` with bars between them, and `tail`; a cell has the blanks around its text."""

    lead: str  # with the bar before the first cell, if there is one
    cells: tuple[str, ...]
    tail: str  # likewise behind the last

    def text(self) -> str:
        return self.lead + "|".join(self.cells) + self.tail

    def spans(self) -> list[tuple[int, int]]:
        """Where each cell lies in the row's text, blanks included."""
        found, at = [], len(self.lead)
        for cell in self.cells:
            found.append((at, at + len(cell)))
            at += len(cell) + 1
        return found


_BAR = re.compile(r"(?<!\\)\|")


def cells(line: str, at: int) -> Row:
    """The row that stands in the line from `at` on."""
    first = at + len(line[at:]) - len(line[at:].lstrip(" \t"))
    bars = [match.start() for match in _BAR.finditer(line, first)]
    opening = bool(bars) and bars[0] == first
    begin = bars.pop(0) + 1 if opening else at
    end = len(line)
    if bars and not line[bars[-1] + 1 :].strip(" \t"):
        end = bars.pop()
    edges = [begin, *(bar + 1 for bar in bars)]
    return Row(line[:begin], tuple(line[a:b] for a, b in zip(edges, [*bars, end], strict=True)), line[end:])
