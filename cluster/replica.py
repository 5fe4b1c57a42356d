"""One replica: the engine's worker loop in a thread, and the streams that ask it. It knows nothing of Ray."""

import asyncio
import contextlib
import logging
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import zmq
import zmq.asyncio

from caesura import logs, paths, wire
from caesura.cluster.rpc import Frame
from caesura.cluster.sessions import Sessions
from caesura.engine import worker
from caesura.engine.supervisor import link

log = logging.getLogger("caesura.replica")

HANG_S = 10.0  # a worker loop without a step for this long is hung: the longest step that a supervisor grants
LINK = "inproc://worker"
SWITCH_S = 0.0005  # Python lets the event loop wait ten times as long for the worker loop


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


class Replica:
    """Loads the model where it is made. Raises worker.CannotLoad."""

    def __init__(self, model: str, device: str, load: Callable[[str, str], worker.Loaded] = worker.load) -> None:
        # Otherwise Ray's files have the messages of errors, which may hold a text.
        logs.begin(logging.INFO, "%(asctime)s replica %(levelname)s %(message)s")
        sys.setswitchinterval(SWITCH_S)
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._worker = link.pair(self._context)
        self._worker.bind(LINK)
        path = paths.runtime() / f"replica-{os.getpid()}.progress"
        self._progress = link.Heartbeat(path)
        path.unlink()  # only this process reads it
        self._seen = (0, time.monotonic())
        loaded = queue.SimpleQueue[worker.Loaded | worker.CannotLoad]()
        self._thread = threading.Thread(target=self._work, args=(model, device, load, loaded), daemon=True)
        self._thread.start()
        if isinstance(found := loaded.get(), worker.CannotLoad):
            raise found
        self._sessions = Sessions(model, found.device)
        self._outboxes = dict[bytes, Outbox]()
        self._link: zmq.asyncio.Socket | None = None
        self._pumping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Replica {self._sessions!r} {len(self._outboxes)} streams>"

    async def Session(self, frames: AsyncIterator[bytes]) -> AsyncIterator[Frame]:  # noqa: N802 (as in rpc.py)
        """One stream. It ends with its client's half."""
        self._connect()
        stream, outbox = secrets.token_bytes(8), Outbox()
        self._outboxes[stream] = outbox
        reading = asyncio.create_task(self._read(stream, frames, outbox))
        try:
            async for frame in outbox:
                yield Frame(frame)
        finally:
            reading.cancel()
            del self._outboxes[stream]
            for message in self._sessions.leave(stream):
                self._send(message)

    def check_health(self) -> None:
        """Raises where the worker loop has ended or hangs; Ray then replaces this replica."""
        count, since = self._seen
        now = time.monotonic()
        if (found := self._progress.read()) != count:
            self._seen = found, now
        elif now - since > HANG_S or not self._thread.is_alive():
            raise RuntimeError("the worker loop makes no progress")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures that scaling.py looks at."""
        return {"queue_ms": self._sessions.queue_ms(time.monotonic())}

    def _work(
        self,
        model: str,
        device: str,
        load: Callable[[str, str], worker.Loaded],
        loaded: "queue.SimpleQueue[worker.Loaded | worker.CannotLoad]",
    ) -> None:
        """The thread: the model belongs to it."""
        try:
            with worker.kept():
                found = load(model, device)
        except worker.CannotLoad as error:
            loaded.put(error)
            return
        except Exception:
            log.exception("the model cannot be loaded")
            loaded.put(worker.CannotLoad("The model cannot be loaded; see the replica's log."))
            return
        loaded.put(found)
        try:
            worker.serve(self._worker, self._progress, found.scheduler)
        except Exception:  # the scheduler's state is lost; the door answers its jobs and Ray starts another replica
            log.exception("the worker loop cannot go on")
            logging.shutdown()
            os._exit(worker.FAULT)

    def _connect(self) -> None:
        """In the event loop, at its first stream."""
        if self._link is None:
            self._link = link.pair(zmq.asyncio.Context(self._context))
            self._link.connect(LINK)
            self._pumping = asyncio.create_task(self._pump(self._link))

    async def _read(self, stream: bytes, frames: AsyncIterator[bytes], outbox: Outbox) -> None:
        """A client's half of a stream. A client that breaks off has ended it too."""
        with contextlib.suppress(Exception):
            async for frame in frames:
                heard = self._sessions.hear(stream, frame, time.monotonic())
                for message in heard.messages:
                    self._send(message)
                for answer in heard.frames:
                    outbox.put(wire.job_of(answer) or "", answer)
        outbox.close()

    def _send(self, message: link.ToWorker) -> None:
        assert self._link is not None
        self._link.send(link.encode(message))  # queued in order; nobody waits for it

    async def _pump(self, found: zmq.asyncio.Socket) -> None:
        while True:
            answer = link.decode_from_worker(await found.recv())
            assert isinstance(answer, link.Answer)
            if job := self._sessions.relay(answer, time.monotonic()):
                self._outboxes[answer.peer].put(job, answer.frame)
