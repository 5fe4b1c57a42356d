"""The files of a published checkpoint: safetensors, in one file or in shards with an index."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from caesura.engine.weights import mapped
from caesura.engine.weights.mapped import Array, Damaged, Entry
from caesura.engine.weights.stored import WeightsError
from caesura.kernels.cpu import F32
from caesura.model_store.reading import MAX_LARGE, decoded, quoted, reason, short

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
FLOATS = ("BF16", "F16", "F32")
SCALE = re.compile(r"\.(weight|input)_(global_)?scale(_2)?$")  # of a quantised matrix
CACHE_SCALE = re.compile(r"\.(([qkv]|prob)_scale|[kv]_proj\.output_scale)$")  # of a quantised KV cache; ignored
AGAIN = "download the model again"


class ShardIndex(msgspec.Struct, frozen=True):
    """What is read of the index of shards: file names by tensor."""

    weight_map: dict[str, str]


def headers(folder: Path) -> list[Entry]:
    """Every tensor that is stored, from the headers of the files. Raises WeightsError."""
    if (folder / SINGLE).exists():
        return _header(folder / SINGLE)
    index = folder / INDEX
    if not index.exists():
        raise WeightsError(f"{folder} has neither {SINGLE} nor {INDEX}; {AGAIN}.")
    places = _index(index)
    stored: dict[str, Entry] = {}
    for file in sorted(set(places.values())):
        for entry in _header(folder / file):
            if entry.name in stored:
                raise WeightsError(
                    f"{entry.path} and {stored[entry.name].path.name} both have {short(entry.name)}; {AGAIN}."
                )
            stored[entry.name] = entry
    for name, file in places.items():
        if name not in stored or stored[name].path.name != file:
            raise WeightsError(f"{folder / file} has no tensor {short(name)}, which {INDEX} puts there; {AGAIN}.")
    return list(stored.values())


def some(names: Sequence[str]) -> str:
    """The first names of tensors as part of a sentence."""
    return ", ".join(short(name) for name in names[:3])


def stored(entry: Entry) -> Array:
    """A tensor as it is stored. Raises WeightsError or UnusableModel."""
    try:
        return mapped.array(entry)
    except Damaged as error:
        raise damaged(entry.path, error) from error


def floats(entry: Entry) -> F32:
    """A tensor in float32. Raises WeightsError or UnusableModel."""
    try:
        return mapped.floats(entry)
    except Damaged as error:
        raise damaged(entry.path, error) from error


def _index(path: Path) -> dict[str, str]:
    """File names by tensor."""
    places = decoded(path, ShardIndex, MAX_LARGE).weight_map
    for file in places.values():
        if not FILE.fullmatch(file):  # anything else could leave the folder
            raise WeightsError(f"{path} names {quoted(file)}, which is no weights file of its folder; {AGAIN}.")
    return places


def _header(path: Path) -> list[Entry]:
    try:
        return mapped.entries(path)
    except Damaged as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"{path} is damaged ({reason(error)}); {AGAIN}.")
