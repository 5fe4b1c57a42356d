"""Clients of real processes: they connect, ask, and wait for what they see."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from caesura import wire
from caesura.client.backend import job_id
from caesura.client.shared import Engine

FAKE = Path(__file__).parent / "processes" / "fake_engine.py"
READY_S = 20.0  # generous: the suite may share its two cores with a training run


class running:  # noqa: N801 (reads as a verb: `async with running(client())`)
    def __init__(self, found: Engine) -> None:
        self.engine = found

    async def __aenter__(self) -> Engine:
        await self.engine.start()
        return self.engine

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()


def job(prefix: str = "", *, document: str = "d", deadline_ms: float = 20_000, holes: int = 1) -> wire.Infill:
    return wire.Infill(
        job=job_id(),
        document=document,
        prefix=prefix,
        suffix="",
        segments=(wire.Hole(),) * holes,
        deadline_ms=deadline_ms,
    )


async def answer(found: Engine, request: wire.Infill) -> str:
    async for event in found.infill(request):
        if isinstance(event, wire.Done):
            return event.holes[0].text
    raise AssertionError("the job ended without Done or an error")


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def status_when(found: Engine, condition: Callable[[wire.Status], bool], timeout_s: float = 10.0) -> wire.Status:
    deadline = time.monotonic() + timeout_s
    while not condition(status := await found.status()):
        assert time.monotonic() < deadline, f"it did not happen in time: {status}"
        await asyncio.sleep(0.005)
    return status


async def first_event(found: Engine, request: wire.Infill) -> None:
    """Return when the job is live in the worker, and leave it."""
    async with aclosing(found.infill(request)) as events:
        async for _ in events:
            return


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def in_flight(found: Engine, prefix: str = "endless") -> asyncio.Task[str]:
    """A job that the worker is working on."""
    task = asyncio.create_task(answer(found, job(prefix, document=job_id())))
    await status_when(found, lambda status: status.live > 0)
    return task
