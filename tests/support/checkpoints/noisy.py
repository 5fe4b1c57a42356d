"""A `Model` that knows nothing: its logits are noise. What is valid with it is valid by the grammar alone."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from caesura.engine.model import Run
from caesura.engine.noise import Absorbing, Uniform
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.tokens.tokenizer import Tokenizer

from .tiny import Still

POOL = 997  # rows of noise, which are read from a place that is drawn


class Noisy(Still):
    """Absorbing noise and a null token, or uniform noise. `scale` is how sure the model is of what it does not know."""

    name = "noisy"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        uniform: bool = False,
        scale: float = 1.0,
        method: str | None = None,
        seed: int = 0,
    ) -> None:
        self.tokenizer, self.scale = tokenizer, scale
        noise = Uniform(tokenizer.size) if uniform else Absorbing(tokenizer.size)
        self.spec = replace(
            self.spec,
            noise=noise,
            method=method or noise.method,
            chunk=1024,
            lengths="race" if uniform else "null",
            null_id=None if uniform else tokenizer.size + 1,
            separator=(tokenizer.special("<file_sep>"),),
        )
        self.width = tokenizer.size + (0 if uniform else 2)
        self._generator = torch.Generator().manual_seed(seed)
        self._pool = torch.randn(2 * POOL, self.width, generator=self._generator)

    def hidden(self, runs: Sequence[Run]) -> Tensor:
        for run in runs:
            self.prefill(run.fresh, run.kv)
        return self._rows(sum(len(run.ids if run.wanted is None else run.wanted) for run in runs))

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
        scores = self.denoise(canvases)
        for run in trees:
            self.prefill(run.fresh, run.kv)
            run.kv.reserve(len(run.ids))
            run.kv.length += len(run.ids)
        return TensorScores(self._rows(sum(len(run.ids) for run in trees))[:, : self.tokenizer.size]), scores

    def _rows(self, count: int) -> Tensor:
        at = torch.randint(POOL, (1,), generator=self._generator)
        rows = torch.arange(count) % POOL + at
        return self._pool[rows] * self.scale
