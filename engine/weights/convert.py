"""A published checkpoint of floats -> our FP8 or 4-bit one, in the layouts of compressed-tensors, tensor by tensor.

The weights that the family names are quantised; router, norms, scalars, embedding and self-conditioning stay as they
are, and tensors that the family leaves out are dropped. A stack of experts stays a stack, since it is mapped from the
file: 60 stacks at 26B instead of 11,520 matrices to copy one by one (measured: 0.7 s for 0.5 GB).
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from caesura.engine.memory import DoesNotFit
from caesura.engine.models import ModelError, read_config
from caesura.engine.weights import audit
from caesura.engine.weights.checkpoint import FLOATS, INDEX, Checkpoint, Entry, headers
from caesura.engine.weights.stored import WeightsError, one_line, write_manifest
from caesura.kernels import fp8, nvfp4
from caesura.models import MANIFEST

Precision = Literal["fp8", "nvfp4"]
SHARD = 1 << 30  # bytes; a shard is in memory while it is written
BESIDE = ("*.json", "*.jinja", "*.txt", "LICENSE*", "NOTICE*")  # files that come along: tokenizer, template, terms
OURS = ("config.json", MANIFEST, INDEX, audit.CANARY)  # files that are written, not copied

LAYOUTS: dict[Precision, tuple[str, dict[str, object]]] = {
    "fp8": ("float-quantized", {"num_bits": 8, "strategy": "channel", "group_size": None}),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "strategy": "tensor_group", "group_size": nvfp4.GROUP}),
}


def convert(source: Path, target: Path, form: Precision, progress: Callable[[int, int], None]) -> None:
    """Write the folder `target`, whole or not at all; `progress` gets the bytes read and their total. Raises
    WeightsError or ModelError."""
    if target.exists():
        raise WeightsError(f"{target} exists already; choose another folder with --out.")
    config = read_config(source)
    family = audit.family(source)
    if not hasattr(family, "QUANTISED"):
        kind = str(config["model_type"])[:40]
        raise WeightsError(f"{source} holds a model of type {kind!r}, which cannot be converted; use its GGUF file.")
    entries = [entry for entry in headers(source) if family.canonical(entry.name) is not None]
    if "quantization_config" in config or any(entry.dtype not in FLOATS for entry in entries):
        raise WeightsError(f"{source} is quantised already; convert the original in bfloat16.")
    audit.check(source)
    pattern = re.compile("|".join(family.QUANTISED))
    _room(target.parent, sum(_size(entry, form, pattern) for entry in entries))
    work = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        work.mkdir()
        dense = _write(source, work, entries, form, pattern, progress)
        (work / "config.json").write_text(json.dumps({**config, "quantization_config": _said(form, dense)}, indent=2))
        for path in sorted({path for pattern in BESIDE for path in source.glob(pattern)}):
            if path.name not in OURS and path.is_file():
                shutil.copyfile(path, work / path.name)
        try:
            audit.record(work)
        except ModelError as error:
            if not isinstance(error.__cause__, DoesNotFit):
                raise
            # Too large for this machine: `caesura models verify --record` makes a canary on a larger one.
        write_manifest(work, {"name": target.name, "model_type": config["model_type"], "form": form})
        work.rename(target)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{target} could not be written: {one_line(error)}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(
    source: Path,
    target: Path,
    entries: list[Entry],
    form: Precision,
    pattern: re.Pattern[str],
    progress: Callable[[int, int], None],
) -> list[str]:
    """The shards and their index. Returns the stems of the matrices that stayed dense."""
    names = {entry.name for entry in entries}
    checkpoint = Checkpoint(source, lambda name: name if name in names else None)
    total, read, places, dense = sum(entry.nbytes for entry in entries), 0, dict[str, str](), list[str]()
    shard: dict[str, Tensor] = {}

    def flush() -> None:
        file = f"model-{len(set(places.values())) + 1:05}.safetensors"
        save_file(shard, target / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
        shard.clear()

    for entry in entries:
        tensor = checkpoint.tensor(entry.name, entry.shape)
        stem = entry.name.removesuffix(".weight")
        if _chosen(entry, form, pattern):
            shard.update({f"{stem}.{part}": value for part, value in quantised(tensor, form).items()})
        else:
            shard[entry.name] = tensor
            dense += [stem] if stem != entry.name and len(entry.shape) > 1 else []
        read += entry.nbytes
        progress(read, total)
        if sum(value.nbytes for value in shard.values()) >= SHARD:
            flush()
    if shard:
        flush()
    size = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    (target / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=1) + "\n")
    return dense


def quantised(weight: Tensor, form: Precision) -> dict[str, Tensor]:
    """A matrix [N, K] or a stack of them -> its parts by the names they are stored under, a matrix at a time."""
    if weight.ndim > 2:
        matrices = [quantised(matrix, form) for matrix in weight]
        return {part: torch.stack([matrix[part] for matrix in matrices]) for part in matrices[0]}
    if form == "fp8":
        codes, scale = fp8.quantize(weight)
        return {"weight": codes, "weight_scale": scale}
    codes, scale, factor = nvfp4.quantize(weight)
    return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": 1 / factor[0]}


def _chosen(entry: Entry, form: Precision, pattern: re.Pattern[str]) -> bool:
    """True if a tensor is quantised; NVFP4 needs whole groups of columns."""
    fits = len(entry.shape) > 1 and (form == "fp8" or entry.shape[-1] % nvfp4.GROUP == 0)
    return fits and pattern.search(entry.name) is not None


def _size(entry: Entry, form: Precision, pattern: re.Pattern[str]) -> int:
    """Bytes after conversion."""
    if not _chosen(entry, form, pattern):
        return entry.nbytes
    values = math.prod(entry.shape)
    return values + 4 * values // entry.shape[-1] if form == "fp8" else values * 9 // 16 + 4


def _room(folder: Path, needed: int) -> None:
    if not folder.is_dir():
        raise WeightsError(f"There is no folder {folder}; choose another one with --out.")
    free = shutil.disk_usage(folder).free
    if free < needed * 1.01:  # the rest is headers and the tokenizer
        raise WeightsError(
            f"{folder} has {free / 1e9:.1f} GB free and the converted model takes {needed / 1e9:.1f} GB; make room, or "
            "choose another folder with --out."
        )


def _said(form: Precision, dense: list[str]) -> dict[str, Any]:
    """`quantization_config` in the words of compressed-tensors."""
    name, weights = LAYOUTS[form]
    group = {
        "targets": ["Linear"],
        "weights": {**weights, "type": "float", "symmetric": True, "dynamic": False},
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", *dense],
    }
