"""The memory that a large model needs, computed from its shapes before anything is read, and the context that fits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from caesura.engine.cache import FEW, GROWTH, PART, SLACK, Kept
from caesura.engine.device import Device
from caesura.engine.model import MAX_ROWS
from caesura.model_store.reading import UnusableModel

GIB = 1 << 30
_TAKEN = ContextVar("taken", default=0)  # bytes; see `taken`
MOST_CONTEXTS = 256  # kept, since a job compares its own with each
SHARE_OF_GPU = 0.5  # of what is free: a team's replica may load further models, and two may have one GPU
SHARE_OF_CPU = 1 / 32  # of what is free: the machine is not the engine's alone
COPIES = 6  # copies of a step's logits that a grammar needs: raw, constrained, cooled, distributions


def of_context(layers: Sequence[Kept], tokens: int, itemsize: int) -> int:
    """Bytes of the keys and values of a context: all rows on full layers, window and slack on sliding ones, and the
    buffers' spare rows."""
    seen = (tokens if k.window is None else min(tokens, k.window - 1 + SLACK + GROWTH) for k in layers)
    rows = (-(-(n + n // PART) // GROWTH) * GROWTH for n in seen)
    return sum(2 * n * k.heads * k.width * itemsize for n, k in zip(rows, layers, strict=True))


def contexts(left: int | None, one: int, device: str, few: int = FEW) -> int:
    """How many contexts of at most `one` bytes are kept, if `left` bytes are free next to weights and a step: `few` if
    they fit, and more in a share of the memory."""
    if left is None:
        return few
    share = SHARE_OF_GPU if device.startswith("cuda") else SHARE_OF_CPU
    return max(1, min(left // one, MOST_CONTEXTS, max(few, int(left * share) // one)))


def of_step(width: int) -> int:
    """Bytes of a step's logits [rows, width], in float32."""
    return MAX_ROWS * width * 4 * COPIES


def of_recorded(width: int, itemsize: int) -> int:
    """Bytes that all recorded steps of uniform noise together keep on a GPU (methods/uniform/graphs.py): the head's
    scores [rows, width] for the most rows, and as much again for the rest."""
    return 2 * MAX_ROWS * width * itemsize


@contextmanager
def taken(size: int) -> Iterator[None]:
    """Have `free` count so many bytes as used: by a model that fits and is not read yet."""
    token = _TAKEN.set(_TAKEN.get() + size)
    try:
        yield
    finally:
        _TAKEN.reset(token)


def free(device: Device) -> int | None:
    """Free bytes on a device, or None if unknown."""
    found = device.free()
    return None if found is None else max(0, found - _TAKEN.get())


class DoesNotFit(UnusableModel):
    """The model is complete but too large for this machine."""


def fit(
    name: str,
    weights: int,
    layers: Sequence[Kept],
    step: Callable[[int], int],
    tokens: int,
    itemsize: int,
    device: str,
    few: int,
    room: int | None,
    least: int,
) -> int:
    """How many contexts of `tokens` are kept in `room` bytes next to `weights` bytes and those of a step, which may
    vary with the tokens (see `contexts`). Raises DoesNotFit, with the multiple of `least` tokens that would fit."""
    if room is None:
        return few
    one, left = of_context(layers, tokens, itemsize), room - weights - step(tokens)
    if one <= left:
        return contexts(left, one, device, few)
    parts = f"{weights / GIB:.1f} GiB for its weights, {step(tokens) / GIB:.1f} for a step and {one / GIB:.1f}"
    sentence = f"{name} needs {parts} for {tokens:,} tokens of context, and {room / GIB:.1f} are free on {device}"
    fitting = [n for n in range(least, tokens, least) if weights + step(n) + of_context(layers, n, itemsize) <= room]
    if not fitting:
        raise DoesNotFit(f"{sentence}; take a smaller model or one of fewer bits, or free some memory.")
    raise DoesNotFit(f"{sentence}; {fitting[-1]:,} tokens fit: set CAESURA_CONTEXT={fitting[-1]}.")
