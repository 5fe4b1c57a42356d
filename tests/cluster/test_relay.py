"""The door's relay between a supervisor and replicas that are a dozen lines."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

pytest.importorskip("grpc", reason="needs the extra `cluster`")

from caesura import wire
from caesura.cluster.relay import Relay
from caesura.cluster.router import Limits, Router
from caesura.engine.supervisor import link

from ..support.clients import until
from .test_router import job

pytestmark = pytest.mark.cluster


class Call:
    """A stream on which a replica says nothing."""

    def __init__(self, metadata: object) -> None:
        self.ended = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self.ended.wait()
        for frame in list[bytes]():
            yield frame

    async def write(self, frame: bytes) -> None: ...

    def cancel(self) -> None:
        self.ended.set()


class Channel:
    def stream_stream(self, path: str) -> type[Call]:
        return Call


class Ended(Exception):
    pass


class Flood:
    """A link on which messages have always arrived already, until the end."""

    def __init__(self, beat: link.Heartbeat) -> None:
        self.left, self.beat, self.beats = 1000, beat, 0

    async def recv(self) -> bytes:
        self.left -= 1
        if not self.left:
            self.beats = self.beat.read()
            raise Ended
        return link.encode(link.CancelJob(b"p", "job"))

    async def send(self, frame: bytes) -> None: ...


def relay(socket: Any, beat: link.Heartbeat) -> Relay:
    channel: Any = Channel()
    return Relay(socket, channel, Router(Limits(), ("coder",), b"s"), beat)


@pytest.fixture
def beat(tmp_path: Path) -> link.Heartbeat:
    return link.Heartbeat(tmp_path / "progress")


@pytest.fixture
def ends() -> Iterator[tuple["zmq.asyncio.Socket", "zmq.asyncio.Socket"]]:
    context = zmq.asyncio.Context()
    front, back = link.pair(context), link.pair(context)
    front.bind("inproc://relay")
    back.connect("inproc://relay")
    yield front, back
    context.destroy(0)


async def test_nothing_is_left_of_a_stream_that_has_ended(ends: Any, beat: link.Heartbeat) -> None:
    front, back = ends
    running = asyncio.create_task(relay(back, beat).run(probed=""))
    await until(lambda: beat.read() > 0)
    before = len(asyncio.all_tasks())
    for number in range(5):
        request = job(f"{number}")
        await front.send(link.encode(link.NewJob(b"p", 1000.0, wire.encode(request), "anna", "coder")))
    await until(lambda: len(asyncio.all_tasks()) == before + 2 * 5)  # one reads and one writes
    await front.send(link.encode(link.Gone(b"p")))
    await until(lambda: len(asyncio.all_tasks()) == before)
    running.cancel()


async def test_messages_that_never_pause_do_not_stop_the_heart(beat: link.Heartbeat) -> None:
    flood = Flood(beat)
    with pytest.raises(Ended):
        await relay(flood, beat).run(probed="")
    assert flood.beats > 0
