"""Accept every slot that is confident and whose distribution has hardly moved over the last two forwards; if there is
none, an equal share of the most confident (Kim et al. 2025, KLASS). It costs a distribution a slot of memory.

Compared with shkim0116/KLASS src/model/llada_klass.py (temperature 0, a step for each slot, its limits for code): the
same tokens after every forward."""

from collections.abc import Hashable

import numpy as np

from caesura.engine.samplers import CanvasSampler, Decision, Reading, surest
from caesura.engine.scores import Floats, told

CONFIDENT = 0.9
STILL = 0.01  # nats of divergence from the forward before, below which a distribution has hardly moved
FORWARDS = 2  # in a row that it must not have moved
LEAST = 1e-12  # probability added to each before its logarithm is taken


class Klass:
    revises = checks = False

    def __init__(self) -> None:
        self.before = dict[Hashable, Floats]()  # log-probabilities [width] of each open slot
        self.still = dict[Hashable, int]()  # forwards in a row

    def __call__(self, seen: Reading) -> Decision:
        rest = self.observe(seen)
        ready = seen.open & (seen.statistics.prob > CONFIDENT)
        ready &= np.array([rest.get(slot, False) for slot in seen.slots], np.bool_)
        if not ready.any():
            ready = surest(seen.statistics.prob, seen.open, -(-int(seen.open.sum()) // max(1, seen.of - seen.step)))
        return Decision(ready, np.zeros_like(ready))

    def observe(self, seen: Reading) -> dict[Hashable, bool]:
        """Whether each open slot is at rest."""
        open = np.flatnonzero(seen.open).tolist()
        (rows,) = told(seen.scores.taken(open).dense())
        before, still, none = self.before, self.still, np.log(np.float32(LEAST))
        self.before, self.still = {}, {}
        for slot, row in zip((seen.slots[at] for at in open), rows, strict=True):
            probs = np.exp(row)
            logs = np.log(probs + np.float32(LEAST))
            moved = float((probs * (logs - before.get(slot, none))).sum())
            self.before[slot], self.still[slot] = logs, still.get(slot, 0) + 1 if moved < STILL else 0
        return {slot: count >= FORWARDS for slot, count in self.still.items()}


def begin() -> CanvasSampler:
    return Klass()
