"""The process that owns the model: take what arrived, run one denoise step over all live canvases, send what locked.

Started and watched by the supervisor, and gone with it.
"""

import argparse
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from caesura import doors, logs, wire
from caesura.engine.supervisor import link
from caesura.engine.weights import ahead

log = logging.getLogger("caesura.worker")

REHEARSED = (16, 64, 256)  # tokens of a hole, where kernels are compiled
SHORT = 1  # where none are
REHEARSAL_MS = 120_000
FAULT = 70  # the exit code of a worker that cannot go on (sysexits.h: an internal error)
IDLE_MS = 500  # how long an idle worker waits before it shows that it is there
PRODUCTS = 128  # shapes of products whose code oneDNN keeps, half a MiB each; its own bound is 1024

# Of glibc's allocator: what mallopt calls each, and what loading and filling set it to.
ARENAS, LARGE, TOP = -8, -3, -1  # pools; bytes from which a block has pages of its own; free ones kept at the top
OF_WEIGHTS, OF_STEPS, KEPT_FREE = 1 << 18, 32 << 20, 16 << 20

Answers = list[tuple[bytes, wire.EngineMessage]]


class Scheduler(Protocol):
    """What the loop needs: pure state that takes messages and gives events. See scheduler.py."""

    @property
    def busy(self) -> bool: ...
    def take(self, peer: bytes, message: wire.Infill | wire.Cancel, now: float) -> Answers: ...
    def drop(self, peer: bytes) -> None: ...
    def step(self, clock: Callable[[], float]) -> Answers: ...
    def expire(self, now: float) -> Answers: ...


@dataclass(frozen=True)
class Loaded:
    """`device`: with what computes the model there, `cpu:avx512`. `step_s`: seconds of the longest of the steps that it
    has made."""

    scheduler: Scheduler
    device: str
    step_s: float


class CannotLoad(Exception):
    """This model cannot be used and trying again will not help; the message is a sentence for the user."""


def serve(socket: zmq.Socket[bytes], progress: link.Heartbeat, scheduler: Scheduler) -> None:
    """The engine, for ever."""
    clock, worked = time.monotonic, True
    while True:
        if not scheduler.busy:
            if socket.poll(IDLE_MS):
                progress.tick()  # the time of a first step does not begin with the last sign of idleness
            elif worked:
                give_back()
                worked = False
        events: Answers = []
        for message in _arrived(socket):
            events += _take(scheduler, message, clock())
        events += scheduler.expire(clock())
        if scheduler.busy:
            events += scheduler.step(clock)
            worked = True
        for peer, event in events:
            socket.send(link.encode(link.Answer(peer, _frame(event))))
        progress.tick()


def _frame(event: wire.EngineMessage) -> bytes:
    try:
        return wire.encode(event)
    except UnicodeEncodeError:  # half of a surrogate pair, which no model should write
        job = getattr(event, "job", "")
        log.exception("the answer to job %s cannot be sent", job)
        return wire.encode(wire.Failed(job, "invalid", "The engine could not send its answer; see its log."))


def _arrived(socket: zmq.Socket[bytes]) -> Iterator[link.ToWorker]:
    while True:
        try:
            yield link.decode_to_worker(socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return


def _take(scheduler: Scheduler, message: link.ToWorker, now: float) -> Answers:
    match message:
        case link.Gone(peer):
            scheduler.drop(peer)
            return []
        case link.CancelJob(peer, job):
            return scheduler.take(peer, wire.Cancel(job), now)
        case link.NewJob(peer, left_ms, frame):
            request = wire.decode_client(frame)
            assert isinstance(request, wire.Infill), "the supervisor forwards nothing else"
            try:
                return scheduler.take(peer, msgspec.structs.replace(request, deadline_ms=left_ms), now)
            except Exception:  # whatever one client's text does to it must not take the others' canvases down
                log.exception("job %s was not taken", request.job)
                sentence = "The engine could not read this job; see its log."
                return [(peer, wire.Failed(request.job, "invalid", sentence))]


def run(arguments: Sequence[str], load: Callable[[str, str], Loaded]) -> None:
    """A worker from its command line on. `load` takes a model and a device, of which it may choose another, and may
    raise CannotLoad."""
    parser = argparse.ArgumentParser(prog="caesura.engine.worker")
    parser.add_argument("--link", required=True, type=Path)
    parser.add_argument("--progress", required=True, type=Path)
    parser.add_argument("--parent", required=True, type=int)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", required=True)
    options = parser.parse_args(arguments)
    die_with(options.parent)
    die_first()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the supervisor's to answer

    socket = link.pair(zmq.Context())
    doors.connect(socket, doors.at(options.link))
    try:
        with kept():
            loaded = load(options.model, options.device)
    except CannotLoad as error:
        socket.send(link.encode(link.LoadFailed(str(error)[:256])))
        while True:
            threading.Event().wait()  # the supervisor reads the sentence, then ends us
    socket.send(link.encode(link.Ready(options.model, loaded.device, loaded.step_s)))
    try:
        serve(socket, link.Heartbeat(options.progress), loaded.scheduler)
    except Exception:  # the scheduler's state is lost; the supervisor answers its jobs and starts another worker
        log.exception("the worker cannot go on")
        logging.shutdown()
        os._exit(FAULT)  # at once: a device that has failed can hang whoever cleans up


def die_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL and even while this one is stuck."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:
        threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    # It was gone before the line above. A virtual environment of Windows has a process of its own between the two.
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(0)


def die_first() -> None:
    """Where memory runs out the kernel ends this process, which is started again, and not an editor."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("500")


def _exit_at_end_of_input() -> None:
    """The supervisor keeps our stdin open and never writes to it."""
    sys.stdin.buffer.read()
    os._exit(0)


def _load(name: str, device: str) -> Loaded:
    # Threads that spin while they wait cost ten times the latency on a busy machine; torch reads these when imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRODUCTS))
    ahead.begin(name)
    from caesura.engine import faults, models, scheduler
    from caesura.engine.weights import canary

    try:
        with frugal():
            model = models.load(name, device, _context())
        canary.check(model, models.folder_of(name))
        engine = scheduler.Scheduler(model, lambda error: log.error("A job was given up.", exc_info=error))
        step_s = rehearse(engine, compiles=model.device != "cpu")
    except models.ModelError as error:
        raise CannotLoad(str(error)) from error
    except CannotLoad:
        raise
    except Exception as error:  # of the machine: what it lacks may be there another time
        why = faults.sentence(error)
        log.exception("the model cannot be loaded: %s", why)
        sentence = f"The model cannot be used on this machine; see the engine's log. {why}"
        raise CannotLoad(sentence) from error
    return Loaded(engine, ":".join(filter(None, (model.device, model.kernels))), step_s)


def rehearse(engine: Scheduler, *, compiles: bool) -> float:
    """Fill holes of several sizes, so that the kernels they need are compiled before anybody waits for them. Where none
    are, a short one is enough to use every part of the model once, and shows how slow the machine is. Returns the
    seconds of the longest step. Raises CannotLoad."""
    clock, longest = time.monotonic, 0.0
    for tokens in REHEARSED if compiles else (SHORT,):
        job = wire.Infill(
            job="rehearsal",
            document="rehearsal",
            prefix="def total(numbers):\n    " * (64 if compiles else 1),
            suffix="\n",
            segments=(wire.Hole(tokens),),
            deadline_ms=REHEARSAL_MS,
        )
        answers = engine.take(b"", job, clock())
        while engine.busy:
            began = clock()
            answers += engine.step(clock)
            longest = max(longest, clock() - began)
        last = answers[-1][1] if answers else None
        if not isinstance(last, wire.Done):
            why = last.message if isinstance(last, wire.Failed) else ""
            raise CannotLoad(f"The model was loaded and does not answer; see the engine's log. {why}".rstrip())
    engine.drop(b"")
    return longest


@contextmanager
def kept() -> Iterator[None]:
    """What is made inside is for good: Python does not look for garbage in it, neither now, which takes a fifth of the
    time that torch's import takes, nor later, in the middle of a step."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@contextmanager
def frugal() -> Iterator[None]:
    """What loading takes for a moment goes back to the system, where the allocator is glibc's. Weights lie apart from
    what steps take and free, since the holes between them would stay resident."""
    libc = _glibc()
    if libc:
        libc.mallopt(ARENAS, 1)  # a pool a thread would leave more holes
        libc.mallopt(LARGE, OF_WEIGHTS)
    yield
    if libc:
        libc.mallopt(LARGE, OF_STEPS)  # pages that are new at every step would take a fifth of its time
        libc.mallopt(TOP, KEPT_FREE)
        give_back()


def give_back() -> None:
    """What is free inside of this process goes back to the system, where the allocator is glibc's: 40 MiB after a few
    fills, in 20 ms."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def _context() -> int | None:
    """Tokens of context that the user asks for."""
    asked = os.environ.get("CAESURA_CONTEXT", "")
    if asked and not (asked.isdecimal() and len(asked) < 10):
        raise CannotLoad(f"CAESURA_CONTEXT is {asked[:32]!r}; it must be a number of tokens.")
    return int(asked) if asked else None


if __name__ == "__main__":
    logs.begin(logging.INFO, "%(asctime)s worker %(levelname)s %(message)s")
    run(sys.argv[1:], _load)
