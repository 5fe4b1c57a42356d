"""Checks a published checkpoint: its sizes, its tensors against the family's own loader, and its canary, a tiny input
with recorded answers. Hashes are in `caesura/model_store`.
"""

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict, cast

import msgspec
import numpy as np

from caesura.engine import memory, models
from caesura.engine.canary import CanaryId, Few
from caesura.engine.model import LoadChoice, Model, Run
from caesura.engine.models import families
from caesura.engine.models.folder import read, read_config
from caesura.engine.scores import Scores, told
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import forms
from caesura.engine.weights.hub import CACHE_SCALE, SCALE, headers
from caesura.engine.weights.mapped import Entry
from caesura.engine.weights.stored import Stored, WeightsError
from caesura.model_store import MANIFEST, manifest, parts, reading, sha256
from caesura.model_store.reading import UnusableModel, decoded, fields

OURS = "block_llama"  # the model_type of our own form, which has a manifest and its canary in it
CANARY = "canary.json"
ROWS = 32  # rows of the canary's prompt, and of its canvas
TOLERANCE = 0.5  # allowed difference of a logit; bfloat16 and another order of sums cause about half of it
BUILT = tuple(f"{models.__name__}.{name}" for name in ("causal", "full", "blocks"))  # of one trunk, `BlockLlama`
ENOUGH = 1 << 50  # bytes
STRAY = 1 / 8  # share of rows that may differ: rounding may choose another expert, which changes the row


class Recorded(msgspec.Struct, frozen=True):
    """A canary's input and the answers to it: the best token of each row in two steps, its logit and its lead."""

    prompt: Annotated[list[CanaryId], Few]
    canvas: Annotated[list[CanaryId], Few]
    argmax: list[CanaryId]
    top: list[float]
    margin: list[float]


class NoCanvas(WeightsError):
    """The model has nothing that a canary could be recorded of."""


class Summary(TypedDict):
    """Sums over the tensors that are loaded; 4-bit codes count as the weights they stand for."""

    model_type: str
    format: str
    layers: int
    parameters: int
    bytes: int
    skipped: list[str]


def family(folder: Path) -> ModuleType:
    """The module of `models/` that loads this published checkpoint. Raises UnusableModel."""
    config = read_config(folder)
    if config.get("model_type") == OURS:
        raise WeightsError(f"{folder} holds a model of type {OURS!r}, which is not a published one.")
    return families.family(folder, config).loads()


def model_type(config: dict[str, Any], kind: ModuleType) -> str:
    """The type that config.json names, or else the name of the family's module."""
    return str(config.get("model_type") or kind.__name__.rpartition(".")[2])


def summary(folder: Path) -> Summary:
    """Read the headers and config.json, or those of a GGUF file, but no weights. Raises UnusableModel."""
    if folder.is_file():
        return _of_gguf(folder)
    kind = family(folder)
    entries = headers(folder)
    kept = [e for e in entries if not CACHE_SCALE.search(e.name) and kind.canonical(e.name) is not None]
    layers = {match.group(1) for e in kept if (match := re.search(r"\b(?:layers|blocks)\.(\d+)\.", e.name))}
    config = read_config(folder)
    return Summary(
        model_type=model_type(config, kind),
        format=_format(config, {entry.dtype for entry in kept}),
        layers=len(layers),
        parameters=sum(_numbers(form, parts) for form, parts in forms.matrices(kept).values()),
        bytes=sum(e.nbytes for e in kept),
        skipped=sorted({e.name for e in entries} - {e.name for e in kept}),
    )


def _numbers(form: str, parts: Sequence[Entry]) -> int:
    """The weights that a tensor stands for: none if it is a scale."""
    entry = parts[0]
    codes = 2 if not form and entry.dtype == "U8" else 1  # ModelOpt's
    return 0 if not form and SCALE.search(entry.name) else math.prod(forms.stored_shape(form, parts)) * codes


def _of_gguf(path: Path) -> Summary:
    from caesura.engine.weights.gguf.open import opened

    file = opened(path)
    return Summary(
        model_type=file.config["model_type"],
        format=file.format,
        layers=file.layers,
        parameters=sum(math.prod(file.tensors.shape(name)) for name in file.tensors),
        bytes=sum(part.stat().st_size for part in parts(path)),
        skipped=[],
    )


def _format(config: dict[str, Any], dtypes: set[str]) -> str:
    """The quantisation named in config.json, else the types of the tensors."""
    said = config.get("quantization_config")
    said = said if isinstance(said, dict) else {}
    words = [str(said[key]) for key in ("quant_method", "quant_algo", "format") if said.get(key)]
    return " ".join(words) or ", ".join(sorted(dtypes))


class _Counted(Exception):
    """The bytes are known, and nothing needs to be read."""


def needed(path: Path) -> int | None:
    """The bytes that a published model takes on this machine: weights, a step and one context, from the headers of its
    files. None for a family that counts in another way, or a model that cannot be loaded."""
    found = list[int]()

    def count(size: int) -> None:
        found.append(size)
        raise _Counted

    try:
        if _kind(path).__name__.startswith(BUILT):
            with memory.taken(-ENOUGH):  # what is free now does not matter
                read(str(path), LoadChoice(beside=count))
    except (UnusableModel, _Counted):
        pass
    return found[0] if found else None


def _kind(path: Path) -> ModuleType:
    if path.is_dir():
        return family(path)
    from caesura.engine.weights.gguf.open import opened

    return families.family(path, opened(path).config).loads()


def check(path: Path) -> None:
    """Check from the headers that a model can be loaded: the names, types and shapes of a published checkpoint's
    tensors, or that the files of our own form exist. Raises WeightsError, ModelError or TokenizerError."""
    if path.is_file() or read_config(path).get("model_type") != OURS:
        models.load(str(path), "meta")
        return
    for name in manifest(path).files:
        reading.opened(path / name).close()
    Tokenizer(path / "tokenizer.json")
    for file in path.glob("*.safetensors"):
        Stored(file)


def record(folder: Path, device: str = "auto") -> None:
    """Write this model's answers to the canary; a manifest gets their hash. Raises WeightsError or ModelError."""
    model = models.load(str(folder), device)
    if model.spec.noise is None:
        raise NoCanvas(f"The model {folder.name} has no canvas; only those have a canary.")
    ids = [7919 * i % model.width for i in range(1, 2 * ROWS + 1)]
    inputs = {"prompt": ids[:ROWS], "canvas": ids[ROWS:]}
    path, listed = folder / CANARY, folder / MANIFEST
    about = fields(listed) if listed.exists() else None
    _replace(path, json.dumps({**inputs, **_answers(model, **inputs)}) + "\n")
    if about is not None:
        about["files"] = {**manifest(folder).files, CANARY: sha256(path)}
        _replace(listed, json.dumps(about, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    """Write a file whole, in the place of a link rather than through it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("x") as file:
        file.write(text)
    partial.replace(path)


def canary(folder: Path, device: str = "auto") -> int:
    """How many rows of the canary are answered as recorded. Raises WeightsError, also if they are too few."""
    model = models.load(str(folder), device)
    path, again = folder / CANARY, f"`caesura models verify {folder} --record` records it again"
    try:
        recorded = decoded(path, Recorded)
    except UnusableModel as error:
        raise WeightsError(f"{str(error).removesuffix('.')}, or {again}.") from error
    columns = recorded.argmax, recorded.top, recorded.margin
    known = max(*recorded.prompt, *recorded.canvas) < model.width
    if not known or any(len(column) != 2 * len(recorded.canvas) for column in columns):
        raise WeightsError(f"{path} is damaged; {again}.")
    expected = list(zip(*columns, strict=True))
    found = _answers(model, recorded.prompt, recorded.canvas)
    same = 0
    for (argmax, top, margin), its_argmax, its_top in zip(expected, found["argmax"], found["top"], strict=True):
        same += abs(top - its_top) <= TOLERANCE and (argmax == its_argmax or margin <= TOLERANCE)
    if len(expected) - same > STRAY * len(expected):
        raise WeightsError(
            f"{folder} answers {len(expected) - same} of {len(expected)} rows otherwise than {CANARY} says; download "
            f"the model again, or if its weights were changed on purpose, {again}."
        )
    return same


def _answers(model: Model, prompt: list[int], canvas: list[int]) -> dict[str, list[Any]]:
    """The best token of each row, its logit and its lead: of a first step, then of one conditioned on the first."""
    kv = model.cache().lease(prompt)
    model.prefill(prompt, kv)
    positions = range(kv.length, kv.length + len(canvas))

    def scores(conditioning: Any = None) -> Scores:
        return model.denoise([Run(kv, canvas, positions, conditioning=conditioning)])

    first = scores()
    second = scores(model.condition(cast(Any, first).logits))  # which a model without self-conditioning ignores
    found = [told(step.best(2), step.total()) for step in (first, second)]
    ids = np.concatenate([best.ids[:, 0] for best, _ in found])
    top, next_best = np.concatenate([best.logp + total[:, None] for best, total in found]).T
    return {
        "argmax": ids.tolist(),
        "top": [round(value, 3) for value in top.tolist()],
        "margin": [round(value, 3) for value in (top - next_best).tolist()],
    }
