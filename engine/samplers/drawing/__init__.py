"""Samplers that draw tokens by their probabilities, as a model was trained to be sampled. The seed of a job decides all
draws: it gives the same fill again, alone or in a batch.
"""

import torch
from torch import Tensor

from caesura.engine.samplers import Decision, Reading


def drawing(seen: Reading, accept: Tensor) -> Decision:
    """Accept slots, each with a token drawn by its probability. In float64: in float32 rare tokens come too seldom
    (Zheng et al. 2024)."""
    drawn = torch.full_like(seen.token, -1)
    chances = seen.logits[accept].double().softmax(-1)
    noise = torch.empty(chances.shape, dtype=chances.dtype, device=seen.generator.device)
    noise = noise.exponential_(generator=seen.generator).to(chances.device)
    drawn[accept] = (chances / noise).argmax(-1).to(drawn.device)
    return Decision(accept, torch.zeros_like(accept), drawn=drawn)
