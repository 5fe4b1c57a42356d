"""One engine for the time of a command, and one job asked of it."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from caesura import wire
from caesura.server.engine import Engine

START_S = 300.0  # a large model on a slow disk
PATIENCE_S = 2.0  # then we say what we are waiting for

SLOTS = {"line": 32, "span": 32, "block": 64}


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
