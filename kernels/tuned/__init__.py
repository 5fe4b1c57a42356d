"""Block sizes that were measured on a GPU: DEVICE.json, named after the card, made by gpu/tune. A launcher that finds
no entry for its work takes its own formula.

An entry has the name of a kernel, the shape and dtypes of its work, and its rows. It holds for that number of rows and
for fewer, down to more than half of it: where a formula was better, there is no entry. A table is read
once. Another Triton, or other code, takes other registers and shared memory, so a table holds for one minor version of
Triton and for the kernels' code as it was. candidates.json lists the block sizes that gpu/tune tries
(gpu/compiling.py).
"""

import ast
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caesura.kernels.jit import triton

Blocks = dict[str, int]
TunedTable = Mapping[
    tuple[Any, ...], Sequence[tuple[int, Blocks]]
]  # by kernel, shape, dtypes: rows and blocks, ascending
TunedEntry = Mapping[str, Any]

COMPILER = "num_warps", "num_stages"
PRODUCT = {"BLOCK_R", "BLOCK_N", "BLOCK_K", *COMPILER}
FIELDS = {
    "experts up": PRODUCT,
    "experts down": PRODUCT,
    "product": PRODUCT,
    "gate and up": PRODUCT,
    "attention": {"BLOCK_M", "BLOCK_N", "BLOCK_V", *COMPILER},
    "head": {"BLOCK_R", "BLOCK_V", "BLOCK_D", *COMPILER},
    "mean embedding": {"BLOCK_R", "BLOCK_V", "BLOCK_D", *COMPILER},
}
# Files of these kernels and of what they call.
SOURCES = "attention.py", "decode.py", "experts.py", "fp8.py", "gated.py", "head.py", "jit.py", "matmul.py"
LIMITS = {"num_warps": (1, 16), "num_stages": (1, 8)}  # least and most; of a block's side 16 and 512

log = logging.getLogger(__name__)
_used: list[TunedTable] = []  # tables that replace every file, the last one first


def folder() -> Path:
    """Where tables lie. CAESURA_TUNED names another folder, for one that was made on this machine."""
    return Path(os.environ.get("CAESURA_TUNED") or Path(__file__).parent)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def file_name(device: str) -> str:
    """NVIDIA H100 80GB HBM3 -> nvidia-h100-80gb-hbm3.json"""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()) + ".json"


def version() -> str:
    """Triton's, without the patch level."""
    return ".".join(triton.__version__.split(".")[:2])


@cache
def digest() -> str:
    """A hash of the code of the kernels, without comments and docstrings."""
    code = list[str]()
    for name in SOURCES:
        for node in ast.parse((Path(__file__).parents[1] / name).read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(by) for by in node.decorator_list):
                statements = node.body[1:] if ast.get_docstring(node) else node.body
                code += [node.name, ast.unparse(node.args), *map(ast.unparse, statements)]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]


def document(device: str, entries: Sequence[TunedEntry]) -> str:
    """The text of a table."""
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    head = json.dumps({"device": device, "triton": version(), "kernels": digest()})
    return f'{head[:-1]}, "entries": [\n{lines}\n]}}\n'


def blocks(kernel: str, shape: Sequence[int], rows: int, *work: Tensor) -> Blocks | None:
    """The block sizes for so many rows of tensors of these dtypes, if the device has some."""
    table = _used[-1] if _used else _read(work[0].device)
    found = table.get((kernel, *shape, *(str(tensor.dtype) for tensor in work)), ())
    return next((dict(chosen) for most, chosen in found if rows <= most < 2 * rows), None)


def has_table(device: torch.device) -> bool:
    return bool(_read(device))


def entry(kernel: str, shape: Sequence[int], rows: int, work: Sequence[Tensor], chosen: Blocks) -> TunedEntry:
    dtypes = [str(tensor.dtype) for tensor in work]
    return {"kernel": kernel, "shape": [*shape], "dtypes": dtypes, "rows": rows, "blocks": chosen}


@contextmanager
def using(entries: Sequence[TunedEntry]) -> Iterator[None]:
    """These entries instead of any file: to measure them, or none."""
    _used.append(_ordered(entries))
    try:
        yield
    finally:
        _used.pop()


@cache
def _read(device: torch.device) -> TunedTable:
    name = device_name(device)
    path = folder() / file_name(name)
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
        if (found["device"], found["triton"]) != (name, version()):
            raise ValueError(f"it is for {found['device']} and Triton {found['triton']}")
        if found["kernels"] != digest():
            raise ValueError("the kernels have changed since")
        return _ordered(found["entries"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is not used, kernels take their own block sizes: %s", path, error or type(error).__name__)
        return {}


def _ordered(entries: Sequence[TunedEntry]) -> TunedTable:
    table = dict[tuple[Any, ...], list[tuple[int, Blocks]]]()
    for entry in entries:
        shape = tuple(map(int, entry["shape"]))
        _check(entry["kernel"], shape, entry["blocks"])
        key = (entry["kernel"], *shape, *map(str, entry["dtypes"]))
        table.setdefault(key, []).append((int(entry["rows"]), entry["blocks"]))
    return {key: sorted(found, key=lambda pair: pair[0]) for key, found in table.items()}


def _check(kernel: str, shape: Sequence[int], chosen: Blocks) -> None:
    if chosen.keys() != FIELDS[kernel]:
        raise ValueError(f"{kernel} has no blocks {sorted(chosen)}")
    for name, value in chosen.items():
        least, most = LIMITS.get(name, (16, 512))
        power = name == "num_stages" or (isinstance(value, int) and value & (value - 1) == 0)
        if not isinstance(value, int) or not least <= value <= most or not power:
            raise ValueError(f"{kernel} cannot have {name} = {value}")
    if kernel == "attention" and chosen["BLOCK_V"] >= 2 * max(16, shape[-1]):
        raise ValueError(f"{kernel} cannot have BLOCK_V = {chosen['BLOCK_V']} for heads of {shape[-1]}")
