"""safetensors -> float32 tensors, checked against the manifest.

On disk a matrix `x` of [N, K] is one of: `x` (float16/bfloat16/float32); `x.q8` int8 [N, K] with `x.scale` float16
[N, K/32]; `x.q4` uint8 [N, K/2] (even column in the low nibble) with `x.scale` and `x.min` float16 [N, K/32], value =
scale * q + min; `x.k4` likewise, 4.5 bits a weight: `x.scale` and `x.min` uint8 [N, K/32] are shares of
the row's largest, `x.unit` float16 [N, 2], in steps of 1/255: value = scale * unit0 / 255 * q - min * unit1 / 255. A
base is one file or several, and rows of a matrix in a later file follow those in earlier ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from caesura import model_store
from caesura.engine.weights import ahead
from caesura.model_store import MANIFEST, reading, sha256
from caesura.model_store.reading import UnusableModel, reason, short

GROUP = 32
FORMS = {"q8": ("q8", "scale"), "q4": ("q4", "scale", "min"), "k4": ("k4", "scale", "min", "unit")}


class WeightsError(UnusableModel):
    """Weights or sizes are missing, damaged or not supported."""


def verify(folder: Path) -> str:
    """Check every file of `manifest.json` by sha256 and return the manifest's own hash. Raises UnusableModel."""
    files = model_store.manifest(folder).files
    found = {p.name for p in folder.iterdir() if p.suffix in (".json", ".safetensors")}
    unlisted = found - files.keys() - {MANIFEST}
    if unlisted:
        raise WeightsError(f"{folder / min(unlisted)} is not in the manifest; install the model again.")
    for name, expected in files.items():
        path = folder / name
        if ahead.done(sha256, path) != expected:
            raise WeightsError(f"{path} is damaged (its sha256 differs from the manifest); install the model again.")
    return sha256(folder / MANIFEST)


def bases(folder: Path) -> list[Path]:
    """The files of a folder's base: `base.safetensors`, or `base-1.safetensors` and so on, in that order."""
    parts = sorted(folder.glob("base-*.safetensors"), key=lambda path: (len(path.name), path.name))
    return parts or [folder / "base.safetensors"]


class Stored(Mapping[str, Tensor]):
    """The tensors of some files by name, each read and restored to float32 on access, so that a model is packed layer
    by layer without being whole in memory. A file is open only while it is read, since the pages of a mapped file count
    as resident memory."""

    def __init__(self, *paths: Path) -> None:
        self._files = dict[str, list[Path]]()
        for path in paths:
            for part in parts_of(path):
                self._files.setdefault(part, []).append(path)
        stored = sorted(self._files)  # an order that every process agrees on
        self._forms = {
            name.removesuffix(f".{form}"): form for name in stored if (form := name.rpartition(".")[2]) in FORMS
        }
        parts = {f"{stem}.{part}" for stem, form in self._forms.items() for part in FORMS[form]}
        self._forms |= dict.fromkeys((name for name in stored if name not in parts), "")

    def __getitem__(self, name: str) -> Tensor:
        """Raises WeightsError if the stored parts do not fit together."""
        form, parts = self.parts(name)
        try:
            return restored(form, *parts)
        except (RuntimeError, IndexError) as error:
            raise damaged(name, error) from error

    def form(self, name: str) -> str:
        """See `forms.Coded`."""
        return self._forms[name]

    def parts(self, name: str) -> tuple[str, tuple[Tensor, ...]]:
        """The form of a tensor and its parts as they are stored: mapped from its file, or joined from several. Raises
        WeightsError."""
        form = self._forms[name]
        named = [f"{name}.{part}" for part in FORMS[form]] if form else [name]
        try:
            with ExitStack() as stack:  # open each file once, since that reads the names of all its tensors
                files = {path: stack.enter_context(opened(path)) for path in self._holding(named)}
                rows = ([files[path].get_tensor(part) for path in self._files[part]] for part in named)
                return form, tuple(some[0] if len(some) == 1 else torch.cat(some) for some in rows)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise damaged(name, error) from error

    def _holding(self, parts: Sequence[str]) -> set[Path]:
        for part in parts:
            if part not in self._files:
                raise SafetensorError(f"{part} is missing")
        return {path for part in parts for path in self._files[part]}

    def __contains__(self, name: object) -> bool:
        return name in self._forms  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._forms)

    def __len__(self) -> int:
        return len(self._forms)


def damaged(name: str, error: Exception) -> WeightsError:
    named = short(name)
    return WeightsError(f"The tensor {named} is damaged ({reason(error)}); install the model again.")


def opened(path: Path) -> Any:
    """A safetensors file. Raises UnusableModel, OSError or SafetensorError."""
    reading.opened(path).close()  # the library would wait for a pipe
    return safe_open(path, framework="pt")


def parts_of(path: Path) -> list[str]:
    """The names in a file. Raises WeightsError."""
    try:
        with opened(path) as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is damaged ({reason(error)}); install the model again.") from error


def restored(form: str, tensor: Tensor, *rest: Tensor) -> Tensor:
    """The parts of a form, in the order of FORMS -> float32."""
    match form:
        case "q8":
            return grouped(tensor, *rest)
        case "q4":
            return grouped(unpack_nibbles(tensor), *rest)
        case "k4":
            return grouped(unpack_nibbles(tensor), *fractions(*rest))
    return tensor.float()


def grouped(q: Tensor, scale: Tensor, least: Tensor | None = None) -> Tensor:
    """[N, K] codes with [N, K/32] scale (and minimum) -> [N, K] float32."""
    groups = q.float().view(q.shape[0], -1, GROUP).mul_(scale.float()[..., None])
    if least is not None:
        groups += least.float()[..., None]
    return groups.flatten(1)


def fractions(scale: Tensor, least: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum of k4, as stored -> float32 [N, K/32], as `grouped` takes them."""
    step = unit.float() / 255
    return scale * step[:, :1], least * -step[:, 1:]


def q8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] float -> int8 codes [N, K] and float16 scale [N, K/32]."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    scale = (groups.abs().amax(-1) / 127).clamp_min(1e-7).half()
    codes = groups.div(scale.float()[..., None]).round_().clamp_(-127, 127)  # in place: fresh pages cost more than this
    return codes.to(torch.int8).flatten(1), scale


def q4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, K] float -> uint8 [N, K/2], float16 scale and minimum [N, K/32]; round to nearest between the extremes."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    least = groups.amin(-1).half()
    scale = ((groups.amax(-1) - least.float()) / 15).clamp_min(1e-7).half()
    codes = ((groups - least.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 15).to(torch.uint8)
    return pack_nibbles(codes.flatten(1)), scale, least


def k4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[N, K] float -> uint8 [N, K/2], uint8 scale and minimum [N, K/32], float16 unit [N, 2]; round to nearest between
    the extremes, the lower of which is at most 0."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    least = groups.amin(-1).clamp_max(0)
    scale, least, unit = row_fractions((groups.amax(-1) - least) / 15, -least)
    step, offset = fractions(scale, least, unit)
    codes = ((groups - offset[..., None]) / step.clamp_min(1e-12)[..., None]).round().clamp(0, 15)
    return pack_nibbles(codes.to(torch.uint8).flatten(1)), scale, least, unit


def row_fractions(scale: Tensor, least: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scale and minimum (0 or more, subtracted) float [N, K/32] -> as k4 stores them, with their unit."""
    unit = torch.stack((scale.amax(1), least.amax(1)), 1).clamp_min(1e-6).half()
    counts = (torch.stack((scale, least), 1) / unit.float()[..., None] * 255).round().clamp(0, 255).to(torch.uint8)
    return counts[:, 0].contiguous(), counts[:, 1].contiguous(), unit


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 [N, K] of 0..15 -> [N, K/2]."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """uint8 [N, K/2] -> [N, K] of 0..15, both nibbles of a byte in one pass, on a little-endian machine."""
    wide = packed.to(torch.int16)
    return (wide | (wide << 4)).bitwise_and_(0x0F0F).view(torch.uint8)


def write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Write the manifest, with the hash of every other file of the folder but a package's `__init__.py`."""
    others = {"manifest.json", "__init__.py"}
    files = {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.is_file() and p.name not in others}
    (folder / "manifest.json").write_text(json.dumps({**about, "files": files}, indent=1) + "\n")
