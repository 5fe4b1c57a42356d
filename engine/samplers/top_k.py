"""Accept an equal share of the open slots at each step, the most confident first (MaskGIT; LLaDA's `low_confidence`).

Compared with ML-GSAI/LLaDA generate.py (temperature 0, one block): the same tokens after every forward."""

from torch import Tensor

from caesura.engine.samplers import Scores, surest


def select(scores: Scores, open: Tensor, step: int, of: int) -> Tensor:
    """Accepted slots, bool [canvases, slots]: ceil(open / steps left) of them, so that `of` steps are enough."""
    share = -(-open.sum(-1, keepdim=True) // max(1, of - step))
    return surest(scores.prob, open, share.clamp_min(1))
