"""The weights of a decoder as the C kernels take them: matrices in tiles. They are packed in memory as a model's files
are read (`Packing`), or mapped from a file of tiles (file.py), which all processes share.
"""

from threading import Lock
from typing import Protocol

import numpy as np

from caesura.engine.weights import packing
from caesura.engine.weights.sources import RowReader, Source, Valueless
from caesura.kernels.cpu import F32, GROUP, Matrix, Packed, aligned, packed_bytes

TABLES = ("embed", "head")


class Tiles(Protocol):
    """Weights by name."""

    def __contains__(self, name: object) -> bool: ...

    def __len__(self) -> int: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def floats(self, name: str, shape: tuple[int, ...]) -> F32:
        """A tensor in float32. Raises WeightsError."""

    def matrix(self, name: str, shape: tuple[int, int]) -> Packed:
        """A matrix [N, K]. Raises WeightsError."""

    def rows(self, name: str, shape: tuple[int, int]) -> RowReader:
        """The rows of a matrix [N, K] in 8 bits, restored when they are asked for. Raises WeightsError."""


class Packing:
    """See `Tiles`: packs each matrix of a source once. Floats get the form `made`, embedding and head 8 bits."""

    def __init__(self, source: Source, made: str = "q8") -> None:
        self.source, self._made = source, made
        self._held, self._lock = dict[str, Packed](), Lock()

    def __contains__(self, name: object) -> bool:
        return name in self.source

    def __len__(self) -> int:
        return len(self.source)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.source.shape(name)

    def floats(self, name: str, shape: tuple[int, ...]) -> F32:
        return packing.expect(self.source, name, shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Packed:
        if name not in self._held:
            made = Packed(*packing.tiled(self.source, name, shape, "q8" if name in TABLES else self._made))
            with self._lock:
                self._held[name] = made
        return self._held[name]

    def rows(self, name: str, shape: tuple[int, int]) -> RowReader:
        return packing.table(self.source, name, shape)


class Unread:
    """See `Tiles`: has names and shapes of a source, to check them, and reads no values. All matrices share the same
    zeros, which take no memory."""

    def __init__(self, source: Source) -> None:
        self._source, self._zeros = Valueless(source), aligned(0)

    def __contains__(self, name: object) -> bool:
        return name in self._source

    def __len__(self) -> int:
        return len(self._source)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def floats(self, name: str, shape: tuple[int, ...]) -> F32:
        return packing.expect(self._source, name, shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Packed:
        self.floats(name, shape)
        rows, columns = shape
        size = packed_bytes("q8", rows, -(-columns // GROUP) * GROUP)
        if size > len(self._zeros):
            self._zeros = aligned(size)
        return Packed(Matrix.over("q8", rows, columns, self._zeros[:size]))

    def rows(self, name: str, shape: tuple[int, int]) -> RowReader:
        self.floats(name, shape)
        return lambda ids: np.zeros((len(ids), shape[1]), np.float32)
