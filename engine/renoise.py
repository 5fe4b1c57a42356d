"""Uniform noise: what one forward makes of a canvas (DiffusionGemma's loop, tensors in, tensors out).

The logits are cooled by the schedule; of every slot a token is drawn; those of least entropy are accepted, all others
become noise again; the whole cooled distribution is what the next forward is conditioned on. Nothing stays accepted:
every slot is predicted anew. The best canvas is that of the most probable tokens, not of the drawn ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from caesura.engine.models import Model
from caesura.engine.noise import Schedule
from caesura.engine.samplers import Sampler, Scores, statistics


@dataclass(eq=False)
class State:
    """A canvas between two forwards, over its slots: `ids` are shown to the next one; `best` are the most probable
    tokens (-1 before the first), `stable` for how many steps they have not moved; `conditioning` is [slots, hidden]."""

    ids: Tensor
    best: Tensor
    stable: Tensor
    conditioning: Tensor | None = None


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
        certain = model.condition(certainly(tokens, model.width))
        if certain is not None:
            state.conditioning = certain.new_zeros(len(ids), certain.shape[1]).index_copy(0, rows, certain)
    return state


def certainly(tokens: Tensor, width: int) -> Tensor:
    """Logits [n, width] that leave nothing but these tokens [n]."""
    logits = torch.full((len(tokens), width), -torch.inf, device=tokens.device)
    return logits.scatter_(1, tokens[:, None], 0.0)


def advance(
    model: Model,
    state: State,
    logits: Tensor,
    sampler: Sampler,
    schedule: Schedule,
    step: int,
    of: int,
    generator: torch.Generator,
    movable: Tensor | None = None,
    *,
    draw_all: bool = False,
) -> tuple[Scores, Tensor]:
    """The state after a forward's logits [slots, width]; its cooled scores [1, slots], and which slots were accepted.

    Slots that are not `movable` keep their token, count for nothing, and are sure of themselves. The reference draws a
    token for every slot, also for those that it then renoises, and half of its sampler's time on a CPU goes there: only
    `draw_all` uses its random numbers.
    """
    cooled = logits / schedule.temperature(step, of)
    open = torch.ones(len(logits), dtype=torch.bool, device=logits.device) if movable is None else movable
    if not open.all():
        cooled[~open] = certainly(state.best[~open], logits.shape[1])
    scores = statistics(cooled)
    accepted = sampler(scores, open[None], step, of)[0]
    best = scores.token[0]
    drawn, rows = best.clone(), torch.ones_like(accepted) if draw_all else accepted
    drawn[rows] = torch.multinomial(cooled[rows].softmax(-1), 1, generator=generator)[:, 0]
    noise = model.noise.draw(len(best), generator)
    state.stable = torch.where(state.best == best, state.stable + 1, 0)
    state.best = best
    state.ids = torch.where(accepted | ~open, drawn, noise)
    state.conditioning = model.condition(cooled)
    return scores, accepted


def settled(schedule: Schedule, state: State, scores: Scores) -> bool:
    """The reference's rule: nothing moved for long enough, and the mean entropy is low."""
    return bool((state.stable >= schedule.stability).all()) and float(scores.entropy.mean()) < schedule.confidence
