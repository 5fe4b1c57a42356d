"""The forms of a matrix [N, K]: as a file has it, and as it lies in memory.

`q8`, `q4` and `k4` are those of `stored.py`, for our kernels on a CPU: the parts of a matrix `x` are called `x.q8`,
`x.scale` and so on. `fp8` and `nvfp4` are those of compressed-tensors, for kernels on a GPU: `x`, `x_scale`, or
`x_packed`, `x_scale`, `x_global_scale`. Rows are apart from each other in all of them, so matrices in the same form can
be put one below the other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from caesura.engine.weights import stored
from caesura.engine.weights.checkpoint import AGAIN, Entry
from caesura.engine.weights.checkpoint import stored as as_it_is
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import fp8, nvfp4
from caesura.kernels.linear import Linear
from caesura.model_store.reading import short

Quantise = Literal["int8", "int4", "fp8", "nvfp4"]
OWN = "caesura"  # the `quant_method` of a config.json whose tensors have our own forms
READABLE = ("float-quantized", "nvfp4-pack-quantized")  # formats of compressed-tensors
OF: dict[Quantise, str] = {"int8": "q8", "int4": "k4", "fp8": "fp8", "nvfp4": "nvfp4"}  # the form of a user's word
ON_CPU, ON_GPU = tuple(stored.FORMS), ("fp8", "nvfp4")
PARTS: dict[str, tuple[str, ...]] = {
    **{form: tuple(f".{part}" for part in parts) for form, parts in stored.FORMS.items()},
    "fp8": ("", "_scale"),
    "nvfp4": ("_packed", "_scale", "_global_scale"),
}
# Bits per weight, further bytes per row, and codes per byte where it is not one.
BITS = {"q8": 8.5, "q4": 5.0, "k4": 4.5, "fp8": 8.0, "nvfp4": 4.5, "int8": 8.0, "bf16": 16.0, "f32": 32.0}
A_ROW = {"k4": 4, "fp8": 4, "nvfp4": 4, "int8": 12}
CODES = {"q4": 2, "k4": 2, "nvfp4": 2}
CHUNK = 1 << 21  # values quantised at once
FP8_ROWS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}  # activations of FP8-dynamic files
CodedParts = tuple[Tensor, ...]


class Rounded(NamedTuple):
    """Which stored tensors of a family are worth a form, by expressions over their names: the `matrices` of layers,
    nine tenths of the bytes and more, and embedding and head (`tables`), which get 8 bits for a CPU. A family without
    these has no form for a CPU."""

    matrices: tuple[str, ...]
    tables: tuple[str, ...] = ()


@runtime_checkable
class Coded(Protocol):
    """Tensors by name, some of them in a form."""

    def form(self, name: str) -> str:
        """The form of a tensor, without reading it."""

    def parts(self, name: str) -> tuple[str, CodedParts]:
        """The form of a tensor and its parts as they are stored; no form and no parts where it is a float, or must be
        computed. Raises WeightsError."""


def readable(config: Mapping[str, Any]) -> bool:
    """True if the forms that config.json names can be read."""
    if "quantization_config" not in config:
        return True
    said = config["quantization_config"]
    said = said if isinstance(said, dict) else {}
    return said.get("quant_method") == OWN or said.get("format") in READABLE


def rounds(config: Mapping[str, Any]) -> bool:
    """True if config.json prescribes activations in FP8, with a scale for each row that is taken as it runs: every
    group of compressed-tensors must."""
    said = config.get("quantization_config")
    groups = said.get("config_groups") if isinstance(said, dict) else None
    inputs = [group.get("input_activations") for group in groups.values()] if isinstance(groups, dict) else []
    return bool(inputs) and all(isinstance(each, dict) and each.items() >= FP8_ROWS.items() for each in inputs)


def nbytes(form: str, rows: int, columns: int) -> int:
    """Bytes of a matrix in memory; besides the forms, `int8` is torch's, and `bf16` and `f32` are floats."""
    return int(rows * columns * BITS[form] / 8) + rows * A_ROW.get(form, 0)


def shape(form: str, parts: CodedParts) -> tuple[int, ...]:
    """[N, K] of the matrix; a file may have anything else."""
    found = tuple(parts[0].shape)
    return (*found[:-1], found[-1] * CODES.get(form, 1)) if found else ()


def stacked(matrices: Sequence[tuple[str, CodedParts]]) -> tuple[str, CodedParts]:
    """Matrices, one below the other, where all have the same form."""
    kinds = {form for form, _ in matrices}
    if len(kinds) > 1 or "" in kinds:
        return "", ()
    joined = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*(p for _, p in matrices), strict=True))
    return kinds.pop(), tuple(joined)


def dense(form: str, parts: CodedParts) -> Tensor:
    """The matrix in float32."""
    return linear(form, parts).dense(torch.float32) if form in ON_GPU else stored.restored(form, *parts)


def linear(form: str, parts: CodedParts) -> Linear:
    """The matrix for the kernels of a GPU."""
    return fp8.Fp8Linear(*parts) if form == "fp8" else nvfp4.Nvfp4Linear(*parts)


QUANTISERS: dict[str, Callable[[Tensor], CodedParts]] = {
    "q8": stored.q8,
    "k4": stored.k4,
    "fp8": fp8.quantize,
    "nvfp4": nvfp4.quantize,
}


def fits(form: str, columns: int) -> bool:
    """True if a matrix of so many columns can have this form: its groups must be whole."""
    return form == "fp8" or columns % (nvfp4.GROUP if form == "nvfp4" else stored.GROUP) == 0


def quantised(form: str, weight: Tensor) -> CodedParts:
    """Round a matrix of floats, some rows at a time, which takes less memory; NVFP4 has a factor for those rows."""
    rows = weight.split(max(1, CHUNK // weight.shape[1]))
    return tuple(torch.cat(parts) for parts in zip(*(QUANTISERS[form](part.float()) for part in rows), strict=True))


def matrices(entries: Sequence[Entry]) -> dict[str, tuple[str, tuple[Entry, ...]]]:
    """The tensors of a file by name, with the form and the parts of each; no form for floats. Raises
    WeightsError."""
    left = {entry.name: entry for entry in entries}
    found = dict[str, tuple[str, tuple[Entry, ...]]]()
    for entry in entries:
        form = form_of(entry)
        if not form:
            continue
        if len(entry.shape) < 2:
            raise WeightsError(f"{entry.path}: {short(entry.name)} must be a matrix, and is none; {AGAIN}.")
        stem = entry.name.removesuffix(PARTS[form][0])
        names = [stem + suffix for suffix in PARTS[form]]
        missing = next((name for name in names if name not in left), None)
        if missing is not None:
            raise WeightsError(f"{entry.path} has no tensor {short(missing)}, which this model needs; {AGAIN}.")
        found[stem] = form, tuple(left.pop(name) for name in names)
    return found | {name: ("", (entry,)) for name, entry in left.items()}


def form_of(entry: Entry) -> str:
    """The form whose first part a stored tensor is, if it is one."""
    if entry.dtype == "F8_E4M3":
        return "" if entry.name.endswith(PARTS["nvfp4"][1]) else "fp8"
    return next((form for form, parts in PARTS.items() if parts[0] and entry.name.endswith(parts[0])), "")


def read(form: str, entries: Sequence[Entry]) -> CodedParts:
    """The parts of a matrix from its file, in the order of PARTS. Raises WeightsError."""
    parts = tuple(map(as_it_is, entries))
    if form not in ON_GPU:
        return parts
    codes, *scales = parts
    numbers = [part.float() for part in scales]
    if not all(part.isfinite().all() and (part >= 0).all() for part in numbers):
        raise WeightsError(
            f"{entries[0].path}: {short(entries[0].name)} has an invalid scale (NaN, infinite or negative); {AGAIN}."
        )
    last = 1 / numbers[-1] if form == "nvfp4" else numbers[-1]  # which compressed-tensors divides by
    if last.numel() not in (1, len(codes)) or not last.isfinite().all():
        raise WeightsError(f"{entries[0].path}: {short(entries[0].name)} has no scale for each of its rows; {AGAIN}.")
    a_row = last.reshape(-1, 1).expand(len(codes), 1).contiguous()
    return (codes, a_row) if form == "fp8" else (codes, scales[0], a_row)


def stored_shape(form: str, entries: Sequence[Entry]) -> tuple[int, ...]:
    """The shape of a tensor, from the headers alone."""
    found = entries[0].shape
    return (*found[:-1], found[-1] * CODES[form]) if form in CODES else found


def named(tensors: Mapping[str, Tensor], name: str) -> str:
    """The form of one of the tensors, without reading it."""
    return tensors.form(name) if isinstance(tensors, Coded) else ""


def of(tensors: Mapping[str, Tensor], name: str) -> tuple[str, CodedParts]:
    """The form and the parts of one of the tensors, as `Coded` has them."""
    return tensors.parts(name) if isinstance(tensors, Coded) and name in tensors else ("", ())
