"""A mixture of experts instead of a layer's MLP. A router scores the experts for each row; the best few compute it, and
their outputs are weighted and summed. A shared expert, if there is one, computes every row.

`Mixture` expresses how checkpoints differ. RND1 and SDAR-MoE route as Qwen3-MoE does, LLaDA-MoE as OLMoE (Muennighoff
et al. 2024), and LLaDA2 as DeepSeek-V3 (Liu et al. 2024): sigmoid scores, a bias for the selection only, groups.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from caesura.engine.models.llama.config import Mixture
from caesura.engine.models.llama.layer import AdaptedMatrix, Norm, Shape, fed, normalized
from caesura.kernels.experts import Stack, experts
from caesura.kernels.linear import Dense, Linear

TINY = 1e-20  # added to a sum before a division by it


def choose(mixture: Mixture, logits: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weights and the numbers of the chosen experts [rows, top], from float32 router logits [rows, count]."""
    scores = logits.sigmoid() if mixture.sigmoid else logits.softmax(-1)
    biased = scores if bias is None else scores + bias
    chosen = _of_best_groups(mixture, biased).topk(mixture.top).indices
    weights: Tensor = (biased if mixture.weighs else scores).gather(1, chosen)
    if mixture.renormalised:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    return weights * mixture.scale, chosen


def _of_best_groups(mixture: Mixture, scores: Tensor) -> Tensor:
    """The scores [rows, count], -inf outside the best groups."""
    if mixture.groups == 1:
        return scores
    grouped: Tensor = scores.unflatten(-1, (mixture.groups, -1))
    best = grouped.topk(2).values.sum(-1).topk(mixture.best_groups).indices
    left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, False)
    return grouped.masked_fill(left_out[..., None], -torch.inf).flatten(1)


@dataclass(frozen=True)
class Experts:
    """The experts of one path of a layer. The router [count, hidden] is float32, but float64 on a CPU: the last bits of
    float32 products depend on the number of rows, and a canvas must choose the same experts in a batch as alone."""

    mixture: Mixture
    shape: Shape
    norm: Norm
    router: Tensor
    bias: Tensor | None
    gate_up: Stack
    down: Stack
    shared: tuple[AdaptedMatrix, AdaptedMatrix] | None

    @property
    def taken(self) -> torch.dtype:
        """The dtype in which a GPU's experts take their rows."""
        return self.gate_up.weight.dtype if isinstance(self.gate_up, Dense) else torch.bfloat16

    def __call__(self, x: Tensor, canvas: bool) -> Tensor:
        """The layer's output from the rows [rows, hidden] after attention."""
        rows = normalized(x, self.norm, self.shape.eps)
        weights, chosen = choose(self.mixture, linear(rows.to(self.router.dtype), self.router).float(), self.bias)
        taken = rows.to(self.taken) if isinstance(self.gate_up, Linear) else rows
        x = x + experts(taken, weights, chosen, self.gate_up, self.down, act="silu")
        return x if self.shared is None else x + fed(rows, *self.shared, self.shape, canvas)
