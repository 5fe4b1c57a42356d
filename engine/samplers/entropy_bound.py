"""Accept slots in the order of their entropy while the sum of the entropies before stays under a bound: then the
error of drawing them independently is bounded too (Ben-Hamu et al. 2025, EB-Sampler; DiffusionGemma's default).

Compared with DiffusionGemma's in Transformers: the same tokens after every step of a generation."""

import numpy as np

from caesura.engine.scores import Bools, Statistics

BOUND = 0.1  # nats


def select(statistics: Statistics, open: Bools, step: int, of: int) -> Bools:
    """Accepted slots, bool [slots]."""
    del step, of
    slots = np.flatnonzero(open)
    slots = slots[np.argsort(statistics.entropy[slots], kind="stable")]
    entropy = statistics.entropy[slots]
    before = np.cumsum(entropy, dtype=np.float64).astype(np.float32) - entropy  # rounded as PyTorch does
    accepted = np.zeros_like(open)
    accepted[slots] = before <= BOUND
    return accepted
