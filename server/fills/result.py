"""What a fill or a structured edit gives that a user asked for."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from caesura import wire
from caesura.server.context.context import Budget, Context
from caesura.server.fills.task import NoFill
from caesura.server.text.document import Document, Span

DEADLINE_MS = 30_000.0  # of a job; a person waits for it and can cancel it

Level = Literal["", "valid", "checked", "parses"]


@dataclass(frozen=True)
class Progress:
    """Holes filled so far."""

    filled: int
    of: int


@dataclass(frozen=True)
class FillResult:
    """`edits` are (start, end, text) in the text of `version`, ascending; `unfilled` are the spans left as they are.

    Of a structured edit, `level` is what is sure of it, and `note` a sentence for the user, or empty."""

    id: str
    version: int
    edits: tuple[tuple[int, int, str], ...]
    unfilled: tuple[Span, ...]
    holes: int
    level: Level = ""
    note: str = ""


Events = AsyncGenerator[Progress | FillResult, None]
Surround = Callable[[Document, Context, Budget], tuple[Context, tuple[wire.Neighbour, ...]]]


def alone(document: Document, place: Context, budget: Budget) -> tuple[Context, tuple[wire.Neighbour, ...]]:
    """The context of a document with nothing around it."""
    return place, ()


async def or_else(events: Events, sentence: str) -> Events:
    """The same events; raises NoFill where no FillResult is among them."""
    result = False
    async with aclosing(events):
        async for event in events:
            result = isinstance(event, FillResult)
            yield event
    if not result:
        raise NoFill(sentence)
