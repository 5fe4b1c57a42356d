"""Canvases of uniform noise: a forward over all of them, then a decision for each. Each step predicts every slot again
(renoise.py); a confident slot that no longer moves is locked and pinned.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from caesura.engine import length
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.draws import Draws
from caesura.engine.methods._race import Runner
from caesura.engine.methods.uniform import renoise
from caesura.engine.model import Model, Renoiser, Run
from caesura.engine.noise import Schedule, Uniform
from caesura.engine.scores import Allowed
from caesura.engine.scores.tensors import TensorScores

BUDGET = 0.3  # nats of entropy over all slots, below which a canvas at rest is done


@dataclass(eq=False)
class Renoising(Runner[renoise.TensorSampler]):
    """A canvas of uniform noise; `state` is its slots between two forwards."""

    state: renoise.CanvasState | None = None


Replay = Callable[[Sequence[Renoising]], Sequence[Renoising]]


def step(model: Model, work: Sequence[Renoising], replay: Replay | None = None) -> None:
    """One step of every canvas; a batch does not change any result. `replay` takes over some steps and returns the rest
    of the canvases (graphs.py)."""
    assert isinstance(model.spec.noise, Uniform)
    if left := work if replay is None else replay(work):
        renew(cast(Renoiser, model), model.spec.noise.schedule, left)
    for w in work:
        w.close()


def begin(model: Renoiser, w: Renoising) -> renoise.CanvasState:
    """The state of a canvas; before its first step it gets one."""
    if w.state is None:
        noise = renoise.first_noise(model, len(w.canvas.slots), Draws(w.seed))
        w.state = renoise.start(model, [slot.shown for slot in w.canvas.slots], noise)
    return w.state


def runs(model: Renoiser, work: Sequence[Renoising]) -> list[Run]:
    """The rows of each canvas in a forward; a judged canvas wants its pins too."""
    found = []
    fresh = {id(w.kv): len(w.fresh) for w in work if w.fresh}
    for w in work:
        state = begin(model, w)
        ids = w.canvas.ids(state.ids.tolist())
        wanted = w.canvas.slot_rows() + ([row for row, _ in w.canvas.pins()] if w.judged else [])
        at = w.kv.length + fresh.get(id(w.kv), 0)
        found.append(Run(w.kv, ids, range(at, at + len(ids)), None, wanted, w.fresh, state.conditioning))
        w.fresh = ()
    return found


def renew(model: Renoiser, schedule: Schedule, work: Sequence[Renoising]) -> None:
    """A forward over all canvases, then a decision for each."""
    of_forward = runs(model, work)
    hidden = model.hidden(of_forward).split([len(run.wanted or ()) for run in of_forward])
    for w, rows, outlook in zip(work, hidden, outlooks(model, schedule, work, hidden), strict=True):
        settle(model, schedule, w, outlook.first(len(w.canvas.slots)))
        if w.judged:
            judge(model, w, rows, outlook)


def outlooks(
    model: Renoiser, schedule: Schedule, work: Sequence[Renoising], hidden: Sequence[Tensor]
) -> list[renoise.Outlook]:
    """The outlook of each canvas, from its rows [slots and pins, hidden]. A grammar needs all logits."""
    asked = []
    for w, rows in zip(work, hidden, strict=True):
        pins = [w.canvas.vocabulary.anything] * (len(rows) - len(w.canvas.slots))
        allowed = [*w.canvas.allowed(), *pins]
        open = [*(not slot.locked for slot in w.canvas.slots), *[False] * len(pins)]
        asked.append(renoise.Asked(rows, torch.tensor(schedule.temperature(w.step, w.of)), allowed, open))
    free = [i for i, w in enumerate(work) if not w.canvas.ruled]
    found = dict(zip(free, renoise.outlooks(model, [asked[i] for i in free]) if free else [], strict=True))
    for i, w in enumerate(work):
        if w.canvas.ruled:
            raw, slots = model.logits(hidden[i]), len(w.canvas.slots)
            constrained = cast(TensorScores, w.canvas.constrain(TensorScores(raw[:slots])))
            logits = torch.cat((constrained.logits, raw[slots:]))
            found[i] = renoise.of_logits(model, logits, asked[i].temperature, raw)
    ask_again(model, {i: work[i].canvas for i in free}, dict(enumerate(asked)), found)
    return [found[i] for i in range(len(work))]


def ask_again(
    model: Renoiser,
    canvases: Mapping[int, Canvas],
    asked: dict[int, renoise.Asked],
    found: dict[int, renoise.Outlook],
) -> None:
    """Ask some slots again, in one more pass for all canvases: if a forced text takes several tokens, a slot's set
    depends on the best token of the slot before."""
    while True:
        again = dict[int, list[int]]()
        for i, canvas in canvases.items():
            known, tokens = asked[i].allowed, found[i].scores.token[0]
            wanted = canvas.allowed(partial(best_of, known, tokens))
            if rows := [at for at, some in enumerate(wanted) if some != known[at]]:
                again[i] = rows
                asked[i] = replace(asked[i], allowed=[*wanted, *known[len(wanted) :]])
        if not again:
            return
        parts = [asked[i].some(rows) for i, rows in again.items()]
        for (i, rows), part in zip(again.items(), renoise.outlooks(model, parts), strict=True):
            found[i] = found[i].but(rows, part)


def asked_right(w: Renoising, tokens: Tensor) -> bool:
    """True if no slot has to be asked again, as `ask_again` would, now that the best tokens are known."""
    if not w.canvas.unhealed():
        return True
    known = w.canvas.allowed()
    return w.canvas.allowed(partial(best_of, known, tokens)) == known


def best_of(known: Sequence[Allowed], tokens: Tensor, at: int, allowed: Allowed) -> int | None:
    """The best token of a slot if it was asked for one of these."""
    return int(tokens[at]) if allowed == known[at] else None


def settle(model: Renoiser, schedule: Schedule, w: Renoising, outlook: renoise.Outlook) -> None:
    """Decide again every slot that is not locked."""
    assert w.state is not None
    drawn = renoise.chances(model, len(w.canvas.slots), w.draws)
    asked = terms(schedule, w, outlook.logit.device)
    w.state, told = renoise.decide(model, schedule, w.state, outlook, w.sampler, w.step, w.of, asked, drawn)
    heed(w, told.tolist())


def terms(schedule: Schedule, w: Renoising, device: torch.device) -> renoise.Constraints:
    """The constraints of a decision. While several lengths compete nothing locks. A healed hole first locks its start,
    token by token, and only then confident slots."""
    slots, waiting = w.canvas.slots, {} if w.judged else w.canvas.unhealed()
    open = [not slot.locked for slot in slots]
    may = [not w.judged and slot.hole not in waiting for slot in slots]
    must = [slot is waiting.get(slot.hole) for slot in slots]
    masks, least = torch.tensor([open, may, must], device=device), torch.tensor([enough(schedule, w)], device=device)
    stops = torch.tensor(w.canvas.vocabulary.stops, dtype=torch.int64, device=device)
    return renoise.Constraints(masks[0], masks[1], masks[2], stops, least)


def enough(schedule: Schedule, w: Renoising) -> float:
    """Mean entropy in nats below which a canvas at rest is done."""
    return max(schedule.confidence, BUDGET / len(w.canvas.slots))


def heed(w: Renoising, told: Sequence[Sequence[float]]) -> None:
    """Write a decision into the slots: best tokens, probabilities, locks, and whether the canvas is done."""
    for slot, best, prob, locked, done in zip(w.canvas.slots, *told, strict=True):
        w.finished = bool(done)
        if not slot.locked:
            slot.draft, slot.prob, slot.shown = int(best), prob, None
            if locked:
                slot.token, slot.locked = slot.draft, True


def judge(model: Renoiser, w: Renoising, hidden: Tensor, outlook: renoise.Outlook) -> None:
    """Score how well a canvas of this length fits, by the model's own logits, without bans."""
    assert w.state is not None
    slots, pins = len(w.canvas.slots), [pin for _, pin in w.canvas.pins()]
    ids = torch.tensor(pins, dtype=torch.int64, device=hidden.device)
    # A grammar has changed the logits of its slots, so ask for the best tokens' own logits again.
    own = model.score(hidden[:slots], w.state.best) if w.canvas.ruled else outlook.logit[:slots]
    logp = torch.cat((own, model.score(hidden[slots:], ids))) - outlook.total
    rate(w, logp[:slots], logp[slots:])


def rate(w: Renoising, slots: Tensor, pins: Tensor) -> None:
    """Score a canvas by the log-probabilities of its slots and of its pins."""
    w.score = length.score(slots.tolist(), pins.tolist()) if w.canvas.whole() else -math.inf
