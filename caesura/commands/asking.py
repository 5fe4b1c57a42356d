"""One engine for the time of a command, one gap asked of it, and what becomes of the answer in an editor."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec

from caesura import wire
from caesura.server import edits
from caesura.server.completion import finish
from caesura.server.context import Context, Kind, context, hole
from caesura.server.engine import Engine
from caesura.server.languages import language
from caesura.server.offers import Offer
from caesura.server.options import Options
from caesura.server.syntax import Gate
from caesura.server.trees import SyntaxTree
from caesura.server.warm import joined

START_S = 300.0  # a large model on a slow disk
PATIENCE_S = 2.0  # then we say what we are waiting for


@dataclass(frozen=True)
class Gap:
    """What an editor's language server knows of the span `start:end` (code points) of a text."""

    text: str
    start: int
    end: int
    context: Context
    gate: Gate
    offer: Offer | None = None  # with the grammar of what may stand there

    @property
    def hole(self) -> wire.Hole:
        return hole(self.context, Options().max_tokens)

    @property
    def segments(self) -> tuple[wire.Text | wire.Hole, ...]:
        return self.offer.segments if self.offer else (self.hole,)

    def fitted(self, text: str) -> str:
        """What is inserted for the engine's `text`."""
        return self.gate.shortened(finish(text, self.context))

    def chosen(self, done: wire.Done) -> tuple[str, wire.Fill]:
        """What is inserted for an answer, and the fill that it is of: as in an editor the best candidate that leaves
        the syntax sound, else what is sound of the best. What an offer asks for is valid as a whole or not there."""
        if self.offer:
            whole = [joined(self.offer, holes) for holes in (done.holes, *done.alternatives)]
            valid = (fill for fill in whole if fill.text and self._valid(self.offer, fill.text))
            return next(((fill.text, fill) for fill in valid), ("", whole[0]))
        fills = [done.holes[0], *(others[0] for others in done.alternatives)]
        texts = [finish(fill.text, self.context) for fill in fills]
        sound = (n for n, text in enumerate(texts) if text and self.gate.shortened(text) == text)
        best = next(sound, 0)
        return self.gate.shortened(texts[best]), fills[best]

    def _valid(self, offer: Offer, insert: str) -> bool:
        return offer.check(self.text[: self.start] + insert + self.text[self.end :]) is None


def gap(text: str, start: int, end: int, name: str, kind: Kind | None = None) -> Gap:
    """The span `start:end` (code points) of a text in the language with the id `name`."""
    tree = SyntaxTree(language(name))
    tree.parse(text)
    around = context(text, start, end, language=name, tree=tree.tree, kind=kind)
    return Gap(text, start, end, around, Gate(text, start, end, around, tree.tree))


def at_cursor(text: str, at: int, name: str, kind: Kind | None = None) -> Gap:
    """The gap at a cursor as inline completion fills it: in JSON and Markdown with the grammar of what may be typed."""
    return replace(gap(text, at, at, name, kind), offer=edits.completion(text, at, language=name))


@asynccontextmanager
async def shared(options: argparse.Namespace) -> AsyncIterator[tuple[Engine, wire.Welcome]]:
    """The shared engine with its model loaded, started if none runs."""
    engine = Engine(client="command line", model=options.model, device=options.device)
    await engine.start()
    try:
        waiting = asyncio.ensure_future(engine.ready(START_S))
        if not (await asyncio.wait([waiting], timeout=PATIENCE_S))[0]:
            print("caesura: starting the engine, which takes a few seconds the first time ...", file=sys.stderr)
        yield engine, await waiting
    finally:
        await engine.close()


async def ask(engine: Engine, job: wire.Infill, show: Callable[[wire.Locked | wire.Done], None]) -> wire.Done:
    """Run a job to its end; `show` sees each event."""
    async for event in engine.infill(job):
        show(event)
    assert isinstance(event, wire.Done), "the last event is Done, or infill raises"
    return event


def print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def report(done: wire.Done, model: str) -> dict[str, object]:
    """What `--json` says besides the text: the holes as the engine sent them, before they were fitted in."""
    return {
        "holes": msgspec.to_builtins(done.holes),
        "steps": done.steps,
        "tokens": msgspec.to_builtins(done.tokens),
        "timings": msgspec.to_builtins(done.timings),
        "confidence": min(filled.confidence for filled in done.holes),
        "stop": done.stop,
        "model": model,
    }
