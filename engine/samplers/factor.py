"""Accept as many of the most confident slots as can be drawn at once: the n-th of them has probability p with
(n + 1) (1 - p) <= 1, so that drawing them together gives the best text of all (Wu et al. 2025, Fast-dLLM, factor 1).

Compared with ZHZisZZ/dllm dllm/pipelines/fastdllm/llada/sampler.py (temperature 0): the same tokens after every
forward. NVlabs/Fast-dLLM's own code also accepts the last open slot, unasked, once all others pass."""

import numpy as np

from caesura.engine.samplers import surest
from caesura.engine.scores import Bools, Statistics

FACTOR = 1.0


def select(statistics: Statistics, open: Bools, step: int, of: int) -> Bools:
    """Accepted slots, bool [slots]."""
    del step, of
    prob = -np.sort(-statistics.prob[open])
    rank = np.arange(1, len(prob) + 1, dtype=np.float32)
    passed = int(np.logical_and.accumulate((rank + 1) * (1 - prob) <= FACTOR).sum())
    return surest(statistics.prob, open, max(1, passed))
