"""Passes over the token tree of one search, recorded once and replayed: a CUDA graph instead of hundreds of launches,
which would take the host longer than the GPU. On a CPU, used only by tests, a replay calls the pass again.

A recording reads ids, positions, mask and place from buffers that all recordings share, and the addresses of keys and
values from a table. So one recording a size serves every KV, also after its buffers have moved; all are made before
anybody waits. Rows after the end of a pass are copies of its first row; their keys and values come after the valid
ones, where nobody reads them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from caesura.engine.cache import KV
from caesura.engine.model import Run
from caesura.engine.models.llama.gpu.layers import Placed
from caesura.engine.models.llama.memory import REPLAYED
from caesura.engine.recordings import Recordings, capture
from caesura.kernels.attention import WORD, bits

ROWS = (1, 4, 8, 16, 32, REPLAYED)
COLUMNS = 2048  # that a mask may have: the rows of 40 passes of 48, the most that a search of a line takes
WORDS = COLUMNS // WORD + 1  # of its bits, which end at a multiple of WORD

Compute = Callable[[Tensor, Tensor, Placed], Tensor]  # ids and positions [rows] -> logits [rows, width]


class Passes:
    """Recordings of passes of one model, one for each of ROWS."""

    def __init__(self, compute: Compute, width: int, device: str) -> None:
        self._compute, self._width, self._device = compute, width, device
        self.recordings = Recordings[RecordedPass]()
        self._held: Buffers | None = None

    def __repr__(self) -> str:
        return f"<Passes of {list(self.recordings)} rows>"

    def rehearse(self, kv: KV) -> None:
        """Record a pass of every size, the largest first. If that fails, none is recorded."""
        for rows in reversed(ROWS):
            self.recordings.record(rows, partial(self._make, kv, rows))
        if self.recordings.failed:
            self._held = None
        elif self._held is not None:
            self._held.lent = ()

    def _make(self, kv: KV, rows: int) -> "RecordedPass":
        kv.reserve(rows)
        if self._held is None:
            self._held = Buffers(len(kv.buffers), self._width, self._device)
        self._held.hold(kv, [0] * rows, range(rows), torch.ones(rows, rows, dtype=torch.bool))
        return RecordedPass(partial(self._held.work, self._compute, rows), on_gpu=self._held.logits.is_cuda)

    def judge(self, run: Run) -> Tensor | None:
        """The logits [rows, width] of a tree after its fresh context, whose keys and values are written; None if no
        recording suits."""
        count = len(run.fresh) + len(run.ids)
        rows = min((rows for rows in self.recordings if rows >= count), default=None)
        if rows is None or run.mask is None or len(run.fresh) + run.mask.shape[1] > COLUMNS:
            return None
        assert self._held is not None
        at, fresh = run.kv.length, len(run.fresh)
        run.kv.reserve(count)
        self._held.hold(run.kv, [*run.fresh, *run.ids], [*range(at, at + fresh), *run.positions], seen(run), rows)
        self.recordings[rows].replay()
        self._held.lent = ()
        return self._held.logits[fresh:count].clone()


class Buffers:
    """Recordings read and write these. Those of a smaller size take the first rows."""

    def __init__(self, layers: int, width: int, device: str) -> None:
        most = ROWS[-1]
        self._rows = torch.zeros(2, most, dtype=torch.int64, device=device)  # ids and positions
        self._spans = torch.zeros(most, 4, dtype=torch.int32, device=device)
        self._places = torch.zeros(most, dtype=torch.int32, device=device)
        self._mask = torch.zeros(most, WORDS, dtype=torch.int64, device=device)
        self._tables = torch.zeros(layers, 4, dtype=torch.int64, device=device)
        self.logits = torch.zeros(most, width, device=device)
        self.lent: Sequence[tuple[Tensor, Tensor]] = ()  # a KV's; must not be kept

    def hold(self, kv: KV, ids: Sequence[int], positions: Sequence[int], mask: Tensor, rows: int | None = None) -> None:
        """Write rows after the rows of `kv`, and copies of the first one, up to `rows`; `mask` [rows, n] is as in
        `Run`."""
        count = len(ids)
        copies = (rows or count) - count
        mask = bits(torch.cat((mask, mask[:1].expand(copies, -1))), kv.length + count, WORDS)
        given = [[*of_rows, *[of_rows[0]] * copies] for of_rows in (ids, positions)]
        self._rows[:, : count + copies].copy_(torch.tensor(given))
        self._mask[: count + copies].copy_(mask)
        self._spans.copy_(torch.tensor([0, kv.length + count, 0, 0], dtype=torch.int32))  # of every row
        self._places.copy_(torch.arange(kv.length, kv.length + len(self._places)))
        self._tables.copy_(torch.tensor(kv.addresses))
        self.lent = kv.buffers

    @torch.inference_mode()
    def work(self, compute: Compute, rows: int) -> None:
        """The recorded pass: reads and writes buffers, and needs nothing from the host."""
        ids, positions = self._rows[:, :rows]
        placed = Placed(self._spans[:rows], self._places[:rows], self._mask[:rows], self._tables, self.lent)
        self.logits[:rows].copy_(compute(ids, positions, placed))


class RecordedPass:
    """A pass over a number of rows."""

    def __init__(self, work: Callable[[], None], *, on_gpu: bool) -> None:
        self.replay, self._on_gpu = work, on_gpu

    def capture(self, pool: Any) -> Any:
        """See `Recordings`. On a CPU there is nothing to capture."""
        if not self._on_gpu:
            return None
        self.replay, pool = capture(self.replay, pool)
        return pool


def seen(run: Run) -> Tensor:
    """Which of the last columns the fresh context and the tree see, bool [rows, n]: context what is before it, the tree
    all of that and what its mask says."""
    assert run.mask is not None
    fresh, columns = len(run.fresh), run.mask.shape[1]
    if not fresh:
        return torch.from_numpy(run.mask)
    mask = torch.ones(fresh + len(run.ids), fresh + columns, dtype=torch.bool)
    mask[:fresh] = mask[:fresh].tril()
    mask[fresh:, fresh:] = torch.from_numpy(run.mask)
    return mask
