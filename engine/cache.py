"""Prefix KV reuse between keystrokes and jobs: append, truncate, fork; least recently used entries go first."""

from collections.abc import Sequence

import torch
from torch import Tensor

GROWTH = 256  # rows; the buffers grow by whole steps so that typing rarely copies them


class KV:
    """Keys and values of one context, [layers, kv_heads, capacity, head_dim] each; the first `length` rows hold.

    `ids` are the tokens behind those rows, as far as they are context (rows of a canvas or a token tree have none).
    """

    def __init__(self, layers: int, heads: int, width: int) -> None:
        self.k = torch.empty(layers, heads, 0, width)
        self.v = torch.empty(layers, heads, 0, width)
        self.ids: list[int] = []
        self.length = 0

    def __repr__(self) -> str:
        return f"<KV {self.length} of {self.k.shape[2]} rows, {len(self.ids)} of context>"

    def reserve(self, rows: int) -> None:
        """Room for `rows` more."""
        needed = self.length + rows
        if needed <= self.k.shape[2]:
            return
        capacity = -(-needed // GROWTH) * GROWTH
        for name in ("k", "v"):
            old: Tensor = getattr(self, name)
            new = torch.empty(*old.shape[:2], capacity, old.shape[3])
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows [heads, n, width] behind the held ones, without keeping them, and return all rows so far."""
        end = self.length + k.shape[1]
        self.k[layer, :, self.length : end] = k
        self.v[layer, :, self.length : end] = v
        return self.k[layer, :, :end], self.v[layer, :, :end]

    def truncate(self, length: int) -> None:
        assert length <= self.length
        self.length = length
        del self.ids[length:]

    def fork(self) -> "KV":
        twin = KV(self.k.shape[0], self.k.shape[1], self.k.shape[3])
        twin.reserve(self.length)
        twin.k[:, :, : self.length] = self.k[:, :, : self.length]
        twin.v[:, :, : self.length] = self.v[:, :, : self.length]
        twin.ids, twin.length = list(self.ids), self.length
        return twin


class Cache:
    """Leases a KV that shares the longest prefix with the wanted ids; `give` returns it for the next job."""

    def __init__(self, layers: int, heads: int, width: int, *, entries: int = 6) -> None:
        self._shape = (layers, heads, width)
        self._entries = entries
        self._free: list[KV] = []  # least recently used first
        self.reused = self.asked = 0  # tokens, for the status report

    def __repr__(self) -> str:
        return f"<Cache {len(self._free)} free, {self.reused} of {self.asked} tokens reused>"

    def lease(self, ids: Sequence[int]) -> KV:
        """The best entry, truncated to what it shares with `ids`; the caller prefills the rest."""
        best = max(self._free, key=lambda kv: common(kv.ids, ids), default=None)
        shared = common(best.ids, ids) if best else 0
        if best is not None and (shared * 2 >= len(best.ids) or len(self._free) >= self._entries):
            self._free.remove(best)
            best.truncate(shared)
        elif best is not None and shared:
            best = best.fork()  # another document or place may come back for the longer one
            best.truncate(shared)
        else:
            best = KV(*self._shape)
        self.reused += best.length
        self.asked += len(ids)
        return best

    def give(self, kv: KV) -> None:
        kv.truncate(len(kv.ids))
        self._free.append(kv)
        del self._free[: -self._entries]


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
