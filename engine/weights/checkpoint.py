"""A published checkpoint: safetensors, in one file or in shards with an index, read tensor by tensor.

Tensors used as stored are not copied: each is mapped from its file as long as it is held. The names next to a matrix X
show how it is stored: dense (`X.weight`; experts also bare `X`), FP8 (e4m3
`X.weight`, `X.weight_scale`), NVFP4 of compressed-tensors (`X.weight_packed`, `X.weight_scale` and the divisor
`X.weight_global_scale`) or of ModelOpt (uint8 `X.weight`, `X.weight_scale` and the multiplier `X.weight_scale_2`).
`stored.py` has the formats of our own models.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from caesura.engine.weights import hub, tensors
from caesura.engine.weights.hub import AGAIN, CACHE_SCALE, FLOATS, headers, some
from caesura.engine.weights.mapped import Entry
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import fp8, linear, nvfp4
from caesura.kernels.linear import Dense, Linear

INPUT_SCALES = ("input_scale", "input_global_scale")  # of quantised activations; ignored


class Checkpoint:
    """The tensors of a folder by the family's names; each can be taken once.

    `canonical` maps a stored name to the family's, or to None for a tensor left out on purpose. Tensors are put on
    `device`; on "meta" a tensor has a shape and no values, and only scales are read. `progress` is called with the
    share of the tensors that have been taken. Every method raises WeightsError.
    """

    def __init__(
        self,
        folder: Path,
        canonical: Callable[[str], str | None],
        device: str = "cpu",
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.folder = folder
        self.skipped: list[str] = []
        self._device = device
        self._entries: dict[str, list[Entry]] = {}  # by the family's name
        for entry in headers(folder):
            name = None if CACHE_SCALE.search(entry.name) else canonical(entry.name)
            if name is None:
                self.skipped.append(entry.name)
            else:
                self._entries.setdefault(name, []).append(entry)
        self._progress, self._count = progress, len(self._entries)

    def __repr__(self) -> str:
        return f"Checkpoint({self.folder}, {len(self._entries)} tensors left)"

    def dtype(self, name: str) -> str:
        """The stored type of a tensor, in safetensors' words; empty if it is not there."""
        return next((entry.dtype for entry in self._entries.get(name, [])), "")

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of floats, as stored or as `dtype`."""
        return self._take(name, shape, FLOATS).to(self._device, dtype)

    def optional(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor | None:
        return self.tensor(name, shape, dtype) if name in self._entries else None

    def linear(self, stem: str, shape: tuple[int, int], dtype: torch.dtype | None = None) -> Linear:
        """A matrix [N, K] in its stored precision; `dtype` is for a dense one."""
        return self._matrix(stem, shape, dtype).to(self._device)

    def experts(
        self,
        stem: str,
        joined: str,
        parts: Sequence[str],
        shape: tuple[int, int, int],
        dtype: torch.dtype | None = None,
    ) -> Linear:
        """A stack [E, N, K], stored whole as `stem.joined`, or as a matrix `stem.0.part` for each expert and part, in
        the order of `parts` and of the same height."""
        count, rows, columns = shape
        whole = f"{stem}.{joined}"
        if whole in self._entries:
            return Dense(self.tensor(whole, shape, dtype))
        if not self._stored(f"{stem}.0.{parts[0]}"):
            return self._matrix(whole, shape, dtype).to(self._device)
        part = (rows // len(parts), columns)
        experts = ([self._matrix(f"{stem}.{e}.{name}", part, dtype) for name in parts] for e in range(count))
        return linear.stack(self._alike(stem, experts), count, self._device)

    def finish(self) -> None:
        """Raises WeightsError unless every tensor has been consumed."""
        left = sorted(entry.name for entries in self._entries.values() for entry in entries)
        if left:
            raise WeightsError(
                f"{self.folder} has {len(left)} tensors without a place in this model: {some(left)}"
                f"{' and more' if len(left) > 3 else ''}; it is another model, or in a format that cannot be read yet."
            )

    def _stored(self, stem: str) -> bool:
        return f"{stem}.weight" in self._entries or f"{stem}.weight_packed" in self._entries

    def _matrix(self, stem: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Linear:
        """A matrix or a stack, its codes still in the file."""
        weight, packed = f"{stem}.weight", f"{stem}.weight_packed"
        for name in INPUT_SCALES:
            self._entries.pop(f"{stem}.{name}", None)
        if packed in self._entries:
            factor = self._scales(f"{stem}.weight_global_scale", shape, divisor=True)
            return nvfp4.Nvfp4Linear(*self._packed(packed, f"{stem}.weight_scale", shape), factor)
        dtypes = {entry.dtype for entry in self._entries.get(weight, [])}
        if dtypes == {"U8"}:
            factor = self._scales(f"{stem}.weight_scale_2", shape)
            return nvfp4.Nvfp4Linear(*self._packed(weight, f"{stem}.weight_scale", shape), factor)
        if dtypes == {"F8_E4M3"}:
            return fp8.Fp8Linear(self._take(weight, shape, ("F8_E4M3",)), self._scales(f"{stem}.weight_scale", shape))
        return Dense(self.tensor(weight, shape, dtype))

    def _packed(self, codes: str, scale: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        *outer, columns = shape
        if columns % nvfp4.GROUP:
            raise WeightsError(
                f"{self.folder}: {codes} cannot be NVFP4, its {columns} columns are no multiple of 16; {AGAIN}."
            )
        groups = self._take(scale, (*outer, columns // nvfp4.GROUP), ("F8_E4M3",))
        if (groups.view(torch.uint8) & 0x7F == 0x7F).any():  # the one NaN of e4m3; there is no infinity
            raise self._bad(scale)
        return self._take(codes, (*outer, columns // 2), ("U8",)), groups

    def _scales(self, name: str, shape: tuple[int, ...], *, divisor: bool = False) -> Tensor:
        """Stored for each matrix or for each row -> float32 [..., N, 1]; what is a divisor becomes a factor."""
        *outer, rows, _ = shape
        stored = next((entry.shape for entry in self._entries.get(name, [])), (*outer, rows, 1))
        if stored not in {(*outer, *inner) for inner in ((), (1,), (1, 1), (rows,), (rows, 1))}:
            stored = (*outer, rows, 1)  # the shape for the error
        value = self._take(name, stored, FLOATS).float().reshape(*outer, -1, 1)
        if not value.isfinite().all() or (value < 0).any() or (divisor and (value == 0).any()):
            raise self._bad(name)
        return (1 / value if divisor else value).expand(*outer, rows, 1).contiguous()

    def _alike(self, stem: str, experts: Iterable[Sequence[Linear]]) -> Iterator[Sequence[Linear]]:
        """Experts of one precision, so that they can be one stack."""
        precision = None
        for parts in experts:
            for part in parts:
                found = (type(part), *(tensor.dtype for tensor in part.tensors))
                precision = precision or found
                if found != precision:
                    raise WeightsError(f"{self.folder}: the experts of {stem} are not all of one precision; {AGAIN}.")
            yield parts

    def _take(self, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> Tensor:
        """Read and checked; stored twice under one name of the family, both must be the same."""
        self._progress(1 - len(self._entries) / max(1, self._count))
        entries = self._entries.pop(name, [])
        if not entries:
            raise WeightsError(f"{self.folder} has no tensor {name}, which this model needs; {AGAIN}.")
        for entry in entries:
            if entry.dtype not in dtypes:
                types = " or ".join(dtypes)
                raise WeightsError(f"{entry.path}: {entry.name} is of type {entry.dtype} instead of {types}; {AGAIN}.")
            if entry.shape != shape:
                stored, wanted = list(entry.shape), list(shape)
                raise WeightsError(f"{entry.path}: {entry.name} has the shape {stored} instead of {wanted}; {AGAIN}.")
        first, *others = (tensors.of(hub.stored(entry), entry.dtype) for entry in entries)
        for entry, other in zip(entries[1:], others, strict=True):
            if other.dtype != first.dtype or not torch.equal(other, first):
                raise WeightsError(
                    f"{self.folder}: {entries[0].name} and {entry.name} must be the same and are not; {AGAIN}."
                )
        return first

    def _bad(self, name: str) -> WeightsError:
        return WeightsError(
            f"{self.folder}: {name} holds something that is no scale (NaN, infinite or negative); {AGAIN}."
        )
