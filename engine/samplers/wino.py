"""Accept freely, and mask again what does not hold: next to the slots, the forward has a row for each that does not see
its token, and says how likely that token is without it (Hong et al. 2025, WINO).

Compared with Feng-Hong/WINO-DLLM LLaDA/decoding.py (temperature 0, one block): the same tokens after every forward, up
to one that is masked twice in a slot, which a canvas forbids."""

import numpy as np

from caesura.engine.samplers import CanvasSampler, Decision, Reading, surest

ACCEPT = 0.6  # probability above which an open slot is accepted
HOLDS = 0.9  # of an accepted token by the row that does not see it, below which it is masked again
SHARE, FEW, MANY = 0.7, 5, 20  # of the open slots at most that share is accepted, but these numbers in any case
FIRST = 30  # slots taken to be accepted before the first step


class Wino:
    """State of a canvas: how many slots the step before accepted. Fewer than those are masked again, so it ends."""

    revises = checks = True

    def __init__(self) -> None:
        self.accepted = FIRST

    def __call__(self, seen: Reading) -> Decision:
        prob, most = seen.statistics.prob, min(max(int(int(seen.open.sum()) * SHARE), FEW), MANY)
        sure = int((seen.open & (prob > ACCEPT)).sum())
        accept = surest(prob, seen.open, min(max(sure, 1), most))
        mask = np.zeros_like(accept)
        if seen.check is not None and accept.sum() > 1:
            mask = surest(-seen.check, seen.held & (seen.check < HOLDS), self.accepted - 1)
        self.accepted = max(1, int(accept.sum()))
        return Decision(accept, mask)


def begin() -> CanvasSampler:
    return Wino()
