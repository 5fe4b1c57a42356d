"""The events of a fill or a structured edit: progress, then the result."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from caesura import wire
from caesura.server.context.context import Budget, Context
from caesura.server.fills.task import NoFill
from caesura.server.text.document import Document, Span

DEADLINE_MS = 30_000.0  # of a job; long, since the user waits for the fill and can cancel it

Level = Literal["", "valid", "checked", "parses"]


@dataclass(frozen=True)
class Progress:
    """Holes filled so far."""

    filled: int
    of: int


@dataclass(frozen=True)
class FillResult:
    """`edits` are (start, end, text) in the text of `version`, ascending; `unfilled` are the spans left unchanged,
    `note` is a sentence for the user, or empty. `fills` are the engine's, of which the texts of the holes were made.
    For a structured edit, `level` names the guarantee."""

    id: str
    version: int
    edits: tuple[tuple[int, int, str], ...]
    unfilled: tuple[Span, ...]
    holes: int
    level: Level = ""
    note: str = ""
    fills: tuple[wire.Fill, ...] = ()


Events = AsyncGenerator[Progress | FillResult, None]
Surround = Callable[[Document, Context, Budget], Context]


def alone(document: Document, around: Context, budget: Budget) -> Context:
    """The context as it is: a `Surround` that adds nothing."""
    return around


async def or_else(events: Events, sentence: str, note: str = "") -> Events:
    """The same events, with `note` in the FillResult; raises NoFill with `sentence` if they do not end in one."""
    result = False
    async with aclosing(events):
        async for event in events:
            result = isinstance(event, FillResult)
            yield replace(event, note=note) if isinstance(event, FillResult) else event
    if not result:
        raise NoFill(sentence)
