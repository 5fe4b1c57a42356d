"""The noise in an open slot: the mask token (absorbing) or a random token (uniform)."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Absorbing:
    """Open slots hold `mask_id` until they are accepted; an accepted slot stays (Austin et al. 2021, D3PM). `method`
    denoises them."""

    mask_id: int
    method: str = "absorbing"
    ratios: bool = False  # its model was trained on score ratios (SEDD); see samplers.Reading
    absorbing = True


@dataclass(frozen=True)
class Schedule:
    """How a canvas of uniform noise is denoised, in the fields of DiffusionGemma's generation_config.json.

    At most `steps`; the temperature falls from `t_max` to near `t_min` over them; a step accepts up to `entropy_bound`
    nats; a canvas is done when its best tokens are unchanged for `stability` steps and the mean entropy is below
    `confidence` nats.
    """

    steps: int = 48
    t_min: float = 0.4
    t_max: float = 0.8
    entropy_bound: float = 0.1
    stability: int = 1
    confidence: float = 0.005

    def temperature(self, step: int, of: int) -> np.float32:
        """The temperature at `step` (from 0) of `of`, rounded at every operation, as the reference rounds it."""
        left = np.float32(of - step) / np.float32(of)
        return np.float32(self.t_min) + np.float32(self.t_max - self.t_min) * left


@dataclass(frozen=True)
class Uniform:
    """Open slots hold a uniformly drawn token of the first `vocabulary` ids, redrawn at every step. The model was
    trained on canvases of `canvas` rows."""

    vocabulary: int
    schedule: Schedule = field(default_factory=Schedule)
    canvas: int = 256
    absorbing = False
    method = "uniform"

    def drawn(self, at: NDArray[np.float64]) -> NDArray[np.int64]:
        """The token of each uniform number in (0, 1), int64 [n]."""
        return (at * self.vocabulary).astype(np.int64)


Noise = Absorbing | Uniform
