"""One file per model family; `load` finds it in a table (`_families.py`) and returns a `Model`.

Everything that is common to the families (canvas, sampler, locks, length, cache policy) lives outside this folder.
"""

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from caesura.engine.cache import KV, Cache
from caesura.engine.models._families import UnknownFamily, module_of
from caesura.engine.noise import Noise
from caesura.engine.tokens.tokenizer import Tokenizer, TokenizerError
from caesura.engine.weights.stored import WeightsError
from caesura.kernels.cpu import NoVariant
from caesura.kernels.head import Rows, Seen
from caesura.models import NoModel, locate

SENTENCE = 500  # characters; names that a file brings have any length, and line breaks


class ModelError(Exception):
    """The model cannot be loaded; one sentence for the user."""


@dataclass(frozen=True)
class Run:
    """Rows of one sequence in a forward.

    Row r holds ids[r] at positions[r], sees every context row of `kv`, and of the last mask.shape[1] columns (rows of
    `kv` not yet context, then this run's own) those where mask[r] is true; without a mask it sees them all.
    """

    kv: KV
    ids: Sequence[int]
    positions: Sequence[int]
    mask: Tensor | None = None
    wanted: Sequence[int] | None = None  # rows whose logits are returned; None for all
    fresh: Sequence[int] = ()  # context that this forward appends to `kv` first; of one KV in one run
    conditioning: Tensor | None = None  # [n, hidden] of the first n wanted rows; the other rows are sure of themselves


@dataclass(frozen=True)
class Fixed:
    """All rows of one canvas in a forward that asks the host nothing: tensors of fixed shapes, read anew each time.

    `place` is what `Replayable.place` says, on the device, and `buffers` are the whole ones of the canvas's KV. Rows
    may be copies of others: of what stands behind the end of its own, none sees anything.
    """

    ids: Tensor  # int64 [rows]
    conditioning: Tensor  # [rows, hidden]
    positions: Tensor  # int64 [rows]
    place: Tensor
    buffers: Sequence[tuple[Tensor, Tensor]]


class Model(Protocol):
    """What a family brings. Logits are [rows wanted over all runs, width] float32, in the order of the runs."""

    name: str
    device: str
    kernels: str  # what computes it on a CPU, in CAESURA_CPU's words; empty where there is no choice
    drafter: "Drafter | None"  # light layers that draft for `verify`
    noise: Noise | None  # None without a canvas: the model only verifies
    shift: int  # 0, or 1 where the logits of a row predict the next position
    visibility: Literal["context", "full"]  # what canvas rows see beside each other: a context; or there is none, and
    # all of the text lies on the canvas
    rows: int  # of all canvases of a step together
    tail: int  # rows of the prefix that open a canvas; at least one where `shift` is 1 or drafts are verified
    head: int  # rows of the suffix that close a canvas
    width: int  # columns of the logits: the vocabulary, and special rows behind it
    tokenizer: Tokenizer
    start: Sequence[int]  # what every text begins with, for a family that was always shown it
    finish: Sequence[int]  # what it ends with, likewise; for full visibility
    separator: Sequence[int]  # between suffix and prefix, where the family was trained with one
    lengths: Literal["null", "race"]  # how a hole gets its length: a null token fills what is left, or several compete
    null_id: int | None  # the trained "nothing here" token, if there is one
    ends: frozenset[int]  # tokens with which a text ends
    method: str  # the default, by file name
    sampler: str  # the default of canvases, by file name
    prompt: str  # the default format, by its name in prompts.py
    max_context: int  # tokens of context that are used
    chunk: int  # context rows prefilled in one step, so that a cancel never waits for a whole cold context

    def cache(self) -> Cache: ...

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        """Append `ids` to the context rows of `kv`, each seeing what is before it."""

    def denoise(self, runs: Sequence[Run]) -> Tensor:
        """Canvas logits, bidirectional within a run; nothing but fresh context is kept in the KV."""

    def condition(self, logits: Tensor) -> Tensor | None:
        """[rows, width] logits of a step -> [rows, hidden] for `Run.conditioning` of the next; None for a family
        without self-conditioning (Chen et al. 2022, Analog Bits)."""

    def embedded(self, ids: Tensor) -> Tensor | None:
        """The same for rows [n] that are certain of their token."""


class Renoiser(Model, Protocol):
    """A family of uniform noise: it is asked what it says of a slot, not for all logits."""

    noise: Noise

    def hidden(self, runs: Sequence[Run]) -> Tensor:
        """The wanted rows [rows, hidden] of a forward, of which `denoise` gives the logits."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, width] float32."""

    def observe(self, rows: Rows) -> Seen:
        """The statistics of rows, and what the next step is conditioned on, in one pass over the vocabulary."""

    def score(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """The logit of one token of each row [rows]."""

    def draw(self, rows: Rows, seen: Seen, at: Tensor, wanted: Tensor) -> Tensor:
        """A token [rows] for each uniform number; any where none is wanted."""


class Replayable(Renoiser, Protocol):
    """A family whose denoise step can be recorded once and replayed."""

    def embedded(self, ids: Tensor) -> Tensor: ...

    def place(self, kv: KV, rows: int) -> Tensor:
        """Where a canvas of so many rows lies in the buffers of a KV, int32 [layers, n]."""

    def fixed(self, rows: Fixed) -> Tensor:
        """As `hidden` of one canvas, [rows, hidden] of all its rows."""


class Verifier(Model, Protocol):
    """A family that can also check a draft left to right."""

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[Tensor, Tensor]:
        """Logits of both in one pass over the weights: [rows, vocabulary] of what follows each row of a tree, by the
        path that reads context, and those of `denoise`. A tree sees of itself what its mask says, and its rows stay in
        the KV behind the context until that is truncated; a canvas sees the context alone."""


class Drafter(Protocol):
    """Guesses what follows a token that the base has not run yet."""

    def draft(self, runs: Sequence[Run]) -> tuple[Tensor, Tensor]:
        """The next tokens after each run, and the probability of each given those before it: [runs, slots] twice. A run
        is one row that sees rows of the tree; nothing of it is kept."""


@dataclass(frozen=True)
class LoadChoice:
    """What a user may choose: the device, the tokens of context, and float32 (`exact`) where a machine takes fewer
    bits, to compare with a reference."""

    device: str = "auto"
    context: int | None = None
    exact: bool = False


def load(name: str, device: str = "auto", context: int | None = None, *, exact: bool = False) -> Model:
    """A model by name or path (`caesura/models.py`); what may be chosen is chosen as in `LoadChoice`. Raises ModelError
    with one sentence for the user."""
    path, choice = folder_of(name), LoadChoice(device, context, exact)
    try:
        if path.is_file():
            return cast(Model, importlib.import_module(f"{__name__}.causal").load_gguf(path, choice))
        config = read_config(path)
        return cast(Model, family(path, config).load(path, config, choice))
    except (WeightsError, TokenizerError, NoVariant) as error:
        raise ModelError(sentence(error)) from error


def logits(model: Model, ids: Sequence[int], context: int = 0) -> Tensor:
    """What a reference gives for the same ids, float32 [rows, width]: the first `context` of them are read left to
    right, the others see those and each other and have a row each. A model of full visibility has no context; an
    autoregressive one reads all ids left to right."""
    kv, rows = model.cache().lease([]), ids[context:]
    model.prefill(ids[:context], kv)
    positions = range(context, len(ids))
    if model.noise is None:
        mask = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
        return cast(Verifier, model).forward([Run(kv, rows, positions, mask)])[0]
    wanted = range(model.shift, model.shift + len(rows))  # a row predicts the next place, also the one after the last
    return model.denoise([Run(kv, rows, positions, wanted=wanted)])


def family(folder: Path, config: dict[str, Any]) -> Any:
    """The module that loads a checkpoint. Raises ModelError."""
    try:
        return importlib.import_module(f"{__name__}.{module_of(folder, config)}")
    except UnknownFamily as error:
        raise ModelError(sentence(error)) from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. Raises ModelError."""
    try:
        config: dict[str, Any] = dict(json.loads((folder / "config.json").read_text()).items())
        json.dumps(config, ensure_ascii=False).encode()  # raises where a text in it cannot be sent or shown
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{folder} has no readable config.json; it is not a model folder.") from error
    return config


def sentence(error: Exception) -> str:
    """In one line, of a bounded length."""
    return " ".join(str(error).split())[:SENTENCE]


def folder_of(name: str) -> Path:
    """The folder of a model, or its file. Raises ModelError."""
    try:
        return locate(name)
    except NoModel as error:
        raise ModelError(str(error)) from error
