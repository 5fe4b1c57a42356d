"""Files of tiles: safetensors whose tensors are matrices as they lie in memory, so that a process maps them.

A source has one file or several, `NAME-1.tiles.safetensors` and so on, since no package of an index may have 100 MB.
The data of each begins at a multiple of 64 bytes, and the tiles of every matrix are such a multiple long; they come
first. What else there is are norms and biases in float32. The metadata say the number of the layout
(`kernels.cpu.LAYOUT`) and of each matrix in the file the form, rows and columns of its parts, which lie below one
another.
"""

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from caesura.engine.weights import mapped
from caesura.engine.weights.mapped import Entry
from caesura.engine.weights.sources import RowReader
from caesura.engine.weights.stored import WeightsError
from caesura.engine.weights.tiles import Packing
from caesura.kernels.cpu import ALIGNED, F32, LAYOUT, Matrix, Packed
from caesura.model_store import TILES, reading
from caesura.model_store.reading import reason

NAMED = re.compile(rf"(\w+)-(\d+){re.escape(TILES)}")  # the source and the number of a file
LARGEST = 90_000_000  # bytes of a file's tensors, unless one matrix alone has more
SMALL = ("special",)  # matrices whose rows are also read as they are

MatrixParts = dict[str, list[tuple[str, int, int]]]  # form, rows and columns of the parts of each matrix


class TilesMetadata(msgspec.Struct):
    layout: str
    matrices: str  # JSON: `MatrixParts`


class Mapped:
    """See `Tiles`: those in the files of a source, read-only and shared by all processes."""

    def __init__(self, *paths: Path) -> None:
        """Raises WeightsError or UnusableModel."""
        self._folder = paths[0].parent
        self._tensors, self._matrices = dict[str, NDArray[Any]](), MatrixParts()
        for path in paths:
            try:
                header = mapped.header(path)
                about = msgspec.json.decode(header.metadata, type=TilesMetadata)
                if about.layout != str(LAYOUT):
                    raise ValueError("its tiles have another layout")
                with reading.opened(path) as file:
                    whole = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
                self._tensors |= {entry.name: tensor(whole, entry) for entry in header.entries}
                matrices = msgspec.json.decode(about.matrices, type=MatrixParts)
                if not all(matrices.values()):
                    raise ValueError("a matrix in it has no parts")
                self._matrices |= matrices
            except (OSError, mapped.Damaged, ValueError, msgspec.MsgspecError) as error:
                raise damaged(path, error) from error

    def __contains__(self, name: object) -> bool:
        return name in self._matrices or name in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        parts = self._matrices.get(name)
        return (sum(rows for _, rows, _ in parts), parts[0][2]) if parts else self._tensors[name].shape

    def floats(self, name: str, shape: tuple[int, ...]) -> F32:
        found = self._tensors.get(name)
        if found is None or found.dtype != np.float32 or found.shape != shape:
            raise damaged(self._folder, ValueError(f"{name} is not {list(shape)}"))
        return found

    def matrix(self, name: str, shape: tuple[int, int]) -> Packed:
        try:
            parts = self._matrices[name]
            if (sum(rows for _, rows, _ in parts), *{columns for *_, columns in parts}) != shape:
                raise ValueError(f"{name} is not {list(shape)}")
            tiles = [self._tensors[f"{name}.{number}"] for number in range(len(parts))]
            return Packed(*(Matrix.over(*part, held) for part, held in zip(parts, tiles, strict=True)))
        except (KeyError, ValueError) as error:
            raise damaged(self._folder, error) from error

    def rows(self, name: str, shape: tuple[int, int]) -> RowReader:
        first, *more = self.matrix(name, shape).matrices
        if more or first.form != "q8":
            raise damaged(self._folder, ValueError(f"{name} is not one matrix of 8 bits"))
        return first.restored


def tensor(whole: NDArray[np.uint8], entry: Entry) -> NDArray[Any]:
    """A tensor of a mapped file. Raises ValueError."""
    if entry.begin % np.dtype(mapped.TYPES[entry.dtype]).itemsize:
        raise ValueError("a tensor in it begins within a number")
    return whole[entry.begin : entry.begin + entry.nbytes].view(mapped.TYPES[entry.dtype]).reshape(entry.shape)


def damaged(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"{path} is damaged ({reason(error)}); install the model again.")


def write(folder: Path, source: str, packing: Packing) -> None:
    """Write what a source has into files of a folder: its matrices packed, and the rest in float32. Raises
    WeightsError, or OSError."""
    matrices = {name: packing.matrix(name, shape).matrices for name, shape in shapes(packing)}
    if "embed" in matrices and [matrix.form for matrix in matrices["embed"]] != ["q8"]:
        raise WeightsError(f"The embedding of {source} is not one matrix of 8 bits, from which rows are read.")
    whole: list[dict[str, NDArray[Any]]] = [  # tensors that go into the same file
        *({f"{name}.{at}": part.tiles for at, part in enumerate(parts)} for name, parts in matrices.items()),
        *(
            {name: np.ascontiguousarray(packing.source.floats(name))}
            for name in sorted(packing.source)
            if name not in matrices or name in SMALL
        ),
    ]
    for number, tensors in enumerate(divided(whole), 1):
        inside = {
            name: [(part.form, part.rows, packing.shape(name)[1]) for part in parts]
            for name, parts in matrices.items()
            if f"{name}.0" in tensors
        }
        write_file(folder / f"{source}-{number}{TILES}", tensors, inside)


def divided(whole: list[dict[str, NDArray[Any]]]) -> Iterator[dict[str, NDArray[Any]]]:
    """The tensors of each file: as many as LARGEST allows, in their order."""
    found, size = dict[str, NDArray[Any]](), 0
    for tensors in whole:
        more = sum(held.nbytes for held in tensors.values())
        if found and size + more > LARGEST:
            yield found
            found, size = {}, 0
        found, size = found | tensors, size + more
    yield found


def write_file(path: Path, tensors: dict[str, NDArray[Any]], matrices: MatrixParts) -> None:
    """Write a new file. Raises OSError."""
    about = {"layout": str(LAYOUT), "matrices": msgspec.json.encode(matrices).decode()}
    said, at = dict[str, Any](__metadata__=about), 0
    for name, held in tensors.items():
        kind = "U8" if held.dtype == np.uint8 else "F32"
        said[name] = {"dtype": kind, "shape": list(held.shape), "data_offsets": (at, at + held.nbytes)}
        at += held.nbytes
    header = msgspec.json.encode(said)
    header += b" " * (-(len(header) + 8) % ALIGNED)
    with path.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for held in tensors.values():
            file.write(held.data)
        file.flush()
        os.fsync(file.fileno())


def shapes(packing: Packing) -> Iterator[tuple[str, tuple[int, int]]]:
    """The matrices of a source in the order of their names, which every process agrees on."""
    for name in sorted(packing.source):
        shape = packing.shape(name)
        if len(shape) == 2:
            yield name, (shape[0], shape[1])
