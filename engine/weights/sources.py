"""Where a model's tensors come from: by name, in float32 or as they are stored."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from caesura.engine.weights.mapped import Array
from caesura.kernels.cpu import F32
from caesura.kernels.cpu.repack import RowBlocks

CodedParts = tuple[Array, ...]  # the parts of a form in the order of forms.PARTS
RowReader = Callable[[Array], F32]  # ids [n] -> rows float32 [n, columns] of a matrix


class Source(Collection[str]):
    """Tensors by name, each read when it is asked for. What it is asked for must be among its names."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it. Raises WeightsError."""
        raise NotImplementedError

    def floats(self, name: str) -> F32:
        """A tensor in float32. Raises WeightsError."""
        raise NotImplementedError

    def form(self, name: str) -> str:
        """The form of a tensor (forms.py), without reading it; empty for floats and what is computed."""
        return ""

    def parts(self, name: str) -> tuple[str, CodedParts]:
        """The form of a tensor and its parts as they are stored; no form and no parts where `form` has none. Raises
        WeightsError."""
        return "", ()

    def blocks(self, name: str) -> Sequence[RowBlocks]:
        """The rows of a matrix as they lie in the file, matrices below one another in their order; none where it has
        `parts`, or must be computed. Raises WeightsError."""
        return ()

    def table(self, name: str) -> RowReader:
        """The rows of a matrix one by one: where it lies in a file, only what is read of it is in memory. Raises
        WeightsError."""
        floats = self.floats(name)
        return lambda ids: floats[ids]


class InMemory(Source):
    """Arrays of float32 in memory."""

    def __init__(self, arrays: Mapping[str, F32]) -> None:
        super().__init__(arrays)
        self._arrays = arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def floats(self, name: str) -> F32:
        return self._arrays[name]


class Valueless(Source):
    """The tensors of a source with their shapes and no values, which take no memory."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._source = source

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def floats(self, name: str) -> F32:
        shape = self.shape(name)
        return as_strided(np.zeros(1, np.float32), shape, [0] * len(shape))
