"""Finds the structured edits of Markdown for a place, and makes those of lists, headings, fences and front matter.

Tables and links have files of their own. Front matter is YAML.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from caesura.server.context.context import line_before
from caesura.server.languages import LANGUAGES, grammar, language
from caesura.server.structured import scalars
from caesura.server.structured.markdown.blocks import Block, BlockShape, MarkdownTree, read
from caesura.server.structured.markdown.changes import BROKEN, SAMPLE, MarkdownChange, Piece, hole_of, newline_of, tried
from caesura.server.structured.markdown.links import in_link, inline_of
from caesura.server.structured.markdown.patterns import body, either, except_for
from caesura.server.structured.markdown.tables import Table
from caesura.server.structured.offer import NoOffer, Offer, words
from caesura.server.text import repair

MAX_TEXT = 300_000  # code points: prose takes 60 ms to read, and each offer is tried once
_LINE_TOKENS, _BODY_TOKENS = 40, 128

_TASK = re.compile(r"\[[ xX]\](?:[ \t]+|$)")
_BLANK_REST = re.compile(r"[ \t]*+(?=[\r\n]|\Z)")
_OTHER = "There is no table, list, empty heading or empty fence here; plain text is filled by completion."


def offers(text: str, start: int, end: int) -> list[Offer]:
    """The edits that fit a cursor or a selection, best first. Raises NoOffer."""
    if len(text) > MAX_TEXT:
        raise NoOffer(f"The document is longer than {MAX_TEXT:,} characters; split it to edit it by structure.")
    document = read(text)
    line = document.line_of(start)
    block = document.block_at(line)
    if block.kind == "front":
        return _in_front(document, block, start, end)
    if block.kind in ("code", "html"):
        raise NoOffer("The cursor is in code or HTML, which has no structured edits; use completion there.")
    if block.kind == "fence":
        return [_in_fence(document, block, line, start, end)]
    if found := in_link(document, block, start, end):
        return [found]
    table = Table(document, block) if block.kind == "table" else None
    if start < end:
        if table is None:
            raise NoOffer("Select whole cells of a table or a link's target; other text is filled as a selection.")
        return [table.selected(start, end)]
    if begun := _begun(text, start):
        return [begun]
    if table:
        return _first_of(
            lambda: table.empty_cells(line),
            lambda: table.row_below(line),
            lambda: table.column_after(line, start),
        )
    item = _item_at(document, line)
    if item is None:
        raise NoOffer(_OTHER)
    return [_add_item(document, item)]


def completion(text: str, offset: int) -> Offer | None:
    """The rest of a table row, list item or heading that the line has begun; its first hole begins at the cursor. None
    where ordinary completion applies."""
    if len(text) > MAX_TEXT:
        return None
    try:
        if "|" not in line_before(text, offset):
            return _begun(text, offset)
        document = read(text)
        line = document.line_of(offset)
        block = document.block_at(line)
        return Table(document, block, line).rest_of_row(offset) if block.kind == "table" else None
    except NoOffer:
        return None


def _first_of(*makers: Callable[[], Offer | None]) -> list[Offer]:
    """All offers that can be made; raises the first NoOffer if none can."""
    found, refusals = list[Offer](), list[NoOffer]()
    for make in makers:
        try:
            offer = make()
        except NoOffer as refusal:
            refusals.append(refusal)
        else:
            found += [offer] if offer else []
    if not found:
        raise refusals[0]
    return found


# List items and headings


def _item_at(document: MarkdownTree, line: int) -> Block | None:
    """The innermost item around the line; for a blank line between two items, the upper one."""
    block = document.block_at(line)
    if block.kind == "list":
        return [item for item in block.children if item.first <= line][-1]
    return next((outer for outer in block.ancestors() if outer.kind == "item"), None)


def _add_item(document: MarkdownTree, item: Block) -> Offer:
    siblings = item.parent
    assert siblings is not None, "an item lies in a list"
    line = document.lines[item.first]
    at = item.starts[item.first]
    prefix = re.sub(r"[^>\s]", " ", line.text[:at])  # if the list lies in a quote or an item
    rest = line.text[at + len(item.marker) :]
    text = rest.lstrip(" \t")
    blanks = rest[: len(rest) - len(text)] if text and len(rest) - len(text) <= 4 else " "
    task = "[ ] " if _TASK.match(text) else ""
    newline = newline_of(document, item.last)
    apart = not siblings.detail[2]
    gap = newline + (prefix.rstrip() + newline if apart else "")
    below = item.last + 1 + apart
    depth = sum(1 for _ in siblings.ancestors())
    change = MarkdownChange(
        document,
        item.last,
        frozenset(siblings.ancestors()),
        (BlockShape(depth, "item", (), below, below), BlockShape(depth + 1, "paragraph", (), below, below)),
    )
    known = _texts(document, siblings.children, item.first)
    hole = hole_of(except_for(known, inline_of(document, item.last).item), _LINE_TOKENS)
    start = document.lines[item.last].end
    renumbered, end = _renumbered(document, item, start)
    pieces: list[Piece] = [gap, prefix, _next_marker(item), blanks, task, hole, renumbered]
    return tried("Add an item below", document.text, change, (start, end), pieces)


def _texts(document: MarkdownTree, items: Sequence[Block], line: int) -> Iterable[str]:
    """The texts of items of one line, those nearest to `line` first."""
    near = sorted((one for one in items if one.children), key=lambda one: abs(one.first - line))
    texts = (document.content(one.children[0]) for one in near)
    return (_TASK.sub("", text) for text in texts if "\n" not in text)


def _renumbered(document: MarkdownTree, item: Block, start: int) -> tuple[str, int]:
    """The text from `start` to the marker of the last item, with the next number in each later item, and where it ends.
    Empty if the numbers do not continue the item's, or if a longer number would change an indentation."""
    assert item.parent is not None, "an item lies in a list"
    later = [sibling for sibling in item.parent.children if sibling.first > item.first]
    goes_on = all(_next_marker(one) == after.marker != one.marker for one, after in pairwise((item, *later)))
    if not later or not goes_on:
        return "", start
    text, parts, at = document.text, list[str](), start
    for one in later:
        marker = document.lines[one.first].start + one.starts[one.first]
        parts += text[at:marker], _next_marker(one)
        at = marker + len(one.marker)
        if len(_next_marker(one)) != len(one.marker):
            return "", start
    return "".join(parts), at


def _next_marker(item: Block) -> str:
    """The same bullet, or the next number; the same number if several items all have it."""
    digits, kind = item.marker[:-1], item.marker[-1]
    assert item.parent is not None, "an item lies in a list"
    markers = [sibling.marker for sibling in item.parent.children]
    if not digits or (len(markers) > 1 and len(set(markers)) == 1):
        return item.marker
    return str(min(int(digits) + 1, 999_999_999)).zfill(len(digits)) + kind


def _begun(text: str, offset: int) -> Offer | None:
    """Fill an item or a heading that has no text yet. Without text it may read as something else (`- ` below a line
    makes that line a heading), so the structure to keep is the one with a word in place."""
    if not (rest := _BLANK_REST.match(text, offset)):
        return None
    glue = "" if text[:offset].endswith((" ", "\t")) else " "
    ready = read(text[:offset] + glue + SAMPLE + text[rest.end() :])
    number = ready.line_of(offset)
    block = ready.block_at(number)
    content = ready.content(block)
    known: Iterable[str]
    if block.kind == "heading" and len(block.detail) == 1 and content == SAMPLE:
        title, pattern = "Fill the heading", inline_of(ready, number, without=block).heading
        others = [one for _, one in ready.blocks if one.kind == "heading" and one is not block]
        near = sorted(others, key=lambda one: abs(one.first - number))
        known = (ready.content(one) for one in near)
    elif (
        block.kind == "paragraph"
        and re.fullmatch(rf"(?:\[[ xX]\][ \t]+)?{SAMPLE}", content)
        and block.parent is not None
        and block.parent.kind == "item"
        and block.parent.first == block.first
    ):
        title, pattern = "Fill the item", inline_of(ready, number).item
        siblings = block.parent.parent.children if block.parent.parent else ()
        known = _texts(ready, [one for one in siblings if one is not block.parent], number)
    else:
        return None
    pieces: list[Piece] = [glue, hole_of(except_for(known, pattern), _LINE_TOKENS)]
    return replace(tried(title, text, MarkdownChange(ready, number), (offset, rest.end()), pieces), part=words)


# Fences


def _in_fence(document: MarkdownTree, fence: Block, line: int, start: int, end: int) -> Offer:
    opening = document.lines[fence.first]
    at = fence.starts[fence.first] + len(fence.marker)
    info = opening.text[at:].strip()
    if line == fence.first and not info and start == end:
        names = [name for row in LANGUAGES.values() for name in (row.id, *row.aliases) if "." not in name]
        change = MarkdownChange(document, document.root.last)
        span = opening.start + at, opening.end
        hole = hole_of(either(names), 8, "span")
        return tried("Fill the language of the code", document.text, change, span, [hole], samples=names[:1])
    if fence.code.strip():
        raise NoOffer("The cursor is in code, which has no structured edits; use completion or fill a selection there.")
    return _fill_fence(document, fence, info.split()[0].lower() if info else "")


def _fill_fence(document: MarkdownTree, fence: Block, name: str) -> Offer:
    opening = document.lines[fence.first]
    newline = newline_of(document, fence.first)
    prefix = re.sub(r"[^>\s]", " ", opening.text[: fence.starts[fence.first]])
    if fence.closed:
        ready, end = document, document.lines[fence.last].start - len(document.lines[fence.last - 1].ending)
        close = ""
    else:
        if document.text[opening.end :].strip():
            raise NoOffer("The fence is not closed, so all text after it is code; close it first.")
        end, close = opening.end, f"{newline}{prefix}{fence.marker}"
        ready = read(document.text[:end] + close + document.text[end:])
    known = language(name, f"code.{name}")

    def inside(new: MarkdownTree) -> str | None:
        tree = repair.parsed(new.block_at(fence.first).code, known.id)
        broken = tree is not None and repair.faults(tree).nodes > 0
        return f"The code in the fence does not parse as {known.id}." if broken else None

    def whole(new: MarkdownTree) -> str | None:
        return None if ready.blocks and new.block_at(fence.first).closed else BROKEN

    hole = hole_of(body(fence.marker, prefix, newline), _BODY_TOKENS, "block")
    change = MarkdownChange(ready, fence.first, inside=whole)
    span = opening.end, end
    trial = tried("Fill the code", document.text, change, span, [newline, prefix, hole, close])
    return replace(trial, check=replace(change, inside=inside).check, level="parses" if grammar(known) else "valid")


# Front matter


def _in_front(document: MarkdownTree, front: Block, start: int, end: int) -> list[Offer]:
    base, close = document.lines[1].start, document.lines[front.last].start
    if not base <= start <= end < close:
        raise NoOffer("The lines around the front matter cannot be edited; put the cursor after a key.")
    return [_moved(document, offer, base) for offer in scalars.offers(
        document.text[base:close], start - base, end - base, language="yaml")]  # fmt: skip


def _moved(document: MarkdownTree, offer: Offer, base: int) -> Offer:
    """An offer for the front matter, moved to its place in the document."""

    def inside(new: MarkdownTree) -> str | None:
        front = new.root.children[0]
        return offer.check(new.text[base : new.lines[front.last].start])

    change = MarkdownChange(document, document.line_of(base + offer.start), inside=inside)
    return replace(offer, start=base + offer.start, end=base + offer.end, check=change.check)
