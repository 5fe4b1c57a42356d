"""The changes of structure that an edit of Markdown may make, and offers that are held to them.

The check of an offer reads the new document and compares. No offer is made unless it passes with a plain word in every
hole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from caesura import wire
from caesura.server.structured.markdown.blocks import Block, BlockShape, MarkdownTree, read
from caesura.server.structured.offer import NoOffer, Offer

SAMPLE = "x"  # the text of a hole in a trial
BROKEN = "The edit would change the structure of the text around it."

Piece = str | wire.Hole


@dataclass(frozen=True)
class MarkdownChange:
    """The structure that `document` has after an edit: new lines come after line `below`, inside the blocks `grown`;
    `inserted` are new blocks; `details` replaces the details of blocks. `inside` checks the edit itself."""

    document: MarkdownTree
    below: int
    grown: frozenset[Block] = frozenset()
    inserted: tuple[BlockShape, ...] = ()
    details: Mapping[Block, tuple[object, ...]] = field(default_factory=dict)
    inside: Callable[[MarkdownTree], str | None] = lambda new: None

    def check(self, text: str) -> str | None:
        try:
            new = self.document if text == self.document.text else read(text)
        except NoOffer as refusal:
            return str(refusal)
        more = len(new.lines) - len(self.document.lines)
        expected = list(self.inserted)
        for depth, block in self.document.blocks:
            first, last = (line + more * (line > self.below) for line in (block.first, block.last))
            last += more * (block in self.grown and block.last <= self.below)
            expected.append(BlockShape(depth, block.kind, self.details.get(block, block.detail), first, last))
        expected.sort(key=lambda entry: (entry.first, entry.depth))
        return BROKEN if new.shape() != expected else self.inside(new)


def tried(
    title: str,
    text: str,
    change: MarkdownChange,
    span: tuple[int, int],
    pieces: Iterable[Piece],
    *,
    samples: Sequence[str] | None = None,
    assemble: Callable[[Sequence[str]], str] | None = None,
    level: Literal["valid", "parses"] = "valid",
) -> Offer:
    """The offer, after a trial with plain words. Raises NoOffer if even these would change the structure."""
    segments = list[wire.Text | wire.Hole]()
    for piece in pieces:
        if isinstance(piece, str) and segments and isinstance(last := segments[-1], wire.Text):
            segments[-1] = wire.Text(last.text + piece)
        elif piece:
            segments.append(wire.Text(piece) if isinstance(piece, str) else piece)
    start, end = span
    offer = Offer(title, start, end, tuple(segments), assemble=assemble, check=change.check, level=level)
    words = samples or [SAMPLE] * len(offer.holes)
    if change.check(text[:start] + offer.text(words) + text[end:]) is not None:
        raise NoOffer("The next line would become part of the edit; put a blank line below this one first.")
    return offer


def hole_of(pattern: str, tokens: int, kind: Literal["line", "block", "span"] = "line") -> wire.Hole:
    return wire.Hole(tokens, kind, wire.Pattern(pattern))


def newline_of(document: MarkdownTree, line: int) -> str:
    """The line's end; for the last line, the end of the first."""
    return document.lines[line].ending or document.lines[0].ending or "\n"
