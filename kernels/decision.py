"""Decisions of canvases of uniform noise after a forward (engine/methods/uniform/renoise.py has the rules): which slots
are accepted, locked and unchanged, and whether a canvas is done.

Vectors of at most some hundred numbers: one program does it all, or one a canvas, and the cost is the launch. PyTorch
would launch seventy. What one slot needs of the others of its canvas are sums, a maximum and the smallest number that
holds.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import NamedTuple

import torch
from torch import Tensor

from caesura.kernels.jit import fused, jit, power, tl


class Deciding(NamedTuple):
    """A decision on the slots of some canvases, all [slots]. Of the step before: the tokens `best`, int64, -1 if there
    are none, and `stable`, for how many steps they have not changed. Of this one: the most probable tokens, the entropy
    in nats, float32, and before cooling the token's logit and the log-sum-exp of all allowed. Then which slots are
    accepted, are `open`, may lock, and must lock, bool; tokens, int64, `drawn` for those that are accepted and `noise`
    for the others; the tokens [n] that end a text; which slots belong to each of several `canvases`, bool [canvases,
    slots]; and of each, float32 [canvases], the mean entropy below which it is done if it is at rest."""

    best: Tensor
    stable: Tensor
    token: Tensor
    entropy: Tensor
    logit: Tensor
    allowed: Tensor
    accepted: Tensor
    open: Tensor
    may_lock: Tensor
    must_lock: Tensor
    drawn: Tensor
    noise: Tensor
    ends: Tensor
    canvases: Tensor | None
    enough: Tensor


class LockRules(NamedTuple):
    """A slot locks below `entropy` nats if its token has not changed for `steps` steps; a canvas may be done if none
    has for `stability` steps."""

    entropy: float
    steps: int
    stability: int


class Settled(NamedTuple):
    """The tokens of the next forward; the most probable tokens, and for how many steps they have not changed; and
    `told`, float64 [4, slots], as `renoise.decide` has it."""

    ids: Tensor
    best: Tensor
    stable: Tensor
    told: Tensor


# The references


def reference_accept(entropy: Tensor, open: Tensor, bound: float) -> Tensor:
    entropy, order = entropy.masked_fill(~open, torch.inf).sort(dim=-1, stable=True)
    before = entropy.cumsum(-1) - entropy  # inf - inf is NaN after the open ones: not accepted
    return open & torch.zeros_like(open).scatter_(-1, order, before <= bound)


def reference_biases(
    bias: Tensor, may_end: Tensor, locked: Tensor, is_slot: Tensor, canvases: Tensor, ending: int
) -> tuple[Tensor, Tensor]:
    right = (canvases & locked & is_slot).flip(1).cumsum(1).flip(1) > 0
    return torch.where(may_end & ~(canvases & right).any(0), ending, bias), ~locked


# The kernels


@jit(do_not_specialize=["slots", "row"])
def _accept(entropy, open, out, slots, row, bound, BLOCK: tl.constexpr, FEW: tl.constexpr):
    """One canvas; FEW slots at once are compared with all."""
    start = tl.program_id(0).to(tl.int64) * slots
    entropy += tl.program_id(0).to(tl.int64) * row
    at = tl.arange(0, BLOCK)
    mine = tl.load(entropy + at, mask=at < slots, other=0.0)
    before = tl.zeros([BLOCK], tl.float32)
    for low in range(0, slots, FEW):
        other = low + tl.arange(0, FEW)
        live = tl.load(open + start + other, mask=other < slots, other=0) != 0
        its = tl.load(entropy + other, mask=other < slots, other=0.0)
        less = its[None, :] < mine[:, None]
        same = (its[None, :] == mine[:, None]) & (other[None, :] < at[:, None])
        before += tl.sum(tl.where((less | same) & live[None, :], its[None, :], 0.0), 1)
    live = tl.load(open + start + at, mask=at < slots, other=0) != 0
    tl.store(out + start + at, live & (before <= bound) & (mine == mine), mask=at < slots)


@jit(do_not_specialize=["rows"])
def _biases(bias, may_end, locked, is_slot, canvases, out, open, rows, ENDING: tl.constexpr, BLOCK: tl.constexpr):
    """The rows of one canvas."""
    at = tl.arange(0, BLOCK)
    there = tl.load(canvases + tl.program_id(0) * rows + at, mask=at < rows, other=0) != 0
    locked = tl.load(locked + at, mask=there, other=0) != 0
    tl.store(open + at, locked == 0, mask=there)
    last = tl.max(tl.where(locked & (tl.load(is_slot + at, mask=there, other=0) != 0), at, -1), 0)
    may_end = (tl.load(may_end + at, mask=there, other=0) != 0) & (at > last)
    tl.store(out + at, tl.where(may_end, ENDING, tl.load(bias + at, mask=there, other=0)), mask=there)


@jit(do_not_specialize=["slots", "count", "stability"])
def _settle(
    best, stable, token, entropy, logit, allowed, accepted, open, may_lock, must_lock, drawn, noise, ends, canvases,
    enough, new_ids, new_best, new_stable, told, slots, count, stability,
    ENTROPY: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One canvas. Slots of the others count as shut, and are left to their programs."""
    at = tl.arange(0, BLOCK)
    there = at < slots
    if canvases is not None:
        there = tl.load(canvases + tl.program_id(0) * slots + at, mask=there, other=0) != 0
    open = tl.load(open + at, mask=there, other=0) != 0
    shut = open == 0
    before = tl.load(best + at, mask=there, other=0)
    token = tl.where(open, tl.load(token + at, mask=there, other=0), before)
    entropy = tl.where(open, tl.load(entropy + at, mask=there, other=0.0), 0.0)
    stable = tl.where(before == token, tl.load(stable + at, mask=there, other=0) + 1, 0)
    first = tl.full([], BLOCK, tl.int32)  # slot that holds an end token
    for number in range(count):
        first = tl.minimum(first, tl.min(tl.where((token == tl.load(ends + number)) & there, at, BLOCK), 0))
    at_rest = (stable >= STEPS) & (entropy < ENTROPY) & (at < first)
    may_lock = tl.load(may_lock + at, mask=there, other=0) != 0
    must_lock = tl.load(must_lock + at, mask=there, other=0) != 0
    accepted = tl.load(accepted + at, mask=there, other=0) != 0
    locked = shut | must_lock | (may_lock & at_rest)
    still = tl.min(((stable >= stability) | shut).to(tl.int32), 0)
    whole = tl.min((accepted | shut).to(tl.int32), 0)
    sure = tl.sum(entropy, 0) < tl.load(enough + tl.program_id(0)) * tl.sum(open.to(tl.float32), 0)
    done = (still & (sure.to(tl.int32) | whole)) | tl.min(locked.to(tl.int32), 0)
    free = tl.where(accepted, tl.load(drawn + at, mask=there, other=0), tl.load(noise + at, mask=there, other=0))
    tl.store(new_ids + at, tl.where(locked, token, free), mask=there)
    tl.store(new_best + at, token, mask=there)
    tl.store(new_stable + at, stable, mask=there)
    prob = tl.exp(tl.load(logit + at, mask=there, other=0.0) - tl.load(allowed + at, mask=there, other=0.0))
    tl.store(told + at, token.to(tl.float64), mask=there)
    tl.store(told + slots + at, prob.to(tl.float64), mask=there)
    tl.store(told + 2 * slots + at, locked.to(tl.float64), mask=there)
    tl.store(told + 3 * slots + at, tl.where(there, done, 0).to(tl.float64), mask=there)


# Their launchers


def launch_accept(entropy: Tensor, open: Tensor, bound: float) -> Tensor:
    canvases, slots = entropy.shape
    open = open.contiguous()
    assert entropy.stride(1) == 1 or slots == 1
    out = torch.empty_like(open)
    _accept[canvases,](entropy, open, out, slots, entropy.stride(0), bound, BLOCK=power(slots), FEW=16)
    return out


def launch_biases(
    bias: Tensor, may_end: Tensor, locked: Tensor, is_slot: Tensor, canvases: Tensor, ending: int
) -> tuple[Tensor, Tensor]:
    out, open, rows = torch.empty_like(bias), torch.empty_like(locked), len(bias)
    given = bias, may_end, locked, is_slot, canvases
    assert all(tensor.is_contiguous() for tensor in given)
    _biases[len(canvases),](*given, out, open, rows, ENDING=ending, BLOCK=power(rows))
    return out, open


def settle(asked: Deciding, rules: LockRules) -> Settled:
    """The kernel of `renoise.decide`, which has the reference: all but the sampler and the drawing of tokens."""
    assert asked.enough.dtype == torch.float32
    assert asked.canvases is None or asked.canvases.is_contiguous()
    asked = Deciding(*(tensor if tensor is None else tensor.contiguous() for tensor in asked))  # type: ignore[arg-type]
    slots = len(asked.best)
    ids, best, stable = asked.best.new_empty(3, slots)
    found = Settled(ids, best, stable, asked.enough.new_empty(4, slots, dtype=torch.float64))
    _settle[len(asked.enough),](
        *asked, *found, slots, len(asked.ends), rules.stability,
        ENTROPY=rules.entropy, STEPS=rules.steps, BLOCK=power(slots),
    )  # fmt: skip
    return found


# What a step calls


def accept(entropy: Tensor, open: Tensor, bound: float) -> Tensor:
    """Entropies in nats, float32 [canvases, slots], and which slots are open -> those accepted: in the order of their
    entropy, while the sum of the entropies before is at most `bound`."""
    return (launch_accept if fused(entropy) else reference_accept)(entropy, open, bound)


def biases(
    bias: Tensor, may_end: Tensor, locked: Tensor, is_slot: Tensor, canvases: Tensor, ending: int
) -> tuple[Tensor, Tensor]:
    """The number of each row's bias, int64 [rows]: `ending` where the text may end, which is after the last locked slot
    of its canvas and where `may_end` says so, else `bias`. And which rows are open, bool [rows]: those that are not
    locked. Each row belongs to one of the `canvases`, bool [canvases, rows]."""
    return (launch_biases if fused(bias) else reference_biases)(bias, may_end, locked, is_slot, canvases, ending)
