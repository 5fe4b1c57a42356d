"""Matrices of a source as the C kernels take them. Imports no torch."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from caesura.engine.weights import forms, stored
from caesura.engine.weights.sources import CodedParts, RowReader, Source
from caesura.engine.weights.stored import WeightsError
from caesura.kernels.cpu import F32, Matrix, repack
from caesura.kernels.cpu.repack import RowBlocks


class Merged(Source):
    """The base with a low-rank update: a matrix W becomes W + B A (Hu et al. 2021, LoRA; B includes the scale). Tensors
    that the update holds in full (norms) replace those of the base."""

    def __init__(self, base: Source, update: Source) -> None:
        super().__init__(base)
        self._base, self._update = base, update

    def shape(self, name: str) -> tuple[int, ...]:
        return self._base.shape(name)

    def floats(self, name: str) -> F32:
        if name in self._update:
            return self._update.floats(name)
        weight = self._base.floats(name)
        if f"{name}.a" not in self._update:
            return weight
        rank = rank_of(name, self._update.shape(f"{name}.a"), weight.shape)
        down = expect(self._update, f"{name}.a", (rank, weight.shape[1]))
        return weight + expect(self._update, f"{name}.b", (weight.shape[0], rank)) @ down

    def _changed(self, name: str) -> bool:
        return name in self._update or f"{name}.a" in self._update

    def form(self, name: str) -> str:
        return "" if self._changed(name) else self._base.form(name)

    def parts(self, name: str) -> tuple[str, CodedParts]:
        return ("", ()) if self._changed(name) else self._base.parts(name)

    def blocks(self, name: str) -> Sequence[RowBlocks]:
        return () if self._changed(name) else self._base.blocks(name)

    def table(self, name: str) -> RowReader:
        return super().table(name) if self._changed(name) else self._base.table(name)


def base_of(folder: Path) -> Source:
    """The base of a model folder, which both paths use, with the update of `context.safetensors` if there is one."""
    base, update = stored.Stored(*stored.bases(folder)), folder / "context.safetensors"
    return Merged(base, stored.Stored(update)) if update.is_file() else base


def expect(source: Source, name: str, shape: tuple[int, ...]) -> F32:
    """A tensor in float32. Raises WeightsError if it is missing or has another shape."""
    checked(source, name)
    found = source.floats(name)
    if found.shape != shape:
        raise misshapen(name, found.shape, shape)
    return found


def as_stored(source: Source, name: str, shape: tuple[int, ...]) -> tuple[str, CodedParts]:
    """The form and the parts of a matrix as stored; no parts if it has none. Raises WeightsError."""
    form, parts = source.parts(name) if name in source else ("", ())
    if form and forms.shape(form, parts) != shape:
        raise misshapen(name, forms.shape(form, parts), shape)
    return form, parts


def table(source: Source, name: str, shape: tuple[int, ...]) -> RowReader:
    """The rows of a matrix [N, K] in 8 bits, read and rounded when they are asked for. Raises WeightsError."""
    checked(source, name)
    if source.shape(name) != shape:
        raise misshapen(name, source.shape(name), shape)
    rows = source.table(name)
    try:
        rows(np.array([0, shape[0] - 1]))  # what a file lacks, or a library, is said now and not in a pass
    except (ValueError, IndexError) as error:
        raise stored.damaged(name, error) from error
    if source.form(name) == "q8" or not forms.fits("q8", shape[1]):
        return rows
    return lambda ids: stored.restored("q8", *stored.q8(rows(ids)))


def tiled(source: Source, name: str, shape: tuple[int, ...], made: str = "q8") -> list[Matrix]:
    """A matrix [N, K] for the C kernels, as matrices below one another where its rows lie in several forms: in 4 or 8
    bits as stored; floats get the form `made`, or 8 bits if their columns do not fill its groups. Raises
    WeightsError."""
    form, parts = as_stored(source, name, shape)
    try:
        if form in forms.ON_CPU:
            return [Matrix(form, *parts)]
        blocks = source.blocks(name) if name in source else ()
        blocks = blocks or [repack.plain(expect(source, name, shape))]
        found = sum(len(one.rows) for one in blocks), blocks[0].columns
        if found != shape:
            raise misshapen(name, found, shape)
        rest = made if forms.fits(made, shape[1]) else "q8"
        kept = groupby(blocks, lambda one: repack.KEPT.get(one.kind, rest))
        return [packed(form, list(same)) for form, same in kept]
    except ValueError as error:
        raise stored.damaged(name, error) from error


def packed(form: str, blocks: Sequence[RowBlocks]) -> Matrix:
    """Matrices below one another as one in this form. Raises ValueError for a weight that is no number or too
    large."""
    if form == "k4":
        *codes, unit = forms.quantised(form, np.concatenate([repack.floats(one) for one in blocks]))
        if not np.isfinite(unit).all():
            raise ValueError("a weight is too large")
        return Matrix(form, *codes, unit)
    return repack.packed(form, blocks)


def rank_of(name: str, down: tuple[int, ...], size: tuple[int, ...]) -> int:
    """The rank of the low-rank update of a matrix [N, K], at most the smaller of both, from the shape of its A. Raises
    WeightsError."""
    if len(down) != 2 or len(size) != 2 or not 0 < down[0] <= min(size):
        raise WeightsError(f"The low-rank update of {name}, which is {list(size)}, cannot be {list(down)}.")
    return down[0]


def checked(source: Source, name: str) -> None:
    """Raises WeightsError if a tensor is missing."""
    if name not in source:
        raise WeightsError(f"The weights lack the tensor {name}; install the model again.")


def misshapen(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> WeightsError:
    return WeightsError(f"The tensor {name} has shape {list(found)}, not {list(wanted)}.")
