"""The contract between a model and what fills with it: canvas, methods and scheduler know these names, and families
(`models/`) implement them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from caesura.engine.cache import KV, Cache
from caesura.engine.device import Device
from caesura.engine.noise import Noise
from caesura.engine.scores import Bools, Floats, Ids, Scores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.model_store.reading import UnusableModel

if TYPE_CHECKING:
    from torch import Tensor

    from caesura.kernels.head import Rows, Seen

MAX_ROWS = 512  # rows of one canvas next to its text, and of all canvases of a step unless a model takes more
# The form in which weights that are stored as floats are kept, as a user names it.
Quantise = Literal["int8", "int4", "fp8", "nvfp4"]

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
    mask: Bools | None = None
    wanted: Sequence[int] | None = None  # rows that are scored; None for all
    fresh: Sequence[int] = ()  # context that this forward appends to `kv` first; at most one run per KV has any
    conditioning: "Tensor | None" = None  # [n, hidden] for the first n wanted rows; the other rows hold known tokens


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

    ids: "Tensor"  # int64 [rows]
    conditioning: "Tensor"  # [rows, hidden]; arbitrary for context rows
    source: "Tensor"  # int64 [rows], the row that each one is, or of which it has the token and the conditioning
    turns: "Mapping[Any, Tensor]"  # the rotary tables of the rows' positions, which do not change from step to step
    mode: "Tensor"  # int64 [rows], 1 for canvas rows, 0 for context rows
    spans: "Mapping[Any, Tensor]"
    places: "Tensor"
    tables: "Tensor"
    buffers: "Sequence[tuple[Tensor, Tensor]]"


@dataclass(frozen=True)
class ModelSpec:
    """What a model is and how it wants to be used. Its family makes it from config and tokenizer, before any weight is
    read."""

    noise: Noise | None  # None for a model without a canvas, which can only verify
    method: str  # default method, by file name
    max_context: int  # tokens of context used at most
    chunk: int  # context rows prefilled in one step; a cancel waits for one chunk, not for a whole cold context
    tail: int  # rows of the prefix that open a canvas; at least one if `shift` is 1 or drafts are verified
    head: int  # rows of the suffix that close a canvas
    rows: int = MAX_ROWS  # most rows of a step, all canvases together
    shift: int = 0  # 1 if the logits of a row predict the next position, 0 if they predict its own
    visibility: Visibility = "context"
    block_size: int = 1  # rows of a block; blocks begin at the multiples of it. 1 if context is read left to right
    radius: int = 0  # rows next to a slot that every step computes if others may be frozen (methods/_flanks.py); else 0
    # How a hole gets its length: a null token ends it, several lengths race, or slots expand and go.
    lengths: LengthRule = "race"
    null_id: int | None = None  # the trained "nothing here" token, if there is one
    expand_id: int | None = None  # the trained "more than one token here", if `lengths` is "expand"
    start: tuple[int, ...] = ()  # tokens that begin every text, if the family was trained with them
    finish: tuple[int, ...] = ()  # tokens that end every text, likewise; only for full visibility
    separator: tuple[int, ...] = ()  # between suffix and prefix, if the family was trained with one
    ends: frozenset[int] = frozenset()  # tokens that end a text
    sampler: str = "threshold"  # default sampler of canvases, by file name
    prompt: str = "suffix_first"  # default prompt format, by its name in prompts.py


class Model(Protocol):
    """The contract of a family. Scores are of the wanted rows of all runs, in the order of the runs."""

    name: str
    device: str
    machine: Device  # that `device`, which answers questions
    kernels: str  # the CPU kernels in use, as CAESURA_CPU names them; empty where there is no choice
    drafter: "Drafter | None"  # light layers that draft for `verify`
    width: int  # columns of the logits: the vocabulary, then the special rows
    tokenizer: Tokenizer
    spec: ModelSpec

    def cache(self) -> Cache: ...

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        """Append `ids` to the context rows of `kv`; each row sees those before it."""

    def denoise(self, runs: Sequence[Run]) -> Scores:
        """Scores of canvases: the rows of a run see each other in both directions. The KV keeps only fresh context."""

    def condition(self, logits: "Tensor") -> "Tensor | None":
        """Logits [rows, width] of a step -> `Run.conditioning` [rows, hidden] of the next step; None if the family has
        no self-conditioning (Chen et al. 2022, Analog Bits)."""

    def embedded(self, ids: "Tensor") -> "Tensor | None":
        """The same for rows whose tokens [n] are known."""


class Renoiser(Model, Protocol):
    """A family of uniform noise. Its callers ask for statistics of a slot, never for all logits."""

    def hidden(self, runs: Sequence[Run]) -> "Tensor":
        """The wanted rows [rows, hidden] of a forward; `denoise` returns their logits."""

    def logits(self, hidden: "Tensor") -> "Tensor":
        """[rows, hidden] -> [rows, width] float32."""

    def observe(self, rows: "Rows") -> "Seen":
        """Statistics of rows and the conditioning of the next step, in one pass over the vocabulary."""

    def score(self, hidden: "Tensor", ids: "Tensor") -> "Tensor":
        """The logits [rows] of one token per row."""

    def draw(self, rows: "Rows", seen: "Seen", at: "Tensor", wanted: "Tensor") -> "Tensor":
        """Tokens [rows], drawn by the uniform numbers `at`; arbitrary where `wanted` is false."""


class Replayable(Renoiser, Protocol):
    """A family whose denoise step can be recorded once and replayed."""

    def embedded(self, ids: "Tensor") -> "Tensor": ...

    def turns(self, positions: "Tensor") -> "Mapping[Any, Tensor]":
        """New rotary tables for rows at `positions`, int64 [rows], one for each kind of layer."""

    def spans(self, seen: "Tensor") -> "Mapping[Any, Tensor]":
        """The columns that rows see, for each kind of layer, int32 [rows, 4]: context from the first number to the
        second, and rows of the same forward from the third to the fourth. `seen`, int32 [rows, 3], has the last three;
        the first depends on the kind's window."""

    def fixed(self, rows: Fixed) -> "Tensor":
        """`hidden` for all these rows, [rows, hidden]."""


class Verifier(Model, Protocol):
    """A family that can also check a draft left to right."""

    drafting: "Model | None"  # another model, whose canvas drafts for `verify`

    def rehearse(self) -> None:
        """On a GPU, record passes over a single tree, which `forward` replays; a family may have none. Called before
        anybody waits."""

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[Scores, Scores]:
        """Scores of trees and of canvases, in one pass over the weights. A tree's come from the path that reads
        context: they are of the token after each row, and have no special columns. A canvas's are as in `denoise`. A
        tree sees the context and itself, by its mask. Its rows stay in the KV after the context until the KV is
        truncated. A canvas sees only the context."""


class Drafter(Protocol):
    """Drafts the tokens that follow one that the base has not read yet."""

    def draft(self, runs: Sequence[Run]) -> tuple[Ids, Floats]:
        """The next tokens after each run and their probabilities given the tokens before them: [runs, slots] twice, on
        the host. A run is one row that sees rows of the tree; the KV keeps nothing of it."""


@dataclass(frozen=True)
class LoadChoice:
    """The user's choices: the device, the tokens of context, `radius` as in `ModelSpec`, `exact`: float32, all rows and
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
