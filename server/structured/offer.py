"""A structured edit replaces one span of a document by fixed text and holes, each hole with a grammar.

`json/`, `markdown/` and `scalars.py` make offers; `fills/structured.py` runs them. Pure.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from caesura import wire

_WORD_END = re.compile(r"(?<=\w)(?!\w)")


class NoOffer(Exception):
    """There is no structured edit here. The message is one sentence for the user: why, and what to do."""


def _nothing(text: str, end: int) -> str:
    return ""


def words(text: str, end: int) -> str:
    """The start of a text, up to the last whole word that ends at or before `end`."""
    return text[: max((at for found in _WORD_END.finditer(text) if (at := found.end()) <= end), default=0)]


@dataclass(frozen=True)
class Offer:
    """A possible structured edit: `segments` replace text[start:end] (code points).

    `title` names the code action: an imperative without a full stop. The holes' grammars refer to `schemas`.
    `evidence` are siblings far from the hole, for the model. `assemble` makes the new text from the fills if joining
    the segments is not enough. `part(new text, offset)` returns as much of new text[:offset] as is valid alone, by
    default nothing. `check` takes the whole new document and returns None, or one sentence that says why it is invalid.
    `level` is what the grammars guarantee; it is "checked" if a schema needs more than they can express. The engine's
    answer may lower it. `is_known`: the texts that the grammars allow are known to be right, whatever the model says.
    """

    title: str
    start: int
    end: int
    segments: tuple[wire.Text | wire.Hole, ...]
    schemas: tuple[str, ...] = ()
    evidence: tuple[wire.Neighbour, ...] = ()
    assemble: Callable[[Sequence[str]], str] | None = None
    part: Callable[[str, int], str] = field(default=_nothing, kw_only=True)
    check: Callable[[str], str | None] = field(kw_only=True)
    level: Literal["valid", "checked", "parses"] = field(default="valid", kw_only=True)
    is_known: bool = field(default=False, kw_only=True)

    @property
    def holes(self) -> tuple[wire.Hole, ...]:
        return tuple(segment for segment in self.segments if isinstance(segment, wire.Hole))

    def text(self, fills: Sequence[str]) -> str:
        """The new text of start:end; one fill per hole, in order."""
        if len(fills) != len(self.holes):
            raise ValueError(f"{len(fills)} fills for {len(self.holes)} holes")
        if self.assemble is not None:
            return self.assemble(fills)
        left = iter(fills)
        return "".join(part.text if isinstance(part, wire.Text) else next(left) for part in self.segments)

    def fill(self, holes: Sequence[wire.Fill]) -> wire.Fill:
        """The fills of the holes as one fill of the whole offer, locked once all of them are."""
        text = self.text([fill.text for fill in holes])
        waiting = sum(bool(fill.open) or fill.locked_start != fill.text for fill in holes)
        locked = () if waiting else ((0, len(text)),)
        return wire.Fill(text, locked, min(fill.confidence for fill in holes), waiting, self._chances(holes, len(text)))

    def _chances(self, holes: Sequence[wire.Fill], size: int) -> tuple[tuple[int, float], ...]:
        """The probabilities of the fills' tokens, by the offsets of their ends in a text of `size` code points. Fixed
        text is certain. A text that is more than its segments joined has one probability, that of the whole."""
        found, at, left = list[tuple[int, float]](), 0, iter(holes)
        for segment in self.segments:
            fill = wire.Fill(segment.text) if isinstance(segment, wire.Text) else next(left)
            found += [(at + end, chance) for end, chance in fill.probabilities]
            at += len(fill.text)
        if not found or not size:
            return ()
        if self.assemble is not None:
            return ((size, math.prod(chance for _, chance in found)),)
        return (*found, (size, 1.0))
