"""One replica: a worker loop in a thread for each model that is loaded, and the streams that ask them. It knows nothing
of Ray."""

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import zmq

from caesura import logs
from caesura.cluster.loop import Loader, Loop
from caesura.cluster.models import Load, Unload
from caesura.cluster.rpc import MODEL, Frame
from caesura.cluster.sessions import Give, ReplicaOrder, Say, Sessions
from caesura.engine import worker

log = logging.getLogger("caesura.replica")

LOOK_S = 0.05  # how late an expired job may be noticed, s
SWITCH_S = 0.0005  # thread switch interval, s; Python's 5 ms delays the event loop


class Outbox:
    """Frames for one stream. Of a job only the newest event is kept for a client that reads slowly, since each event
    replaces the one before."""

    def __init__(self) -> None:
        self._frames = dict[str, bytes]()
        self._filled = asyncio.Event()
        self._closed = False

    def put(self, about: str, frame: bytes) -> None:
        self._frames.pop(about, None)
        self._frames[about] = frame
        self._filled.set()

    def close(self) -> None:
        self._closed = True
        self._filled.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._closed:
            await self._filled.wait()
            self._filled.clear()
            while self._frames and not self._closed:
                yield self._frames.pop(next(iter(self._frames)))


class Called(Protocol):
    """The context of a gRPC call, of gRPC itself or of Ray Serve, which passes it for its name."""

    def invocation_metadata(self) -> Iterable[Any]: ...


class Replica:
    """`models`: their names and where they lie. Loads the first of them where it is made, and others as they are asked
    for; `most` are kept. Raises worker.CannotLoad."""

    def __init__(self, models: Mapping[str, str], device: str, most: int, load: Loader = worker.load) -> None:
        # Otherwise Ray's files have the messages of errors, which may hold a text.
        logs.begin(logging.INFO, "%(asctime)s replica %(levelname)s %(message)s")
        sys.setswitchinterval(SWITCH_S)
        self._models, self._device, self._load = models, device, load
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._sessions = Sessions(models, device, most)
        self._outboxes = dict[bytes, Outbox]()
        self._tasks = set[asyncio.Task[None]]()
        self._failed = False
        first = next(iter(models))
        self._loops = {first: self._loop(first)}
        self._loops[first].loading.result()

    def __repr__(self) -> str:
        return f"<Replica {self._sessions!r} {len(self._outboxes)} streams>"

    async def Session(  # noqa: N802 (as in rpc.py)
        self, frames: AsyncIterator[bytes], grpc_context: Called
    ) -> AsyncIterator[Frame]:
        """One stream. It ends with its client's half."""
        self._begin()
        stream, outbox = secrets.token_bytes(8), Outbox()
        self._outboxes[stream] = outbox
        self._sessions.open(stream, dict(grpc_context.invocation_metadata()).get(MODEL, ""))
        reading = asyncio.create_task(self._read(stream, frames, outbox))
        try:
            async for frame in outbox:
                yield Frame(frame)
        finally:
            reading.cancel()
            del self._outboxes[stream]
            self._do(self._sessions.leave(stream, time.monotonic()))

    def check_health(self) -> None:
        """Raises where a worker loop hangs, or a part of the event loop has failed; Ray then replaces this replica."""
        if self._failed:
            raise RuntimeError("a part of the replica has failed; see its log")
        for loop in list(self._loops.values()):
            loop.check()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures that scaling.py looks at."""
        return {"queue_ms": self._sessions.queue_ms(time.monotonic())}

    def _begin(self) -> None:
        """In the event loop, at its first stream."""
        if not self._tasks:
            self._start(self._look())
            for model, loop in self._loops.items():
                self._start(self._run(model, loop))

    def _loop(self, model: str) -> Loop:
        return Loop(self._context, self._models[model], self._device, self._load)

    def _start(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("the replica cannot go on", exc_info=error)
            self._failed = True

    def _do(self, orders: Sequence[ReplicaOrder]) -> None:
        for order in orders:
            match order:
                case Say(stream, job, frame):
                    self._outboxes[stream].put(job, frame)
                case Give(model, message):
                    self._loops[model].send(message)
                case Load(model):
                    self._loops[model] = self._loop(model)
                    self._start(self._run(model, self._loops[model]))
                case Unload(model):
                    self._loops[model].stop()

    async def _run(self, model: str, loop: Loop) -> None:
        """A model from its load to its end."""
        try:
            device = await asyncio.wrap_future(loop.loading)
        except worker.CannotLoad as error:
            await asyncio.wrap_future(loop.ended)  # until then another model would find its memory taken
            del self._loops[model]
            self._do(self._sessions.refused(model, str(error), time.monotonic()))
            return
        loop.connect()
        carrying = self._start(self._carry(loop))
        self._do(self._sessions.loaded(model, device, time.monotonic()))
        await asyncio.wrap_future(loop.ended)
        carrying.cancel()
        loop.close()
        del self._loops[model]
        self._do(self._sessions.gone(model, time.monotonic()))

    async def _carry(self, loop: Loop) -> None:
        async for answer in loop.answers():
            self._do(self._sessions.relay(answer, time.monotonic()))

    async def _look(self) -> None:
        while True:
            self._do(self._sessions.look(time.monotonic()))
            await asyncio.sleep(LOOK_S)

    async def _read(self, stream: bytes, frames: AsyncIterator[bytes], outbox: Outbox) -> None:
        """A client's half of a stream. A client that breaks off has ended it too."""
        with contextlib.suppress(Exception):
            async for frame in frames:
                self._do(self._sessions.hear(stream, frame, time.monotonic()))
        outbox.close()
