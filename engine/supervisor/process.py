"""The worker process, as the supervisor sees it: start, read, watch, kill, and restart with back-off."""

import contextlib
import logging
import os
import random
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import zmq

from caesura.engine.supervisor import admission, link
from caesura.ipc.rendezvous import EnginePlace
from caesura.ipc.silence import Silence, usage

log = logging.getLogger("caesura.engine")

BACKOFF_S = (0.1, 5.0)  # the first and the longest pause before a restart
QUICK_CRASHES = 5  # crashes within CRASH_WINDOW_S that open the circuit breaker
CRASH_WINDOW_S = 180.0
CIRCUIT_S = 60.0  # how long the circuit stays open; a crash right afterwards opens it again
SLOW = 20  # a worker may take this many times its longest step
FADES = 0.95  # decay of the longest step at each shorter one
KILL_S = 0.5  # blocks the supervisor while a killed worker ends: less than a client waits for a Welcome
UNDEAD_S = 10.0  # after this the user is told that a killed worker does not end (a hung driver)
LOST_TICKS = 4  # more than a worker needs to end a job that has expired, however long each takes on a busy machine
RELOAD_S = 2.0  # before a failed load is retried: this long, or as long as the load took

WORKER = (sys.executable, "-P", "-m", "caesura.engine.worker")


@dataclass(frozen=True)
class Patience:
    """Seconds of silence (ipc/silence.py) after which a worker counts as hung: those in which the machine runs it.

    For a step, or for an idle worker's next heartbeat: `hang_s`; on a slow machine SLOW times its longest recent step,
    up to `slow_s`; `slow_s` if it may have to compile a kernel. Between two signs of progress while it loads the
    model and takes the first steps, which show how slow the machine is: `load_s`."""

    hang_s: float = 2.5
    slow_s: float = 10.0
    load_s: float = 300.0


class Child:
    """`idle`: none runs, the next job starts one. `loading`: one is starting, or will be after a pause. `failed`: none
    runs, `message` says why, and only a demand after `retry_at` starts one."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        place: EnginePlace,
        model: str,
        device: str,
        command: Sequence[str] = WORKER,
        patience: Patience = Patience(),
    ) -> None:
        self.state: Literal["idle", "loading", "ready", "failed"] = "idle"
        self.message = ""
        self.progress = ""  # how far it has loaded
        self.device = device
        self.restarts = 0
        self.socket: zmq.Socket[bytes] | None = None
        self.pidfd: int | None = None
        self._context = context
        self._place = place
        self._model = model
        self._wanted_device = device
        self._command = tuple(command)
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._undead: subprocess.Popen[bytes] | None = None  # was killed and has not ended
        self._generation = 0
        self._progress = link.Heartbeat(place.progress)
        self._started = 0.0  # when the worker was started
        self._seen = (0, 0.0)  # the counter, and when it last moved
        self._silence = Silence(0.0)  # since then
        self._punctual = 0  # the counter when it was last seen without a lost job
        self._rested = 0.0  # when it last had no jobs
        self._resting = False  # it had no jobs when it was looked at last
        self._idle = False  # it has shown that it has nothing to do, and got no job since
        self._longest = 0.0  # seconds of a step, lately
        self._start_at = 0.0
        self._retry_at = 0.0
        self._crashes: deque[float] = deque(maxlen=QUICK_CRASHES)

    def __repr__(self) -> str:
        return f"<Child {self.state} pid {self.pid} {self.message!r}>"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def undead(self) -> bool:
        """True while a killed worker has not ended."""
        return self._undead is not None and self._undead.poll() is None

    def demand(self, now: float) -> bool:
        """Ask for the worker. True if that changed the state."""
        if self.state == "idle" or (self.state == "failed" and now >= self._retry_at and not self.undead):
            self.state, self.message, self._start_at = "loading", "", now
            return True
        return False

    def start_if_due(self, now: float) -> None:
        if self.state != "loading" or self._process or now < self._start_at:
            return
        if (left := self._undead) and self.undead:  # it still holds its memory: never run two workers
            if now - self._start_at > UNDEAD_S:
                self.state = "failed"
                self.message = f"The worker {left.pid} was killed and does not end; restart the machine."
            return
        self._generation += 1
        path = self._place.link(self._generation)
        self.socket = link.pair(self._context)
        admission.listen(self.socket, path)  # the first process that connects is taken for the worker
        self._started, self.progress = now, ""
        self._moved(now)
        arguments = _arguments(path, self._place.progress, self._model, self._wanted_device)
        # Its stdout is our stderr: nothing but the command line's own answer may reach a terminal's stdout.
        self._process = subprocess.Popen([*self._command, *arguments], stdin=subprocess.PIPE, stdout=sys.stderr)
        if sys.platform == "linux":
            self.pidfd = os.pidfd_open(self._process.pid)
        log.info("worker %d started", self._process.pid)

    def send(self, message: link.ToWorker) -> bool:
        """False if the worker is gone, or has so much unread that it must be stuck."""
        if self.socket is None:
            return False
        try:
            self.socket.send(link.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> link.FromWorker | None:
        """The next message, if one has arrived."""
        if self.socket is None:
            return None
        try:
            return link.decode_from_worker(self.socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def loads(self, message: link.Loading, now: float) -> None:
        self.progress = message.message
        self._silence.heard(now)

    def loaded(self, message: link.Ready, now: float) -> None:
        self.state, self.device, self._longest = "ready", message.device, message.step_s
        self._idle = False
        self._moved(now)

    def refused(self, message: link.LoadFailed, now: float) -> None:
        """Stop a worker that cannot load its model: this is no crash, and an immediate retry would not help."""
        self.stop()
        self.state, self.message = "failed", message.message
        self._retry_at = now + max(RELOAD_S, now - self._started)

    def death(self, now: float, *, live: bool, overdue: bool = False) -> str | None:
        """Why the worker is gone, reported once: it ended, or it hung and is killed here. `live`: it has jobs;
        `overdue`: one of them should have ended long ago."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is not None:
            why = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        elif self._hung(now, live, self._process.pid):
            why = "made no progress and was killed" if self.state == "ready" else "took too long to load its model"
        elif self._lost(overdue):
            why = "left a job without an answer and was killed"
        else:
            return None
        log.error("worker %d %s", self._process.pid, why)
        self.stop()
        self._plan_restart(now, why)
        return why

    def stop(self, wait_s: float = KILL_S) -> None:
        """Kill the worker, whatever it is doing. It has no state to save."""
        if self._process:
            self._process.kill()
            if self._process.stdin:
                self._process.stdin.close()
            self._undead = self._process
        if left := self._undead:
            try:
                left.wait(wait_s)
                self._undead = None
            except subprocess.TimeoutExpired:
                log.error("worker %d was killed and does not end", left.pid)
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self.socket:
            self.socket.close(0)
            with contextlib.suppress(FileNotFoundError):
                self._place.link(self._generation).unlink()
        self._process = self.pidfd = self.socket = None
        self.state = "idle"

    def _moved(self, now: float) -> None:
        self._seen = (self._progress.read(), now)
        self._silence.heard(now)

    def _hung(self, now: float, live: bool, pid: int) -> bool:
        count, since = self._seen
        if self.state != "ready":
            return self._silence.lasts(now, partial(usage, pid)) > self._patience.load_s
        moved = self._progress.read() != count
        self._idle = not live and (self._idle or (moved and self._resting))  # its last step may have ended just now
        self._resting = not live
        if moved and live:
            self._longest = max(now - max(since, self._rested), FADES * self._longest)
        if not live:
            self._rested = now
        if moved:
            self._moved(now)
            return False
        patience, compiles = self._patience, self.device.startswith("cuda") and not self._idle
        slow = patience.slow_s if compiles else min(patience.slow_s, SLOW * self._longest)
        return self._silence.lasts(now, partial(usage, pid)) > max(patience.hang_s, slow)

    def _lost(self, overdue: bool) -> bool:
        """True if a job stays overdue while the worker goes on. A busy machine makes its steps slow, not more."""
        count = self._progress.read()
        if not overdue:
            self._punctual = count
        return count - self._punctual > LOST_TICKS

    def _plan_restart(self, now: float, why: str) -> None:
        self._crashes.append(now)
        recent = sum(now - crash < CRASH_WINDOW_S for crash in self._crashes)
        if recent >= QUICK_CRASHES:
            self.state, self._retry_at = "failed", now + CIRCUIT_S
            self.message = f"The engine's worker {why} and so did {recent - 1} before it; {self._place.see_log()}."
        else:
            first, longest = BACKOFF_S
            self.state, self.restarts = "loading", self.restarts + 1
            self._start_at = now + min(first * 2 ** (recent - 1), longest) * random.uniform(0.5, 1)


def _arguments(path: Path, progress: Path, model: str, device: str) -> list[str]:
    own = ["--link", str(path), "--progress", str(progress), "--parent", str(os.getpid())]
    return [*own, "--model", model, "--device", device]
