"""Accept every slot that is confident and whose distribution has hardly moved over the last two forwards; if there is
none, an equal share of the most confident (Kim et al. 2025, KLASS). It costs a distribution a slot of memory.

Compared with shkim0116/KLASS src/model/llada_klass.py (temperature 0, a step for each slot, its limits for code): the
same tokens after every forward."""

from collections.abc import Hashable

import torch
from torch import Tensor

from caesura.engine.samplers import CanvasSampler, Decision, Reading, surest

CONFIDENT = 0.9
STILL = 0.01  # nats of divergence from the forward before, below which a distribution has hardly moved
FORWARDS = 2  # in a row that it must not have moved
LEAST = 1e-12  # probability added to each before its logarithm is taken


class Klass:
    revises = checks = False

    def __init__(self) -> None:
        self.before = dict[Hashable, Tensor]()  # log-probabilities [width] of each open slot
        self.still = dict[Hashable, int]()  # forwards in a row

    def __call__(self, seen: Reading) -> Decision:
        rest = torch.zeros_like(seen.open)
        rest[seen.open] = self.observe([s for s, yes in zip(seen.slots, seen.open, strict=True) if yes], seen)
        ready = rest & (seen.scores.prob > CONFIDENT)
        if not ready.any():
            ready = surest(seen.scores.prob, seen.open, -(-int(seen.open.sum()) // max(1, seen.of - seen.step)))
        return Decision(ready, torch.zeros_like(ready))

    def observe(self, slots: list[Hashable], seen: Reading) -> Tensor:
        """Bool [open slots]: those at rest."""
        probs = seen.logits[seen.open].softmax(-1)
        logs, none = (probs + LEAST).log(), probs.new_zeros(probs.shape[1:]).add(LEAST).log()
        before = torch.stack([self.before.get(slot, none) for slot in slots]) if slots else logs
        moved = (probs * (logs - before)).sum(-1)
        self.still = {
            slot: self.still.get(slot, 0) + 1 if nats < STILL else 0
            for slot, nats in zip(slots, moved.tolist(), strict=True)
        }
        self.before = dict(zip(slots, logs, strict=True))
        return torch.tensor([count >= FORWARDS for count in self.still.values()], dtype=torch.bool)


def begin() -> CanvasSampler:
    return Klass()
