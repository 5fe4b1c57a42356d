"""safetensors -> float32 tensors, checked against the manifest.

On disk a matrix `x` of [N, K] is one of: `x` (float16/bfloat16/float32); `x.q8` int8 [N, K] with `x.scale` float16
[N, K/32]; `x.q4` uint8 [N, K/2] (even column in the low nibble) with `x.scale` and `x.min` float16 [N, K/32], value =
scale * q + min.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

GROUP = 32
FORMS = {"q8": ("q8", "scale"), "q4": ("q4", "scale", "min")}


class WeightsError(Exception):
    """Model files are missing or damaged; one sentence for the user."""


def verify(folder: Path) -> str:
    """Check every file of `manifest.json` by sha256 and return the manifest's own hash. Raises WeightsError."""
    manifest = folder / "manifest.json"
    try:
        raw = manifest.read_bytes()
        files: dict[str, str] = dict(json.loads(raw)["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{manifest} is missing or damaged; install the model again.") from error
    found = {p.name for p in folder.iterdir() if p.suffix in (".json", ".safetensors")}
    unlisted = found - files.keys() - {manifest.name}
    if unlisted:
        raise WeightsError(f"{folder / min(unlisted)} is not in the manifest; install the model again.")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise WeightsError(f"{path} is missing; install the model again.")
        if digest(path) != expected:
            raise WeightsError(f"{path} is damaged (its sha256 differs from the manifest); install the model again.")
    return hashlib.sha256(raw).hexdigest()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Stored(Mapping[str, Tensor]):
    """The tensors of a file by name, each read and restored to float32 when it is asked for: a model is packed layer by
    layer without ever being whole in memory."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = safe_open(path, framework="pt")
            stored = sorted(self._file.keys())  # an order that every process agrees on
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{path} is damaged: {one_line(error)}") from error
        self._forms = {
            name.removesuffix(f".{form}"): form for name in stored if (form := name.rpartition(".")[2]) in FORMS
        }
        parts = {f"{stem}.{part}" for stem, form in self._forms.items() for part in FORMS[form]}
        self._forms |= dict.fromkeys((name for name in stored if name not in parts), "")

    def __getitem__(self, name: str) -> Tensor:
        """Raises WeightsError where the stored parts do not fit together."""
        form = self._forms[name]
        parts = [f"{name}.{part}" for part in FORMS[form]] if form else [name]
        try:
            tensor, *rest = (self._file.get_tensor(part) for part in parts)
            if form == "q4":
                tensor = torch.stack((tensor & 15, tensor >> 4), -1).flatten(1)
            return grouped(tensor, *rest) if form else tensor.float()
        except (SafetensorError, RuntimeError) as error:
            raise WeightsError(f"The tensor {name} is damaged ({one_line(error)}); install the model again.") from error

    def __contains__(self, name: object) -> bool:
        return name in self._forms  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._forms)

    def __len__(self) -> int:
        return len(self._forms)


def one_line(error: BaseException) -> str:
    """An error of a library as part of a sentence."""
    return " ".join(str(error).split())[:160]


def grouped(q: Tensor, scale: Tensor, least: Tensor | None = None) -> Tensor:
    """[N, K] codes with [N, K/32] scale (and minimum) -> [N, K] float32."""
    groups = q.float().view(q.shape[0], -1, GROUP).mul_(scale.float()[..., None])
    if least is not None:
        groups += least.float()[..., None]
    return groups.flatten(1)


def q8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] float -> int8 codes [N, K] and float16 scale [N, K/32]."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    scale = (groups.abs().amax(-1) / 127).clamp_min(1e-7).half()
    return (groups / scale.float()[..., None]).round().clamp(-127, 127).to(torch.int8).flatten(1), scale


def q4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, K] float -> uint8 [N, K/2], float16 scale and minimum [N, K/32]; round to nearest between the extremes."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    least = groups.amin(-1).half()
    scale = ((groups.amax(-1) - least.float()) / 15).clamp_min(1e-7).half()
    codes = ((groups - least.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 15).to(torch.uint8)
    return pack_nibbles(codes.flatten(1)), scale, least


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 [N, K] of 0..15 -> [N, K/2]."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Hash every file of the folder but the manifest itself."""
    files = {p.name: digest(p) for p in sorted(folder.iterdir()) if p.is_file() and p.name != "manifest.json"}
    (folder / "manifest.json").write_text(json.dumps({**about, "files": files}, indent=1) + "\n")
