"""Samplers that draw tokens by their probabilities, as a model was trained to be sampled. The seed of a job decides all
draws: it gives the same fill again, alone or in a batch.
"""

import torch
from torch import Tensor

from caesura.engine.draws import DrawStream
from caesura.engine.samplers import Decision, Reading
from caesura.kernels.head import fall


def drawing(seen: Reading, accept: Tensor) -> Decision:
    """Accept slots, each with a token drawn by its probability. In float64: in float32 rare tokens come too seldom
    (Zheng et al. 2024)."""
    drawn, at = torch.full_like(seen.token, -1), seen.draws.of_slots(DrawStream.TOKEN, len(accept))[accept]
    chances = seen.logits[accept].double().softmax(-1)
    tokens, _ = fall(chances, at[:, None].to(chances.device))
    drawn[accept] = tokens[:, 0].to(drawn.device)
    return Decision(accept, torch.zeros_like(accept), drawn=drawn)
