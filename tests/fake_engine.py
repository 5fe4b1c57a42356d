"""The real supervisor around a worker whose model is a dozen lines: what a client runs in tests instead of
`caesura engine`. What the fake does with a job stands in the job's prefix, and with a model in the model's name.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from caesura import wire
from caesura.engine import supervisor, worker
from caesura.engine.child import Patience

ANSWER = "answer"
OTHER = "another"  # the second candidate where the text begins with `again`
VALUE = "12"  # of a hole with a grammar


class Scheduler:
    """Locks a letter of the answer at each step, in every hole."""

    def __init__(self, model: str = "fake") -> None:
        self.model = model
        self.jobs: dict[tuple[bytes, str], tuple[wire.Infill, int]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def take(self, peer: bytes, message: wire.Infill | wire.Cancel, now: float) -> worker.Answers:
        if isinstance(message, wire.Cancel):
            found = self.jobs.pop((peer, message.job), None)
            return [(peer, wire.Failed(message.job, "cancelled"))] if found else []
        if message.prefix == "refuse":
            raise ValueError("a bug on this text")
        if message.prompt:
            return [(peer, wire.Failed(message.job, "invalid", f"No prompt format {message.prompt}."))]
        self.jobs[peer, message.job] = (message, 0)
        return []

    def drop(self, peer: bytes) -> None:
        self.jobs = {key: job for key, job in self.jobs.items() if key[0] != peer}

    def expire(self, now: float) -> worker.Answers:
        return []

    def step(self, clock: Callable[[], float]) -> worker.Answers:
        time.sleep(0.002)
        return [answer for key in list(self.jobs) for answer in self._advance(*key)]

    def _advance(self, peer: bytes, job: str) -> worker.Answers:
        request, step = self.jobs[peer, job]
        if request.prefix == "crash":
            os._exit(3)
        while request.prefix == "hang":
            time.sleep(1)
        if request.prefix == "raise":
            raise ValueError("a bug in a step")
        if request.prefix == "surrogate":
            return [(peer, wire.Locked(job, step, (wire.Fill("\ud800"),), step, 1))]
        if request.prefix == "unreadable":
            return [(peer, wire.Locked(job, step, (wire.Fill("", confidence=2.0),), step, 1))]
        if request.prefix != "endless":
            step += 1
        self.jobs[peer, job] = (request, step)
        text = ANSWER[:step]
        number = sum(isinstance(segment, wire.Hole) for segment in request.segments)
        fills = [wire.Fill(text, ((0, len(text)),), 0.9, len(ANSWER) - step)] * number
        if self.model == "empty" or request.prefix.startswith("nothing"):
            fills = [wire.Fill("")] * number
        elif request.prefix.startswith("some"):
            fills[0] = wire.Fill("")
        elif request.prefix.startswith("doubt"):
            fills = [
                wire.Fill(text, (), 0.5, len(ANSWER) - step, tuple((end + 1, 0.5) for end in range(step)))
            ] * number
        if step < len(ANSWER):
            return [(peer, wire.Locked(job, step, tuple(fills), step, len(ANSWER)))]
        del self.jobs[peer, job]
        grammars = [segment.grammar for segment in request.segments if isinstance(segment, wire.Hole)]
        fills = [wire.Fill(VALUE, ((0, len(VALUE)),), 0.9) if g else f for f, g in zip(fills, grammars, strict=True)]
        done = wire.Done(
            job=job,
            seq=step,
            holes=tuple(fills),
            alternatives=((wire.Fill(OTHER, ((0, len(OTHER)),), 0.3),),) if request.prefix.startswith("again") else (),
            steps=step,
            tokens=wire.Tokens(canvas=1),
            timings=wire.Timings(denoise_ms=12.0, first_lock_ms=2.0, total_ms=12.1 if self.model != "slow" else 2500),
            stop="complete",
            level="valid" if any(grammars) else "",
        )
        return [(peer, done)]


def load(model: str, device: str) -> tuple[worker.Scheduler, str]:
    if model == "unknown":
        raise worker.CannotLoad("There is no model 'unknown'; `caesura models` lists those there are.")
    if model == "crasher":
        os._exit(3)
    while model == "waits" and not Path(os.environ["CAESURA_RUNTIME"], "go").exists():
        time.sleep(0.005)
    return Scheduler(model), "fake"


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker.run(sys.argv[2:], load)
    else:
        supervisor.serve(
            model=sys.argv[1],
            device="auto",
            settings=supervisor.Settings(
                idle_exit_s=float(os.environ.get("CAESURA_IDLE_EXIT", "30")),
                unload_s=0.2 if sys.argv[1] == "unloads" else 300,
                patience=Patience(hang_s=0.5),
            ),
            worker=[sys.executable, __file__, "worker"],
        )
