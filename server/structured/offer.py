"""What a structured edit is: one span of a document replaced by fixed text and holes, each hole with its grammar.

The languages make offers (`json/`, `markdown/`, `scalars.py`); `fills/structured.py` runs them. Pure.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from caesura import wire

_WORD_END = re.compile(r"(?<=\w)(?!\w)")


class NoOffer(Exception):
    """Nothing can be edited here; one sentence for the user that says why and what to do."""


def _nothing(text: str, end: int) -> str:
    return ""


def words(text: str, end: int) -> str:
    """As many whole words of a text as end by an offset."""
    return text[: max((at for found in _WORD_END.finditer(text) if (at := found.end()) <= end), default=0)]


@dataclass(frozen=True)
class Offer:
    """A structured edit that makes sense at a place: `segments` replace text[start:end] (code points).

    `title` names the code action: an imperative without a full stop. `schemas` are what the grammars of the holes point
    into. `evidence` are siblings that lie far from the hole. `assemble` makes the text of start:end from the fills
    where that is more than segments put together. `part` takes a text of start:end and an offset in it; it returns as
    much of text[:offset] as may stand without the rest, by default nothing. `check` takes the whole new document and
    returns None, or one sentence that says why it is not valid. `level` is what the grammars guarantee: with a schema
    it may be "checked" already here, where the place alone does not say what is valid in it, and the engine's may lower
    it.
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

    @property
    def holes(self) -> tuple[wire.Hole, ...]:
        return tuple(segment for segment in self.segments if isinstance(segment, wire.Hole))

    def text(self, fills: Sequence[str]) -> str:
        """What stands at start:end afterwards; one fill a hole, in order."""
        if len(fills) != len(self.holes):
            raise ValueError(f"{len(fills)} fills for {len(self.holes)} holes")
        if self.assemble is not None:
            return self.assemble(fills)
        left = iter(fills)
        return "".join(part.text if isinstance(part, wire.Text) else next(left) for part in self.segments)
