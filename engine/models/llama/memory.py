"""What a model of Llama's kind takes of memory, counted from its sizes and the forms of its matrices before anything is
read: weights, keys and values, and a step.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from caesura.engine import memory
from caesura.engine.cache import FEW
from caesura.engine.model import MAX_ROWS
from caesura.engine.models.devices import device_of
from caesura.engine.models.llama.config import FEEDING, MATRICES, SEEING, Config, kept, on_gpu
from caesura.engine.weights import forms
from caesura.kernels import cpu

FloatType = Literal["", "bf16", "f32"]  # floats in which matrices are kept

REPLAYED = 48  # most rows of a recorded pass (gpu/passes.py)
ASKED = 1024  # rows whose logits a step asks for at most: all slots of all lengths that are tried together


class Keeping(NamedTuple):
    """How matrices are kept: on which device, in which float where they are not quantised, or in which form. Where
    anything is quantised, embedding and head have 8 bits."""

    device: str
    floats: FloatType = ""  # empty for a CPU's forms
    quantise: str = ""  # a form for what is stored as floats

    @property
    def exact(self) -> bool:
        """Floats, whatever is stored."""
        return self.floats == "f32"

    @property
    def itemsize(self) -> int:
        """Bytes of a number of a key or a value."""
        if self.floats:
            return 4 if self.exact else 2
        if cpu.chosen() != "torch":
            return 2
        from caesura.engine.models.llama.layer import attended

        return attended().itemsize

    def of(self, stored: str, quantise: str | None = None) -> str:
        """The form in memory of a matrix that is stored in one."""
        form = self.quantise if quantise is None else quantise
        if self.exact:
            return "f32"
        if self.floats:
            return stored if stored in forms.ON_GPU else form or "bf16"
        if cpu.chosen() != "torch":
            return stored if stored in forms.ON_CPU else form or "q8"
        from caesura.kernels import int8

        return "int8" if int8.available() else "bf16"

    def head(self, stored: str) -> str:
        return self.of(stored, "fp8" if self.quantise and self.floats else "")

    @property
    def embedding(self) -> str:
        if self.exact:
            return "f32"
        return "q8" if not self.floats or self.quantise else "bf16"


def of_weights(
    shape: Config, keeping: Keeping, stored: Callable[[str], str], *, tied: bool, sparse: Collection[int] = ()
) -> int:
    """Bytes of the weights; `stored` is the form of a tensor in the file, by our name, and `sparse` layers have
    experts."""
    table = shape.vocab_size, shape.hidden_size
    head = keeping.head(stored("embed" if tied else "head"))
    size = forms.nbytes(keeping.embedding, *table)
    size += 0 if tied and head == keeping.embedding in ("f32", "bf16") else forms.nbytes(head, *table)
    for layer in range(shape.num_layers):
        size += sum(
            count * forms.nbytes(keeping.of(stored(f"layers.{layer}.{matrix}")), *shape.shape(kind, inner))
            for matrix, kind, inner, count in matrices(shape, experts=layer in sparse)
        )
    return size


def matrices(shape: Config, *, experts: bool) -> Iterator[tuple[str, str, int, int]]:
    """The matrices of a layer: name, kind, inner columns, and how many there are of its shape."""
    mixture = shape.mixture
    yield from ((kind, kind, 0, 1) for kind in (SEEING if experts else MATRICES))
    if experts and mixture is not None:
        yield from ((f"experts.0.{kind}", kind, mixture.width, mixture.count) for kind in FEEDING)
        yield from ((f"shared.{kind}", kind, mixture.shared, 1) for kind in FEEDING if mixture.shared)


def of_step(shape: Config, rows: int, canvas: int, columns: int, keeping: Keeping) -> int:
    """Bytes of a step of so many rows, in canvases of `canvas` rows that see `columns`: the most that a layer holds at
    once, or the logits after the last. On a GPU those of all canvases, and half as much for what is computed of one
    at a time: of 100 slots with a grammar, or 170 without. Layers are those of `layer.py`; a GPU's own hold
    less."""
    itemsize = 4 if keeping.exact else 2  # of keys, values and scores
    heads, groups = shape.num_heads, shape.num_kv_heads
    scores = heads * canvas * columns * 2 * itemsize  # and what the softmax makes of them
    mlp = rows * 4 * (4 if shape.gated else 3) * shape.intermediate_size  # gate and up, the gated, their product
    if shape.mixture is not None:  # pairs of a row and its expert: kernels keep two rows of each, torch seven
        taken, width = rows * shape.mixture.top, shape.mixture.width
        kernels, torchs = 2 * (shape.hidden_size + width), 4 * (3 * shape.hidden_size + 4 * width)
        mlp = max(mlp, taken * (torchs if keeping.device == "cpu" or keeping.exact else kernels))
    heads_of = (
        rows * 4 * 3 * (heads + groups) * shape.head_dim
    )  # queries, keys and values, turned too, and what is seen
    masks = (heads // groups) * rows * columns * itemsize
    logits = memory.of_step(shape.vocab_size) if keeping.device == "cpu" else ASKED * shape.vocab_size * (4 + 2)
    stream = rows * 4 * 5 * shape.hidden_size  # before and after its norms, and what is added to it
    return max(max(mlp, scores) + heads_of + masks + stream, logits)


def of_largest(shape: Config, context: int, rows: int, keeping: Keeping, *, whole: bool) -> int:
    """Bytes of the largest step with so much context, of the slots of a canvas of all of the text, and of what recorded
    passes keep."""
    itemsize, seen = keeping.itemsize, context + MAX_ROWS
    slots = memory.of_context(kept(shape, keeping.device), MAX_ROWS, itemsize) if whole else 0
    recorded = of_recorded(shape.vocab_size) if on_gpu(keeping.device) and not whole else 0
    return slots + recorded + of_step(shape, rows, seen if whole else MAX_ROWS, seen, keeping)


def of_recorded(width: int) -> int:
    """Bytes that all recorded passes together keep on a GPU: logits of the largest, in float32 twice and in 16 bits,
    and as much again for the rest."""
    return 2 * REPLAYED * width * (2 * 4 + 2)


def needed(shape: Config, weights: int, context: int, rows: int, keeping: Keeping, *, whole: bool) -> int:
    """Bytes without which the model cannot fill: weights, a step and one context."""
    one = memory.of_context(kept(shape, keeping.device), context, keeping.itemsize)
    return weights + of_largest(shape, context, rows, keeping, whole=whole) + one


def fitting(
    name: str,
    shape: Config,
    weights: int,
    context: int,
    steps: Sequence[int],
    keeping: Keeping,
    least: int,
    *,
    whole: bool,
) -> tuple[int, int]:
    """How many contexts are kept, and how many rows a step can have: the first of `steps`, which fall. `whole`: a
    step has a canvas of all of the text. Raises DoesNotFit."""
    layers, itemsize = kept(shape, keeping.device), keeping.itemsize
    room = memory.free(device_of(keeping.device))

    def fit(rows: int) -> int:
        def step(tokens: int) -> int:
            return of_largest(shape, tokens, max(MAX_ROWS, rows - context + tokens), keeping, whole=whole)

        return memory.fit(name, weights, layers, step, context, itemsize, keeping.device, FEW, room, least)

    for rows in steps[:-1]:
        with suppress(memory.DoesNotFit):
            return fit(rows), rows
    return fit(steps[-1]), steps[-1]
