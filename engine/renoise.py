"""Uniform noise: what one forward makes of a canvas (DiffusionGemma's loop, tensors in, tensors out).

The logits are cooled by the schedule; of every slot a token is drawn; those of least entropy are accepted, all others
become noise again; the whole cooled distribution is what the next forward is conditioned on. Nothing stays accepted:
every slot is predicted anew. The best canvas is that of the most probable tokens, not of the drawn ones.

What a forward says of a slot is asked for in one pass over the vocabulary (`outlooks`). Where a grammar has a say all
logits are needed, and parity with the reference's random numbers needs them too (`of_logits`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from caesura.engine.models import Model, Renoiser
from caesura.engine.noise import Schedule
from caesura.engine.samplers import Sampler, Scores, statistics
from caesura.kernels.head import NEVER, Rows, Seen


@dataclass(eq=False)
class State:
    """A canvas between two forwards, over its slots: `ids` are shown to the next one; `best` are the most probable
    tokens (-1 before the first), `stable` for how many steps they have not moved; `conditioning` is [slots, hidden]."""

    ids: Tensor
    best: Tensor
    stable: Tensor
    conditioning: Tensor | None = None


@dataclass(frozen=True)
class Asked:
    """Rows of a canvas [rows, hidden], how far their logits are cooled, and what is added to those of each."""

    hidden: Tensor
    temperature: Tensor
    biases: Sequence[Tensor]

    def some(self, at: Sequence[int]) -> "Asked":
        """Rows by number."""
        return Asked(self.hidden[list(at)], self.temperature, [self.biases[row] for row in at])


@dataclass(frozen=True)
class Outlook:
    """What a forward says of each row: scores [1, rows] of the cooled logits; before cooling the best token's logit,
    and log-sum-exp of what is allowed and of everything; what the next forward is conditioned on; and `pick`, which
    draws tokens of some rows."""

    scores: Scores
    logit: Tensor
    allowed: Tensor
    total: Tensor
    soft: Tensor | None
    pick: Callable[[Tensor, torch.Generator], Tensor]

    def first(self, count: int) -> "Outlook":
        """Of the first rows."""
        scores = Scores(*(values[:, :count] for values in self.scores))
        soft = None if self.soft is None else self.soft[:count]
        return Outlook(scores, self.logit[:count], self.allowed[:count], self.total[:count], soft, self.pick)

    def but(self, at: Sequence[int], other: "Outlook") -> "Outlook":
        """With other rows at some places."""
        place = torch.tensor(at, device=self.logit.device)
        mine, its = ((*(v[0] for v in one.scores), one.logit, one.allowed, one.total) for one in (self, other))
        *scores, logit, allowed, total = (a.index_copy(0, place, b) for a, b in zip(mine, its, strict=True))
        soft = self.soft if self.soft is None or other.soft is None else self.soft.index_copy(0, place, other.soft)

        def pick(rows: Tensor, generator: torch.Generator) -> Tensor:
            where = (rows[:, None] == place).nonzero()
            drawn = self.pick(rows, generator)
            return drawn.index_copy(0, where[:, 0], other.pick(where[:, 1], generator)) if len(where) else drawn

        return Outlook(Scores(*(v[None] for v in scores)), logit, allowed, total, soft, pick)


def outlooks(model: Renoiser, asked: Sequence[Asked]) -> list[Outlook]:
    """Of several canvases, in one pass over the vocabulary."""
    biases = {id(bias): bias for one in asked for bias in one.biases}
    number = {key: at for at, key in enumerate(biases)}
    rows = Rows(
        torch.cat([one.hidden for one in asked]),
        torch.cat([one.temperature.to(one.hidden.device).expand(len(one.hidden)) for one in asked]),
        torch.stack(list(biases.values())).clamp_(min=NEVER),
        torch.tensor([number[id(bias)] for one in asked for bias in one.biases], device=asked[0].hidden.device),
    )
    seen, found, start = model.observe(rows), list[Outlook](), 0
    for one in asked:
        at = torch.arange(start, start + len(one.hidden), device=rows.hidden.device)
        found.append(_outlook(model, rows.some(at), seen.some(at)))
        start += len(one.hidden)
    return found


def _outlook(model: Renoiser, rows: Rows, seen: Seen) -> Outlook:
    def pick(at: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(len(at), generator=generator, device=at.device)
        return model.draw(rows.some(at), seen.some(at), uniform)

    scores = Scores(seen.token[None], seen.prob[None], seen.margin[None], seen.entropy[None])
    return Outlook(scores, seen.best, seen.told, seen.raw, seen.soft, pick)


def of_logits(model: Model, logits: Tensor, temperature: Tensor, raw: Tensor | None = None) -> Outlook:
    """From logits [rows, width], and what they were before anything was forbidden."""
    cooled = logits / temperature
    scores = statistics(cooled)
    best = scores.token[0][:, None]

    def pick(at: Tensor, generator: torch.Generator) -> Tensor:
        return torch.multinomial(cooled[at].softmax(-1), 1, generator=generator)[:, 0]

    allowed = logits.logsumexp(-1)
    total = allowed if raw is None else raw.logsumexp(-1)
    return Outlook(scores, logits.gather(1, best)[:, 0], allowed, total, model.condition(cooled), pick)


def start(model: Model, shown: Sequence[int | None], generator: torch.Generator) -> State:
    """Pure noise, but for what a warm start shows: the next forward is conditioned on that, and where it keeps it
    nothing has moved."""
    ids = model.noise.draw(len(shown), generator)
    best = torch.full_like(ids, -1)
    state = State(ids, best, torch.zeros_like(ids))
    known = [(row, token) for row, token in enumerate(shown) if token is not None]
    if known:
        rows, tokens = torch.tensor(known, device=ids.device).unbind(1)
        state.ids[rows] = state.best[rows] = tokens
        certain = model.embedded(tokens)
        if certain is not None:
            state.conditioning = certain.new_zeros(len(ids), certain.shape[1]).index_copy(0, rows, certain)
    return state


def advance(
    model: Model,
    state: State,
    outlook: Outlook,
    sampler: Sampler,
    step: int,
    of: int,
    generator: torch.Generator,
    movable: Tensor | None = None,
    *,
    draw_all: bool = False,
) -> tuple[Scores, Tensor]:
    """The state after a forward; its cooled scores [1, slots], and which slots were accepted.

    Slots that are not `movable` keep their token, count for nothing, and are sure of themselves. The reference draws a
    token for every slot, also for those that it then renoises: only `draw_all` uses its random numbers.
    """
    scores, soft = outlook.scores, outlook.soft
    open = torch.ones_like(state.best, dtype=torch.bool) if movable is None else movable
    if not open.all():
        scores, soft = pinned(model, state, scores, soft, ~open)
    accepted = sampler(scores, open[None], step, of)[0]
    best = scores.token[0]
    drawn, rows = best.clone(), (torch.ones_like(accepted) if draw_all else accepted & open).nonzero()[:, 0]
    drawn[rows] = outlook.pick(rows, generator)
    noise = model.noise.draw(len(best), generator)
    state.stable = torch.where(state.best == best, state.stable + 1, 0)
    state.best = best
    state.ids = torch.where(accepted | ~open, drawn, noise)
    state.conditioning = soft
    return scores, accepted


def pinned(
    model: Model, state: State, scores: Scores, soft: Tensor | None, shut: Tensor
) -> tuple[Scores, Tensor | None]:
    """The slots that do not move are certain of the token they have."""
    token = torch.where(shut, state.best, scores.token[0])
    prob, margin = (values[0].masked_fill(shut, 1.0) for values in (scores.prob, scores.margin))
    certain = model.embedded(state.best[shut])
    if soft is not None and certain is not None:
        soft = soft.index_put((shut,), certain)
    return Scores(token[None], prob[None], margin[None], scores.entropy.masked_fill(shut, 0.0)), soft


def settled(schedule: Schedule, state: State, scores: Scores) -> bool:
    """The reference's rule: nothing moved for long enough, and the mean entropy is low."""
    return bool((state.stable >= schedule.stability).all()) and float(scores.entropy.mean()) < schedule.confidence
