"""Accept an equal share of the open slots at each step, the most confident first (MaskGIT; LLaDA `low_confidence`)."""

import torch
from torch import Tensor

from caesura.engine.samplers import Scores


def select(scores: Scores, open: Tensor, step: int, of: int) -> Tensor:
    """Accepted slots, bool [canvases, slots]: ceil(open / steps left) of them, so that `of` steps are enough."""
    share = -(-open.sum(-1, keepdim=True) // max(1, of - step))
    order = scores.prob.masked_fill(~open, -1.0).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1]).expand_as(order))
    return open & (rank < share.clamp_min(1))
