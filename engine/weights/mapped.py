"""Tensors in files: what the header of a safetensors file says, and a tensor as an array that is mapped from its file.

Each array has a mapping of its own, which ends with it: mapped pages count as resident memory once they are read. numpy
has no bfloat16 and no FP8, so such tensors come as uint16 and uint8, with their type next to them; `floats` has their
values.
"""

import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from caesura.kernels.cpu import F32
from caesura.model_store import reading

Array = NDArray[Any]

MAX_HEADER = 100_000_000  # bytes
MAX_DIMENSIONS = 8
MAX_VALUES = 1 << 56  # of a tensor if no dimension were 0: numpy has no larger shapes, even of nothing
TYPES: dict[str, type[np.generic]] = {  # by the words of safetensors
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16},
    **{"F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8, "BOOL": np.uint8},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8},
    **{"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8},
}
OPAQUE = ("F8_E5M2", "F8_E8M0", "BOOL")  # types that nothing here has the values of


class Damaged(Exception):
    """A file does not hold what its header says; the message is a part of a sentence."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str  # in the words of safetensors, such as F8_E4M3, or of GGUF, such as Q4_K
    begin: int  # its first byte in the file
    nbytes: int


class _Part(msgspec.Struct):
    """What a header says of a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Header(NamedTuple):
    """Of a safetensors file: its metadata, as they are written, and its tensors in their order there."""

    metadata: msgspec.Raw
    entries: list[Entry]


def entries(path: Path) -> list[Entry]:
    """The tensors of a safetensors file. Raises as `header`."""
    return header(path).entries


def header(path: Path) -> Header:
    """What a safetensors file, which its tensors fill without gaps, says of itself. Raises Damaged, or UnusableModel
    for what is no file."""
    try:
        with reading.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = 8 + int.from_bytes(file.read(8), "little")
            if not 8 < start <= min(size, MAX_HEADER):
                raise Damaged("its header does not fit into it")
            said = msgspec.json.decode(file.read(start - 8), type=dict[str, msgspec.Raw])
        metadata = said.pop("__metadata__", msgspec.Raw(b"{}"))
        parts = {name: msgspec.json.decode(raw, type=_Part) for name, raw in said.items()}
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(str(error)) from error
    found = [_entry(path, start, name, part) for name, part in parts.items()]
    found.sort(key=lambda entry: (entry.begin, entry.nbytes))
    ends = [start, *(entry.begin + entry.nbytes for entry in found)]
    if ends[-1] != size or [entry.begin for entry in found] != ends[:-1]:
        raise Damaged("its tensors overlap, leave gaps or end elsewhere than the file")
    return Header(metadata, found)


def _entry(path: Path, start: int, name: str, part: _Part) -> Entry:
    begin, end = part.data_offsets
    if part.dtype not in TYPES:
        raise Damaged(f"a tensor of the type {reading.short(part.dtype)}")
    if len(part.shape) > MAX_DIMENSIONS or min(part.shape, default=0) < 0 or unshaped(part.shape):
        raise Damaged("a tensor of an impossible shape")
    nbytes = math.prod(part.shape) * np.dtype(TYPES[part.dtype]).itemsize
    if not 0 <= begin <= end or end - begin != nbytes:
        raise Damaged("a tensor has more or fewer bytes than its shape")
    return Entry(name, path, tuple(part.shape), part.dtype, start + begin, nbytes)


def unshaped(shape: Sequence[int]) -> bool:
    """True if no array can have this shape of numbers from 0 on."""
    return math.prod(filter(None, shape)) > MAX_VALUES


def raw(entry: Entry) -> NDArray[np.uint8]:
    """The bytes of a tensor. Changes to them do not reach the file. Raises Damaged or UnusableModel."""
    if not entry.nbytes:
        return np.empty(0, np.uint8)
    at = entry.begin % mmap.ALLOCATIONGRANULARITY
    try:
        with reading.opened(entry.path) as file:
            held = mmap.mmap(file.fileno(), at + entry.nbytes, access=mmap.ACCESS_COPY, offset=entry.begin - at)
            return np.frombuffer(held, np.uint8, entry.nbytes, at)
    except (OSError, ValueError) as error:
        raise Damaged(str(error)) from error


def array(entry: Entry) -> Array:
    """A tensor of a safetensors file as it is stored. Raises as `raw`."""
    kind = np.dtype(TYPES[entry.dtype])
    found = raw(entry)
    aligned = found if entry.begin % kind.itemsize == 0 else found.copy()
    return aligned.view(kind).reshape(entry.shape)


def floats(entry: Entry) -> F32:
    """The values of a tensor of a safetensors file. Raises as `raw`."""
    if entry.dtype in OPAQUE:
        raise Damaged(f"a tensor of the type {entry.dtype}")
    return values(array(entry), entry.dtype)


def values(stored: Array, dtype: str) -> F32:
    """An array as `array` gives it, in float32."""
    if dtype == "F8_E4M3":
        return e4m3()[stored]
    if dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return stored.astype(np.float32, copy=False)


@cache
def e4m3() -> F32:
    """The value of each byte in FP8 with 4 bits of exponent and 3 of mantissa; there is no infinity."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    found = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    found[127] = np.nan
    return np.concatenate((found, -found)).astype(np.float32)


def below(arrays: Sequence[Array]) -> Array:
    """Arrays with the same other dimensions, one below the other. Raises ValueError."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
