"""One file per model family; `load` picks it from a table (`_families.py`) and returns a `Model`.

What the families share (canvas, samplers, locks, lengths, cache policy) lives outside this folder.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from caesura.engine.cache import KV, Cache
from caesura.engine.models._families import module_of
from caesura.engine.noise import Noise
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.forms import OF as FORMS
from caesura.engine.weights.forms import Quantise
from caesura.kernels.cpu import NoVariant
from caesura.kernels.head import Rows, Seen
from caesura.model_store import NoModel, locate
from caesura.model_store.reading import UnusableModel, fields, quoted

# The rows that a canvas row sees. context: a context and the canvas; blocks: a context, its own block and those before
# it; full: the canvas, on which the whole text lies, without a context.
Visibility = Literal["context", "blocks", "full"]
LengthRule = Literal["null", "race", "expand"]


class ModelError(UnusableModel):
    """The model cannot be loaded."""


@dataclass(frozen=True)
class Run:
    """Rows of one sequence in a forward.

    Row r holds ids[r] at positions[r] and sees every context row of `kv`. After the context come the rows of `kv` that
    are not context yet, then the rows of this run: the last mask.shape[1] columns. Row r sees those of them where
    mask[r] is true; without a mask it sees all that the model's `visibility` allows.
    """

    kv: KV
    ids: Sequence[int]
    positions: Sequence[int]
    mask: Tensor | None = None
    wanted: Sequence[int] | None = None  # rows whose logits are returned; None for all
    fresh: Sequence[int] = ()  # context that this forward appends to `kv` first; at most one run per KV has any
    conditioning: Tensor | None = None  # [n, hidden] for the first n wanted rows; the other rows hold known tokens


@dataclass(frozen=True)
class Fixed:
    """Rows after one KV, of canvases and of fresh context, for a forward that never waits for the host: tensors of
    fixed shapes, read again in each replay.

    `spans` are the results of `Replayable.spans`; `places` are the columns that keep the rows' keys and values, int32
    [rows]; a row whose place is after the end of the buffers is not kept. `buffers` are the complete buffers of the KV.
    A kernel takes their shapes from them, but their addresses from `tables`, int64 [layers, 4] (`KV.addresses`), so
    that another KV's may take their place. Spans and places count from the beginning of the text, whatever the buffers
    still hold of it. A row may be the copy of another one, which no row sees.
    """

    ids: Tensor  # int64 [rows]
    conditioning: Tensor  # [rows, hidden]; arbitrary for context rows
    source: Tensor  # int64 [rows], the row that each one is, or of which it has the token and the conditioning
    turns: Mapping[Any, Tensor]  # the rotary tables of the rows' positions, which do not change from step to step
    mode: Tensor  # int64 [rows], 1 for canvas rows, 0 for context rows
    spans: Mapping[Any, Tensor]
    places: Tensor
    tables: Tensor
    buffers: Sequence[tuple[Tensor, Tensor]]


class Model(Protocol):
    """The contract of a family. Logits are [wanted rows of all runs, width] float32, in the order of the runs."""

    name: str
    device: str
    kernels: str  # the CPU kernels in use, as CAESURA_CPU names them; empty where there is no choice
    drafter: "Drafter | None"  # light layers that draft for `verify`
    noise: Noise | None  # None for a model without a canvas, which can only verify
    shift: int  # 1 if the logits of a row predict the next position, 0 if they predict its own
    visibility: Visibility
    block_size: int  # rows of a block; blocks begin at the multiples of it. 1 if context is read left to right
    radius: int  # rows next to a slot that every step computes if others may be frozen (methods/_flanks.py); else 0
    rows: int  # most rows of a step, all canvases together
    tail: int  # rows of the prefix that open a canvas; at least one if `shift` is 1 or drafts are verified
    head: int  # rows of the suffix that close a canvas
    width: int  # columns of the logits: the vocabulary, then the special rows
    tokenizer: Tokenizer
    start: Sequence[int]  # tokens that begin every text, if the family was trained with them
    finish: Sequence[int]  # tokens that end every text, likewise; only for full visibility
    separator: Sequence[int]  # between suffix and prefix, if the family was trained with one
    # How a hole gets its length: a null token ends it, several lengths race, or slots expand and go.
    lengths: LengthRule
    null_id: int | None  # the trained "nothing here" token, if there is one
    expand_id: int | None  # the trained "more than one token here", if `lengths` is "expand"
    ends: frozenset[int]  # tokens that end a text
    method: str  # default method, by file name
    sampler: str  # default sampler of canvases, by file name
    prompt: str  # default prompt format, by its name in prompts.py
    max_context: int  # tokens of context used at most
    chunk: int  # context rows prefilled in one step; a cancel waits for one chunk, not for a whole cold context

    def cache(self) -> Cache: ...

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        """Append `ids` to the context rows of `kv`; each row sees those before it."""

    def denoise(self, runs: Sequence[Run]) -> Tensor:
        """Canvas logits: the rows of a run see each other in both directions. The KV keeps only fresh context."""

    def condition(self, logits: Tensor) -> Tensor | None:
        """Logits [rows, width] of a step -> `Run.conditioning` [rows, hidden] of the next step; None if the family has
        no self-conditioning (Chen et al. 2022, Analog Bits)."""

    def embedded(self, ids: Tensor) -> Tensor | None:
        """The same for rows whose tokens [n] are known."""


class Renoiser(Model, Protocol):
    """A family of uniform noise. Its callers ask for statistics of a slot, never for all logits."""

    noise: Noise

    def hidden(self, runs: Sequence[Run]) -> Tensor:
        """The wanted rows [rows, hidden] of a forward; `denoise` returns their logits."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, width] float32."""

    def observe(self, rows: Rows) -> Seen:
        """Statistics of rows and the conditioning of the next step, in one pass over the vocabulary."""

    def score(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """The logits [rows] of one token per row."""

    def draw(self, rows: Rows, seen: Seen, at: Tensor, wanted: Tensor) -> Tensor:
        """Tokens [rows], drawn by the uniform numbers `at`; arbitrary where `wanted` is false."""


class Replayable(Renoiser, Protocol):
    """A family whose denoise step can be recorded once and replayed."""

    def embedded(self, ids: Tensor) -> Tensor: ...

    def turns(self, positions: Tensor) -> Mapping[Any, Tensor]:
        """New rotary tables for rows at `positions`, int64 [rows], one for each kind of layer."""

    def spans(self, seen: Tensor) -> Mapping[Any, Tensor]:
        """The columns that rows see, for each kind of layer, int32 [rows, 4]: context from the first number to the
        second, and rows of the same forward from the third to the fourth. `seen`, int32 [rows, 3], has the last three;
        the first depends on the kind's window."""

    def fixed(self, rows: Fixed) -> Tensor:
        """`hidden` for all these rows, [rows, hidden]."""


class Verifier(Model, Protocol):
    """A family that can also check a draft left to right."""

    drafting: "Model | None"  # another model, whose canvas drafts for `verify`

    def rehearse(self) -> None:
        """On a GPU, record passes over a single tree, which `forward` replays; a family may have none. Called before
        anybody waits."""

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[Tensor, Tensor]:
        """Logits of trees and canvases in one pass over the weights. Those of a tree, [rows, vocabulary], come from the
        path that reads context and predict the token after each row; those of canvases are as in `denoise`. A tree
        sees the context and itself, by its mask. Its rows stay in the KV after the context until the KV is truncated.
        A canvas sees only the context."""


class Drafter(Protocol):
    """Drafts the tokens that follow one that the base has not read yet."""

    def draft(self, runs: Sequence[Run]) -> tuple[Tensor, Tensor]:
        """The next tokens after each run and their probabilities given the tokens before them: [runs, slots] twice. A
        run is one row that sees rows of the tree; the KV keeps nothing of it."""


@dataclass(frozen=True)
class LoadChoice:
    """The user's choices: the device, the tokens of context, the `radius` of `Model`, `exact`: float32, all rows and
    activations as they come where the default has fewer, for comparisons with a reference, and the form in which
    weights that are stored as floats are kept (`quantise`). `tokens` is the smallest vocabulary, for a drafter whose
    mask token the tokenizer lacks. Before the weights are read, `beside` is called with the bytes that the model needs,
    and loads another one that is used next to it. While they are read, `progress` is called with the share of the
    tensors that have been."""

    device: str = "auto"
    context: int | None = None
    exact: bool = False
    radius: int | None = None
    quantise: Quantise | None = None
    tokens: int = 0
    beside: Callable[[int], None] | None = None
    progress: Callable[[float], None] = lambda share: None


def load(
    name: str,
    device: str = "auto",
    context: int | None = None,
    *,
    exact: bool = False,
    radius: int | None = None,
    quantise: Quantise | None = None,
    draft: str | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Model:
    """A model by name or path (`caesura/model_store`), with the choices of `LoadChoice`, and another one, `draft`,
    whose canvas drafts for it, or a drafter that was trained for it. Raises ModelError with one sentence for the user.
    """
    if quantise is not None and quantise not in FORMS:
        raise ModelError(f"Weights cannot be kept as {quoted(quantise)}; choose {', '.join(FORMS)}.")
    choice = LoadChoice(device, context, exact, radius, quantise, progress=progress)
    try:
        if draft is None:
            return read(name, choice)
        from caesura.engine.models._drafting import pair  # it counts memory, which imports this file

        return pair(name, draft, choice)
    except (UnusableModel, NoVariant) as error:
        raise ModelError(" ".join(str(error).split())) from error


def read(name: str, choice: LoadChoice) -> Model:
    """A model by name or path. Raises UnusableModel or NoVariant."""
    path = folder_of(name)
    if path.is_file():
        return load_file(path, choice)
    config = read_config(path)
    return cast(Model, family(path, config).load(path, config, choice))


def load_file(path: Path, choice: LoadChoice) -> Model:
    """A model in a GGUF file, and the other parts of a split one. Raises UnusableModel or NoVariant."""
    from caesura.engine.weights.gguf_file import opened  # its library takes a tenth of a second

    file = opened(path, choice.device)
    return cast(Model, family(path, file.config).load_gguf(file, choice))


def logits(model: Model, ids: Sequence[int], context: int = 0) -> Tensor:
    """Logits to compare with a reference, float32 [rows, width], one row for each id after the first `context`. The
    first `context` ids are read left to right; the others see them and each other. A model of full visibility has no
    context; an autoregressive one reads all ids left to right. In a model of blocks every id sees its block and the
    blocks before it; the context is whole blocks. Raises ValueError if it is not."""
    if context % model.block_size:
        raise ValueError(
            f"{context} ids are not whole blocks of {model.block_size}; give {model.name} a multiple as context."
        )
    kv, rows = model.cache().lease([]), ids[context:]
    model.prefill(ids[:context], kv)
    positions = range(context, len(ids))
    if model.noise is None:
        mask = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
        return cast(Verifier, model).forward([Run(kv, rows, positions, mask)])[0]
    wanted = range(model.shift, model.shift + len(rows))  # a row predicts the next position, also after the last row
    return model.denoise([Run(kv, rows, positions, wanted=wanted)])


def family(folder: Path, config: dict[str, Any]) -> Any:
    """The module that loads a checkpoint. Raises UnusableModel."""
    return importlib.import_module(f"{__name__}.{module_of(folder, config)}")


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises UnusableModel."""
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder} has no readable config.json; it is not a model folder.")
    return fields(path)


def folder_of(name: str) -> Path:
    """The folder or the file of a model. Raises ModelError."""
    try:
        return locate(name)
    except NoModel as error:
        raise ModelError(str(error)) from error
