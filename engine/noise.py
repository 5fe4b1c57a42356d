"""What an open slot holds: the mask token (absorbing) or a random token (uniform)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Absorbing:
    """Open slots hold `mask_id` until they are accepted; an accepted slot stays (Austin et al. 2021, D3PM)."""

    mask_id: int
    absorbing = True

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[count] int64 of mask ids; `generator` is not used."""
        del generator
        return torch.full((count,), self.mask_id, dtype=torch.int64)


@dataclass(frozen=True)
class Uniform:
    """Open slots hold a uniformly drawn token of the first `vocabulary` ids, redrawn at every step."""

    vocabulary: int
    absorbing = False

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[count] int64 in [0, vocabulary)."""
        return torch.randint(self.vocabulary, (count,), generator=generator)


Noise = Absorbing | Uniform
