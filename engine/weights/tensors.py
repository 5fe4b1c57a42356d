"""Weights as tensors, for what computes with torch: families on a GPU, training, conversion.

Arrays become tensors without a copy; bfloat16 and FP8, which numpy lacks, by a view.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from caesura.engine.weights import forms, stored
from caesura.engine.weights.mapped import Array
from caesura.engine.weights.sources import CodedParts, Source
from caesura.kernels import fp8, nvfp4
from caesura.kernels.linear import Linear

CodedTensors = tuple[Tensor, ...]  # as `CodedParts`
DTYPES = {  # of what numpy has no type for, by the words of safetensors
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "BOOL": torch.bool,
}
QUANTISERS: dict[str, Callable[[Tensor], CodedTensors]] = {"fp8": fp8.quantize, "nvfp4": nvfp4.quantize}


class ByName(Mapping[str, Tensor]):
    """The tensors of a source in float32."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, name: str) -> Tensor:
        """Raises WeightsError."""
        if name not in self._source:
            raise KeyError(name)
        return of(self._source.floats(name))

    def __contains__(self, name: object) -> bool:
        return name in self._source  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


def of(array: Array, dtype: str = "") -> Tensor:
    """An array as it is stored, of a `dtype` in safetensors' words -> a tensor over the same memory."""
    found = torch.from_numpy(array)
    return found.view(DTYPES[dtype]) if dtype in DTYPES else found


def coded(form: str, parts: CodedParts) -> CodedTensors:
    """The parts of a form, in the order of forms.PARTS."""
    eights = {"fp8": (0,), "nvfp4": (1,)}.get(form, ())
    return tuple(of(part, "F8_E4M3" if number in eights else "") for number, part in enumerate(parts))


def linear(form: str, parts: CodedTensors) -> Linear:
    """A matrix for the kernels of a GPU."""
    return fp8.Fp8Linear(*parts) if form == "fp8" else nvfp4.Nvfp4Linear(*parts)


def quantised(form: str, weight: Tensor) -> CodedTensors:
    """Round a matrix of floats on its device, some rows at a time, which takes less memory; NVFP4 has a factor for
    those rows. Forms for a CPU are made there."""
    if form in forms.ON_CPU:
        return coded(form, forms.quantised(form, weight.float().numpy()))
    rows = weight.split(max(1, forms.CHUNK // weight.shape[1]))
    return tuple(torch.cat(parts) for parts in zip(*(QUANTISERS[form](part.float()) for part in rows), strict=True))


def dense(form: str, parts: CodedTensors) -> Tensor:
    """The matrix in float32."""
    if form in forms.ON_GPU:
        return linear(form, parts).dense(torch.float32)
    return of(stored.restored(form, *(part.numpy() for part in parts)))


def grouped(codes: Tensor, scale: Tensor) -> Tensor:
    """[N, K] codes of 8 bits with [N, K/32] scale -> [N, K] float32, on their device."""
    groups: Tensor = codes.float().unflatten(-1, (-1, stored.GROUP)) * scale.float()[..., None]
    return groups.flatten(1)
