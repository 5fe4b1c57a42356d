"""Accept as many of the most confident slots as can be drawn at once: the n-th of them has probability p with
(n + 1) (1 - p) <= 1, so that drawing them together gives the best text of all (Wu et al. 2025, Fast-dLLM, factor 1).

Compared with ZHZisZZ/dllm dllm/pipelines/fastdllm/llada/sampler.py (temperature 0): the same tokens after every
forward. NVlabs/Fast-dLLM's own code also accepts the last open slot, unasked, once all others pass."""

import torch
from torch import Tensor

from caesura.engine.samplers import Scores, surest

FACTOR = 1.0


def select(scores: Scores, open: Tensor, step: int, of: int) -> Tensor:
    """Accepted slots, bool [canvases, slots]."""
    del step, of
    prob = scores.prob.masked_fill(~open, -torch.inf).sort(dim=-1, descending=True).values
    rank = torch.arange(1, prob.shape[-1] + 1, device=prob.device)
    passed = ((rank + 1) * (1 - prob) <= FACTOR).long().cumprod(-1).sum(-1, keepdim=True)
    return surest(scores.prob, open, passed.clamp_min(1))
