"""A race of lengths: a model without a null token fills a hole at several lengths, as rows of the same forwards, and
the text that fits best wins. Pure: canvases in, those that go on out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from caesura.engine import length
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.draws import Draws
from caesura.engine.methods import shown
from caesura.engine.model import Model
from caesura.wire import Fill, Impossible, Infill, StopReason, Tokens

UNKNOWN = 8  # slots of a hole without a draft, next to one with a draft
SPELLED = 2  # tokens of a healed start, above which they are added to the lengths


S = TypeVar("S")


@dataclass(eq=False)
class Runner(Generic[S]):
    """A canvas in progress, of at most `of` steps, with a sampler that suits its noise. The first forward also reads
    `fresh` context. While it is `judged` it competes with other lengths: nothing locks, and `score` is how well its
    length fits."""

    canvas: Canvas
    kv: KV
    sampler: S
    of: int
    seed: int
    fresh: Sequence[int] = ()
    step: int = 0
    finished: bool = False
    finite: bool = True
    judged: bool = False
    score: float = -math.inf

    @property
    def draws(self) -> Draws:
        """The random numbers of the next step."""
        return Draws(self.seed, self.step)

    @property
    def rows(self) -> int:
        """Rows in the next forward."""
        return self.canvas.rows

    @property
    def approximate(self) -> bool:
        return False

    def release(self) -> None:
        """The race is decided, so text may lock: all of it in a canvas that is finished already."""
        self.judged = False
        for slot in self.canvas.slots if self.finished else ():
            slot.locked = slot.token is not None

    def close(self) -> None:
        """End a step."""
        self.finite = self.finite and self.canvas.finite
        self.step += 1
        self.finished = self.finished or self.step >= self.of


@dataclass(eq=False)
class Race:
    """A job's canvases, one for each length, best first. All of them take `trial` steps. Then a third of the `rivals`
    stay rivals after each step, until one leads. Others go on as further answers, as many as are `wanted`."""

    works: list[Runner[Any]]
    wanted: int
    advance: Callable[[Model, Sequence[Any]], None]
    trial: int
    steps: int = 0
    of: int = field(init=False)
    rivals: int = field(init=False)

    def __post_init__(self) -> None:
        self.of, self.rivals = max(work.of for work in self.works), len(self.works)
        for work in self.works:
            work.judged = self.rivals > 1

    @property
    def finished(self) -> bool:
        return all(work.finished for work in self.works)

    @property
    def finite(self) -> bool:
        return all(work.finite for work in self.works)

    @property
    def approximate(self) -> bool:
        return self.works[0].approximate

    @property
    def rows(self) -> int:
        return sum(work.rows for work in self.works if not work.finished)

    def choose(self) -> None:
        """After a step: order the rivals, and keep the best."""
        self.steps += 1
        if self.rivals == 1 or not self.finite:
            return
        rivals = sorted(self.works[: self.rivals], key=lambda work: work.score, reverse=True)
        self.works = [*rivals, *self.works[self.rivals :]]
        if self.steps >= self.trial:
            self.rivals = math.ceil(self.rivals / 3)
            self.works = self.works[: max(self.wanted, self.rivals)]
        if self.rivals == 1:
            for work in self.works:
                work.release()

    def stop(self, steps: int) -> StopReason:
        return "steps" if steps >= self.works[0].of else "complete"

    def fills(self, *, final: bool = False) -> tuple[Fill, ...]:
        return shown(self.works[0].canvas, final=final)

    def alternatives(self, fills: tuple[Fill, ...]) -> tuple[tuple[Fill, ...], ...]:
        found = {tuple(f.text for f in fills): fills}
        for work in self.works[1:]:
            others = shown(work.canvas, final=True)
            if all(fill.text for fill in others):
                found.setdefault(tuple(f.text for f in others), others)
        return tuple(found.values())[1 : self.wanted]

    def tokens(self) -> Tokens:
        return Tokens(canvas=self.works[0].canvas.written())


def advance(step: Callable[[Model, Sequence[Any]], None], model: Model, races: Sequence[Race]) -> None:
    """One `step` of all their canvases; then the best lengths go on."""
    step(model, [work for race in races for work in race.works if not work.finished])
    for race in races:
        race.choose()


def every_row(canvas: Canvas) -> int:
    return canvas.rows


def canvases(model: Model, job: Infill, canvas: Canvas, rows: Callable[[Canvas], int] = every_row) -> list[Canvas]:
    """The canvases of a job's race; a step computes so many `rows` of each. Raises Impossible if none fits."""
    encode = model.tokenizer.encode
    forced = [encode(hole.forced.decode()) for hole in canvas.holes]
    texts = zip(canvas.holes, job.draft or (), strict=False)
    drafts = [encode(hole.forced.decode() + text) if text else [] for hole, text in texts]
    return starters(canvas, [len(tokens) for tokens in forced], drafts, model.spec.rows, rows)


def starters(
    canvas: Canvas,
    forced: Sequence[int],
    drafts: Sequence[Sequence[int]],
    most: int,
    rows: Callable[[Canvas], int] = every_row,
) -> list[Canvas]:
    """A canvas for each length, the same in all holes, and one for the drafts of each hole; together at most that many
    `rows`. `forced` is how many tokens each hole's healed start takes as written; the model may need fewer. Raises
    Impossible if no canvas fits.
    """
    holes = range(len(canvas.holes))
    longest, one_line = max(hole.max_tokens for hole in canvas.holes), all(hole.one_line for hole in canvas.holes)
    lengths = [[n] * len(canvas.holes) for n in length.tried(longest, one_line=one_line)]
    if max(forced) > SPELLED:
        lengths += [[slots[i] + forced[i] for i in holes] for slots in lengths]
    made = distinct([fitted(canvas, slots) for slots in lengths])
    if any(drafts):
        warm = fitted(canvas, [len(tokens) or UNKNOWN for tokens in drafts])
        for number, tokens in enumerate(drafts):
            for slot, token in zip(warm.of_hole(number), tokens, strict=False):
                slot.shown = token
        made = [warm, *made]
    fitting = [one for one in made if one.rows <= most]
    if not fitting:
        raise Impossible(f"The holes take {min(one.rows for one in made)} tokens together, and {most} fit.")
    while len(fitting) > 1 and sum(map(rows, fitting)) > most:
        fitting = [*fitting[:1], *fitting[2::2]] if len(fitting) > 2 else fitting[:1]
    return fitting


def fitted(canvas: Canvas, slots: Sequence[int]) -> Canvas:
    """The canvas with `slots` in each hole. A hole whose grammar has no fill of that many gets the next smaller number
    that has one, or that of the shortest fill."""
    fitting = list(slots)
    for number, hole in enumerate(canvas.holes):
        if hole.grammar is not None:
            wanted = min(slots[number], hole.max_tokens)
            tried = [n for n in (wanted, *reversed(length.LINE)) if n <= wanted]
            tried.append(len(hole.shortest))
            fitting[number] = next(n for n in tried if canvas.simplest(number, n) is not None)
    whole = canvas.resized(fitting)
    whole.draft_shortest()
    return whole


def distinct(canvases: Sequence[Canvas]) -> list[Canvas]:
    """Drop canvases of equal lengths, which budgets cause."""
    return list({tuple(len(one.of_hole(n)) for n in range(len(one.holes))): one for one in canvases}.values())
