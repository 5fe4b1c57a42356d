"""Accept every slot whose best token exceeds a threshold, and always the most confident one (Fast-dLLM)."""

from torch import Tensor
from torch.nn.functional import one_hot

from caesura.engine.samplers import Scores

THRESHOLD = 0.9


def select(scores: Scores, open: Tensor, step: int, of: int) -> Tensor:
    """Accepted slots, bool [canvases, slots]."""
    del step, of
    prob = scores.prob.masked_fill(~open, -1.0)
    surest = one_hot(prob.argmax(-1), open.shape[-1]).bool()
    return open & ((prob >= THRESHOLD) | surest)
