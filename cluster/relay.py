"""The door's child: carries jobs between the supervisor and the replicas, where a worker would run a model.

    python -m caesura.cluster.relay CONFIG --link ... (as a worker)

The supervisor in front of it has the sockets, the keys, the leases and the answer to every job, whatever happens here.
Budgets, and texts that stopped replicas, are known here only: with the next relay they begin from nothing.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import zmq
import zmq.asyncio

from caesura import logs, wire
from caesura.cluster import config, head, isolation, rpc
from caesura.cluster.router import AWAY, HELLO, Close, Open, Order, Router, Send
from caesura.engine import worker
from caesura.engine.supervisor import link
from caesura.ipc import endpoints

log = logging.getLogger("caesura.door")

LOOK_S = 0.05  # how late a job without an answer may be noticed
START_S = 280.0  # less than a supervisor waits for a worker
HELLO_S = 2.0
PROBE_S = 1.0  # between two questions whether a replica answers, where somebody watches
ASKED = 4  # at once, each of them any replica
RETRY_S = 0.25
STEP_S = 0.01  # the longest step that the supervisor shall expect of us

NO_ENGINE = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, msgspec.DecodeError)


class Relay:
    """Does what the router orders."""

    def __init__(
        self, socket: zmq.asyncio.Socket, channel: grpc.aio.Channel, router: Router, progress: link.Heartbeat
    ) -> None:
        self._socket = socket
        self._channel = channel
        self._router = router
        self._progress = progress
        self._calls = dict[int, tuple[Any, asyncio.Queue[bytes]]]()
        self._tasks = set[asyncio.Task[None]]()
        self._reached = True
        self._told = link.Upstream(0, 0, True)

    def __repr__(self) -> str:
        return f"<Relay {self._router!r}>"

    async def run(self, *, probed: str) -> None:
        """For ever, or until one of its parts fails. Now and then a replica is asked for the model `probed`, if any."""
        await asyncio.gather(self._hear_door(), self._look(), *([self._probe(probed)] if probed else []))

    async def _hear_door(self) -> None:
        while True:
            message = link.decode_to_worker(await self._socket.recv())
            await self._do(self._router.take(message, time.monotonic()))
            await asyncio.sleep(0)  # where messages keep arriving, reading one lets nobody else have a turn

    async def _look(self) -> None:
        while True:
            self._progress.tick()
            await self._do(self._router.look(time.monotonic()))
            if (news := self._router.news(self._reached)) != self._told:
                self._told = msgspec.structs.replace(news, lost=0)
                await self._socket.send(link.encode(news))
            await asyncio.sleep(LOOK_S)

    async def _probe(self, model: str) -> None:
        while True:
            self._reached = await answered(self._channel, model)
            await asyncio.sleep(PROBE_S)

    async def _do(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case Open(stream, key, model):
                    self._calls[stream] = call, frames = rpc.dial(self._channel, key, model), asyncio.Queue[bytes]()
                    self._start(self._read(stream, call, self._start(_write(call, frames))))
                case Send(stream, frame):
                    if found := self._calls.get(stream):
                        found[1].put_nowait(frame)
                case Close(stream):
                    if found := self._calls.pop(stream, None):
                        found[0].cancel()
                case link.Answer():
                    await self._socket.send(link.encode(order))

    def _start(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self, stream: int, call: Any, writing: "asyncio.Task[None]") -> None:
        """The frames of a stream's replica, until it ends. Why it ended stays here: gRPC says addresses and ids."""
        try:
            async for frame in call:
                await self._do(self._router.hear(stream, frame, time.monotonic()))
        except (*NO_ENGINE, asyncio.CancelledError):
            pass
        writing.cancel()
        await self._do(self._router.lost(stream, time.monotonic()))


async def _write(call: Any, frames: "asyncio.Queue[bytes]") -> None:
    with contextlib.suppress(*NO_ENGINE):
        while True:
            await call.write(await frames.get())


async def answered(channel: grpc.aio.Channel, model: str) -> bool:
    """True if a job could be answered: by one of the replicas asked, while others hang."""
    welcomes = await asyncio.gather(*(welcomed(channel, model) for _ in range(ASKED)))
    return any(welcome is not None and welcome.state != "failed" for welcome in welcomes)


async def welcomed(channel: grpc.aio.Channel, model: str) -> wire.Welcome | None:
    """The answer to a Hello of any replica; None if there is none in time."""
    call = rpc.dial(channel, secrets.token_hex(16), model)
    try:
        async with asyncio.timeout(HELLO_S):
            await call.write(HELLO)
            frame = await call.read()
        found = None if frame is grpc.aio.EOF else wire.decode_engine(frame)
        return found if isinstance(found, wire.Welcome) else None
    except (*NO_ENGINE, TimeoutError):
        return None
    finally:
        call.cancel()


async def reached(
    channel: grpc.aio.Channel, model: str, started: "subprocess.Popen[bytes] | None"
) -> wire.Welcome | None:
    """The first Welcome of a replica, of a Ray that we have `started` once all of them answer; None if there is none in
    time, or that Ray ends."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and (started is None or started.poll() is None):
        welcome = await welcomed(channel, model) if started is None or head.ready() else None
        if welcome is not None and welcome.state != "loading":  # which does not know its device yet
            return welcome
        await asyncio.sleep(RETRY_S)
    return None


async def serve(options: Any, team: config.Team, started: "subprocess.Popen[bytes] | None") -> None:
    """Connect both ends, and carry jobs until the supervisor ends this process, or the Ray that we have `started` is
    lost: then the supervisor starts us again."""
    socket = link.pair(zmq.asyncio.Context())
    endpoints.connect(socket, endpoints.at(options.link))
    async with rpc.channel(team.engine.address or head.GRPC) as channel:
        welcome = await reached(channel, options.model, started)
        if welcome is None:
            await socket.send(link.encode(link.LoadFailed(AWAY)))
            await asyncio.Event().wait()  # until the supervisor has read the sentence and ends this process
            return
        await socket.send(link.encode(link.Ready(options.model, welcome.device, STEP_S)))
        router = Router(team.limits, team.engine.offered, secrets.token_bytes(32))
        relay = Relay(socket, channel, router, link.Heartbeat(options.progress))
        running = [asyncio.create_task(relay.run(probed=options.model if team.watch.listen else ""))]
        if started is not None:
            running.append(asyncio.create_task(asyncio.to_thread(started.wait)))  # type: ignore[arg-type]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise RuntimeError("Ray has ended")


def main(path: str, arguments: Sequence[str]) -> None:
    options = worker.begin(arguments)
    team = config.read(Path(path))
    started = None
    try:
        if not team.engine.address:
            isolation.open_loopback()
            started = head.start(path)
        asyncio.run(serve(options, team, started))
    except Exception:
        log.exception("the relay cannot go on")
    logging.shutdown()
    os._exit(worker.FAULT)


if __name__ == "__main__":
    logs.begin(logging.INFO, "%(asctime)s door %(levelname)s %(message)s")
    main(sys.argv[1], sys.argv[2:])
