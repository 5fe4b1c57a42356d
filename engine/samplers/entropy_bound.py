"""Accept slots in the order of their entropy while the sum of the entropies before stays under a bound: then the
error of drawing them independently is bounded too (Ben-Hamu et al. 2025, EB-Sampler; DiffusionGemma's default).

Compared with DiffusionGemma's in Transformers: the same tokens after every step of a generation."""

from torch import Tensor

from caesura.engine.samplers import Scores
from caesura.kernels.decision import accept

BOUND = 0.1  # nats


def select(scores: Scores, open: Tensor, step: int, of: int, *, bound: float = BOUND) -> Tensor:
    """Accepted slots, bool [canvases, slots]."""
    del step, of
    return accept(scores.entropy, open, bound)
