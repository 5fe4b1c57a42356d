"""A `Model` that knows nothing: its logits are noise. What is valid with it is valid by the grammar alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

from caesura.engine.models import Run
from caesura.engine.noise import Absorbing, Noise, Uniform
from caesura.engine.tokens.tokenizer import Tokenizer

from .tiny import Still

POOL = 997  # rows of noise, which are read from a place that is drawn


class Noisy(Still):
    """Absorbing noise and a null token, or uniform noise. `scale` is how sure the model is of what it does not know."""

    name, device, shift, tail, head, max_context, chunk = "noisy", "cpu", 0, 4, 12, 768, 1024
    visibility, block_size, rows, radius, finish = "context", 1, 512, 0, ()
    prompt, ends = "suffix_first", frozenset[int]()

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        uniform: bool = False,
        scale: float = 1.0,
        method: str | None = None,
        seed: int = 0,
    ) -> None:
        self.tokenizer, self.scale, self.sampler = tokenizer, scale, "threshold"
        self.start: Sequence[int] = ()
        self.separator: Sequence[int] = [tokenizer.special("<file_sep>")]
        self.noise: Noise = Uniform(tokenizer.size) if uniform else Absorbing(tokenizer.size)
        self.method = method or self.noise.method
        self.null_id = None if uniform else tokenizer.size + 1
        self.lengths = "race" if uniform else "null"
        self.width = tokenizer.size + (0 if uniform else 2)
        self._generator = torch.Generator().manual_seed(seed)
        self._pool = torch.randn(2 * POOL, self.width, generator=self._generator)

    def denoise(self, runs: Sequence[Run]) -> Tensor:
        for run in runs:
            self.prefill(run.fresh, run.kv)
        return self._rows(sum(len(run.ids if run.wanted is None else run.wanted) for run in runs))

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[Tensor, Tensor]:
        logits = self.denoise(canvases)
        for run in trees:
            self.prefill(run.fresh, run.kv)
            run.kv.reserve(len(run.ids))
            run.kv.length += len(run.ids)
        return self._rows(sum(len(run.ids) for run in trees))[:, : self.tokenizer.size], logits

    def _rows(self, count: int) -> Tensor:
        at = torch.randint(POOL, (1,), generator=self._generator)
        rows = torch.arange(count) % POOL + at
        return self._pool[rows] * self.scale
