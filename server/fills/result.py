"""What a fill or a structured edit gives that a person asked for, and when it is given up for a newer one."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from caesura import wire
from caesura.server.context.context import Budget, Context
from caesura.server.fills.gaps import STALE, NoFill, Span
from caesura.server.text.document import Document

DEADLINE_MS = 30_000.0  # of a job; a person waits for it and can cancel it

Level = Literal["", "valid", "checked", "parses"]


@dataclass(frozen=True)
class Progress:
    """Holes filled so far."""

    filled: int
    of: int


@dataclass(frozen=True)
class Result:
    """`edits` are (start, end, text) in the text of `version`, ascending; `unfilled` are the spans left as they are.

    Of a structured edit, `level` is what is sure of it, and `note` a sentence for the user, or empty."""

    id: str
    version: int
    edits: tuple[tuple[int, int, str], ...]
    unfilled: tuple[Span, ...]
    holes: int
    level: Level = ""
    note: str = ""


Events = AsyncGenerator[Progress | Result, None]
Surround = Callable[[Document, Context, Budget], tuple[Context, tuple[wire.Neighbour, ...]]]


class Newest:
    """What was begun last in each document. Whatever was begun there before is given up."""

    def __init__(self) -> None:
        self._tickets: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"<Newest of {len(self._tickets)} documents>"

    def begin(self, document: Document) -> Callable[[], None]:
        """To be called while a fill goes on: raises NoFill once its result could not be used."""
        uri, version = document.uri, document.version
        ticket = self._tickets[uri] = object()

        def check() -> None:
            if self._tickets.get(uri) is not ticket:
                raise NoFill("This fill was given up: a newer one has begun, or the document was closed.")
            if document.version != version:
                raise NoFill(STALE)

        return check

    def close(self, uri: str) -> None:
        """What is being filled in a document ends."""
        self._tickets.pop(uri, None)


async def or_else(events: Events, sentence: str) -> Events:
    """The same events; raises NoFill where no Result is among them."""
    result = False
    async with aclosing(events):
        async for event in events:
            result = isinstance(event, Result)
            yield event
    if not result:
        raise NoFill(sentence)
