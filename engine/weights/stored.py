"""safetensors -> float32 arrays, checked against the manifest.

On disk a matrix `x` of [N, K] is one of: `x` (float16/bfloat16/float32); `x.q8` int8 [N, K] with `x.scale` float16
[N, K/32]; `x.q4` uint8 [N, K/2] (even column in the low nibble) with `x.scale` and `x.min` float16 [N, K/32], value =
scale * q + min; `x.k4` likewise, 4.5 bits a weight: `x.scale` and `x.min` uint8 [N, K/32] are shares of
the row's largest, `x.unit` float16 [N, 2], in steps of 1/255: value = scale * unit0 / 255 * q - min * unit1 / 255. A
base is one file or several, and rows of a matrix in a later file follow those in earlier ones.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from caesura import model_store
from caesura.engine.weights import ahead, mapped
from caesura.engine.weights.mapped import Array, Damaged, Entry
from caesura.engine.weights.sources import CodedParts, RowReader, Source
from caesura.kernels.cpu import F32
from caesura.model_store import MANIFEST, sha256
from caesura.model_store.reading import UnusableModel, reason, short

GROUP = 32
FORMS = {"q8": ("q8", "scale"), "q4": ("q4", "scale", "min"), "k4": ("k4", "scale", "min", "unit")}
CODED = ("I8", "U8", "F16")  # types of their parts


class WeightsError(UnusableModel):
    """Weights or sizes are missing, damaged or not supported."""


def verify(folder: Path, *, tensors: bool = True) -> str:
    """Check every file of `manifest.json` by sha256, or without `tensors` the small ones, and return the manifest's own
    hash. Raises UnusableModel."""
    files = model_store.manifest(folder).files
    found = {p.name for p in folder.iterdir() if p.suffix in (".json", ".safetensors")}
    unlisted = found - files.keys() - {MANIFEST}
    if unlisted:
        raise WeightsError(f"{folder / min(unlisted)} is not in the manifest; install the model again.")
    for name, expected in files.items():
        path = folder / name
        if not tensors and path.suffix in model_store.WEIGHTS:
            continue
        if ahead.done(sha256, path) != expected:
            raise WeightsError(f"{path} is damaged (its sha256 differs from the manifest); install the model again.")
    return sha256(folder / MANIFEST)


def bases(folder: Path) -> list[Path]:
    """The files of a folder's base: `base.safetensors`, or `base-1.safetensors` and so on, in that order."""
    parts = sorted(folder.glob("base-*.safetensors"), key=lambda path: (len(path.name), path.name))
    return parts or [folder / "base.safetensors"]


class Stored(Source):
    """The tensors of some files, so that a model is packed layer by layer without being whole in memory. A file is
    mapped only while an array of it is held, since the pages of a mapped file count as resident memory."""

    def __init__(self, *paths: Path) -> None:
        """Raises WeightsError or UnusableModel."""
        self._entries = dict[str, list[Entry]]()
        for path in paths:
            try:
                for entry in mapped.entries(path):
                    self._entries.setdefault(entry.name, []).append(entry)
            except Damaged as error:
                raise WeightsError(f"{path} is damaged ({reason(error)}); install the model again.") from error
        stored = sorted(self._entries)  # an order that every process agrees on
        self._forms = {
            name.removesuffix(f".{form}"): form for name in stored if (form := name.rpartition(".")[2]) in FORMS
        }
        parts = {f"{stem}.{part}" for stem, form in self._forms.items() for part in FORMS[form]}
        self._forms |= dict.fromkeys((name for name in stored if name not in parts), "")
        super().__init__(self._forms)

    def shape(self, name: str) -> tuple[int, ...]:
        form = self._forms[name]
        found = self._entries[f"{name}.{form}" if form else name]
        rows, columns = sum(entry.shape[0] for entry in found if entry.shape), found[0].shape[1:]
        return (rows, *columns[:-1], columns[-1] * (1 if form == "q8" else 2)) if form and columns else (rows, *columns)

    def floats(self, name: str) -> F32:
        """Raises WeightsError if the stored parts do not fit together."""
        form, parts = self.parts(name)
        try:
            if form:
                return restored(form, *parts)
            return mapped.below([mapped.floats(entry) for entry in self._entries[name]])
        except (Damaged, ValueError, IndexError) as error:
            raise damaged(name, error) from error

    def form(self, name: str) -> str:
        return self._forms[name]

    def parts(self, name: str) -> tuple[str, CodedParts]:
        """Mapped from its file, or joined from several."""
        form = self._forms[name]
        if not form:
            return "", ()
        try:
            return form, tuple(self._part(f"{name}.{part}") for part in FORMS[form])
        except (Damaged, ValueError) as error:
            raise damaged(name, error) from error

    def table(self, name: str) -> RowReader:
        form, parts = self.parts(name)
        return (lambda ids: restored(form, *(part[ids] for part in parts))) if form else super().table(name)

    def _part(self, name: str) -> Array:
        found = self._entries.get(name)
        if found is None:
            raise Damaged(f"{name} is missing")
        return mapped.below([coded(entry) for entry in found])


def coded(entry: Entry) -> Array:
    """A part of a form. Raises Damaged or UnusableModel."""
    if entry.dtype not in CODED:
        raise Damaged(f"its parts have the type {entry.dtype}")
    return mapped.array(entry)


def damaged(name: str, error: Exception) -> WeightsError:
    named = short(name)
    return WeightsError(f"The tensor {named} is damaged ({reason(error)}); install the model again.")


def restored(form: str, codes: Array, *rest: Array) -> F32:
    """The parts of a form, in the order of FORMS -> float32 [N, K]."""
    match form:
        case "q8":
            return grouped(codes, *rest)
        case "q4":
            return grouped(unpack_nibbles(codes), *rest)
    return grouped(unpack_nibbles(codes), *fractions(*rest))


def grouped(q: Array, scale: Array, least: Array | None = None) -> F32:
    """[N, K] codes with [N, K/32] scale (and minimum) -> [N, K] float32."""
    groups = q.astype(np.float32).reshape(q.shape[0], -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):
        groups *= scale.astype(np.float32)[..., None]
        if least is not None:
            groups += least.astype(np.float32)[..., None]
    return groups.reshape(q.shape[0], -1)


def fractions(scale: Array, least: Array, unit: Array) -> tuple[F32, F32]:
    """Scale and minimum of k4, as stored -> float32 [N, K/32], as `grouped` takes them."""
    step = unit.astype(np.float32) / np.float32(255)
    with np.errstate(over="ignore", invalid="ignore"):
        return scale.astype(np.float32) * step[:, :1], least.astype(np.float32) * -step[:, 1:]


def q8(weight: F32) -> tuple[Array, Array]:
    """[N, K] float32 -> int8 codes [N, K] and float16 scale [N, K/32]."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):  # of what is no number, which stays none in the scale
        scale = np.maximum(np.abs(groups).max(-1) / 127, 1e-7).astype(np.float16)
        codes = groups / scale.astype(np.float32)[..., None]
        np.clip(np.rint(codes, out=codes), -127, 127, out=codes)
        return codes.astype(np.int8).reshape(weight.shape), scale


def q4(weight: F32) -> tuple[Array, Array, Array]:
    """[N, K] float32 -> uint8 [N, K/2], float16 scale and minimum [N, K/32]; round to nearest between the extremes."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):
        least = groups.min(-1).astype(np.float16)
        scale = np.maximum((groups.max(-1) - least.astype(np.float32)) / 15, 1e-7).astype(np.float16)
        return nibbles(groups, scale.astype(np.float32), least.astype(np.float32)), scale, least


def k4(weight: F32) -> tuple[Array, Array, Array, Array]:
    """[N, K] float32 -> uint8 [N, K/2], uint8 scale and minimum [N, K/32], float16 unit [N, 2]; round to nearest
    between the extremes, the lower of which is at most 0."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.minimum(groups.min(-1), 0)
        scale, least, unit = row_fractions((groups.max(-1) - low) / 15, -low)
        step, offset = fractions(scale, least, unit)
        return nibbles(groups, np.maximum(step, 1e-12), offset), scale, least, unit


def nibbles(groups: F32, step: F32, offset: F32) -> Array:
    """The nearest codes of groups [N, K/32, 32] under a step and an offset [N, K/32], uint8 [N, K/2]."""
    codes = (groups - offset[..., None]) / step[..., None]
    np.clip(np.rint(codes, out=codes), 0, 15, out=codes)
    return pack_nibbles(codes.astype(np.uint8).reshape(len(groups), -1))


def row_fractions(scale: F32, least: F32) -> tuple[Array, Array, Array]:
    """Scale and minimum (0 or more, subtracted) float32 [N, K/32] -> as k4 stores them, with their unit."""
    unit = np.maximum(np.stack((scale.max(1), least.max(1)), 1), 1e-6).astype(np.float16)
    counts = np.rint(np.stack((scale, least), 1) / unit.astype(np.float32)[..., None] * 255).clip(0, 255)
    counts = counts.astype(np.uint8)
    return counts[:, 0].copy(), counts[:, 1].copy(), unit


def pack_nibbles(codes: Array) -> Array:
    """uint8 [N, K] of 0..15 -> [N, K/2]."""
    packed: Array = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed


def unpack_nibbles(packed: Array) -> Array:
    """uint8 [N, K/2] -> [N, K] of 0..15, both nibbles of a byte in one pass, on a little-endian machine."""
    wide = packed.astype(np.uint16)
    return ((wide | (wide << 4)) & 0x0F0F).view(np.uint8)


def write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Write the manifest, with the hash of every other file of the folder but a package's `__init__.py`."""
    others = {"manifest.json", "__init__.py"}
    files = {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.is_file() and p.name not in others}
    (folder / "manifest.json").write_text(json.dumps({**about, "files": files}, indent=1) + "\n")
