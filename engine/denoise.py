"""The algorithm on one screen, for every model: a forward over the canvases, then a decision what to accept.

Absorbing noise: an accepted slot stays, the rest is masked again. Uniform noise: the accepted set is chosen anew at
every step, the rest is redrawn, and what the model is given back is its own last best guess. Models whose entry says
`verify` draft with the first forward and decide by causal passes (search.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from caesura.engine import length
from caesura.engine.cache import KV
from caesura.engine.canvas import Canvas
from caesura.engine.models import Model, Run
from caesura.engine.samplers import Sampler, Scores
from caesura.engine.search import Search

STABLE_ENTROPY = 0.1  # nats; a uniform-noise slot locks when sure and unchanged for two steps
STABLE_STEPS = 2
SETTLED = 0.005  # nats, mean; a uniform-noise canvas is done when nothing moves and it is this sure


@dataclass(eq=False)
class Denoising:
    """A canvas on its way: `of` bounds the steps; `search` is set where causal passes decide."""

    canvas: Canvas
    kv: KV
    sampler: Sampler
    of: int
    generator: torch.Generator
    search: Search | None = None
    step: int = 0
    finished: bool = False


def step(model: Model, work: Sequence[Denoising]) -> None:
    """One step of every canvas; a batch gives each canvas what it would get alone."""
    searching = [w for w in work if w.search is not None and w.step > 0]
    drafting = [w for w in work if w.search is None or w.step == 0]
    if drafting:
        for w, (scores, p_null) in zip(drafting, forward(model, drafting), strict=True):
            decide(model, w, scores, p_null)
    if searching:
        verify(model, searching)
    for w in work:
        w.step += 1
        w.finished = w.finished or w.step >= w.of


def forward(model: Model, work: Sequence[Denoising]) -> list[tuple[Scores, Tensor]]:
    """Per canvas: statistics of its slots [1, slots], and the probability of null [slots]."""
    runs = []
    for w in work:
        ids = w.canvas.ids(model.noise.draw(len(w.canvas.open()), w.generator).tolist())
        runs.append(Run(w.kv, ids, range(w.kv.length, w.kv.length + len(ids)), None, w.canvas.slot_rows()))
    parts = model.denoise(runs).split([len(w.canvas.slots) for w in work])
    return [statistics(logits + w.canvas.bias(), model.null_id) for w, logits in zip(work, parts, strict=True)]


def statistics(logits: Tensor, null_id: int | None) -> tuple[Scores, Tensor]:
    """[slots, vocabulary] -> scores [1, slots] and p(null) [slots], in one pass over the distribution."""
    logp = logits.log_softmax(-1)
    probs = logp.exp()
    top = probs.topk(2)
    entropy = -(probs * logp.nan_to_num(neginf=0.0)).sum(-1)
    null = probs[:, null_id] if null_id is not None else torch.zeros(len(probs))
    token, prob, second = top.indices[:, 0], top.values[:, 0], top.values[:, 1]
    return Scores(token[None], prob[None], (prob - second)[None], entropy[None]), null


def decide(model: Model, w: Denoising, scores: Scores, p_null: Tensor) -> None:
    """Accept, broadcast nulls, grow, lock."""
    canvas = w.canvas
    observe(canvas, scores, p_null, again=not model.noise.absorbing)
    if w.step == 0:
        keep_warm(canvas)
    if w.search is not None:
        w.search.propose(canvas.guess(0), "canvas")
    elif model.null_id is not None and len(canvas.open()) == len(canvas.slots) and lengthen(canvas):
        pass  # nothing was accepted yet and the canvas grew: this step told its length
    elif model.noise.absorbing:
        absorb(w, scores, model.null_id)
    else:
        settle(w, scores)


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


def observe(canvas: Canvas, scores: Scores, p_null: Tensor, *, again: bool) -> None:
    """Write the statistics of a forward into the open slots; `again` also into accepted ones that are not locked."""
    columns = zip(canvas.slots, scores.token[0].tolist(), scores.prob[0].tolist(), p_null.tolist(), strict=True)
    for slot, token, prob, nothing in columns:
        if slot.token is None or (again and not slot.locked):
            slot.stable = slot.stable + 1 if slot.draft == token else 0
            slot.draft, slot.prob, slot.p_null = token, prob, nothing


def absorb(w: Denoising, scores: Scores, null: int | None) -> None:
    """Accepted slots keep their token and lock; the rest is masked again."""
    canvas = w.canvas
    still = torch.tensor([[s.token is None for s in canvas.slots]])
    accepted = w.sampler(scores, still, w.step, w.of)[0].tolist()
    for slot, yes in zip(canvas.slots, healed_first(canvas, accepted), strict=True):
        if yes and slot.token is None:
            slot.token = slot.draft
    for hole in range(len(canvas.holes)) if null is not None else ():
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


def settle(w: Denoising, scores: Scores) -> None:
    """The accepted set is chosen anew; a slot locks when it is sure and has not moved for two steps."""
    slots = w.canvas.slots
    movable = torch.tensor([[not s.locked for s in slots]])
    healed = list(w.canvas.unhealed().values())
    accepted = healed_first(w.canvas, w.sampler(scores, movable, w.step, w.of)[0].tolist())
    for slot, yes, entropy in zip(slots, accepted, scores.entropy[0].tolist(), strict=True):
        if not slot.locked:
            slot.token = slot.draft if yes else None
            slot.locked = (slot.stable >= STABLE_STEPS and entropy < STABLE_ENTROPY) or slot in healed
            if slot.locked:
                slot.token = slot.draft
    w.finished = all(s.stable for s in slots) and float(scores.entropy.mean()) < SETTLED


def lengthen(canvas: Canvas) -> bool:
    """Double the holes whose last slot is not null; true when one grew and the step is spent."""
    grown = False
    for number, hole in enumerate(canvas.holes):
        slots = canvas.of_hole(number)
        if length.too_short(slots[-1].p_null, len(slots), hole.max_tokens):
            canvas.grow(number)
            grown = True
    return grown


def verify(model: Model, work: Sequence[Denoising]) -> None:
    """One causal pass over the token trees of all searches."""
    runs, plans = [], []
    for w in work:
        assert w.search is not None
        rows = w.search.plan()
        plans.append(len(rows.ids))
        runs.append(Run(w.kv, rows.ids, rows.positions, rows.mask))
    for w, logits in zip(work, model.causal(runs, keep=True).split(plans), strict=True):
        assert w.search is not None
        w.search.receive(logits.log_softmax(-1))
        w.finished = w.search.finished()
