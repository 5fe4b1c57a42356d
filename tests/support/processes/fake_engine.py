"""The real supervisor around a worker whose model is a dozen lines: what a client runs in tests instead of
`caesura engine`. What the fake does with a job stands in the job's prefix, and with a model in the model's name. A
second argument is where paired machines connect.
"""

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # a process finds points.py, and caesura before all else here

import msgspec
import points
from points import reach

from caesura import logs, wire
from caesura.engine import worker
from caesura.engine.supervisor import link, supervisor
from caesura.engine.supervisor.process import Patience
from caesura.ipc import endpoints

ANSWER = "answer"
STEPS = len(ANSWER)
OTHER = "another"  # the second candidate where the text begins with `again`
VALUE = "12"  # of a hole with a grammar
POLICY = wire.Policy(("private/", "*.key.py"), ("speculate",))  # of the model `ruled`, at a team's door
STEP_S = {"typed": 0.02}  # by model
if platform := os.environ.get("CAESURA_TEST_PLATFORM"):  # what that has not is not asked for
    import psutil  # noqa: F401 (which would look too)

    sys.platform, endpoints.UNIX = platform, platform != "win32"
IDLE_EXIT_S = float(os.environ.get("CAESURA_IDLE_EXIT", "30"))


def said(prefix: str) -> str:
    """The answer of the model `typed`: one that no other text has."""
    digest = hashlib.sha256(prefix[-80:].encode()).digest()
    return "w" + "".join(chr(ord("a") + byte % 26) for byte in digest[: STEPS - 1])


class Scheduler:
    """Locks a letter of the answer at each step, in every hole."""

    def __init__(self, model: str = "fake") -> None:
        self.model = model
        self.jobs: dict[tuple[bytes, str], tuple[wire.Infill, int]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def take(self, peer: bytes, message: wire.Infill | wire.Cancel, now: float, user: str = "") -> worker.Answers:
        if isinstance(message, wire.Cancel):
            reach("cancel")
            found = self.jobs.pop((peer, message.job), None)
            return [(peer, wire.Failed(message.job, "cancelled"))] if found else []
        if self.model == "typed":
            points.took(message.prefix)
        reach("take another" if self.jobs else "take")
        if self.model in ("records", "ruled"):
            with Path(os.environ["CAESURA_RUNTIME"], "recorded").open("ab") as file:
                file.write(wire.encode(message))
        if message.prefix.startswith("refuse"):
            raise ValueError(f"a bug on this text: {message.prefix}")
        if message.prompt:
            return [(peer, wire.Failed(message.job, "invalid", f"No prompt format {message.prompt}."))]
        self.jobs[peer, message.job] = (message, 0)
        reach("taken")
        return []

    def drop(self, peer: bytes) -> None:
        reach("drop")
        self.jobs = {key: job for key, job in self.jobs.items() if key[0] != peer}

    def expire(self, now: float) -> worker.Answers:
        reach("expire" if self.busy else "idle")
        return []

    def step(self, clock: Callable[[], float]) -> worker.Answers:
        time.sleep(STEP_S.get(self.model, 0.002))
        return [answer for key in list(self.jobs) for answer in self._reached(*key)]

    def _reached(self, peer: bytes, job: str) -> worker.Answers:
        number = self.jobs[peer, job][1]
        reach(f"step {number}")
        answers = self._advance(peer, job)
        reach(f"stepped {number}")
        return answers

    def _advance(self, peer: bytes, job: str) -> worker.Answers:
        request, step = self.jobs[peer, job]
        if request.prefix == "crash":
            os._exit(3)
        while request.prefix == "hang":
            time.sleep(1)
        if request.prefix.startswith("raise"):
            raise ValueError(f"a bug in a step of {request.prefix}")
        if request.prefix == "surrogate":
            return [(peer, wire.Locked(job, step, (wire.Fill("\ud800"),), step, 1))]
        if request.prefix == "unreadable":
            return [(peer, wire.Locked(job, step, (wire.Fill("", confidence=2.0),), step, 1))]
        if request.prefix != "endless":
            step += 1
        self.jobs[peer, job] = (request, step)
        text = (said(request.prefix) if self.model == "typed" else ANSWER)[:step]
        number = sum(isinstance(segment, wire.Hole) for segment in request.segments)
        fills = [wire.Fill(text, ((0, len(text)),), 0.9, STEPS - step)] * number
        if self.model == "empty" or request.prefix.startswith("nothing"):
            fills = [wire.Fill("")] * number
        elif request.prefix.startswith("some"):
            fills[0] = wire.Fill("")
        elif request.prefix.startswith("doubt"):
            fills = [wire.Fill(text, (), 0.5, STEPS - step, tuple((end + 1, 0.5) for end in range(step)))] * number
        if step < STEPS:
            return [(peer, wire.Locked(job, step, tuple(fills), step, len(ANSWER)))]
        del self.jobs[peer, job]
        grammars = [segment.grammar for segment in request.segments if isinstance(segment, wire.Hole)]
        fills = [wire.Fill(VALUE, ((0, len(VALUE)),), 0.9) if g else f for f, g in zip(fills, grammars, strict=True)]
        if request.prefix.startswith("late"):
            fills = [wire.Fill("")] * number
        done = wire.Done(
            job=job,
            seq=step,
            holes=tuple(fills),
            alternatives=((wire.Fill(OTHER, ((0, len(OTHER)),), 0.3),),) if request.prefix.startswith("again") else (),
            steps=step,
            tokens=wire.Tokens(canvas=1),
            timings=wire.Timings(denoise_ms=12.0, first_lock_ms=2.0, total_ms=12.1 if self.model != "slow" else 2500),
            stop="deadline" if request.prefix.startswith(("late", "hurry", "some_hurry")) else "complete",
            level="valid" if any(grammars) else "",
        )
        return [(peer, done)]


def load(model: str, device: str, tell: worker.Tell = lambda news: None) -> worker.Loaded:
    reach("loading")
    model = Path(model).name
    if model == "unknown":
        raise worker.CannotLoad("There is no model 'unknown'; `caesura models` lists those there are.")
    if model == "crasher":
        os._exit(3)
    tell("reading, 40 %")
    while model == "waits" and not Path(os.environ["CAESURA_RUNTIME"], "go").exists():
        time.sleep(0.005)
    reach("loaded")
    return worker.Loaded(Scheduler(model), "fake", STEP_S.get(model, 0.002))


def watch(owner: Any, name: str, point: Callable[..., str]) -> None:
    """Every call of a method of ours is a point, told by its arguments."""
    method = getattr(owner, name)

    def watched(*arguments: Any) -> Any:
        reach(point(*arguments))
        return method(*arguments)

    setattr(owner, name, watched)


def _type(frame: bytes) -> str:
    return str(msgspec.msgpack.decode(frame)["type"])


def watch_supervisor() -> None:
    ours = supervisor.Supervisor
    watch(supervisor, "place", lambda *_: "before the lock")
    watch(ours, "run", lambda *_: "before the first turn")
    watch(ours, "_turn", lambda *_: "turn")
    watch(ours, "_greet", lambda *_: "greet")
    watch(ours, "_admit", lambda *_: "admit")
    watch(ours, "_relay", lambda _, peer, frame, refusal: f"relay {_type(frame)}")
    watch(ours, "_bury_worker", lambda *_: "bury")
    watch(ours, "_drain", lambda *_: "drain")
    watch(supervisor.Front, "close", lambda *_: "closing")


if __name__ == "__main__":
    logs.begin(logging.INFO, "%(levelname)s %(message)s")
    if sys.argv[1] == "worker":
        reach("starting")
        watch(link, "encode", lambda message: f"send {_type(message.frame)}" if hasattr(message, "frame") else "ready")
        worker.run(sys.argv[2:], load)
    else:
        watch_supervisor()
        supervisor.serve(
            model=sys.argv[1],
            device="auto",
            settings=supervisor.SupervisorSettings(
                idle_exit_s=IDLE_EXIT_S,
                unload_s=0.2 if sys.argv[1] == "unloads" else 300,
                listen=sys.argv[2] if len(sys.argv) > 2 else "",
                team=sys.argv[1] == "ruled",
                policy=POLICY if sys.argv[1] == "ruled" else wire.Policy(),
                patience=Patience() if sys.argv[1] == "typed" else Patience(hang_s=1.5, slow_s=1.5),
            ),
            worker=[sys.executable, __file__, "worker"],
        )
