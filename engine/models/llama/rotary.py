"""The rotary positions of a decoder of the Llama kind, in torch; native.py has them in numpy."""

import torch
from torch import Tensor

from caesura.engine.models.llama.config import Config
from caesura.kernels import rotary


def frequencies(config: Config, device: str = "cpu") -> Tensor:
    """Radians from one position to the next of each pair of head columns, float64 [turning / 2]."""
    return rotary.frequencies(config.turning, config.rope_theta, config.turning // 2, torch.device(device))


def turns(of: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [rows, 1, columns that turn], for frequencies and integer positions [rows]."""
    cos, sin = rotary.cos_sin(positions[:, None] * of).repeat(1, 1, 2)[:, :, None]
    return cos, sin
