"""A mixture of experts instead of a layer's MLP. A router scores the experts for each row; the best few compute it, and
their outputs are weighted and summed. A shared expert, if there is one, computes every row.

`Mixture` expresses how checkpoints differ. RND1 and SDAR-MoE route as Qwen3-MoE does, LLaDA-MoE as OLMoE (Muennighoff
et al. 2024), and LLaDA2 as DeepSeek-V3 (Liu et al. 2024): sigmoid scores, a bias for the selection only, groups.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from caesura.engine.models._llama_layer import AdaptedMatrix, Norm, Shape, fed, normalized
from caesura.engine.weights.checkpoint import AGAIN
from caesura.engine.weights.stored import WeightsError
from caesura.kernels.experts import Stack, experts
from caesura.kernels.linear import Dense, Linear

MOST = 1 << 20  # experts, and columns of one
TINY = 1e-20  # added to a sum before a division by it


@dataclass(frozen=True)
class Mixture:
    """The sizes of the experts, and how a row chooses `top` of them. Scores are a `sigmoid`, or a softmax over all
    experts. The chosen scores are the weights; `renormalised`, they sum to 1. All weights are multiplied by `scale`. Of
    `groups` of equal size, a row chooses only from the `best_groups`, by the sum of the two best scores in each. A bias
    is added to the scores for the choice, and to the weights too if it `weighs`."""

    count: int
    top: int
    width: int  # inner columns of an expert
    shared: int = 0  # inner columns of the shared expert; 0 if there is none
    sigmoid: bool = False
    renormalised: bool = False
    scale: float = 1.0
    groups: int = 1
    best_groups: int = 1
    weighs: bool = False

    def check(self, name: str) -> None:
        """Raises WeightsError for sizes that contradict each other."""
        damaged, sizes = f"The config of {name} is damaged", (self.count, self.top, self.width, self.groups)
        if min(sizes) < 1 or self.shared < 0 or max(*sizes, self.shared) > MOST or not 0 < self.scale < MOST:
            raise WeightsError(f"{damaged}: it has an impossible number or size of experts; {AGAIN}.")
        of_group, rest = divmod(self.count, self.groups)
        if rest or (self.groups > 1 and of_group < 2) or not 1 <= self.best_groups <= self.groups:
            raise WeightsError(f"{damaged}: its experts do not form {self.groups} equal groups; {AGAIN}.")
        if self.top > of_group * self.best_groups:
            raise WeightsError(f"{damaged}: a row takes {self.top} of {of_group * self.best_groups} experts; {AGAIN}.")

    def choose(self, logits: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The weights and the numbers of the chosen experts [rows, top], from float32 router logits [rows, count]."""
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        biased = scores if bias is None else scores + bias
        chosen = self._of_best_groups(biased).topk(self.top).indices
        weights: Tensor = (biased if self.weighs else scores).gather(1, chosen)
        if self.renormalised:
            weights = weights / (weights.sum(-1, keepdim=True) + TINY)
        return weights * self.scale, chosen

    def _of_best_groups(self, scores: Tensor) -> Tensor:
        """The scores [rows, count], -inf outside the best groups."""
        if self.groups == 1:
            return scores
        grouped: Tensor = scores.unflatten(-1, (self.groups, -1))
        best = grouped.topk(2).values.sum(-1).topk(self.best_groups).indices
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
        weights, chosen = self.mixture.choose(linear(rows.to(self.router.dtype), self.router).float(), self.bias)
        taken = rows.to(self.taken) if isinstance(self.gate_up, Linear) else rows
        x = x + experts(taken, weights, chosen, self.gate_up, self.down, act="silu")
        return x if self.shared is None else x + fed(rows, *self.shared, self.shape, canvas)
