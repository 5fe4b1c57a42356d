"""The engine's worker loop on one model, in a thread of a replica. The model belongs to that thread."""

import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future

import zmq
import zmq.asyncio

from caesura import paths
from caesura.engine import worker
from caesura.engine.supervisor import link

log = logging.getLogger("caesura.replica")

HANG_S = 10.0  # a worker loop without a step for this long is hung: the longest step that a supervisor grants
LOAD_S = 300.0  # a load that takes longer hangs: as long as a supervisor waits for its worker's
UNKNOWN = "The model cannot be loaded; see the replica's log."
Loader = Callable[[str, str], worker.Loaded]

_numbers = itertools.count()


class Loop:
    """Begins to load at once. `loading` has the device, or worker.CannotLoad; `ended` is done when the memory is free
    again."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], model: str, device: str, load: Loader) -> None:
        number = next(_numbers)
        self._context = context
        self._address = f"inproc://worker-{number}"
        self._worker = link.pair(context)
        self._worker.bind(self._address)
        path = paths.runtime() / f"replica-{os.getpid()}-{number}.progress"
        self._progress = link.Heartbeat(path)
        path.unlink()  # only this process reads it
        self._begun = time.monotonic()
        self._seen = (0, self._begun)
        self._link: zmq.asyncio.Socket | None = None
        self._stop = threading.Event()
        self.loading: Future[str] = Future()
        self.ended: Future[None] = Future()
        threading.Thread(target=self._run, args=(model, device, load), daemon=True).start()

    def __repr__(self) -> str:
        return f"<Loop {self._address} {self.loading!r}>"

    def connect(self) -> None:
        """In the event loop, before the rest."""
        self._link = link.pair(zmq.asyncio.Context(self._context))
        self._link.connect(self._address)

    async def answers(self) -> AsyncIterator[link.Answer]:
        assert self._link is not None
        while True:
            answer = link.decode_from_worker(await self._link.recv())
            assert isinstance(answer, link.Answer)
            yield answer

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def send(self, message: link.ToWorker) -> None:
        assert self._link is not None
        self._link.send(link.encode(message))  # queued in order; nobody waits for it

    def stop(self) -> None:
        """End it, and the jobs that it may still have."""
        self._stop.set()
        self.send(link.Gone(b""))  # wakes it

    def check(self) -> None:
        """Raises where the load or the loop hangs."""
        count, since = self._seen
        now = time.monotonic()
        if not self.loading.done() and now - self._begun > LOAD_S:
            raise RuntimeError("the model takes too long to load")
        if (found := self._progress.read()) != count or not self.loading.done():
            self._seen = found, now
        elif now - since > HANG_S:
            raise RuntimeError("the worker loop makes no progress")

    def _run(self, model: str, device: str, load: Loader) -> None:
        try:
            with worker.kept():
                found = load(model, device)
        except worker.CannotLoad as error:
            self.loading.set_exception(worker.CannotLoad(str(error)))  # without the frames that hold half a model
        except Exception:
            log.exception("the model %s cannot be loaded", model)
            self.loading.set_exception(worker.CannotLoad(UNKNOWN))
        else:
            self._serve(found)
            del found
        self._worker.close()
        worker.release()
        self.ended.set_result(None)

    def _serve(self, found: worker.Loaded) -> None:
        self.loading.set_result(found.device)
        try:
            worker.serve(self._worker, self._progress, found.scheduler, self._stop)
        except Exception:  # the scheduler's state is lost; the door answers its jobs and Ray starts another replica
            log.exception("the worker loop cannot go on")
            logging.shutdown()
            os._exit(worker.FAULT)
