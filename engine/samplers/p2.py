"""Score all slots at each step, accepted ones too, and mask the least sure again: their number falls in a line (Peng et
al. 2025, P2). An accepted slot counts by the probability of its best token now, not of the one that it holds.

Compared with pengzhangzhi/Open-dLLM veomni/models/transformers/qwen2/generation_utils.py (`p2`, temperature 0): the
same tokens after every forward that changes any, up to one that is masked twice in a slot, which a canvas forbids."""

import numpy as np

from caesura.engine.samplers import CanvasSampler, Decision, Reading, surest


class P2:
    """State of a canvas: the step of the schedule. A step that changes nothing is left out, since the next forward
    would be the same."""

    revises, checks = True, False

    def __init__(self) -> None:
        self.step, self.of = 0, 0

    def __call__(self, seen: Reading) -> Decision:
        self.of = self.of or max(1, seen.of - seen.step)
        slots, among = np.float32(len(seen.open)), seen.open | seen.held
        mask, more = seen.open, True
        while more and seen.open.any():
            self.step = min(self.step + 1, self.of)
            count = int(slots * (1 - self.step / self.of))  # in float32, as there
            mask = surest(-seen.statistics.prob, among, count)
            more = count > int(seen.open.sum()) or bool((mask == seen.open).all())
        return Decision(seen.open & ~mask, seen.held & mask)


def begin() -> CanvasSampler:
    return P2()
