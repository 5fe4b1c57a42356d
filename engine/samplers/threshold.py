"""Accept every slot whose best token exceeds a threshold, and always the most confident one (Wu et al. 2025,
Fast-dLLM).

Compared with NVlabs/Fast-dLLM llada/generate.py (temperature 0, one block): the same tokens after every forward."""

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
