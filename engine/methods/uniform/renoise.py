"""Uniform noise: the step of a canvas after a forward (DiffusionGemma's loop).

The schedule cools the logits; a token is drawn for every slot; those of least entropy are accepted, all others become
noise again; the next forward is conditioned on the whole cooled distribution. Nothing stays accepted: every slot is
predicted again until it is locked. The best canvas holds the most probable tokens, not the drawn ones.

A decision (`decide`) has tensors of fixed shapes in and out: on a GPU nothing waits for it, and the host gets one small
tensor.

One pass over the vocabulary gives what a forward says of a slot (`outlooks`). A grammar needs all logits, and so does
parity with the reference's random numbers (`of_logits`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from caesura.engine.draws import Draws, DrawStream
from caesura.engine.model import Model, Renoiser
from caesura.engine.noise import Schedule, Uniform
from caesura.engine.samplers import Sampler
from caesura.engine.samplers.entropy_bound import BOUND
from caesura.engine.scores import Allowed, Statistics, tensors
from caesura.kernels import decision
from caesura.kernels.head import NEVER, Rows, Seen, fall
from caesura.kernels.jit import fused

STABLE_ENTROPY = 0.1  # nats below which a slot locks once it is unchanged for two steps
STABLE_STEPS = 2
BELOW_ONE = 1 - 2**-24  # the greatest float32 below 1


class SlotStatistics(NamedTuple):
    """`Statistics` where the model is, all [canvases, slots]."""

    token: Tensor
    prob: Tensor
    margin: Tensor
    entropy: Tensor


class TensorSampler(Protocol):
    """A sampler where the model is."""

    def __call__(self, scores: SlotStatistics, open: Tensor, step: int, of: int) -> Tensor:
        """Accepted slots, bool [canvases, slots], at step `step` (from 0) of at most `of`; `open` is bool likewise."""


def by_entropy(scores: SlotStatistics, open: Tensor, step: int, of: int, *, bound: float = BOUND) -> Tensor:
    """The usual sampler, `entropy_bound`: nothing waits for it."""
    del step, of
    return decision.accept(scores.entropy, open, bound)


def on_host(select: Sampler) -> TensorSampler:
    """A sampler that decides on the host."""

    def sampler(scores: SlotStatistics, open: Tensor, step: int, of: int) -> Tensor:
        canvases = zip(*(values.cpu().numpy() for values in (*scores, open)), strict=True)
        accepted = [select(Statistics(*values), still, step, of) for *values, still in canvases]
        return torch.from_numpy(np.stack(accepted)).to(open.device)

    return sampler


def statistics(logits: Tensor) -> SlotStatistics:
    """[slots, width] -> [1, slots]; a banned token has -inf."""
    return SlotStatistics(*(values[None] for values in tensors.statistics(logits.log_softmax(-1))))


@dataclass(frozen=True, eq=False)
class CanvasState:
    """The slots of a canvas between two forwards: the next one sees `ids`; `best` are the most probable tokens (-1
    before the first), unchanged for `stable` steps; `conditioning` is [slots, hidden]."""

    ids: Tensor
    best: Tensor
    stable: Tensor
    conditioning: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of them, of a canvas that has conditioning."""
        assert self.conditioning is not None
        return self.ids, self.best, self.stable, self.conditioning


@dataclass(frozen=True)
class Asked:
    """A question about rows of a canvas [rows, hidden]: their temperature, the tokens allowed in each, and which are
    open: the next forward is conditioned on those."""

    hidden: Tensor
    temperature: Tensor
    allowed: Sequence[Allowed]
    open: Sequence[bool]

    def some(self, at: Sequence[int]) -> "Asked":
        """Rows by number."""
        allowed, open = [self.allowed[row] for row in at], [self.open[row] for row in at]
        return Asked(self.hidden[list(at)], self.temperature, allowed, open)


@dataclass(frozen=True)
class Outlook:
    """What a forward says of each row: scores [1, rows] of the cooled logits; before cooling, the best token's logit
    and log-sum-exp of the allowed and of all logits; the next forward's conditioning; and `pick`, which draws a token
    by each wanted row's uniform number and returns any token for the others."""

    scores: SlotStatistics
    logit: Tensor
    allowed: Tensor
    total: Tensor
    soft: Tensor | None
    pick: Callable[[Tensor, Tensor], Tensor]

    def first(self, count: int) -> "Outlook":
        """The first rows."""
        scores = SlotStatistics(*(values[:, :count] for values in self.scores))
        soft = None if self.soft is None else self.soft[:count]
        behind = 0, len(self.logit) - count

        def pick(uniform: Tensor, wanted: Tensor) -> Tensor:
            return self.pick(pad(uniform, behind), pad(wanted, behind))[:count]

        return Outlook(scores, self.logit[:count], self.allowed[:count], self.total[:count], soft, pick)

    def but(self, at: Sequence[int], other: "Outlook") -> "Outlook":
        """The same with some rows replaced."""
        place = torch.tensor(at, device=self.logit.device)
        mine, its = ((*(v[0] for v in one.scores), one.logit, one.allowed, one.total) for one in (self, other))
        *scores, logit, allowed, total = (a.index_copy(0, place, b) for a, b in zip(mine, its, strict=True))
        soft = self.soft if self.soft is None or other.soft is None else self.soft.index_copy(0, place, other.soft)

        def pick(uniform: Tensor, wanted: Tensor) -> Tensor:
            return self.pick(uniform, wanted).index_copy(0, place, other.pick(uniform[place], wanted[place]))

        return Outlook(SlotStatistics(*(v[None] for v in scores)), logit, allowed, total, soft, pick)


def outlooks(model: Renoiser, asked: Sequence[Asked]) -> list[Outlook]:
    """Ask several canvases in one pass over the vocabulary."""
    sets, device = {id(some): some for one in asked for some in one.allowed}, asked[0].hidden.device
    number = {key: at for at, key in enumerate(sets)}
    rows = Rows(
        torch.cat([one.hidden for one in asked]),
        torch.cat([one.temperature.to(device).expand(len(one.hidden)) for one in asked]),
        torch.stack([tensors.bias(some, device) for some in sets.values()]).clamp_(min=NEVER),
        torch.tensor([number[id(some)] for one in asked for some in one.allowed], device=device),
        torch.tensor([open for one in asked for open in one.open], device=device),
    )
    seen, found, start = model.observe(rows), list[Outlook](), 0
    for one in asked:
        at = torch.arange(start, start + len(one.hidden), device=device)
        found.append(of_seen(model, rows.some(at), seen.some(at)))
        start += len(one.hidden)
    return found


def of_seen(model: Renoiser, rows: Rows, seen: Seen) -> Outlook:
    """The outlook from a pass over the vocabulary."""
    scores = SlotStatistics(seen.token[None], seen.prob[None], seen.margin[None], seen.entropy[None])
    return Outlook(scores, seen.best, seen.told, seen.raw, seen.soft, partial(model.draw, rows, seen))


def of_logits(model: Model, logits: Tensor, temperature: Tensor, raw: Tensor | None = None) -> Outlook:
    """The outlook from logits [rows, width]; `raw` are those without bans."""
    cooled = logits / temperature
    scores = statistics(cooled)
    best = scores.token[0][:, None]

    def pick(uniform: Tensor, wanted: Tensor) -> Tensor:
        some = wanted.nonzero()[:, 0]
        drawn, _ = fall(cooled[some].softmax(-1), uniform[some, None])
        return best[:, 0].index_copy(0, some, drawn[:, 0])

    allowed = logits.logsumexp(-1)
    total = allowed if raw is None else raw.logsumexp(-1)
    return Outlook(scores, logits.gather(1, best)[:, 0], allowed, total, model.condition(cooled), pick)


class Chances(NamedTuple):
    """A step's random numbers: `uniform`, float32 [slots] in [0, 1), draws tokens; `noise` is int64 [slots]."""

    uniform: Tensor
    noise: Tensor


def chances(model: Renoiser, slots: int, draws: Draws) -> Chances:
    """The random numbers of a step, on the model's device."""
    uniform = torch.from_numpy(draws.of_slots(DrawStream.TOKEN, slots)).float().clamp_max(BELOW_ONE)
    return Chances(sent(uniform, model), random_tokens(model, slots, draws, DrawStream.NOISE))


def first_noise(model: Renoiser, slots: int, draws: Draws) -> Tensor:
    """The tokens in the slots of a canvas before its first step, int64 [slots] on the model's device."""
    return random_tokens(model, slots, draws, DrawStream.START)


def random_tokens(model: Renoiser, slots: int, draws: Draws, stream: DrawStream) -> Tensor:
    assert isinstance(model.spec.noise, Uniform)
    return sent(torch.from_numpy(model.spec.noise.drawn(draws.of_slots(stream, slots))), model)


def sent(numbers: Tensor, model: Renoiser) -> Tensor:
    """Numbers on the model's device. A copy from other memory than pinned would wait for the step under way."""
    return numbers.pin_memory().to(model.device, non_blocking=True) if model.device.startswith("cuda") else numbers


def start(model: Renoiser, shown: Sequence[int | None], ids: Tensor) -> CanvasState:
    """The noise `ids` [slots], and the tokens that a warm start shows: the first forward is conditioned on them, and a
    token that it keeps counts as unchanged."""
    best, stable, conditioning = torch.full_like(ids, -1), torch.zeros_like(ids), None
    known = [(row, token) for row, token in enumerate(shown) if token is not None]
    if known:
        rows, tokens = torch.tensor(known, device=ids.device).unbind(1)
        ids[rows] = best[rows] = tokens
        certain = model.embedded(tokens)
        if certain is not None:
            conditioning = certain.new_zeros(len(ids), certain.shape[1]).index_copy(0, rows, certain)
    return CanvasState(ids, best, stable, conditioning)


def advance(
    model: Model,
    state: CanvasState,
    outlook: Outlook,
    sampler: TensorSampler,
    step: int,
    of: int,
    open: Tensor,
    pick: Callable[[Tensor], Tensor],
    noise: Tensor,
    canvases: Tensor | None = None,
) -> tuple[CanvasState, SlotStatistics, Tensor]:
    """The state after a forward, its cooled scores [1, slots], and which slots were accepted. `pick` draws the tokens
    of those. Slots that are not `open` keep their token with certainty. For `canvases` see `selected`."""
    scores, soft = pinned(model, state, outlook.scores, outlook.soft, ~open)
    accepted = selected(sampler, scores, open, canvases, step, of)
    best = scores.token[0]
    drawn = torch.where(accepted, pick(accepted), torch.where(open, noise, best))
    stable = torch.where(state.best == best, state.stable + 1, 0)
    return CanvasState(drawn, best, stable, soft), scores, accepted


def selected(
    sampler: TensorSampler, scores: SlotStatistics, open: Tensor, canvases: Tensor | None, step: int, of: int
) -> Tensor:
    """The slots that a sampler accepts, bool [slots], by scores [1, slots]. If they belong to several canvases,
    `canvases`, bool [canvases, slots], says to which, and each canvas is decided alone."""
    if canvases is None:
        return sampler(scores, open[None], step, of)[0]
    of_each = SlotStatistics(*(values.expand(canvases.shape) for values in scores))
    return sampler(of_each, open & canvases, step, of).any(0)


def pinned(
    model: Model, state: CanvasState, scores: SlotStatistics, soft: Tensor | None, shut: Tensor
) -> tuple[SlotStatistics, Tensor | None]:
    """Make the `shut` slots certain of their token."""
    token = torch.where(shut, state.best, scores.token[0])
    prob, margin = (values[0].masked_fill(shut, 1.0) for values in (scores.prob, scores.margin))
    certain = model.embedded(state.best.clamp_min(0))  # an open slot may have none yet
    if soft is not None and certain is not None:
        soft = torch.where(shut[:, None], certain, soft)
    return SlotStatistics(token[None], prob[None], margin[None], scores.entropy.masked_fill(shut, 0.0)), soft


class Constraints(NamedTuple):
    """The constraints on a decision, bool [slots]: which slots are open, which may lock once they are confident and at
    rest, which lock anyway; the tokens that end a text [n]; of each canvas the mean entropy in nats, float32
    [canvases], below which it is done if it is at rest; and for several canvases see `selected`."""

    open: Tensor
    may_lock: Tensor
    must_lock: Tensor
    ends: Tensor
    enough: Tensor
    canvases: Tensor | None = None


def decide(
    model: Model,
    schedule: Schedule,
    state: CanvasState,
    outlook: Outlook,
    sampler: TensorSampler,
    step: int,
    of: int,
    terms: Constraints,
    chances: Chances,
) -> tuple[CanvasState, Tensor]:
    """The state after a forward, and float64 [4, slots] for the host: the best tokens, their probabilities before
    cooling, which slots are locked from now on, and whether their canvas is done.

    Every open slot is decided again. A canvas is done when it is confident and at rest, or all locked. An end token
    does not lock, since it may still move; the slots after it do not either, since they hold no text.
    """
    if fused(terms.open):
        return _decided_in_one(model, schedule, state, outlook, sampler, step, of, terms, chances)
    open, pick = terms.open, partial(outlook.pick, chances.uniform)
    mine = torch.ones_like(open)[None] if terms.canvases is None else terms.canvases
    given = sampler, step, of, open, pick, chances.noise, terms.canvases
    state, scores, accepted = advance(model, state, outlook, *given)
    entropy = scores.entropy[0]
    ends = (state.best[:, None] == terms.ends).any(-1)
    ended = (mine & ((mine & ends).cumsum(1) > 0)).any(0)
    at_rest = (state.stable >= STABLE_STEPS) & (entropy < STABLE_ENTROPY) & ~ended
    locked = ~open | terms.must_lock | (terms.may_lock & at_rest)
    others = ~(mine & open)
    still = ((state.stable >= schedule.stability) | others).all(1)
    sure = ((entropy * mine).sum(1) < terms.enough * (mine & open).sum(1)) | (accepted | others).all(1)
    done = (mine & ((still & sure) | (locked | ~mine).all(1))[:, None]).any(0)
    prob = (outlook.logit - outlook.allowed).exp()
    told = torch.stack([values.double() for values in (state.best, prob, locked, done)])
    return replace(state, ids=torch.where(locked, state.best, state.ids)), told


def _decided_in_one(
    model: Model,
    schedule: Schedule,
    state: CanvasState,
    outlook: Outlook,
    sampler: TensorSampler,
    step: int,
    of: int,
    terms: Constraints,
    chances: Chances,
) -> tuple[CanvasState, Tensor]:
    """As `decide`, in one kernel next to the sampler and the drawing of tokens."""
    token, entropy = outlook.scores.token[0], outlook.scores.entropy[0]
    accepted = selected(sampler, outlook.scores, terms.open, terms.canvases, step, of)
    drawn = outlook.pick(chances.uniform, accepted)
    of_slots = state.best, state.stable, token, entropy, outlook.logit, outlook.allowed, accepted
    asked = decision.Deciding(*of_slots, *terms[:3], drawn, chances.noise, terms.ends, terms.canvases, terms.enough)
    found = decision.settle(asked, decision.LockRules(STABLE_ENTROPY, STABLE_STEPS, schedule.stability))
    soft, certain = outlook.soft, model.embedded(found.best)
    if soft is not None and certain is not None:
        soft = torch.where(terms.open[:, None], soft, certain)
    return CanvasState(found.ids, found.best, found.stable, soft), found.told
