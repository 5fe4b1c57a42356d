"""An engine that answers every job at once with the same text, so that what is measured is the server: the real
supervisor and wire, and a worker without a model.

    python bench/peers/instant.py          in a runtime folder of its own; ends with `caesura stop`
"""

import sys
from collections.abc import Callable

from caesura import model_store, wire
from caesura.engine import worker
from caesura.engine.supervisor import supervisor

TEXT = "value"


class Instant:
    """A scheduler whose every step ends every job."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[bytes, str], wire.Infill] = {}

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def take(self, peer: bytes, message: wire.Infill | wire.Cancel, now: float, user: str = "") -> worker.Answers:
        if isinstance(message, wire.Cancel):
            return [(peer, wire.Failed(message.job, "cancelled"))] if self._jobs.pop((peer, message.job), None) else []
        self._jobs[peer, message.job] = message
        return []

    def drop(self, peer: bytes) -> None:
        self._jobs = {key: job for key, job in self._jobs.items() if key[0] != peer}

    def expire(self, now: float) -> worker.Answers:
        return []

    def step(self, clock: Callable[[], float]) -> worker.Answers:
        answers: worker.Answers = [(peer, _done(job)) for (peer, _), job in self._jobs.items()]
        self._jobs.clear()
        return answers


def _done(job: wire.Infill) -> wire.Done:
    fill = wire.Fill(TEXT, ((0, len(TEXT)),), 0.99, probabilities=((len(TEXT), 0.99),))
    holes = (fill,) * sum(isinstance(segment, wire.Hole) for segment in job.segments)
    tokens, timings = wire.Tokens(canvas=1), wire.Timings()
    return wire.Done(job=job.job, seq=0, holes=holes, steps=1, tokens=tokens, timings=timings, stop="complete")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker.run(sys.argv[2:], lambda model, device, news: worker.Loaded(Instant(), "cpu", 0.001))
    else:
        supervisor.serve(model_store.DEFAULT, "cpu", worker=[sys.executable, "-P", __file__, "worker"])
