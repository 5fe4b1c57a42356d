"""Prefix KV reuse between keystrokes and jobs: append, truncate, fork; least recently used entries go first.

Sliding layers keep the rows of their window and some slack; rows cut further back are prefilled again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

GROWTH = 256  # rows of a growth step of the buffers, so that typing rarely copies them
PART = 8  # buffers also grow by 1/PART of their rows, so that a long context is not copied again and again
SLACK = 1024  # rows a sliding layer keeps beyond its window, so that text can be deleted
BLOCK = 4096  # ids compared at once
FEW = 14  # contexts that are kept if they fit, even if that leaves little memory
SPARE = 3  # free contexts kept for one peer, which may go back and forth between places


@dataclass(frozen=True)
class Kept:
    """How a layer keeps a context row: key heads, their width, and in a sliding layer how many rows a row sees, itself
    included. If `turned`, keys lie column by column, as a product with queries reads them."""

    heads: int
    width: int
    window: int | None = None
    turned: bool = False


Buffer = Any  # an array of numpy or a tensor: slices and copies of both are spelled alike


class Store(Protocol):
    """Makes the buffers of KVs, where and in the type in which a model computes with them."""

    def zeros(self, *shape: int) -> Buffer: ...

    def address(self, buffer: Buffer) -> int:
        """Where the buffer begins."""


class HostStore:
    """Arrays of numpy; bfloat16 are uint16 with its bits."""

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        self._dtype = np.dtype(dtype)

    def __repr__(self) -> str:
        return f"<HostStore {self._dtype}>"

    def zeros(self, *shape: int) -> NDArray[Any]:
        return np.zeros(shape, self._dtype)

    def address(self, buffer: NDArray[Any]) -> int:
        return int(buffer.ctypes.data)


FLOATS = HostStore()


class _Rows:
    """Keys and values of one layer, [heads, capacity, width] each, from position `start` on; and their addresses."""

    def __init__(self, kept: Kept, store: Store) -> None:
        self.kept, self.start, self._store = kept, 0, store
        self._take(*self._made(0))

    def _made(self, capacity: int) -> tuple[Buffer, Buffer]:
        """New keys, in either order, and values. All are zero: see `KV.get`."""
        heads, width = self.kept.heads, self.kept.width
        values = self._store.zeros(heads, capacity, width)
        if self.kept.turned:
            return self._store.zeros(heads, width, capacity).mT, values
        return self._store.zeros(heads, capacity, width), values

    def _take(self, keys: Buffer, values: Buffer) -> None:
        self.k, self.v = keys, values
        self.addresses = self._store.address(keys), self._store.address(values)

    def reserve(self, length: int, rows: int) -> bool:
        """Make room for `rows` after `length`, without rows that no later step can see. True if the buffers changed."""
        if length + rows - self.start <= self.k.shape[1]:
            return False
        start = self.start
        if self.kept.window is not None:
            start = max(start, length - (self.kept.window - 1) - SLACK)
        held = slice(start - self.start, length - self.start)
        needed = length + rows - start
        capacity = max(self.k.shape[1], -(-(needed + needed // PART) // GROWTH) * GROWTH)
        k, v = self._made(capacity)
        k[:, : length - start], v[:, : length - start] = self.k[:, held], self.v[:, held]
        self._take(k, v)
        self.start = start
        return True


class KV:
    """Keys and values of one context, of which the first `length` rows are valid. `ids` are the tokens of the context;
    rows of a canvas or a token tree have none."""

    def __init__(self, layers: Sequence[Kept], store: Store = FLOATS) -> None:
        self._rows, self._store = [_Rows(kept, store) for kept in layers], store
        self.ids: list[int] = []
        self.length = 0
        self.moved = 0  # how often a buffer was replaced or began at another position

    def __repr__(self) -> str:
        return f"<KV {self.length} rows, {len(self.ids)} of context, {self.nbytes >> 20} MiB>"

    @property
    def nbytes(self) -> int:
        return sum(rows.k.nbytes + rows.v.nbytes for rows in self._rows)

    @property
    def buffers(self) -> list[tuple[Buffer, Buffer]]:
        """Keys and values of every layer at full capacity; `reserve` may replace them."""
        return [(rows.k, rows.v) for rows in self._rows]

    @property
    def addresses(self) -> list[tuple[int, int, int, int]]:
        """The addresses of the keys and of the values of every layer, in bytes, the rows of their buffers, and the
        position of the first of these. They are valid until `moved` changes."""
        return [(*rows.addresses, rows.k.shape[1], rows.start) for rows in self._rows]

    def reserve(self, rows: int) -> None:
        """Make room for `rows` more."""
        self.moved += sum(layer.reserve(self.length, rows) for layer in self._rows)

    def get(self, layer: int, low: int, high: int) -> tuple[Buffer, Buffer]:
        """Views of keys and values [heads, high - low, width]. A caller writes rows from `length` on; they are valid
        once `length` has passed them. A sliding layer keeps only the rows in the window of `length`. Rows not written
        yet are 0, since masked values must be finite for attention."""
        rows = self._rows[layer]
        assert low >= rows.start, "rows outside the window are gone"
        span = slice(low - rows.start, high - rows.start)
        return rows.k[:, span], rows.v[:, span]

    def reach(self, length: int) -> int:
        """The rows that stay if it is cut to `length`: that many, or none if a sliding layer has lost the window."""
        lost = any(rows.start > max(0, length - ((rows.kept.window or 1) - 1)) for rows in self._rows)
        return 0 if lost else length

    def truncate(self, length: int) -> None:
        """Cut to `length` rows, or to none: see `reach`."""
        assert length <= self.length
        length = self.reach(length)
        if length == 0:
            self.moved += any(rows.start for rows in self._rows)
            for rows in self._rows:
                rows.start = 0
        self.length = length
        del self.ids[length:]

    def fork(self) -> "KV":
        twin = KV([rows.kept for rows in self._rows], self._store)
        for mine, its in zip(self._rows, twin._rows, strict=True):
            its.start = mine.start
            its.reserve(mine.start, self.length - mine.start)
            its.k[:, : self.length - mine.start] = mine.k[:, : self.length - mine.start]
            its.v[:, : self.length - mine.start] = mine.v[:, : self.length - mine.start]
        twin.ids, twin.length = list(self.ids), self.length
        return twin


class Cache:
    """Leases the KV that shares the longest prefix with the wanted ids; `give` returns it for the next job. At most
    `entries` exist, leased and free; SPARE free ones are kept, and one more for every further peer."""

    def __init__(
        self,
        layers: Sequence[Kept],
        store: Store = FLOATS,
        *,
        entries: int = FEW,
        block: int = 1,
    ) -> None:
        """A context is cut at multiples of `block` rows only: rows of a block see each other."""
        self._layers, self._store, self._block = list(layers), store, block
        self.entries, self._spare = entries, SPARE
        self._free: list[KV] = []  # least recently used first
        self._leased = 0
        self.reused = self.asked = 0  # tokens, for the status report

    def __repr__(self) -> str:
        return f"<Cache {self._leased} leased, {len(self._free)} free, {self.reused} of {self.asked} tokens reused>"

    def serve(self, peers: int) -> None:
        """Keep enough free entries for that many peers to find their contexts again."""
        self._spare = SPARE + max(0, peers - 1)
        self._trim()

    @property
    def full(self) -> bool:
        """True if every entry is leased."""
        return self._leased >= self.entries

    def lease(self, ids: list[int]) -> KV:
        """The best entry, truncated to what it shares with `ids`; the caller prefills the rest."""
        shared, best = 0, None
        for kv in self._free:
            agreed = common(kv.ids, ids)
            usable = kv.reach(agreed - agreed % self._block) if agreed > shared else 0
            if best is None or usable > shared:
                shared, best = usable, kv
        full = len(self._free) >= self._spare or len(self._free) + self._leased >= self.entries
        if best is not None and (shared * 2 >= len(best.ids) or full):
            self._free.remove(best)
            best.truncate(shared)
        elif best is not None and shared:
            best = best.fork()  # another document or place may need the longer one again
            best.truncate(shared)
        else:
            best = KV(self._layers, self._store)
        self._leased += 1
        self.reused += best.length
        self.asked += len(ids)
        return best

    def give(self, kv: KV) -> None:
        kv.truncate(len(kv.ids))
        self._leased -= 1
        if kv.ids:  # a job that ended before it read anything must not cost another its context
            self._free.append(kv)
        self._trim()

    def discard(self, kv: KV) -> None:
        """Drop a leased KV that must not be used again."""
        del kv
        self._leased -= 1

    def clear(self) -> None:
        """Memory has run out: drop all free entries, and from now on have half as many as there were, or FEW."""
        self.entries = min(self.entries, max(FEW, (len(self._free) + self._leased) // 2))
        self._free.clear()

    def _trim(self) -> None:
        del self._free[: max(0, len(self._free) - min(self._spare, self.entries - self._leased))]


def common(left: list[int], right: list[int]) -> int:
    """Length of the longest common prefix."""
    count, least = 0, min(len(left), len(right))
    while count < least and left[count : count + BLOCK] == right[count : count + BLOCK]:
        count += BLOCK
    if count >= least:
        return least
    for a, b in zip(left[count : count + BLOCK], right[count : count + BLOCK], strict=False):
        if a != b:
            break
        count += 1
    return min(count, least)
