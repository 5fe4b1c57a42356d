"""A gap of the demo, filled twice by the same engine: with the chosen sampler and from left to right.

A job of one token reads the context first, so that both runs start with a warm KV cache.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from caesura import wire
from caesura.client.backend import EngineError
from caesura.client.shared import Engine
from caesura.commands.common import START_S
from caesura.server.infill.choose import choice
from caesura.server.infill.job import Ask
from caesura.server.infill.site import at_cursor, bare_site
from caesura.server.languages import language

MAX_TEXT = 1 << 18  # code points of a document
DEADLINE_MS = 60_000.0

RunName = Literal["diffusion", "left_to_right"]
DemoWay = Literal["verify", "left_to_right", "threshold"]  # two methods, and a sampler of the canvas


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of the page: fill the span `start:end` (code points) of a text by a sampler, from a seed."""

    text: str
    start: Annotated[int, Meta(ge=0)]
    end: Annotated[int, Meta(ge=0)]
    language: wire.Name
    sampler: Literal["verify", "threshold"]
    seed: Annotated[int, Meta(ge=0, le=2**32)] = 0


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """The engine is starting."""


class ContextRead(msgspec.Struct, frozen=True, tag="read"):
    """The model has read the context."""

    ms: float


class Step(msgspec.Struct, frozen=True, tag="step"):
    """The gap after a step, `ms` milliseconds after the start of the run."""

    run: RunName
    ms: float
    step: int
    fill: wire.Fill


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The answer; `inserted` is the text that an editor would insert."""

    run: RunName
    ms: float
    steps: int
    fill: wire.Fill
    tokens: wire.Tokens
    stop: str
    inserted: str


class DemoFailed(msgspec.Struct, frozen=True, tag="failed"):
    """There is no answer; the message is a sentence for the user."""

    message: str


DemoEvent = Waiting | ContextRead | Step | Ended | DemoFailed


async def fill(engine: Engine, wanted: Wanted) -> AsyncGenerator[DemoEvent, None]:
    """Fill the gap twice and yield all events. Closing the generator cancels the running job."""
    start, end = sorted((min(wanted.start, len(wanted.text)), min(wanted.end, len(wanted.text))))
    name = language(wanted.language, "").id
    asked = bare_site(wanted.text, start, end, name) if start < end else at_cursor(wanted.text, start, name)
    asked = replace(asked, finished=False)  # the demo shows how a block begins, too
    runs: tuple[tuple[RunName, DemoWay], ...] = (("diffusion", wanted.sampler), ("left_to_right", "left_to_right"))
    try:
        await engine.start()
        if engine.state != "ready":
            yield Waiting()
            await engine.ready(START_S)
        began = time.monotonic()
        first = replace(asked, hole=wire.Hole(max_tokens=1), offer=None).job(_ask("left_to_right", 0))
        async with aclosing(engine.infill(first)) as events:
            async for _ in events:
                pass
        yield ContextRead(_since(began))
        for run, way in runs:
            began = time.monotonic()
            async with aclosing(engine.infill(asked.job(_ask(way, wanted.seed)))) as events:
                async for event in events:
                    ms, filled = _since(began), asked.fill(event.holes)
                    if isinstance(event, wire.Locked):
                        yield Step(run, ms, event.step, filled)
                    else:
                        text, _ = choice(asked, event)
                        yield Ended(run, ms, event.steps, filled, event.tokens, event.stop, text)
    except EngineError as error:
        yield DemoFailed(str(error))


def _ask(way: DemoWay, seed: int) -> Ask:
    named = {"sampler": way} if way == "threshold" else {"method": way}
    return Ask(kind="fill", deadline_ms=DEADLINE_MS, seed=seed, **named)


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
