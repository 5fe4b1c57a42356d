"""Matrices of a GGUF file in our forms for a CPU (`stored.py`), where llama.cpp's have the same groups of 32 columns.

Q8_0 becomes `q8`, Q4_0 and Q4_1 become `q4` with the same values. Q4_K becomes `q4` too: its scale and minimum of 32
columns are products of two numbers each, rounded to float16 here, by at most 1/2048 of themselves. Matrices of other
types (Q5, Q6_K and so on) are restored to floats.
"""

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from caesura.engine.weights.stored import GROUP, pack_nibbles

GgufBlocks = np.ndarray  # uint8 [rows, blocks, bytes of a block]
SIZES = {Type.Q8_0: 34, Type.Q4_0: 18, Type.Q4_1: 20, Type.Q4_K: 144}  # bytes of a block
FORMS = {Type.Q8_0: "q8", Type.Q4_0: "q4", Type.Q4_1: "q4", Type.Q4_K: "q4"}


def coded(data: np.ndarray, kind: Type) -> tuple[Tensor, ...]:
    """The parts of a matrix [rows, bytes] that has one of FORMS. Raises ValueError for a scale that is no number."""
    blocks = np.ascontiguousarray(data).reshape(len(data), -1, SIZES[kind])
    parts = tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in READERS[kind](blocks))
    if not all(part.isfinite().all() for part in parts[1:]):
        raise ValueError("a scale is infinite or no number")
    codes, *scales = parts
    return (codes if kind == Type.Q8_0 else pack_nibbles(codes), *scales)


def _half(blocks: GgufBlocks, at: int) -> np.ndarray:
    """A float16 of each block, [rows, blocks]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]


def _halves(nibbles: GgufBlocks) -> np.ndarray:
    """The low nibbles of each stretch of bytes, then its high ones: [rows, n, bytes] -> [rows, 2 * n * bytes]."""
    return np.concatenate((nibbles & 15, nibbles >> 4), -1).reshape(len(nibbles), -1)


def _q8_0(blocks: GgufBlocks) -> tuple[np.ndarray, ...]:
    return blocks[..., 2:].reshape(len(blocks), -1).view(np.int8), _half(blocks, 0)


def _q4_0(blocks: GgufBlocks) -> tuple[np.ndarray, ...]:
    scale = _half(blocks, 0)
    with np.errstate(over="ignore"):  # `coded` reports an overflow
        return _halves(blocks[..., 2:]), scale, scale * np.float16(-8)


def _q4_1(blocks: GgufBlocks) -> tuple[np.ndarray, ...]:
    return _halves(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2)


def _q4_k(blocks: GgufBlocks) -> tuple[np.ndarray, ...]:
    """GgufBlocks of eight groups, whose 6-bit scales and minima lie in 12 bytes: those of the first four in 6 bits of a
    byte each, those of the last four in a nibble of the last four bytes and the 2 bits that are left of the others."""
    packed = blocks[..., 4:16]
    first, second, last = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = np.concatenate((first & 63, (last & 15) | (first >> 6 << 4)), -1)
    least = np.concatenate((second & 63, (last >> 4) | (second >> 6 << 4)), -1)
    unit, offset = (_half(blocks, at).astype(np.float32)[..., None] for at in (0, 2))
    rows = len(blocks)
    with np.errstate(over="ignore", invalid="ignore"):
        steps, minima = ((part.reshape(rows, -1)).astype(np.float16) for part in (unit * scale, -offset * least))
    return _halves(blocks[..., 16:].reshape(rows, -1, GROUP)), steps, minima


READERS: dict[Type, Callable[[GgufBlocks], tuple[np.ndarray, ...]]] = {
    Type.Q8_0: _q8_0,
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q4_K: _q4_k,
}
