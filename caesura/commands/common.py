"""Shared by commands: the engine for the time of a command, and the report of its answer.

The certainty of a fill is the probability that the model gives to all tokens of its text. docs/configuration.md says
how often the fills of each word were right.
"""

import argparse
import asyncio
import codecs
import json
import math
import re
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import structs

from caesura import model_store, wire
from caesura.client.backend import Condition, EngineError, EngineFailed, FinishedJob, Infiller
from caesura.client.shared import Engine
from caesura.commands import CommandFailed, Unsure, draft
from caesura.server.context.schema_files import SchemaFiles
from caesura.server.fills.structured import LEAST
from caesura.server.languages import language

Show = Callable[[wire.Locked | wire.Done], None]

START_S = 3600.0  # more than any load: the engine ends one that shows no progress for minutes
PATIENCE_S = 2.0  # without an engine; then the command says how far its start is
STARTS = "starting the engine"
GUESS, LIKELY, SURE = 0.2, 0.7, 0.9  # a guess is below the first; the others are the least of each word


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
            await _tell_start(engine, waiting)
        welcome = await waiting
        if options.device == "cuda" and not welcome.device.startswith("cuda"):
            print(f"caesura: {welcome.model} runs on {welcome.device} only; --device cuda is ignored.", file=sys.stderr)
        yield engine, welcome
    finally:
        await engine.close()


async def _tell_start(engine: Engine, ready: "asyncio.Future[wire.Welcome]") -> None:
    """Say how far the start is: on a terminal in place, elsewhere in a line for each stage."""
    from rich.console import Console  # slow to import
    from rich.text import Text

    console, said, changed = Console(stderr=True), "", asyncio.Event()
    engine.on_change = changed.set
    ready.add_done_callback(lambda done: changed.set())
    with console.status("") as line:
        while not ready.done():
            progress = engine.condition.progress or STARTS
            stage = progress.partition(",")[0]
            if console.is_terminal:
                line.update(Text(f"caesura: {progress}"))
            elif stage != said:
                print(f"caesura: {stage} ...", file=sys.stderr)
            said = stage
            await changed.wait()
            changed.clear()


def unseen(event: wire.Locked | wire.Done) -> None:
    pass


class AskedEngine:
    """The engine, whose jobs are done as the command line says; nothing is asked for that is less likely than `bar`.
    `show` sees each event. `done` is the last answer since `begin`, with steps, tokens and timings of all of them;
    `failure` is why there is none."""

    def __init__(self, engine: Engine, options: argparse.Namespace, show: Show = unseen, bar: float = 0.0) -> None:
        self._engine = engine
        self._options = options
        self._show = show
        self._bar = bar
        self.on_change: Callable[[], None] = lambda: None
        self.on_job: Callable[[FinishedJob], None] = lambda job: None
        self.begin()

    def __repr__(self) -> str:
        return f"<AskedEngine {self.done or self.failure}>"

    @property
    def condition(self) -> Condition:
        return self._engine.condition

    def begin(self) -> None:
        """Forget the last answer. From now on, all jobs together have the time that the command line gives."""
        self.done: wire.Done | None = None
        self.failure: EngineError | None = None
        self._late = time.monotonic() + self._options.deadline_ms / 1000

    async def start(self) -> None:
        await self._engine.start()

    async def close(self) -> None:
        await self._engine.close()

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        self.failure = None
        try:
            async with aclosing(self._engine.infill(self._as_asked(job))) as events:
                async for event in events:
                    yield self._seen(event)
        except EngineError as error:
            if not (isinstance(error, EngineFailed) and error.code == "expired"):
                self.failure = error
                raise
            yield self._seen(_too_late(job))

    def _as_asked(self, job: wire.Infill) -> wire.Infill:
        options = self._options
        return structs.replace(
            job,
            method=options.method,
            sampler=options.sampler,
            prompt=options.prompt_format,
            deadline_ms=max(0.0, 1000 * (self._late - time.monotonic())),
            min_probability=max(job.min_probability, self._bar),
        )

    def _seen(self, event: wire.Locked | wire.Done) -> wire.Locked | wire.Done:
        self._show(event)
        if isinstance(event, wire.Done):
            self.done = _after(self.done, event) if self.done else event
        return event


def _too_late(job: wire.Infill) -> wire.Done:
    """The answer to a job that the engine could not begin in time."""
    holes = tuple(wire.Fill("") for segment in job.segments if isinstance(segment, wire.Hole))
    tokens, timings = wire.Tokens(), wire.Timings()
    return wire.Done(job=job.job, seq=0, holes=holes, steps=0, tokens=tokens, timings=timings, stop="deadline")


def _after(first: wire.Done, last: wire.Done) -> wire.Done:
    """The last answer, with steps, tokens and timings of both."""
    tokens = wire.Tokens(*map(sum, zip(structs.astuple(first.tokens), structs.astuple(last.tokens), strict=True)))
    names = ("queue_ms", "prefill_ms", "denoise_ms", "total_ms")
    spent = {name: getattr(first.timings, name) + getattr(last.timings, name) for name in names}
    stop = "deadline" if first.stop == "deadline" else last.stop
    return structs.replace(
        last, steps=first.steps + last.steps, tokens=tokens, timings=structs.replace(first.timings, **spent), stop=stop
    )


async def ask(engine: Infiller, job: wire.Infill, show: Show = unseen) -> wire.Done:
    """Run a job to its end; `show` sees each event."""
    async for event in engine.infill(job):
        show(event)
    assert isinstance(event, wire.Done), "the last event is Done, or infill raises"
    return event


def print_json(value: object) -> None:
    """Print JSON; in ASCII if stdout is not UTF-8, or if a text in it is not valid Unicode."""
    built = msgspec.to_builtins(value)
    text = json.dumps(built, indent=2, ensure_ascii=False)
    if codecs.lookup(sys.stdout.encoding).name != "utf-8" or re.search("[\ud800-\udfff]", text):
        text = json.dumps(built, indent=2)
    print(text)


# How an answer is reported


@dataclass(frozen=True)
class Filled:
    """The text that is inserted in a hole, and its probability. `begun`: a body that is not finished."""

    text: str
    chance: float
    begun: bool = False

    def __str__(self) -> str:
        return f"{self.word} ({int(self.chance * 100 + 1e-9) / 100:.2f})"  # never rounded up to the next word

    @property
    def word(self) -> str:
        return "sure" if self.chance >= SURE else "likely" if self.chance >= LIKELY else "unsure"


def filled(text: str, fill: wire.Fill) -> Filled:
    """`text`, which was made of a fill, with its probability: the product over the tokens that it keeps, or over all of
    them if it is no start of the fill. Without probabilities of tokens it is the engine's confidence."""
    if not fill.probabilities:
        return Filled(text, fill.confidence)
    body = text.rstrip()
    kept = len(body) if body and fill.text.startswith(body) else len(fill.text)
    starts = [0, *(end for end, _ in fill.probabilities)]
    return Filled(text, math.prod(p for start, (_, p) in zip(starts, fill.probabilities, strict=False) if start < kept))


def least(options: argparse.Namespace) -> float:
    """The lowest probability of a fill of the file that is shown."""
    if options.least is not None:
        return float(options.least)
    if options.strict:
        return LIKELY
    return LEAST if language("", options.file).prose else 0.0


def kept(filled: Filled, done: wire.Done, options: argparse.Namespace) -> Filled:
    """The fill, without its text if it is too unlikely."""
    likely = filled.chance >= least(options) and done.stop != "unlikely"
    return filled if likely else replace(filled, text="", chance=min(filled.chance, least(options)))


def withheld(what: str, done: wire.Done, options: argparse.Namespace) -> CommandFailed:
    """The error that a fill is withheld; `what` begins the sentence."""
    kind, bar = Unsure if options.strict else CommandFailed, f"{least(options):g}"
    if done.stop == "unlikely":
        return kind(f"Nothing that the model proposes here is as likely as {bar}; --least 0 shows its best guess.")
    return kind(f"{what}, below {bar}, and withheld; --least 0 shows all.")


def remarks(shown: Sequence[Filled], done: wire.Done) -> str:
    """The remarks after the words of the fills shown."""
    guess = "this is a guess, " if any(one.chance < GUESS for one in shown) else ""
    told = [f"{guess}check it before you use it"] if any(one.word == "unsure" for one in shown) else []
    told += ["the body is begun, not finished"] if any(one.begun for one in shown) else []
    told += ["the deadline cut it short"] if done.stop == "deadline" else []
    return "".join(f"; {one}" for one in told)


def nothing(done: wire.Done, options: argparse.Namespace) -> str:
    """The reason why nothing of an answer can be inserted, without a full stop."""
    if done.stop == "deadline":
        passed = f"The deadline of {options.deadline_ms:g} ms passed before there was a fill"
        return f"{passed}; allow more time with --deadline-ms"
    if any(fill.text for fill in done.holes):
        return "Nothing that the model proposes here fits the text around it"
    return "The model proposes nothing here"


def report(filled: Sequence[Filled], done: wire.Done, model: str) -> dict[str, object]:
    """The report of `--json` next to the text: the fill of each hole, its certainty, and how it was made."""
    weakest = min(filled, key=lambda one: one.chance)
    return {
        "holes": [
            {"text": one.text, "confidence": one.chance, "word": one.word} | ({"begun": True} if one.begun else {})
            for one in filled
        ],
        "steps": done.steps,
        "tokens": msgspec.to_builtins(done.tokens),
        "timings": msgspec.to_builtins(done.timings),
        "confidence": weakest.chance,
        "word": weakest.word,
        "stop": done.stop,
        "model": model,
    }
