"""Jobs through the real scheduler in this process: no sockets, a clock of one's choice, and what of the time the
grammar took."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from caesura import wire
from caesura.engine.canvas import vocabulary
from caesura.engine.grammar import constraint
from caesura.engine.model import Model
from caesura.engine.scheduler import Event, Scheduler

STEPS = 100_000  # of one call; more, and the jobs do not come to an end
PEER = b"bench"


class Ticking:
    """A clock that goes on by up to `most_s` whenever it is read: a deadline may fall between any two steps."""

    def __init__(self, draw: random.Random, most_s: float = 0.001) -> None:
        self._draw, self._most, self._now = draw, most_s, 0.0

    def __call__(self) -> float:
        self._now += self._draw.random() * self._most
        return self._now


def scheduler(model: Model) -> Scheduler:
    """A bug of the engine's ends the measurement."""

    def fault(error: Exception) -> None:
        raise error

    return Scheduler(model, fault)


def answers(
    engine: Scheduler, jobs: Sequence[wire.Infill], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[wire.EngineMessage]]:
    """The jobs at once; the events of each, of which the last is `Done` or `Failed`."""
    events: list[Event] = [event for job in jobs for event in engine.take(PEER, job, clock())]
    for _ in range(STEPS):
        if not engine.busy:
            break
        events += engine.step(clock)
    assert not engine.busy, "the jobs do not come to an end"
    return {job.job: [message for _, message in events if getattr(message, "job", None) == job.job] for job in jobs}


@dataclass
class Spent:
    """Seconds in the grammar: making one, and asking one."""

    making: float = 0.0
    asking: float = 0.0


@contextmanager
def watched() -> Iterator[Spent]:
    """Times every call into a `Grammar`, from here and not in the product; a call within a call counts once."""
    spent, depth = Spent(), 0

    def timed(call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timing(*arguments: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                depth -= 1
                if not depth:
                    setattr(spent, part, getattr(spent, part) + time.perf_counter() - began)

        return timing

    names = [name for name, call in vars(constraint.Grammar).items() if callable(call) and name[0] != "_"]
    before = {name: getattr(constraint.Grammar, name) for name in names}
    load = vocabulary.load
    for name, call in before.items():
        setattr(constraint.Grammar, name, timed(call, "asking"))
    vocabulary.load = timed(load, "making")
    try:
        yield spent
    finally:
        for name, call in before.items():
            setattr(constraint.Grammar, name, call)
        vocabulary.load = load
