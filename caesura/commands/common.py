"""One engine for the time of a command, one gap asked of it, and what becomes of the answer in an editor."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from caesura import model_store, wire
from caesura.client.shared import Engine
from caesura.commands import draft
from caesura.commands.certainty import Filled
from caesura.schema.document import Schema
from caesura.server.answers.finish import finish
from caesura.server.answers.syntax import SyntaxGate
from caesura.server.context.context import Context, HoleKind, context, hole
from caesura.server.context.schema_files import SchemaFiles
from caesura.server.ghost.canvas import joined
from caesura.server.languages import language
from caesura.server.options import Options
from caesura.server.structured import edits
from caesura.server.structured.offer import Offer
from caesura.server.text.trees import SyntaxTree

START_S = 300.0  # a large model on a slow disk
PATIENCE_S = 2.0  # then we say what we are waiting for


@dataclass(frozen=True)
class Gap:
    """What an editor's language server knows of the span `start:end` (code points) of a text."""

    text: str
    start: int
    end: int
    context: Context
    gate: SyntaxGate
    offer: Offer | None = None  # with the grammar of what may stand there

    @property
    def hole(self) -> wire.Hole:
        return hole(self.context, Options().max_tokens)

    @property
    def segments(self) -> tuple[wire.Text | wire.Hole, ...]:
        return self.offer.segments if self.offer else (self.hole,)

    @property
    def schemas(self) -> tuple[str, ...]:
        return self.offer.schemas if self.offer else ()

    def fitted(self, text: str) -> str:
        """What is inserted for the engine's `text`."""
        return self.gate.shortened(finish(text, self.context))

    def chosen(self, done: wire.Done) -> tuple[str, wire.Fill]:
        """What is inserted for an answer, and the fill that it is of."""
        return next(self.proposals(done), ("", done.holes[0]))

    def proposals(self, done: wire.Done) -> Iterator[tuple[str, wire.Fill]]:
        """What may be inserted for an answer, each with the fill that it is of: as in an editor the candidates that
        leave the syntax sound, best first, then what is sound of the best. What an offer asks for is valid as a whole
        or not there."""
        if self.offer:
            whole = [joined(self.offer, holes) for holes in (done.holes, *done.alternatives)]
            yield from ((fill.text, fill) for fill in whole if fill.text and self._valid(self.offer, fill.text))
            return
        fills = [done.holes[0], *(others[0] for others in done.alternatives)]
        texts = [finish(fill.text, self.context) for fill in fills]
        for text, fill in zip(texts, fills, strict=True):
            if text and self.gate.shortened(text) == text:
                yield text, fill
        if text := self.gate.shortened(texts[0]):
            yield text, fills[0]

    def _valid(self, offer: Offer, insert: str) -> bool:
        return offer.check(self.text[: self.start] + insert + self.text[self.end :]) is None


def gap(text: str, start: int, end: int, name: str, kind: HoleKind | None = None) -> Gap:
    """The span `start:end` (code points) of a text in the language with the id `name`."""
    tree = SyntaxTree(language(name))
    tree.parse(text)
    around = context(text, start, end, language=name, tree=tree.tree, kind=kind)
    return Gap(text, start, end, around, SyntaxGate(text, start, end, around, tree.tree))


def at_cursor(text: str, at: int, name: str, kind: HoleKind | None = None, schema: Schema | None = None) -> Gap:
    """The gap at a cursor as inline completion fills it: in JSON and Markdown with the grammar of what may be typed."""
    return replace(gap(text, at, at, name, kind), offer=edits.completion(text, at, language=name, schema=schema))


def schema_files(file: Path) -> SchemaFiles:
    """The schemas that a document at `file`, an absolute path, may name."""
    return SchemaFiles([str(Path.cwd()), str(file.parent)])


@asynccontextmanager
async def shared(options: argparse.Namespace) -> AsyncIterator[tuple[Engine, wire.Welcome]]:
    """The shared engine with its model loaded, started if none runs. Raises NoModel before anything starts."""
    model_store.locate(options.model)
    draft(options.draft)
    engine = Engine(client="command line", model=options.model, device=options.device)
    await engine.start()
    try:
        waiting = asyncio.ensure_future(engine.ready(START_S))
        if not (await asyncio.wait([waiting], timeout=PATIENCE_S))[0]:
            print("caesura: starting the engine, which takes a few seconds the first time ...", file=sys.stderr)
        welcome = await waiting
        if options.device == "cuda" and not welcome.device.startswith("cuda"):
            print(f"caesura: {welcome.model} runs on {welcome.device} only; --device cuda is ignored.", file=sys.stderr)
        yield engine, welcome
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


def nothing(done: wire.Done, options: argparse.Namespace) -> str:
    """Why an answer has nothing that can be inserted, without a full stop."""
    if done.stop == "deadline":
        passed = f"The deadline of {options.deadline_ms:g} ms passed before there was a fill"
        return f"{passed}; allow more time with --deadline-ms"
    if any(fill.text for fill in done.holes):
        return "Nothing that the model proposes here fits the text around it"
    return "The model proposes nothing here"


def report(filled: Sequence[Filled], done: wire.Done, model: str) -> dict[str, object]:
    """What `--json` says besides the text: what is inserted in each hole and how sure that is, and how it was made."""
    weakest = min(filled, key=lambda one: one.chance)
    return {
        "holes": [{"text": one.text, "confidence": one.chance, "word": one.word} for one in filled],
        "steps": done.steps,
        "tokens": msgspec.to_builtins(done.tokens),
        "timings": msgspec.to_builtins(done.timings),
        "confidence": weakest.chance,
        "word": weakest.word,
        "stop": done.stop,
        "model": model,
    }
