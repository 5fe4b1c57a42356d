"""A canvas of absorbing noise: an accepted slot stays, unless its sampler takes it back; the rest is masked again. A
null token ends a hole, an expand token makes it longer; a model without them fills it at several lengths.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from caesura.engine import length
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas, Slot
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.draws import Draws
from caesura.engine.methods import Begin, _forward, _race, shown
from caesura.engine.methods._flanks import Flanks, frozen
from caesura.engine.methods._forward import split
from caesura.engine.methods._race import Race, Runner, every_row
from caesura.engine.model import MAX_ROWS, Model
from caesura.engine.noise import Absorbing
from caesura.engine.samplers import CanvasSampler, Decision, Reading
from caesura.engine.samplers import begin as begin_sampler
from caesura.engine.scores import Floats, Known, Reply, Scores, Statistics, told
from caesura.wire import Fill, Infill, StopReason, Tokens

STEPS = 48  # most steps of a canvas
TRIAL = 1  # steps of every length
FEW = 8  # open slots at the start if slots expand, beyond healed start and draft; best of 4, 8, 12, 16 on a mini
SEAM = 4  # rows after each hole whose likelihood shows how well its length fits
NOTHING = Known(np.zeros(0, np.float32))


@dataclass(eq=False)
class Denoising(Runner[CanvasSampler]):
    """A canvas of absorbing noise; `seams` are the log-probabilities of the fixed rows after its holes, from the first
    forward of a race, which hides them. Canvases of a race share their frozen `flanks`, if they have any."""

    flanks: Flanks | None = None
    seams: Sequence[float] = ()

    advance = staticmethod(_forward.advance)
    drafts = True
    search = None

    @property
    def hidden(self) -> list[int]:
        trial = self.judged and self.step < TRIAL
        return [row for row, _ in self.canvas.seams(SEAM)] if trial else []

    @property
    def shadowed(self) -> list[int]:
        return self.canvas.slot_rows() if self.sampler.checks and any(self.canvas.revisable()) else []

    @property
    def rows(self) -> int:
        return self.flanks.rows(self.canvas) if self.flanks is not None else self.canvas.rows + len(self.shadowed)

    @property
    def approximate(self) -> bool:
        return self.flanks is not None and self.flanks.approximate

    def decide(self, model: Model, scores: Scores) -> None:
        decide(model, self, scores)

    def stop(self, steps: int) -> StopReason:
        return "steps" if steps >= self.of else "complete"

    def fills(self, *, final: bool = False) -> tuple[Fill, ...]:
        return shown(self.canvas, final=final)

    def alternatives(self, fills: tuple[Fill, ...]) -> tuple[tuple[Fill, ...], ...]:
        return ()

    def tokens(self) -> Tokens:
        return Tokens(canvas=self.canvas.written())


def refusal(model: Model) -> str:
    if model.spec.visibility == "blocks":
        return f"The model {model.name} is denoised block by block; name the method blocks."
    return (
        "" if isinstance(model.spec.noise, Absorbing) else f"The model {model.name} has no canvas of absorbing noise."
    )


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    return partial(begin, model, partial(_race.advance, _forward.advance))


def begin(
    model: Model,
    advance: Callable[[Model, Sequence[Any]], None],
    job: Infill,
    layout: Layout,
    kv: KV,
    fresh: Sequence[int],
    sampler: str | None = None,
) -> Denoising | Race:
    canvas, accepts = opening(model, job, layout.canvas), begin_sampler(sampler or model.spec.sampler)
    flanks = None if accepts.checks else frozen(model, canvas)
    first = Denoising(canvas, kv, accepts, most_steps(canvas), job.seed, fresh, flanks=flanks)
    return fill(model, advance, job, first)


def fill(
    model: Model, advance: Callable[[Model, Sequence[Any]], None], job: Infill, first: Denoising
) -> Denoising | Race:
    """The canvas, or a race of canvases like it; `advance` is a step of races."""
    if model.spec.lengths != "race":
        lay_drafts(model, job, first.canvas)
        return first
    canvases = _race.canvases(model, job, first.canvas, first.flanks.rows if first.flanks is not None else every_row)
    works: list[Runner[Any]] = [
        replace(first, canvas=one, fresh=(), sampler=deepcopy(first.sampler)) for one in canvases
    ]
    works[0].fresh = first.fresh
    return Race(works, job.candidates, advance, TRIAL)


def opening(model: Model, job: Infill, canvas: Canvas) -> Canvas:
    """The canvas of the first step."""
    return few(model, job, canvas) if model.spec.lengths == "expand" else canvas


def few(model: Model, job: Infill, canvas: Canvas) -> Canvas:
    """The canvas with FEW slots after the healed start and the draft of each hole, unless the hole has a grammar."""
    texts = [*(job.draft or ()), *[""] * len(canvas.holes)]
    slots = [
        len(model.tokenizer.encode(hole.forced.decode() + text)) + FEW
        if canvas.expands(number)
        else len(canvas.of_hole(number))
        for number, (hole, text) in enumerate(zip(canvas.holes, texts, strict=False))
    ]
    found = canvas.resized(slots)
    return found if len(found.layout) <= MAX_ROWS else canvas


def most_steps(canvas: Canvas) -> int:
    """Most steps of a canvas. Where slots expand they suffice for one accept a step: an expansion takes a step and adds
    a slot, and frozen flanks may delay an accept by one."""
    growing = sum(hole.max_tokens for number, hole in enumerate(canvas.holes) if canvas.expands(number))
    return max(STEPS, 2 * (len(canvas.slots) + 2 * growing)) if growing else STEPS


def lay_drafts(model: Model, job: Infill, canvas: Canvas) -> None:
    """Draft a whole fill if the hole has a grammar, and show the job's drafts to the first forward."""
    canvas.draft_shortest()
    for number, (hole, text) in enumerate(zip(canvas.holes, job.draft or (), strict=False)):
        tokens = model.tokenizer.encode(hole.forced.decode() + text) if text else []
        for slot, token in zip(canvas.of_hole(number), tokens, strict=False):
            slot.shown = token


def decide(model: Model, w: Denoising, scores: Scores) -> None:
    """Accept, take back, broadcast nulls, expand, grow, lock."""
    slots, hidden, shadows = split(scores, [len(w.canvas.slots), len(w.hidden), len(w.shadowed)])
    more = seams(w.canvas, hidden), check(w.canvas, shadows)
    statistics, allowed, (near, checked) = look(model, w.canvas, slots, more, first=w.step == 0)
    if w.judged:
        judge(w, near)
    if w.judged and w.step < TRIAL:
        pass  # this step only found how well the length fits
    elif model.spec.null_id is not None and len(w.canvas.open()) == len(w.canvas.slots) and lengthen(w.canvas):
        pass  # this step only found that the canvas is too short
    else:
        held = w.canvas.revisable() if w.sampler.revises else [False] * len(w.canvas.slots)
        seen = read(w.canvas.slots, held, statistics, allowed, w.step, w.of, w.draws)
        ratios = isinstance(model.spec.noise, Absorbing) and model.spec.noise.ratios
        absorb(w, seen._replace(check=np.exp(checked) if len(checked) else None, ratios=ratios), model.spec.null_id)


def judge(w: Denoising, near: Floats) -> None:
    """Score the length of a canvas. `near` are its seams, from its first forward only."""
    if len(near):
        w.seams = near.tolist()
    w.score = fit(w.canvas, w.seams)


def seams(canvas: Canvas, hidden: Scores) -> Reply[Floats]:
    """Log-probabilities of the fixed rows after the holes, by their scores in a forward that hid them; [0] if it hid
    none."""
    return of_tokens(hidden, [token for _, token in canvas.seams(SEAM)]) if hidden.rows else NOTHING


def of_tokens(scores: Scores, tokens: Sequence[int]) -> Reply[Floats]:
    """The log-probability of a token in each row."""
    return scores.logp(range(scores.rows), tokens)


def fit(canvas: Canvas, seams: Sequence[float], weight: float = 1.0) -> float:
    """How well the length of a canvas fits, by its best tokens and, with `weight`, the fixed rows after its holes."""
    if not canvas.whole():
        return -math.inf
    return length.score(length.logs(slot.prob for slot in canvas.slots), seams, weight)


def look(
    model: Model, canvas: Canvas, scores: Scores, more: Sequence[Reply[Floats]] = (), *, first: bool
) -> tuple[Statistics, Scores, Sequence[Floats]]:
    """Write a forward's statistics into the slots. Returns them, the scores of what is allowed in each slot, and what
    `more` answers tell. After the first forward accept what the warm start had right."""
    allowed, null = canvas.constrain(scores), model.spec.null_id
    nulls = Known(None) if null is None else of_tokens(allowed, [null] * scores.rows)
    statistics, p_null, *rest = told(allowed.statistics(), nulls, *more)
    observe(canvas.slots, statistics, None if p_null is None else np.exp(p_null))
    if first:
        keep_warm(canvas, canvas.slots)
    return statistics, allowed, rest


def keep_warm(canvas: Canvas, slots: Sequence[Slot]) -> None:
    """Accept the shown tokens that the model confirms, except in a hole whose healed start it rejects."""
    for slot in slots:
        if slot.shown is not None and slot.shown == slot.draft:
            slot.token = slot.draft
        slot.shown = None
    lost = canvas.unhealed()
    for slot in slots:
        if slot.hole in lost:
            slot.token = None


def observe(slots: Sequence[Slot], statistics: Statistics, p_null: Floats | None) -> None:
    """Write the statistics of a forward into the open slots."""
    nothing = [0.0] * len(slots) if p_null is None else p_null.tolist()
    for slot, token, prob, null in zip(
        slots, statistics.token.tolist(), statistics.prob.tolist(), nothing, strict=True
    ):
        if slot.token is None:
            slot.draft, slot.prob, slot.p_null = token, prob, null


def read(
    slots: Sequence[Slot],
    held: Sequence[bool],
    statistics: Statistics,
    allowed: Scores,
    step: int,
    of: int,
    draws: Draws,
) -> Reading:
    """What a sampler is told of a forward."""
    token = np.array([-1 if slot.token is None else slot.token for slot in slots], np.int32)
    return Reading(slots, statistics, allowed, token < 0, np.array(held, np.bool_), token, None, step, of, draws)


def check(canvas: Canvas, shadows: Scores) -> Reply[Floats]:
    """The log-probability of each token by its slot's shadow [slots]; [0] if there are no shadows."""
    if not shadows.rows:
        return NOTHING
    return of_tokens(shadows.only(canvas.allowed()), [slot.token or 0 for slot in canvas.slots])


def absorb(w: Denoising, seen: Reading, null: int | None) -> None:
    """Accepted slots keep their token, and lock unless it may be taken back; the rest is masked again."""
    canvas, decision = w.canvas, w.sampler(seen)
    draft_drawn(canvas, canvas.slots, seen, decision)
    first = healed_first(canvas, canvas.slots, decision.accept.tolist())
    new = [s for s, yes in zip(canvas.slots, first, strict=True) if yes and s.token is None]
    if w.flanks is not None and len(new) == len(canvas.open()) and w.flanks.doubt([slot.prob for slot in new]):
        return
    changed = revise(canvas.slots, seen, decision) or bool(new)
    accept(canvas, new, null)
    revisable, begun = canvas.revisable(), [canvas.begun(number) for number in range(len(canvas.holes))]
    w.finished = not canvas.open() and not (changed and decision.again and any(revisable))
    for slot, free in zip(canvas.slots, revisable, strict=True):
        may_change = w.sampler.revises and free and not w.finished
        slot.locked = slot.token is not None and not w.judged and begun[slot.hole] and not may_change


def draft_drawn(canvas: Canvas, slots: Sequence[Slot], seen: Reading, decision: Decision) -> None:
    """Drawn tokens become the drafts of their slots, but not in a hole with a grammar, whose best tokens are a whole
    fill."""
    if decision.drawn is None:
        return
    taken = [
        (at, slot, token)
        for at, (slot, token) in enumerate(zip(slots, decision.drawn.tolist(), strict=True))
        if token >= 0 and slot.token is None and canvas.holes[slot.hole].grammar is None
    ]
    (logp,) = told(seen.scores.logp([at for at, *_ in taken], [token for *_, token in taken]))
    for (_, slot, token), chance in zip(taken, np.exp(logp).tolist(), strict=True):
        slot.draft, slot.prob = token, chance


def revise(slots: Sequence[Slot], seen: Reading, decision: Decision) -> bool:
    """Mask or replace held tokens. A slot never takes a lost token back in exchange for another and never loses the
    same token twice, so the canvas ends. True if any slot changed."""
    before = [slot.token for slot in slots]
    replaced, (best, prob, *_) = (decision.accept & seen.held).tolist(), (part.tolist() for part in seen.statistics)
    for number, slot in enumerate(slots):
        if decision.mask[number]:
            slot.take_back()
        elif replaced[number] and best[number] not in slot.dropped:
            slot.take_back()
            slot.token, slot.prob = best[number], prob[number]
    return before != [slot.token for slot in slots]


def accept(canvas: Canvas, slots: Sequence[Slot], null: int | None) -> None:
    """Decide slots as they are drafted. A null also decides those right of it that are likely null; then both go, and
    slots with the expand token become two."""
    for slot in slots:
        slot.token = slot.draft
    for hole in range(len(canvas.holes)) if null is not None else ():
        if canvas.holes[hole].grammar is not None:
            continue  # its closing text may be right of a null
        of_hole = canvas.of_hole(hole)
        ended = [s.token == null for s in of_hole]
        for i in length.broadcast([s.token is None for s in of_hole], ended, [s.p_null for s in of_hole]):
            of_hole[i].token = null
    canvas.shrink()
    canvas.expand()


def healed_first(canvas: Canvas, slots: Sequence[Slot], accepted: list[bool]) -> list[bool]:
    """The start of a healed hole comes first: until it is complete, only the hole's leftmost open slot is accepted."""
    waiting = canvas.unhealed()
    return [
        slot is waiting[slot.hole] if slot.hole in waiting else yes for slot, yes in zip(slots, accepted, strict=True)
    ]


def lengthen(canvas: Canvas) -> bool:
    """Double the holes whose last slot is not null, unless they expand. True if one grew."""
    sized = [
        (number, canvas.of_hole(number), hole.max_tokens)
        for number, hole in enumerate(canvas.holes)
        if not canvas.expands(number)
    ]
    short = [number for number, slots, most in sized if slots and length.too_short(slots[-1].p_null, len(slots), most)]
    for number in short:
        canvas.grow(number)
    canvas.draft_shortest()
    return bool(short)
