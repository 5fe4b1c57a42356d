"""A canvas of absorbing noise as a chain of blocks, for models of blocks. A step denoises the first block that has an
open slot; it computes no row of later blocks. Each block has a new sampler. A complete block becomes context. With a
shift, the last row of a block predicts the first slot of the next block, in a step of its own once the block is
complete (Fast-dLLM v2).

Several lengths are filled next to each other. A complete canvas gets a score from its tokens and from the suffix after
its holes, which one more forward hides. A canvas that can no longer win is given up. Text locks when all that are left
begin with it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

from caesura.engine import length
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas, Slot, likeliest
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import Begin, _race
from caesura.engine.methods._forward import split
from caesura.engine.methods._race import Race, Runner
from caesura.engine.methods.absorbing import (
    SEAM,
    draft_drawn,
    fit,
    healed_first,
    keep_warm,
    observe,
    of_tokens,
    read,
    revise,
)
from caesura.engine.model import Model, Run
from caesura.engine.noise import Absorbing
from caesura.engine.samplers import CanvasSampler, Decision
from caesura.engine.samplers import begin as begin_sampler
from caesura.engine.scores import Allowed, Scores, Statistics, told
from caesura.wire import Impossible, Infill

LOOKS = 16  # most forwards of a complete block, with a sampler that takes tokens back
SLACK = 0.1  # nats a token; a canvas that cannot be better than the best one by more is given up
WEIGHT = 0.125  # of the suffix in the score of a canvas; measured on the trained mini (docs/models.md)


class Window(NamedTuple):
    """Rows of a canvas from `start` to `end`, a block, which predict the rows `asked`: slots or pins."""

    start: int
    end: int
    asked: list[int]

    @property
    def place(self) -> tuple[int, bool]:
        """The block, and whether its rows are asked in it; with a shift, the first one is asked in the block before."""
        return self.start, self.asked[0] < self.end


@dataclass(eq=False)
class BlockChain(Runner[CanvasSampler]):
    """A canvas whose first row is at position `origin`, where a block begins. Its first `kept` rows are context;
    `since` is the first row that this or a later forward needs. The current forward has `windows`. The current block
    had `share` open slots at step `began`, when `renew` made its sampler. A complete block may be looked at `again`."""

    origin: int = 0
    kept: int = 0
    since: int = 0
    windows: list[Window] = field(default_factory=list)
    began: int = 0
    share: int = 0
    again: bool = False
    unsettled: set[Slot] = field(default_factory=set)  # accepted slots whose token may be taken back
    renew: Callable[[], CanvasSampler] = field(kw_only=True)

    @property
    def denoising(self) -> bool:
        return self.again or bool(self.canvas.open())

    def ask(self, shift: int, size: int) -> None:
        """Choose what the next forward predicts: open slots of one block, or at the end the hidden pins."""
        pins = [row for row, _ in self.canvas.seams(SEAM)] if self.judged else []
        hidden = windows(pins, shift, size)
        before, self.windows = self.windows, self._block(shift, size) or hidden
        self.since = min(window.start for window in (*self.windows, *hidden))
        if not before or before[0].start != self.windows[0].start:
            self.began, self.share, self.sampler = self.step, len(self.windows[0].asked), self.renew()

    def _block(self, shift: int, size: int) -> list[Window]:
        """The block to denoise: its open slots, and those whose token the sampler may take back."""
        held = self.canvas.revisable() if self.sampler.revises else [False] * len(self.canvas.slots)
        slots = list(zip(self.canvas.slot_rows(), self.canvas.slots, held, strict=True))
        still = windows([row for row, slot, _ in slots if slot.token is None], shift, size)
        every = windows([row for row, slot, free in slots if free or slot.token is None], shift, size)
        now = self.windows[:1] if self.again else still[:1]
        return [window for window in every if now and window.place == now[0].place]

    def runs(self, mask: int) -> list[Run]:
        fresh, self.fresh = self.fresh, ()
        return [self._run(window, mask, () if number else fresh) for number, window in enumerate(self.windows)]

    def _run(self, window: Window, mask: int, fresh: Sequence[int]) -> Run:
        ids = self.canvas.ids([mask] * len(self.canvas.slots))
        if not self.denoising:
            for row in window.asked:
                ids[row] = mask
        ids = ids[self.kept : window.end]
        at, asked = self.origin + self.kept, [row - self.kept for row in window.asked]
        return Run(self.kv, ids, range(at, at + len(ids)), None, asked, fresh)

    def hear(self, scores: Sequence[Scores]) -> None:
        """Take over the scores of each window, at the rows that it asked."""
        if self.denoising:
            self._accept(scores[0])
        else:
            tokens = iter(token for _, token in self.canvas.seams(SEAM))
            near = told(*(of_tokens(one, [*islice(tokens, one.rows)]) for one in scores))
            self._end([logp for of_window in near for logp in of_window.tolist()])

    def _accept(self, scores: Scores) -> None:
        canvas, rows = self.canvas, self.canvas.slot_rows()
        numbers = [rows.index(row) for row in self.windows[0].asked]
        slots = [canvas.slots[number] for number in numbers]
        statistics, allowed = look(canvas, numbers, scores)
        keep_warm(canvas, slots)
        decision, changed = self._decide(numbers, slots, statistics, allowed)
        free = [yes and self.sampler.revises for yes in canvas.revisable()]
        complete = all(slot.token is not None for slot in slots)
        self.again = complete and changed and decision.again and any(free[number] for number in numbers)
        same_block = list(zip(numbers, slots, strict=True)) if self.again or not complete else []
        self.unsettled = {slot for number, slot in same_block if free[number]}
        for slot in slots:
            slot.locked = slot.token is not None and not self.judged and slot not in self.unsettled
        if not self.denoising and not (self.judged and canvas.seams(SEAM)):
            self._end(())

    def _decide(
        self, numbers: Sequence[int], slots: Sequence[Slot], statistics: Statistics, allowed: Scores
    ) -> tuple[Decision, bool]:
        """Ask the sampler; returns its decision, and if a slot changed."""
        free = self.canvas.revisable()
        held = [free[number] and self.sampler.revises for number in numbers]
        seen = read(slots, held, statistics, allowed, self.step - self.began, self.share, self.draws)
        decision = self.sampler(seen)
        draft_drawn(self.canvas, slots, seen, decision)
        first = healed_first(self.canvas, slots, decision.accept.tolist())
        new = [slot for slot, yes in zip(slots, first, strict=True) if yes and slot.token is None]
        changed = revise(slots, seen, decision) or bool(new)
        for slot in new:
            slot.token = slot.draft
        return decision, changed

    def _end(self, seams: Sequence[float]) -> None:
        self.score, self.finished = fit(self.canvas, seams, WEIGHT), True
        self.finite = not math.isnan(self.score)

    @property
    def bound(self) -> float:
        """The best score that its slots and pins can still reach."""
        return length.mean(length.logs(1.0 if slot.token is None else slot.prob for slot in self.canvas.slots))


def windows(rows: Iterable[int], shift: int, size: int) -> list[Window]:
    """The windows of rows, in order. With a shift the first row of a block has one of its own: the block before."""
    found = dict[tuple[int, bool], list[int]]()
    for row in rows:
        start = max(0, row - shift) // size * size
        found.setdefault((start, row < start + size), []).append(row)
    return [Window(start, start + size, asked) for (start, _), asked in found.items()]


def refusal(model: Model) -> str:
    return "" if model.spec.visibility == "blocks" else f"The model {model.name} is not denoised block by block."


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    return partial(begin, model)


def begin(model: Model, job: Infill, layout: Layout, kv: KV, fresh: Sequence[int], sampler: str | None = None) -> Race:
    canvases, renew = _race.canvases(model, job, layout.canvas), partial(begin_sampler, sampler or model.spec.sampler)
    if renew().checks:
        raise Impossible(
            f"The sampler {sampler or model.spec.sampler} needs all rows at once; name another one for blocks."
        )
    most, looks = max(len(one.slots) for one in canvases), LOOKS if renew().revises else 0
    of = most + 2 + looks * (most // model.spec.block_size + 2)  # each step accepts a slot; one more judges
    works, origin = list[Runner[Any]](), len(layout.context)
    for one in canvases:
        works.append(BlockChain(one, kv, renew(), of, job.seed, origin=origin, renew=renew))
    works[0].fresh = fresh
    return Race(works, job.candidates, advance, of)


def advance(model: Model, races: Sequence[Race]) -> None:
    """One step of all their canvases; those that can no longer win are given up."""
    _race.advance(step, model, races)
    for race in races:
        race.works = list(left(cast(Sequence[BlockChain], race.works), race.wanted))
        lock(cast(Sequence[BlockChain], race.works))


def step(model: Model, works: Sequence[BlockChain]) -> None:
    """One forward, then a decision for each canvas."""
    assert isinstance(model.spec.noise, Absorbing)
    for w in works:
        w.ask(model.spec.shift, model.spec.block_size)
    for kv in {id(w.kv): w.kv for w in works}.values():
        keep([w for w in works if w.kv is kv])
    asked = [w.runs(model.spec.noise.mask_id) for w in works]
    found = iter(forward(model, [run for runs in asked for run in runs]))
    for w, runs in zip(works, asked, strict=True):
        w.hear([next(found) for _ in runs])
        w.close()


def keep(works: Sequence[BlockChain]) -> None:
    """Make complete blocks context once all canvases of a KV agree on them. They differ only after a draft."""
    kept, start = works[0].kept, min(w.since for w in works)
    blocks = [w.canvas.ids([-1] * len(w.canvas.slots))[kept:start] for w in works]
    if start > kept and all(ids == blocks[0] for ids in blocks):
        works[0].fresh = [*works[0].fresh, *blocks[0]]
        for w in works:
            w.kept = start


def forward(model: Model, runs: Sequence[Run]) -> list[Scores]:
    """Scores of each run. Equal runs are computed once: lengths differ only in their last block."""
    keys = [(id(run.kv), run.positions, tuple(run.ids), tuple(run.wanted or ())) for run in runs]
    first = dict(zip(reversed(keys), reversed(runs), strict=True))
    different = [first[key] for key in dict.fromkeys(keys)]
    parts = split(model.denoise(different), [len(run.wanted or ()) for run in different])
    found = dict(zip(dict.fromkeys(keys), parts, strict=True))
    return [found[key] for key in keys]


def look(canvas: Canvas, numbers: Sequence[int], scores: Scores) -> tuple[Statistics, Scores]:
    """Write what a forward says into the slots of these numbers; returns it, and the scores of what is allowed."""
    place = {number: at for at, number in enumerate(numbers)}

    def best(number: int, allowed: Allowed) -> int | None:
        return likeliest(scores, place[number], allowed) if number in place else None

    if canvas.ruled:
        allowed = whole(canvas, numbers, scores)
    else:
        sets = canvas.allowed(best)
        allowed = scores.only([sets[number] for number in numbers])
    (statistics,) = told(allowed.statistics())
    observe([canvas.slots[number] for number in numbers], statistics, None)
    return statistics, allowed


def whole(canvas: Canvas, numbers: Sequence[int], scores: Scores) -> Scores:
    """The same rows constrained by grammars. A grammar needs scores for all slots of its hole; slots of later blocks
    have none yet, and all tokens are equally likely there."""
    place = {number: at for at, number in enumerate(numbers)}
    allowed = canvas.constrain(scores.taken([place.get(number, -1) for number in range(len(canvas.slots))]))
    (best,) = told(allowed.best(1))
    for slot, token in zip(canvas.slots, best.ids[:, 0].tolist(), strict=True):
        if slot.token is None and canvas.holes[slot.hole].grammar is not None:
            slot.draft = token
    return allowed.taken(numbers)


def left(works: Sequence[BlockChain], wanted: int) -> list[BlockChain]:
    """The best complete canvases, as many as are wanted, and those that may still become better."""
    complete = [w for w in works if w.finished][:wanted]
    worst = complete[-1].score if len(complete) == wanted else -math.inf
    return [*complete, *(w for w in works if not w.finished and w.bound > worst + SLACK)]


def lock(works: Sequence[BlockChain]) -> None:
    """Lock the start of each hole as far as all canvases have accepted the same for good."""
    unsettled = set[Slot]().union(*(w.unsettled for w in works))
    for number in range(len(works[0].canvas.holes)):
        for slots in zip(*(w.canvas.of_hole(number) for w in works), strict=False):
            tokens = {slot.token for slot in slots}
            if len(tokens) > 1 or None in tokens or not unsettled.isdisjoint(slots):
                break
            for slot in slots:
                slot.locked = True
