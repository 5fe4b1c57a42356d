"""Leave the slots of most entropy open, a number that falls in a line (RND1). RND1's option `eb_gamma` is
`entropy_bound` but for the order of the slots.

Compared with RadicalNumerics/RND1 rnd/sampling.py (greedy): the same tokens after every forward that changes any."""

from caesura.engine.samplers import CanvasSampler
from caesura.engine.samplers._scheduled import Scheduled, evenly


def begin() -> CanvasSampler:
    return Scheduled(lambda seen: -seen.entropy, evenly)
