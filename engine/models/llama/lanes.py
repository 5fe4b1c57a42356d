"""Rows of a forward as one path computes them: parts of KVs, and the lane that a thread takes through the layers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from caesura.engine.cache import KV
from caesura.engine.model import Run
from caesura.engine.models.llama.layer import PlacedRows


class Part(NamedTuple):
    """Rows of `kv` from row `at` on. The bool mask [rows, columns] says which of the last columns they see; they see
    all columns before those."""

    kv: KV
    at: int
    ids: Sequence[int]
    positions: Sequence[int]
    mask: Tensor | None
    wanted: Sequence[int] = ()  # rows whose logits are returned

    def cut(self, count: int) -> "tuple[Part, Part]":
        """The first `count` rows, which must not see the rest, and the rest."""
        assert self.mask is not None
        size, rows = self.mask.shape[1], len(self.ids)
        return (
            Part(
                self.kv,
                self.at,
                self.ids[:count],
                self.positions[:count],
                self.mask[:count, : size - rows + count],
                [row for row in self.wanted if row < count],
            ),
            Part(
                self.kv,
                self.at + count,
                self.ids[count:],
                self.positions[count:],
                self.mask[count:],
                [row - count for row in self.wanted if row >= count],
            ),
        )


def masked(run: Run) -> Tensor | None:
    """The mask of a run."""
    return None if run.mask is None else torch.from_numpy(run.mask)


class Lane:
    """Rows of one path that one thread computes; `share` query heads share a key head."""

    def __init__(self, share: int, *, canvas: bool) -> None:
        self.canvas, self._share = canvas, share
        self.parts = list[tuple[int, Part]]()  # (first row, part)
        self.ids, self.positions, self.wanted = list[int](), list[int](), list[int]()

    def __repr__(self) -> str:
        return f"<Lane of {len(self.ids)} rows {'canvas' if self.canvas else 'context'} {len(self.parts)} parts>"

    def add(self, part: Part) -> None:
        """Append a part and reserve its rows in the KV."""
        start = len(self.ids)
        part.kv.reserve(part.at + len(part.ids) - part.kv.length)
        self.parts.append((start, part))
        self.ids += part.ids
        self.positions += part.positions
        self.wanted += [start + row for row in part.wanted]

    def placed(self, at: int = 0) -> list[PlacedRows]:
        """The spans of the parts, with the buffers of the cache from layer `at` on."""
        return [
            PlacedRows(start, start + len(part.ids), part.at, part.kv.buffers[at:], part.mask)
            for start, part in self.parts
        ]
