"""One file per sampler: what a forward says of the slots in, what becomes of them out. A file in this folder is
registered by its name, unless that begins with `_`.

A file has one of two functions. `select` reads the scores alone and serves either noise. `begin` makes a
`CanvasSampler` for one canvas of absorbing noise: it may keep state, read whole distributions and take accepted tokens
back.

Contract (tests/engine/test_samplers.py runs every file): a sampler accepts at least one open slot of each canvas that
has one, changes only slots that are open or held, is deterministic, and stops asking for forwards.
"""

import importlib
import re
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from caesura.engine.draws import Draws
from caesura.kernels.cpu import best, library
from caesura.wire import Impossible

BLOCK = 128  # tokens of a block of the vocabulary; see `highest`


class Scores(NamedTuple):
    """Statistics of one forward, all [canvases, slots], or [slots] of one canvas: best token, its probability, its lead
    over the second, and the entropy of the distribution in nats."""

    token: Tensor
    prob: Tensor
    margin: Tensor
    entropy: Tensor


def statistics(logits: Tensor) -> Scores:
    """[slots, width] -> scores [1, slots], in one pass over the distribution. A banned token has -inf."""
    logp = logits.log_softmax(-1)
    probs = logp.exp()
    (prob, second), tokens = (two.unbind(-1) for two in highest(probs, 2))
    entropy = -logp.nan_to_num_(neginf=0.0).mul_(probs).sum(-1)
    return Scores(tokens[0][None], prob[None], (prob - second)[None], entropy[None])


def highest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest numbers of each row [rows, n] and their places, of equal ones the first; `topk` takes any. Without
    the C library, it takes less time in a large vocabulary to look only at the blocks with the greatest maxima, and at
    what comes after the last block."""
    if rows.dtype == torch.float32 and rows.device.type == "cpu" and library() is not None:
        return best.highest(rows, count)
    if rows.shape[1] < BLOCK**2:
        places = ranked(rows).topk(count).indices
        return rows.gather(1, places), places
    blocks = rows.unfold(1, BLOCK, BLOCK)
    first = ranked(blocks.amax(-1)).topk(count).indices.sort().values
    near = first[:, :, None] * BLOCK + torch.arange(BLOCK, device=rows.device)
    end = torch.arange(blocks.shape[1] * BLOCK, rows.shape[1], device=rows.device).expand(len(rows), -1)
    places = torch.cat((near.flatten(1), end), 1)
    places = places.gather(1, ranked(rows.gather(1, places)).topk(count).indices)
    return rows.gather(1, places), places


def ranked(rows: Tensor) -> Tensor:
    """Different integers in the order of the numbers of each row [rows, n] in float32, the first of equal ones
    greatest: the number's bits, then how many come after it. NaN is the greatest."""
    bits = (rows.float() + 0.0).view(torch.int32)  # -0 becomes 0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) + torch.arange(rows.shape[1] - 1, -1, -1, device=rows.device)


class Sampler(Protocol):
    """The function `select` of a file."""

    def __call__(self, scores: Scores, open: Tensor, step: int, of: int) -> Tensor:
        """Accepted slots, bool [canvases, slots], at step `step` (from 0) of at most `of`; `open` is bool likewise."""


class Reading(NamedTuple):
    """A forward of one canvas. Per slot [slots]: `scores`; `open` slots may be accepted; `held` ones have been, hold
    `token` (-1 in open slots), and may still be taken back; `check` is the probability of that token by a row that does
    not see it, for a sampler that `checks`. `logits` are [slots, width]: a banned token has -inf. `slots` tell the
    slots apart, since some come and go. It is step `step` (from 0) of at most `of`, and `draws` has its random numbers.
    With `ratios`, exp(logits) are estimated one by one and need not sum to 1. The logits are where the model is, all
    else on the CPU."""

    slots: Sequence[Hashable]
    scores: Scores
    logits: Tensor
    open: Tensor
    held: Tensor
    token: Tensor
    check: Tensor | None
    step: int
    of: int
    draws: Draws
    ratios: bool = False


class Decision(NamedTuple):
    """Bool [slots]. A slot of `accept` takes its best token: an open one is accepted, the token of a held one replaced.
    A held slot of `mask` is open again. If anything changed, `again` asks for another forward even with no slot
    open. Where `drawn` is not -1, an open slot takes that token instead of its best one, but not under a grammar."""

    accept: Tensor
    mask: Tensor
    again: bool = False
    drawn: Tensor | None = None


class CanvasSampler(Protocol):
    """A sampler for one canvas of absorbing noise, with its state. One that `revises` may take accepted tokens back, so
    they do not lock; one that `checks` is told how likely they are (`Reading.check`)."""

    revises: bool
    checks: bool

    def __call__(self, seen: Reading) -> Decision: ...


class Selecting:
    """A `select` function as a sampler for one canvas."""

    revises = checks = False

    def __init__(self, select: Sampler) -> None:
        self.select = select

    def __call__(self, seen: Reading) -> Decision:
        scores = Scores(*(values[None] for values in seen.scores))
        accept = self.select(scores, seen.open[None], seen.step, seen.of)[0]
        return Decision(accept, torch.zeros_like(accept))


def begin(name: str) -> CanvasSampler:
    """A sampler for one canvas of absorbing noise, by name. Raises Impossible for an unknown one."""
    module = _module(name)
    sampler: CanvasSampler = module.begin() if hasattr(module, "begin") else Selecting(module.select)
    return sampler


def load(name: str) -> Sampler:
    """The function of a sampler that has one. Raises Impossible for an unknown one, and for one with state."""
    module = _module(name)
    if not hasattr(module, "select"):
        raise Impossible(f"The sampler {name!r} is for canvases of absorbing noise, which this model does not have.")
    sampler: Sampler = module.select
    return sampler


def _module(name: str) -> ModuleType:
    if name not in names():
        raise Impossible(f"There is no sampler named {name!r}; there are {', '.join(names())}.")
    return importlib.import_module(f"caesura.engine.samplers.{_modules()[name]}")


@cache
def _modules() -> dict[str, str]:
    """The module of each sampler, in this folder or one of its own."""
    folder = Path(__file__).parent
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py"))
    return {path.name: ".".join(path.parts) for path in paths if re.fullmatch(r"[a-z0-9][a-z0-9_]*", path.name)}


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(_modules()))


def surest(score: Tensor, among: Tensor, count: Tensor | int) -> Tensor:
    """Bool [..., slots]: the `count` slots with the highest score `among` some, the leftmost of equal ones. `count` is
    a number, or [canvases, 1]."""
    order = score.masked_fill(~among, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return among & (torch.empty_like(order).scatter_(-1, order, ranks) < count)
