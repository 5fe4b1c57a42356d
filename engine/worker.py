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
from typing import Any, Protocol

import msgspec
import zmq

from caesura import logs, wire
from caesura.engine.supervisor import link
from caesura.engine.weights import ahead
from caesura.ipc import endpoints
from caesura.model_store import drafting

log = logging.getLogger("caesura.worker")

REHEARSED = (16, 64, 256)  # tokens of a rehearsed hole, if kernels are compiled
SHORT = 1  # and if none are
REHEARSAL_MS = 120_000
FAULT = 70  # the exit code of a worker that cannot go on (sysexits.h: an internal error)
READING, FIRST = "reading and packing the weights", "taking the first steps"  # stages of a load, for users
IDLE_MS = 500  # longest time between heartbeats of an idle worker
PRODUCTS = 128  # product shapes whose code oneDNN keeps, half a MiB each; its own limit is 1024

# glibc's allocator: parameters of mallopt, and their values while loading and filling.
ARENAS, LARGE, TOP = -8, -3, -1  # pools; bytes from which a block has pages of its own; free bytes kept at the top
OF_WEIGHTS, OF_STEPS, KEPT_FREE = 1 << 18, 32 << 20, 16 << 20

Answers = list[tuple[bytes, wire.EngineMessage]]
Tell = Callable[[str], object]  # how far a load is, as in link.Loading


class Scheduler(Protocol):
    """Pure state that takes messages and returns events; see scheduler.py."""

    @property
    def busy(self) -> bool: ...
    def take(self, peer: bytes, message: wire.Infill | wire.Cancel, now: float, user: str = "") -> Answers: ...
    def drop(self, peer: bytes) -> None: ...
    def step(self, clock: Callable[[], float]) -> Answers: ...
    def expire(self, now: float) -> Answers: ...


@dataclass(frozen=True)
class Loaded:
    """A model that has filled once. `device` names its kernels too, as in `cpu:avx512`; its longest step took `step_s`
    seconds."""

    scheduler: Scheduler
    device: str
    step_s: float


class CannotLoad(Exception):
    """This model cannot be used and trying again will not help; the message is a sentence for the user."""


def serve(
    socket: zmq.Socket[bytes], progress: link.Heartbeat, scheduler: Scheduler, stop: threading.Event | None = None
) -> None:
    """Run the engine for ever, or until `stop` is set and a message has woken it."""
    clock, worked = time.monotonic, True
    while stop is None or not stop.is_set():
        if not scheduler.busy:
            if socket.poll(IDLE_MS):
                progress.tick()  # otherwise the idle time would count as part of the first step
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
        case link.NewJob(peer, left_ms, frame, user):
            request = wire.decode_client(frame)
            assert isinstance(request, wire.Infill), "the supervisor forwards nothing else"
            try:
                return scheduler.take(peer, msgspec.structs.replace(request, deadline_ms=left_ms), now, user)
            except Exception:  # one client's text must not bring down the others' canvases
                log.exception("job %s was not taken", request.job)
                sentence = "The engine could not read this job; see its log."
                return [(peer, wire.Failed(request.job, "invalid", sentence))]


def begin(arguments: Sequence[str]) -> argparse.Namespace:
    """Be a child of the supervisor that has started this process with these arguments."""
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
    return options


def run(arguments: Sequence[str], load: Callable[[str, str, Tell], Loaded]) -> None:
    """Run a worker with command-line arguments. `load` takes a model and a device, may choose another device, tells how
    far it is, and may raise CannotLoad."""
    options = begin(arguments)
    socket = link.pair(zmq.Context())
    endpoints.connect(socket, endpoints.at(options.link))
    try:
        with kept():
            loaded = load(options.model, options.device, lambda news: socket.send(link.encode(link.Loading(news))))
    except CannotLoad as error:
        socket.send(link.encode(link.LoadFailed(str(error)[:256])))
        while True:
            threading.Event().wait()  # until the supervisor has read the sentence and ends this process
    socket.send(link.encode(link.Ready(options.model, loaded.device, loaded.step_s)))
    try:
        serve(socket, link.Heartbeat(options.progress), loaded.scheduler)
    except Exception:  # the scheduler's state is lost; the supervisor answers its jobs and starts another worker
        log.exception("the worker cannot go on")
        logging.shutdown()
        os._exit(FAULT)  # without cleaning up, since a failed device can hang that


def die_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL and even while this one is stuck."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:
        threading.Thread(target=exit_at_end_of_input, daemon=True).start()
    # The parent may have ended before the line above. A virtual environment on Windows puts a process between the two.
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(0)


def die_first() -> None:
    """If memory runs out, have the kernel end this process, which is started again, rather than an editor."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("500")


def exit_at_end_of_input() -> None:
    """Whoever has started this process holds its stdin open and never writes to it."""
    sys.stdin.buffer.read()
    os._exit(0)


def load(name: str, device: str, tell: Tell = lambda news: None) -> Loaded:
    """Raises CannotLoad."""
    # Threads that spin while they wait cost ten times the latency on a busy machine. torch reads these on import.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRODUCTS))
    ahead.begin(name)
    from caesura.engine import canary, faults, models, scheduler
    from caesura.engine.model import ModelError
    from caesura.engine.models.folder import folder_of

    asked: Any = os.environ.get("CAESURA_QUANTISE") or None  # a word that `load` knows or refuses
    try:
        with frugal():
            model = models.load(
                name,
                device,
                _number("CAESURA_CONTEXT", "tokens"),
                radius=_number("CAESURA_RADIUS", "rows"),
                quantise=asked,
                draft=drafting() or None,
                progress=in_steps(tell),
            )
        tell(FIRST)
        canary.check(model, folder_of(name))
        engine = scheduler.Scheduler(model, lambda error: log.error("A job was given up.", exc_info=error))
        both = [model, getattr(model, "drafting", None) or model]
        compiles = any(one.device != "cpu" for one in both)
        step_s = rehearse(engine, compiles=compiles, whole=any(one.spec.visibility == "full" for one in both))
    except ModelError as error:
        raise CannotLoad(str(error)) from error
    except CannotLoad:
        raise
    except Exception as error:  # a fault of the machine, which may not last
        why = faults.sentence(error)
        log.exception("the model cannot be loaded: %s", why)
        sentence = f"The model cannot be used on this machine; see the engine's log. {why}"
        raise CannotLoad(sentence) from error
    return Loaded(engine, ":".join(filter(None, (model.device, model.kernels))), step_s)


def in_steps(tell: Tell) -> Callable[[float], None]:
    """Tells the share of the weights that is read, at most twenty times for each model."""
    told = -1

    def progress(share: float) -> None:
        nonlocal told
        if (now := int(20 * share)) != told:
            told = now
            tell(f"{READING}, {5 * now} %")

    return progress


def rehearse(engine: Scheduler, *, compiles: bool, whole: bool) -> float:
    """Fill holes of several sizes to compile the kernels before anybody waits. If none are compiled, one short hole
    uses every part of the model once; in a long context if every step computes the `whole` of it. Returns the seconds
    of the longest step. Raises CannotLoad."""
    clock, longest = time.monotonic, 0.0
    for tokens in REHEARSED if compiles else (SHORT,):
        job = wire.Infill(
            job="rehearsal",
            document="rehearsal",
            prefix="def total(numbers):\n    " * (64 if compiles or whole else 1),
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
    """Exclude all objects made inside from garbage collection: now, when it takes a fifth of torch's import time, and
    later, in the middle of a step."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def release() -> None:
    """Free the memory of a model that nothing refers to any more, with the objects that `kept` excludes. It holds
    Python's lock, for 0.1 to 0.3 seconds."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    give_back()


@contextmanager
def frugal() -> Iterator[None]:
    """Return the memory that loading frees to the system, with glibc's allocator. Weights lie apart from the memory of
    steps, since holes between them would stay resident."""
    libc = _glibc()
    if libc:
        libc.mallopt(ARENAS, 1)  # a pool for each thread would leave more holes
        libc.mallopt(LARGE, OF_WEIGHTS)
    yield
    if libc:
        libc.mallopt(LARGE, OF_STEPS)  # new pages at every step would take a fifth of its time
        libc.mallopt(TOP, KEPT_FREE)
        give_back()


def give_back() -> None:
    """Return free memory to the system, with glibc's allocator: 40 MiB after a few fills, in 20 ms."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def _number(variable: str, of: str) -> int | None:
    """A choice of the user's in the environment."""
    asked = os.environ.get(variable, "")
    if asked and not (asked.isdecimal() and len(asked) < 10):
        raise CannotLoad(f"{variable} is {asked[:32]!r}; it must be a number of {of}.")
    return int(asked) if asked else None


if __name__ == "__main__":
    logs.begin(logging.INFO, "%(asctime)s worker %(levelname)s %(message)s")
    run(sys.argv[1:], load)
