"""Strangers at a real engine's door, who send damaged frames over many connections while another client works. For
test_fuzz.py and bench/fuzz.py.
"""

import asyncio
import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from caesura import wire
from caesura.client.backend import EngineError, job_id
from caesura.client.shared import Engine
from caesura.ipc import rendezvous

from ...shared.test_wire import CLIENT
from .mutants import Frames

FAKE = Path(__file__).with_name("fake_engine.py")
CONNECTIONS = 8  # at a time
SENT = 500  # frames before all of them are new connections
BETWEEN = 50  # frames between two jobs of the client that means well
SERVED_S = 10.0  # it may wait so long


@dataclass
class Visit:
    """Jobs of the client that means well, the slowest in milliseconds; what the engine's two processes grew by; and in
    sentences what went wrong."""

    served: int = 0
    slowest_ms: float = 0.0
    grown_mib: float = 0.0
    dropped: int = 0  # frames that the engine counted as nonsense
    wrong: list[str] = field(default_factory=list)


async def visit(count: int, seed: int) -> Visit:
    """`count` frames. Of its own: an engine in the runtime folder that the environment names."""
    seen, chance, frames = Visit(), random.Random(seed), Frames(CLIENT)
    client = Engine(client="honest", model="fake", command=[sys.executable, "-P", str(FAKE), "fake"])
    await client.start()
    try:
        await client.ready(SERVED_S)
        await _served(client, seen)
        status = await client.status()
        pids = (status.pid, status.worker_pid)
        before = sum(map(_mib, pids))
        for number in range(0, count, SENT):
            await _knock(client, seen, frames, min(SENT, count - number), chance)
        status = await client.status()
        if (status.pid, status.worker_pid) != pids:
            seen.wrong.append("a process of the engine ended")
        seen.dropped = status.dropped
        seen.grown_mib = round(sum(map(_mib, (status.pid, status.worker_pid))) - before, 1)
        await client.stop()
    finally:
        await client.close()
    return seen


async def _knock(client: Engine, seen: Visit, frames: Frames, count: int, chance: random.Random) -> None:
    context = zmq.asyncio.Context()
    try:
        sockets = [context.socket(zmq.DEALER) for _ in range(CONNECTIONS)]
        for socket in sockets:
            socket.connect(f"ipc://{rendezvous.place('fake', 'auto').socket}")
        for number in range(count):
            stranger = chance.choice(sockets)
            if chance.random() < 0.5:  # whoever has said hello is listened to, until what amounts to a goodbye
                await stranger.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", "stranger")))
            parts = [frames.mutant(chance) for _ in range(chance.choice((1, 1, 1, 1, 1, 1, 0, 2)))]
            if any(map(_stops, parts)):
                continue
            async with asyncio.timeout(SERVED_S):
                await stranger.send_multipart(parts or [b""])
            if number % BETWEEN == 0:
                await _served(client, seen)
    finally:
        context.destroy(linger=0)


async def _served(client: Engine, seen: Visit) -> None:
    began = time.monotonic()
    job = wire.Infill(job=job_id(), document="d", prefix="", suffix="", segments=(wire.Hole(),))
    text = ""
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(SERVED_S):
            async for event in client.infill(job):
                text = event.holes[0].text
    if text == "answer":
        seen.served += 1
        seen.slowest_ms = max(seen.slowest_ms, round((time.monotonic() - began) * 1000, 1))
    else:
        seen.wrong.append(f"the client that means well was answered {text!r}")


def _stops(frame: bytes) -> bool:
    """Whether it is one of those that do end an engine, as they should."""
    with suppress(msgspec.DecodeError):
        return isinstance(wire.decode_client(frame), wire.Stop)
    return False


def _mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
