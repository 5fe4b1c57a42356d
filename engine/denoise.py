"""The algorithm on one screen, for every model: a forward over the canvases, then a decision what to accept.

Absorbing noise: an accepted slot stays, the rest is masked again. Uniform noise: every slot is predicted anew at every
step (renoise.py), and one that is sure and does not move any more is locked: it is pinned from then on. Models whose
entry says `verify` draft with the first forward and decide by causal passes (search.py), one in each forward.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from caesura.engine import length, renoise
from caesura.engine.cache import KV
from caesura.engine.canvas import Canvas
from caesura.engine.models import Model, Run, Verifier
from caesura.engine.noise import Uniform
from caesura.engine.samplers import Sampler, Scores, statistics
from caesura.engine.search import Search

STABLE_ENTROPY = 0.1  # nats; a uniform-noise slot locks when it is this sure and unchanged for two steps
STABLE_STEPS = 2
BUDGET = 0.3  # nats over all slots; a uniform-noise canvas is done when nothing moves and it is this sure


@dataclass(eq=False)
class Denoising:
    """A canvas on its way: `of` bounds the steps; `search` is set where causal passes decide.

    `fresh` is context that the first forward takes along. Of uniform noise `state` is what lies between two forwards,
    and `judged` says whether the canvas is one of several lengths: then `score` is how well it fits what is pinned.
    """

    canvas: Canvas
    kv: KV
    sampler: Sampler
    of: int
    generator: torch.Generator
    search: Search | None = None
    fresh: Sequence[int] = ()
    state: renoise.State | None = None
    judged: bool = False
    score: float = -math.inf
    step: int = 0
    finished: bool = False


def step(model: Model, work: Sequence[Denoising]) -> None:
    """One step of every canvas; a batch gives each canvas what it would get alone. A canvas that is to be verified is
    denoised once, in the same forward that first scores its token tree; the next one has its draft in the tree."""
    drafting = [w for w in work if w.search is None or w.step == 0]
    searching = [w for w in work if w.search is not None]
    for w, logits in zip(drafting, forward(model, drafting, searching), strict=True):
        decide(model, w, logits)
    for w in work:
        if w.search is not None:
            w.search.prune()
            w.finished = w.search.finished()
        w.step += 1
        w.finished = w.finished or w.step >= w.of


def forward(model: Model, work: Sequence[Denoising], searching: Sequence[Denoising] = ()) -> tuple[Tensor, ...]:
    """Per canvas: logits [slots, width], and behind them those of its pins where the canvas is judged by them. Those of
    the token trees go to their searches."""
    canvases, rows = [], []
    fresh = {id(w.kv): len(w.fresh) for w in work if w.fresh}
    for w in work:
        if isinstance(model.noise, Uniform):
            w.state = w.state or renoise.start(model, [s.shown for s in w.canvas.slots], w.generator)
            ids = w.canvas.ids(w.state.ids.tolist())
        else:
            ids = w.canvas.ids(model.noise.draw(len(w.canvas.slots), w.generator).tolist())
        wanted = w.canvas.slot_rows() + ([row for row, _ in w.canvas.pins()] if w.judged else [])
        at = w.kv.length + fresh.get(id(w.kv), 0)
        conditioning = w.state.conditioning if w.state else None
        canvases.append(Run(w.kv, ids, range(at, at + len(ids)), None, wanted, w.fresh, conditioning))
        rows.append(len(wanted))
        w.fresh = ()
    if not searching:
        parts: tuple[Tensor, ...] = model.denoise(canvases).split(rows)
        return parts
    plans = [w.search.plan() for w in searching if w.search is not None]
    trees = [Run(w.kv, p.ids, p.positions, p.mask, fresh=w.fresh) for w, p in zip(searching, plans, strict=True)]
    for w in searching:
        w.fresh = ()
    verifier = cast(Verifier, model)  # a job that asks another family for it is not taken
    judged, logits = verifier.forward(trees, canvases)
    for w, of_tree in zip(searching, judged.split([len(p.ids) for p in plans]), strict=True):
        assert w.search is not None
        w.search.receive(of_tree.log_softmax(-1))
    parts = logits.split(rows)
    return parts


def decide(model: Model, w: Denoising, logits: Tensor) -> None:
    """Accept, broadcast nulls, grow, lock."""
    canvas = w.canvas
    slots = len(canvas.slots)
    allowed = canvas.constrain(logits[:slots])
    if isinstance(model.noise, Uniform):
        settle(model, w, allowed)
        if w.judged:
            judge(w, logits)
        return
    scores = statistics(allowed)
    observe(canvas, scores, beside(allowed, scores, model.null_id) if model.null_id is not None else None)
    if w.step == 0:
        keep_warm(canvas)
    if w.search is not None:
        w.search.propose(canvas.guess(0), "canvas")
    elif model.null_id is not None and len(canvas.open()) == len(canvas.slots) and lengthen(canvas):
        pass  # nothing was accepted yet and the canvas grew: this step told its length
    else:
        absorb(w, scores, model.null_id)


def beside(logits: Tensor, scores: Scores, token: int) -> Tensor:
    """The probability of a token [slots], from that of the best one: no second pass over the distribution."""
    best = logits.gather(1, scores.token[0][:, None])[:, 0]
    return scores.prob[0] * (logits[:, token] - best).exp()


def keep_warm(canvas: Canvas) -> None:
    """Accept what a warm start showed and the model agrees with; nothing of a hole whose healed start is lost."""
    for slot in canvas.slots:
        if slot.shown is not None and slot.shown == slot.draft:
            slot.token = slot.draft
        slot.shown = None
    lost = canvas.unhealed()
    for slot in canvas.slots:
        if slot.hole in lost:
            slot.token = None


def observe(canvas: Canvas, scores: Scores, p_null: Tensor | None) -> None:
    """Write the statistics of a forward into the open slots."""
    nothing = [0.0] * len(canvas.slots) if p_null is None else p_null.tolist()
    for slot, token, prob, null in zip(
        canvas.slots, scores.token[0].tolist(), scores.prob[0].tolist(), nothing, strict=True
    ):
        if slot.token is None:
            slot.draft, slot.prob, slot.p_null = token, prob, null


def absorb(w: Denoising, scores: Scores, null: int | None) -> None:
    """Accepted slots keep their token and lock; the rest is masked again."""
    canvas = w.canvas
    still = torch.tensor([[s.token is None for s in canvas.slots]])
    accepted = w.sampler(scores, still, w.step, w.of)[0].tolist()
    for slot, yes in zip(canvas.slots, healed_first(canvas, accepted), strict=True):
        if yes and slot.token is None:
            slot.token = slot.draft
    for hole in range(len(canvas.holes)) if null is not None else ():
        if canvas.holes[hole].grammar is not None:
            continue  # what it ends with may stand right of a null
        of_hole = canvas.of_hole(hole)
        ended = [s.token == null for s in of_hole]
        for i in length.broadcast([s.token is None for s in of_hole], ended, [s.p_null for s in of_hole]):
            of_hole[i].token = null
    for slot in canvas.slots:
        slot.locked = slot.token is not None
    canvas.shrink()
    w.finished = not canvas.open()


def healed_first(canvas: Canvas, accepted: list[bool]) -> list[bool]:
    """The start of a healed hole has to be known before anything can follow it: until then only its leftmost open slot
    is accepted."""
    waiting = canvas.unhealed()
    return [
        slot is waiting[slot.hole] if slot.hole in waiting else yes
        for slot, yes in zip(canvas.slots, accepted, strict=True)
    ]


def settle(model: Model, w: Denoising, logits: Tensor) -> None:
    """Uniform noise: every slot that is not locked is decided anew, and the canvas is done when it is sure and none
    moves. Probabilities are told as they were before they were cooled."""
    noise, state, slots = model.noise, w.state, w.canvas.slots
    assert isinstance(noise, Uniform)
    assert state is not None
    movable = torch.tensor([not s.locked for s in slots], device=logits.device)
    scores, accepted = renoise.advance(
        model, state, logits, w.sampler, noise.schedule, w.step, w.of, w.generator, movable
    )
    logp = logits.log_softmax(-1).gather(1, state.best[:, None])[:, 0]
    for slot, best, prob in zip(slots, state.best.tolist(), logp.exp().tolist(), strict=True):
        if not slot.locked:
            slot.draft, slot.prob, slot.shown = best, prob, None
    sure = scores.entropy[0][movable]
    still = bool((state.stable[movable] >= noise.schedule.stability).all())
    least = max(noise.schedule.confidence, BUDGET / len(slots))
    w.finished = still and (float(sure.mean()) < least or bool(accepted[movable].all()))
    if not w.judged:
        lock(w, scores.entropy[0])
        w.finished = w.finished or all(s.locked for s in slots)


def judge(w: Denoising, logits: Tensor) -> None:
    """How well a canvas of this length fits, by what the model says of it before anything was forbidden."""
    assert w.state is not None
    pins = torch.tensor([pin for _, pin in w.canvas.pins()], dtype=torch.int64, device=logits.device)
    ids = torch.cat((w.state.best, pins))
    logp = logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
    w.score = length.score(logp[: len(w.state.best)], logp[len(w.state.best) :]) if w.canvas.whole() else -math.inf


def lock(w: Denoising, entropy: Tensor) -> None:
    """Pin what is sure and at rest; behind a healed start only once that start is there."""
    assert w.state is not None
    stable = w.state.stable.tolist()
    sure = [s >= STABLE_STEPS and e < STABLE_ENTROPY for s, e in zip(stable, entropy.tolist(), strict=True)]
    ended = next((i for i, s in enumerate(w.canvas.slots) if s.draft in w.canvas.vocabulary.ends), len(sure))
    sure[ended:] = [False] * (len(sure) - ended)  # an end may still move, and what is behind it is no text
    for slot, yes in zip(w.canvas.slots, healed_first(w.canvas, sure), strict=True):
        if yes and not slot.locked:
            slot.token, slot.locked = slot.draft, True


def lengthen(canvas: Canvas) -> bool:
    """Double the holes whose last slot is not null; true when one grew and the step is spent."""
    grown = False
    for number, hole in enumerate(canvas.holes):
        slots = canvas.of_hole(number)
        if length.too_short(slots[-1].p_null, len(slots), hole.max_tokens):
            canvas.grow(number)
            grown = True
    canvas.begin()
    return grown
