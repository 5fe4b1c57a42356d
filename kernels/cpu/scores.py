"""What is asked of rows of logits, in C: the best tokens, and the sums from which log-probabilities and statistics
follow. Only tokens of a row's set count: bits as `numpy.packbits` gives them in little order, for as many columns at
least; without a set all do. A row's numbers do not depend on the rows next to it, and are the same on AVX2, AVX512 and
AMX.

The functions are part of each variant: the sums take a sixth of the time of a build for any x86-64. Without the library
numpy computes.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caesura.kernels.cpu import N, P, chosen, library, variants

Logits = NDArray[np.float32]
Sets = Sequence[NDArray[np.uint8] | None]


class _Logits(ctypes.Structure):
    _fields_ = (("x", P), ("rows", N), ("columns", N), ("sets", P))


def best(logits: Logits, count: int, sets: Sets | None = None) -> tuple[Logits, NDArray[np.int32]]:
    """The `count` greatest numbers of each float32 row [rows, columns], descending, and their ids, both [rows, count];
    -inf and -1 after the last one. Of equal numbers the first comes first; NaN is the greatest."""
    if (variant := variants().get(chosen())) is None:
        return best_reference(logits, count, sets)
    values, ids = np.empty((len(logits), count), np.float32), np.empty((len(logits), count), np.int32)
    asked, _kept = _asked(logits, sets)
    if count:  # of none, C would look before the first
        library().caesura_best(variant, ctypes.byref(asked), count, values.ctypes.data, ids.ctypes.data)
    return values, ids


def weighed(logits: Logits, top: Logits, sets: Sets | None = None) -> NDArray[np.float64]:
    """The sums of exp(x - top) and of (x - top) exp(x - top) over each row, where `top` [rows] is its greatest number:
    float64 [rows, 2]; NaN where that is not finite."""
    if (variant := variants().get(chosen())) is None:
        return weighed_reference(logits, top, sets)
    sums, top = np.empty((len(logits), 2), np.float64), np.ascontiguousarray(top)
    assert top.dtype == np.float32
    assert top.shape == logits.shape[:1]
    asked, _kept = _asked(logits, sets)
    library().caesura_weigh(variant, ctypes.byref(asked), top.ctypes.data, sums.ctypes.data)
    return sums


def _asked(logits: Logits, sets: Sets | None) -> tuple[_Logits, object]:
    """The arguments in C, and what has to live as long."""
    assert logits.dtype == np.float32
    assert logits.flags.c_contiguous
    assert sets is None or len(sets) == len(logits)
    assert all(bits is None or 8 * len(bits) >= logits.shape[1] for bits in sets or ())
    where = None if sets is None else (P * len(sets))(*(None if bits is None else bits.ctypes.data for bits in sets))
    return _Logits(logits.ctypes.data, *logits.shape, ctypes.cast(where, P) if where is not None else None), where


def best_reference(logits: Logits, count: int, sets: Sets | None = None) -> tuple[Logits, NDArray[np.int32]]:
    """As `best`."""
    values, ids = np.full((len(logits), count), -np.inf, np.float32), np.full((len(logits), count), -1, np.int32)
    for row, (numbers, allowed) in enumerate(zip(logits, _tokens(logits, sets), strict=True)):
        some = numbers[allowed]
        if count < len(some):  # a NaN as the least makes all others no less than it
            allowed = allowed[~(some < np.partition(some, -count)[-count])]
            some = numbers[allowed]
        order = np.lexsort((-some, ~np.isnan(some)))[:count]
        values[row, : len(order)], ids[row, : len(order)] = some[order], allowed[order]
    return values, ids


def weighed_reference(logits: Logits, top: Logits, sets: Sets | None = None) -> NDArray[np.float64]:
    """As `weighed`."""
    sums = np.full((len(logits), 2), np.nan)
    for row, (numbers, allowed) in enumerate(zip(logits, _tokens(logits, sets), strict=True)):
        if np.isfinite(top[row]):
            less = np.maximum(numbers[allowed].astype(np.float64) - top[row], -88)
            share = np.exp(less)
            sums[row] = share.sum(), (less * share).sum()
    return sums


def _tokens(logits: Logits, sets: Sets | None) -> list[NDArray[np.int64]]:
    """The ids of each row's set."""
    width = logits.shape[1]
    return [
        np.arange(width) if bits is None else np.flatnonzero(np.unpackbits(bits, count=width, bitorder="little"))
        for bits in sets or [None] * len(logits)
    ]
