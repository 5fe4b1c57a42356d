"""The forms of a matrix [N, K]: as a file has it, and as it lies in memory.

`q8`, `q4` and `k4` are those of `stored.py`, for our kernels on a CPU: the parts of a matrix `x` are called `x.q8`,
`x.scale` and so on. `fp8` and `nvfp4` are those of compressed-tensors, for kernels on a GPU: `x`, `x_scale`, or
`x_packed`, `x_scale`, `x_global_scale`. Rows are apart from each other in all of them, so matrices in the same form can
be put one below the other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from caesura.engine.model import Quantise
from caesura.engine.weights import hub, mapped, stored
from caesura.engine.weights.hub import AGAIN
from caesura.engine.weights.mapped import Damaged, Entry
from caesura.engine.weights.sources import CodedParts
from caesura.engine.weights.stored import WeightsError
from caesura.kernels.cpu import F32
from caesura.model_store.reading import short

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
TYPES = {"fp8": ("F8_E4M3",), "nvfp4": ("U8", "F8_E4M3")}  # of codes, and of the scales of 16 columns
NARROW = 16  # columns of NVFP4 that share a scale
E2M1 = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6), np.float32)  # NVFP4's codes
FP8_ROWS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}  # activations of FP8-dynamic files


class Rounded(NamedTuple):
    """Which stored tensors of a family are worth a form, by expressions over their names: the `matrices` of layers,
    nine tenths of the bytes and more, and embedding and head (`tables`), which get 8 bits for a CPU. A family without
    these has no form for a CPU."""

    matrices: tuple[str, ...]
    tables: tuple[str, ...] = ()


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
    return kinds.pop(), tuple(map(mapped.below, zip(*(parts for _, parts in matrices), strict=True)))


def dense(form: str, parts: CodedParts) -> F32:
    """The matrix in float32."""
    if form == "fp8":
        codes, a_row = parts
        return mapped.e4m3()[codes] * a_row
    if form == "nvfp4":
        codes, scale, a_row = parts
        groups = E2M1[stored.unpack_nibbles(codes)].reshape(len(codes), -1, NARROW)
        return (groups * mapped.e4m3()[scale][..., None]).reshape(len(codes), -1) * a_row
    return stored.restored(form, *parts)


QUANTISERS: dict[str, Callable[[F32], CodedParts]] = {"q8": stored.q8, "q4": stored.q4, "k4": stored.k4}


def fits(form: str, columns: int) -> bool:
    """True if a matrix of so many columns can have this form: its groups must be whole."""
    return form == "fp8" or columns % (NARROW if form == "nvfp4" else stored.GROUP) == 0


def quantised(form: str, weight: F32) -> CodedParts:
    """Round a matrix of floats to a form for a CPU, some rows at a time, which takes less memory."""
    rows = max(1, CHUNK // weight.shape[1])
    parts = (QUANTISERS[form](weight[at : at + rows]) for at in range(0, max(1, len(weight)), rows))
    return tuple(map(mapped.below, zip(*parts, strict=True)))


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
    """The parts of a matrix from its file, in the order of PARTS; FP8 as bytes. Raises WeightsError."""
    first, *others = entries
    try:
        if form not in ON_GPU:
            return tuple(map(stored.coded, entries))
        found = tuple(entry.dtype for entry in entries[: len(TYPES[form])])
        if found != TYPES[form]:
            raise Damaged(f"its parts have the types {', '.join(found)}")
    except Damaged as error:
        raise stored.damaged(first.name, error) from error
    codes, numbers = hub.stored(first), [hub.floats(entry) for entry in others]
    if not all(np.isfinite(part).all() and (part >= 0).all() for part in numbers):
        raise WeightsError(
            f"{first.path}: {short(first.name)} has an invalid scale (NaN, infinite or negative); {AGAIN}."
        )
    with np.errstate(divide="ignore"):
        last = 1 / numbers[-1] if form == "nvfp4" else numbers[-1]  # which compressed-tensors divides by
    if last.size not in (1, len(codes)) or not np.isfinite(last).all():
        raise WeightsError(f"{first.path}: {short(first.name)} has no scale for each of its rows; {AGAIN}.")
    a_row = np.broadcast_to(last.reshape(-1, 1), (len(codes), 1)).copy()
    return (codes, a_row) if form == "fp8" else (codes, hub.stored(others[0]), a_row)


def stored_shape(form: str, entries: Sequence[Entry]) -> tuple[int, ...]:
    """The shape of a tensor, from the headers alone."""
    found = entries[0].shape
    return (*found[:-1], found[-1] * CODES[form]) if form in CODES else found
