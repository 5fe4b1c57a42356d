"""A published checkpoint of floats -> the same in 8 or 4 bits, tensor by tensor: for a GPU in FP8 or NVFP4, in the
layouts of compressed-tensors; for a CPU in our own forms (`forms.py`), which its kernels compute with as they are.

The matrices that the family names are quantised; router, norms, scalars and self-conditioning stay as they are, and
tensors that the family leaves out are dropped. Embedding and head get 8 bits for a CPU, and stay for a GPU. A stack of
experts stays a stack, since it is mapped from the file: 60 stacks at 26B instead of 11,520 matrices to copy one by one
(measured: 0.7 s for 0.5 GB).
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from caesura.engine.memory import DoesNotFit
from caesura.engine.model import ModelError, Quantise
from caesura.engine.models import audit
from caesura.engine.models.folder import read_config
from caesura.engine.weights import forms, tensors
from caesura.engine.weights.checkpoint import Checkpoint
from caesura.engine.weights.forms import OF, OWN, PARTS, Rounded
from caesura.engine.weights.hub import FLOATS, INDEX, headers
from caesura.engine.weights.mapped import Entry
from caesura.engine.weights.stored import WeightsError, write_manifest
from caesura.engine.weights.tensors import CodedTensors
from caesura.kernels import nvfp4
from caesura.model_store import MANIFEST
from caesura.model_store.reading import MAX_LARGE, quoted, read, reason

SHARD = 1 << 30  # bytes; a shard is in memory while it is written
BESIDE = ("*.json", "*.jinja", "*.txt", "LICENSE*", "NOTICE*")  # files that come along: tokenizer, template, terms
OURS = ("config.json", MANIFEST, INDEX, audit.CANARY)  # files that are written, not copied

# Format, weights and activations. FP8 is what publishers call FP8-dynamic.
LAYOUTS: dict[str, tuple[str, dict[str, object], dict[str, object] | None]] = {
    "fp8": (
        "float-quantized",
        {"num_bits": 8, "strategy": "channel", "group_size": None},
        {**forms.FP8_ROWS, "symmetric": True, "group_size": None},
    ),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "strategy": "tensor_group", "group_size": nvfp4.GROUP}, None),
}


def convert(source: Path, target: Path, form: Quantise, progress: Callable[[int, int], None]) -> None:
    """Write the folder `target`, whole or not at all; `progress` gets the bytes read and their total. Raises
    WeightsError or ModelError."""
    if target.exists():
        raise WeightsError(f"{target} exists already; choose another folder with --out.")
    if source.is_file():
        raise WeightsError(f"{source} loads as it is; `caesura engine --quantise {form}` keeps its weights so.")
    config = read_config(source)
    family = audit.family(source)
    rounded: Rounded | None = getattr(family, "ROUNDED", None)
    if rounded is None or (OF[form] in forms.ON_CPU and not rounded.tables):
        kind = quoted(audit.model_type(config, family))
        raise WeightsError(f"{source} holds a model of type {kind}, which cannot be converted to {form}.")
    entries = [entry for entry in headers(source) if family.canonical(entry.name) is not None]
    if "quantization_config" in config or any(entry.dtype not in FLOATS for entry in entries):
        raise WeightsError(f"{source} is quantised already; convert the original in bfloat16.")
    audit.check(source)
    made = {entry.name: _form(entry, form, rounded) for entry in entries}
    _room(target.parent, sum(_size(entry, made[entry.name]) for entry in entries))
    work = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        work.mkdir()
        dense = _write(source, work, entries, made, progress)
        (work / "config.json").write_text(json.dumps({**config, "quantization_config": _said(form, dense)}, indent=2))
        for path in sorted({path for pattern in BESIDE for path in source.glob(pattern)}):
            if path.name not in OURS and path.is_file():
                (work / path.name).write_bytes(read(path, MAX_LARGE))
        _record(work)
        write_manifest(work, {"name": target.name, "model_type": config["model_type"], "form": form})
        work.rename(target)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{target} could not be written: {reason(error)}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _record(folder: Path) -> None:
    """Make a canary, unless the model has no canvas or is too large for this machine: `caesura models verify --record`
    makes it on a larger one."""
    try:
        audit.record(folder)
    except audit.NoCanvas:
        return
    except ModelError as error:
        if not isinstance(error.__cause__, DoesNotFit):
            raise


def _write(
    source: Path,
    target: Path,
    entries: list[Entry],
    made: Mapping[str, str],
    progress: Callable[[int, int], None],
) -> list[str]:
    """The shards and their index; `made` is the form of each tensor. Returns the stems of the matrices that stayed
    dense."""
    checkpoint = Checkpoint(source, lambda name: name if name in made else None)
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
        if form := made[entry.name]:
            parts = zip(PARTS[form], quantised(tensor, form), strict=True)
            shard.update({f"{stem}.weight{suffix}": value for suffix, value in parts})
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


def quantised(weight: Tensor, form: str) -> CodedTensors:
    """A matrix [N, K] or a stack of them -> its parts as they are stored, a matrix at a time."""
    if weight.ndim > 2:
        matrices = [quantised(matrix, form) for matrix in weight]
        return tuple(map(torch.stack, zip(*matrices, strict=True)))
    if form == "nvfp4":  # one factor a matrix, by which its readers divide
        codes, scale, factor = nvfp4.quantize(weight)
        return codes, scale, 1 / factor[0]
    return tensors.quantised(form, weight)


def _form(entry: Entry, form: Quantise, rounded: Rounded) -> str:
    """The form that a tensor gets; none if it stays as it is."""
    made = OF[form]
    if not re.search("|".join(rounded.matrices), entry.name):
        table = made in forms.ON_CPU and re.search("|".join(rounded.tables), entry.name)
        made = "q8" if table else ""
    return made if made and len(entry.shape) > 1 and forms.fits(made, entry.shape[-1]) else ""


def _size(entry: Entry, form: str) -> int:
    """Bytes after conversion."""
    *outer, columns = entry.shape or (1,)
    return forms.nbytes(form, math.prod(outer), columns) if form else entry.nbytes


def _room(folder: Path, needed: int) -> None:
    if not folder.is_dir():
        raise WeightsError(f"There is no folder {folder}; choose another one with --out.")
    free = shutil.disk_usage(folder).free
    if free < needed * 1.01:  # the rest is headers and the tokenizer
        raise WeightsError(
            f"{folder} has {free / 1e9:.1f} GB free and the converted model takes {needed / 1e9:.1f} GB; make room, or "
            "choose another folder with --out."
        )


def _said(form: Quantise, dense: list[str]) -> dict[str, Any]:
    """`quantization_config` in our own format or in that of compressed-tensors."""
    if form not in LAYOUTS:
        return {"quant_method": OWN, "format": form}
    name, weights, inputs = LAYOUTS[form]
    group = {
        "targets": ["Linear"],
        "weights": {**weights, "type": "float", "symmetric": True, "dynamic": False},
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", *dense],
    }
