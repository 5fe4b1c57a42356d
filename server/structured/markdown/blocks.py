"""The blocks of a Markdown text by line: CommonMark, GFM's tables and front matter, read with markdown-it-py.

A block has its lines, and for each line of text the column where its content begins, which markdown-it-py knows only
while it reads. Inline text is not read. Offsets are code points; lines end in \\n, \\r\\n or \\r.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt, rules_block
from markdown_it.parser_block import RuleFuncBlockType
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token

from caesura.server.structured.offer import NoOffer

MAX_DEPTH = 40  # nested containers; a line that lies deeper is read as a block of code
MAX_WORK = 1_000_000  # steps of one or two microseconds that reading a text may take: tests of a line, and tokens
_STEPS, _LINE_STEPS, _CHARACTER_STEPS = 10_000, 40, 2  # for a text, each line and each code point; prose needs a tenth

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_FRONT_KEY = re.compile(r"[^\s#:\-\[{][^:]*:(?:\s|$)|#")
_DEFINITION = re.compile(r"\[((?:[^\[\]\\]|\\.)+)\]:[ \t\n]*(<(?:[^<>\n\\]|\\.)*>|[^ \t\n]+)", re.DOTALL)
_BAR = re.compile(r"(?<!\\)\|")

_CONTAINERS = {
    "blockquote_open": "quote",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
}
_LEAVES = {
    "paragraph_open": "paragraph",
    "heading_open": "heading",
    "table_open": "table",
    "definition": "definition",
    "hr": "rule",
    "code_block": "code",
    "fence": "fence",
    "html_block": "html",
}
_CLOSES = frozenset(opening.replace("open", "close") for opening in _CONTAINERS)


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
    """`first` and `last` are lines; blank lines at the end do not count. `starts` maps each line of a paragraph,
    heading, table or definition, and the first line of a fence, to the column where its content begins; for an item, to
    the column of its marker. `detail` is what else must stay as it is: the level of a heading, the marker of a list,
    the number of columns of a table."""

    kind: str
    first: int
    last: int
    parent: "Block | None" = None
    children: "list[Block]" = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    detail: tuple[object, ...] = ()
    marker: str = ""  # of an item or a fence
    code: str = ""  # in a fence
    closed: bool = False  # a fence that has its end

    def ancestors(self) -> "Iterator[Block]":
        """This block and the blocks around it, from the inside out."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent


class BlockShape(NamedTuple):
    """A block as two readings of a text are compared by."""

    depth: int
    kind: str
    detail: tuple[object, ...]
    first: int
    last: int


@dataclass(frozen=True)
class MarkdownTree:
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
        """The innermost block around a line; for a blank line between two blocks, the block that holds both."""
        block = self.root
        while inner := next((child for child in block.children if child.first <= line <= child.last), None):
            block = inner
        return block

    def content(self, block: Block) -> str:
        """The text of a paragraph or heading, without what its containers put before each line."""
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

    def shape(self) -> list[BlockShape]:
        return [BlockShape(depth, b.kind, b.detail, b.first, b.last) for depth, b in self.blocks]


def lines_of(text: str) -> list[Line]:
    """The lines; after a line's end at the end of the text comes an empty line."""
    lines = [Line(match[1], match.start(), match[2]) for match in _LINE.finditer(text)]
    return lines[:-1] if len(lines) > 1 and not lines[-2].ending else lines  # the end matches once more


def read(text: str) -> MarkdownTree:
    """Every text is Markdown. Raises NoOffer for a text whose nested lines would take too long to read."""
    lines = lines_of(text)
    front = _front(lines)
    state = _State(lines)
    _PARSER.block.tokenize(state, front, state.lineMax)
    root = Block("document", 0, len(lines) - 1)
    if front:
        root.children.append(Block("front", 0, front - 1, root))
    _build(root, state.tokens, lines)
    return MarkdownTree(text, lines, root)


def _front(lines: Sequence[Line]) -> int:
    """The number of lines of the front matter."""
    if lines[0].text.rstrip() != "---":
        return 0
    first = ""
    for number, line in enumerate(lines[1:], 1):
        if line.text.rstrip() in ("---", "..."):
            return number + 1 if _FRONT_KEY.match(first) else 0
        first = first or line.text.rstrip()
    return 0


# markdown-it-py


class _State(StateBlock):
    """What the library knows while it reads, and a bound on the time that it takes."""

    def __init__(self, lines: Sequence[Line]) -> None:
        texts = [line.text for line in lines]
        super().__init__("\n".join([*texts, ""]).replace("\0", "\N{REPLACEMENT CHARACTER}"), _PARSER, {}, [])
        self._begins = list(accumulate((len(text) + 1 for text in texts), initial=0))
        self._left = min(MAX_WORK, _STEPS + _LINE_STEPS * len(texts) + _CHARACTER_STEPS * len(self.src))

    def column(self, line: int) -> int:
        """Where the content of a line begins, past what the open containers put before it."""
        return self.bMarks[line] + self.tShift[line] - self._begins[line]

    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        token = super().push(ttype, tag, nesting)
        if ttype == "list_item_open":  # the library goes on to move the line's start past the marker
            token.meta["starts"] = {self.line: self.column(self.line)}
        self._work()
        return token

    def is_code_block(self, line: int) -> bool:
        self._work()  # every rule asks this first
        return super().is_code_block(line)

    def _work(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise NoOffer("The blocks of this document take too long to read; split it to edit it by structure.")


class _CommonMark(MarkdownIt):
    """Every target of a link counts, and stays as it is written."""

    def validateLink(self, url: str) -> bool:  # noqa: N802 - the library's name
        return True

    def normalizeLink(self, url: str) -> str:  # noqa: N802 - the library's name
        return url


def _with_starts(rule: RuleFuncBlockType) -> RuleFuncBlockType:
    """The rule, which also notes where the content of each line of its block begins."""

    def noting(state: StateBlock, first: int, end: int, silent: bool) -> bool:
        known = len(state.tokens)
        found = rule(state, first, end, silent)
        if found and not silent and isinstance(state, _State):
            state.tokens[known].meta["starts"] = {line: state.column(line) for line in range(first, state.line)}
        return found

    return noting


def _too_deep(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    if silent or state.level < MAX_DEPTH:
        return False
    state.line = first + 1
    state.push("code_block", "code", 0).map = [first, state.line]
    return True


def _parser() -> MarkdownIt:
    # At its own bound the library would leave out the rest of the text.
    parser = _CommonMark("commonmark", {"maxNesting": MAX_DEPTH + 2, "inline_definitions": True})
    ruler, inside = parser.block.ruler, ["paragraph", "reference"]
    ruler.before("table", "too_deep", _too_deep)
    ruler.at("fence", _with_starts(rules_block.fence), {"alt": [*inside, "blockquote", "list"]})
    ruler.at("reference", _with_starts(rules_block.reference))
    ruler.at("heading", _with_starts(rules_block.heading), {"alt": [*inside, "blockquote"]})
    # A row that begins like another block is that block, as on GitHub; the library's own table would come first.
    ruler.before("lheading", "late_table", _with_starts(rules_block.table), {"alt": inside})
    ruler.at("lheading", _with_starts(rules_block.lheading))
    ruler.at("paragraph", _with_starts(rules_block.paragraph))
    ruler.getRules("")  # makes the library's cache of rules, which two threads must not make at once
    return parser


_PARSER = _parser()


# From tokens to blocks


def _build(root: Block, tokens: Sequence[Token], lines: Sequence[Line]) -> None:
    block = root
    for token in tokens:
        if kind := _CONTAINERS.get(token.type):
            block = _opened(token, kind, block)
        elif token.type in _CLOSES:
            _close(block, lines)
            assert block.parent is not None, "a container lies in another"
            block = block.parent
        elif kind := _LEAVES.get(token.type):
            _describe(_opened(token, kind, block), token, lines)


def _opened(token: Token, kind: str, parent: Block) -> Block:
    assert token.map is not None, "a block has lines"
    first, end = token.map
    block = Block(kind, first, end - 1, parent, starts=token.meta.get("starts", {}))
    if kind == "list":
        block.detail = (token.markup, token.attrs.get("start", 1) if token.type == "ordered_list_open" else None)
    elif kind == "item":
        block.marker = token.info + token.markup
    parent.children.append(block)
    return block


def _describe(block: Block, token: Token, lines: Sequence[Line]) -> None:
    """What there is to say of a leaf."""
    if block.last == len(lines) - 1 and not lines[-1].text and block.parent and block.parent.parent:
        block.last -= 1  # the empty line at the end belongs to no item, even after a fence that is not closed
    if block.kind == "heading":
        level = int(token.tag[1])
        block.detail = (level, "underlined") if token.markup in ("-", "=") else (level,)
        if token.markup in ("-", "="):
            block.starts.pop(block.last)
        else:
            block.starts[block.first] += level
    elif block.kind == "table":
        rule = lines[block.first + 1].text
        block.detail = (len(cells(rule, block.starts[block.first + 1]).cells),)
    elif block.kind == "fence":
        block.marker, block.code = token.markup, token.content
        block.closed = token.content.count("\n") == block.last - block.first - 1
        block.detail = (block.marker, block.closed)
    elif block.kind == "definition":
        text = "\n".join(lines[line].text[at:] for line, at in block.starts.items())
        match = _DEFINITION.match(text)
        assert match is not None, "the library has read one"
        block.detail = (" ".join(match[1].split()).casefold(), match[2])


def _close(block: Block, lines: Sequence[Line]) -> None:
    """Set the last line of a container, for which the library counts blank lines that follow."""
    last = max((child.last for child in block.children), default=block.first)
    if block.kind == "quote":
        depth = sum(outer.kind == "quote" for outer in block.ancestors())
        while block.last > last and lines[block.last].text.count(">") < depth:
            block.last -= 1
    else:
        block.last = last
    if block.kind == "list":
        block.detail = (*block.detail, _is_tight(block))


def _is_tight(block: Block) -> bool:
    """True if no blank line stands between two items, or between two blocks of one."""
    groups = [block.children, *(item.children for item in block.children)]
    return all(b.first - a.last <= 1 for group in groups for a, b in pairwise(group))


# Rows of a table


class Row(NamedTuple):
    """A row is `lead`, its `cells` with bars between them, and `tail`; a cell has the blanks around its text."""

    lead: str  # with the bar before the first cell, if there is one
    cells: tuple[str, ...]
    tail: str  # likewise after the last

    def text(self) -> str:
        return self.lead + "|".join(self.cells) + self.tail

    def spans(self) -> list[tuple[int, int]]:
        """Where each cell lies in the row's text, blanks included."""
        found, at = [], len(self.lead)
        for cell in self.cells:
            found.append((at, at + len(cell)))
            at += len(cell) + 1
        return found


def cells(line: str, at: int) -> Row:
    """The row that stands in the line from column `at` on."""
    first = at + len(line[at:]) - len(line[at:].lstrip(" \t"))
    bars = [match.start() for match in _BAR.finditer(line, first)]
    opening = bool(bars) and bars[0] == first
    begin = bars.pop(0) + 1 if opening else at
    end = len(line)
    if bars and not line[bars[-1] + 1 :].strip(" \t"):
        end = bars.pop()
    edges = [begin, *(bar + 1 for bar in bars)]
    return Row(line[:begin], tuple(line[a:b] for a, b in zip(edges, [*bars, end], strict=True)), line[end:])
