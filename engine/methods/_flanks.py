"""Frozen flanks: in a long text whose rows all see each other, a step computes only the rows near the slots. The rows
further away keep the keys and values of a forward of all rows, which is repeated from time to time (Ma et al. 2025,
dInfer: vicinity refresh). That is an approximation: they would change a little with every accepted token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caesura.engine.canvas.canvas import Canvas
from caesura.engine.model import Model, Run

EVERY = 8  # steps for each forward of all rows
CHANGED = 0.5  # share of the slots; after so many changes there is another
DOUBT = 0.5  # probability below which the last accept of a canvas waits for another
WORTH = 2  # least ratio of all rows to those near the slots
LEAST = 8  # smallest radius: it covers the rows that are hidden in the first step of a race


@dataclass(frozen=True)
class Vicinity:
    """A canvas in a forward: its slots, the rows near them, and the far ones."""

    run: Run
    slots: Sequence[int]
    near: Sequence[int]
    far: Sequence[int]

    def ids(self, rows: Sequence[int]) -> list[int]:
        return [self.run.ids[row] for row in rows]

    def only(self, rows: Sequence[int], wanted: Sequence[int] = (), shift: int = 0) -> Run:
        """A run of these rows, in this order. `shift` is as in `Model`."""
        place = {row: number for number, row in enumerate(rows)}
        asked = [place[max(0, row - shift)] + shift for row in wanted]
        return replace(self.run, ids=self.ids(rows), positions=[self.run.positions[row] for row in rows], wanted=asked)


@dataclass(eq=False)
class Flanks:
    """The far rows of a job's canvases. They are the first rows of its KV, with their own positions: attention does not
    depend on the order of rows. `last` is the canvas of the last forward of all rows, `age` steps ago;
    canvases of other lengths use its far rows at its positions."""

    radius: int  # rows next to a slot that are near
    shift: int  # as in `Model`
    last: Vicinity | None = None
    age: int = 0
    approximate: bool = False

    def near(self, slots: Sequence[int], rows: int) -> list[int]:
        near = list[int]()
        for slot in slots:
            begin = max(near[-1] + 1 if near else 0, slot - self.shift - self.radius)
            near += range(begin, min(rows, slot + self.radius + 1))
        return near

    def rows(self, canvas: Canvas) -> int:
        """Rows of a canvas that a step computes."""
        return len(self.near(canvas.slot_rows(), canvas.rows))

    def vicinity(self, run: Run, slots: Sequence[int]) -> Vicinity:
        near = self.near(slots, len(run.ids))
        return Vicinity(run, slots, near, sorted(set(range(len(run.ids))).difference(near)))

    def stale(self, best: Vicinity, *, alone: bool) -> bool:
        """True if all rows must be computed before a step of the job's best canvas, which may be `alone`."""
        last = self.last
        if last is None or self.age >= EVERY or best.ids(best.far) != last.ids(last.far):
            return True
        if len(best.run.ids) != len(last.run.ids):
            return alone
        changed = [row for row in best.slots if best.run.ids[row] != last.run.ids[row]]
        return len(changed) >= CHANGED * len(best.slots)

    def refresh(self, model: Model, vicinity: Vicinity) -> None:
        """A forward of all rows, the far ones first."""
        vicinity.run.kv.truncate(0)
        model.denoise([vicinity.only([*vicinity.far, *vicinity.near])])
        self.last, self.age = vicinity, 0

    def narrowed(self, vicinity: Vicinity) -> Run:
        """The rows that a step computes."""
        assert self.last is not None
        vicinity.run.kv.length = len(vicinity.far)
        self.approximate = self.approximate or self.age > 0 or len(vicinity.run.ids) != len(self.last.run.ids)
        return vicinity.only(vicinity.near, vicinity.run.wanted or (), self.shift)

    def doubt(self, probabilities: Sequence[float]) -> bool:
        """True if an accept of the last open slots is unsure and the flanks are not of this step; the next step then
        computes all rows."""
        doubtful = self.age > 0 and min(probabilities) < DOUBT
        if doubtful:
            self.age = EVERY
        return doubtful


def frozen(model: Model, canvas: Canvas) -> Flanks | None:
    """The flanks of a job, if they are worth it."""
    flanks = Flanks(max(LEAST, model.spec.radius), model.spec.shift)
    return flanks if model.spec.radius and WORTH * flanks.rows(canvas) <= canvas.rows else None


def narrowed(model: Model, runs: Sequence[Run], canvases: Sequence[tuple[Flanks | None, Canvas]]) -> list[Run]:
    """The rows of each canvas that a step computes, after a forward of all rows where it is due. The canvases of the
    same flanks are those of a job: the best one first, or before there is one the shortest."""
    found, jobs = list(runs), dict[Flanks, dict[int, Vicinity]]()
    for number, (run, (flanks, canvas)) in enumerate(zip(runs, canvases, strict=True)):
        if flanks is not None:
            jobs.setdefault(flanks, {})[number] = flanks.vicinity(run, canvas.slot_rows())
    for flanks, vicinities in jobs.items():
        best, *others = vicinities.values()
        flanks.age += 1
        if flanks.stale(best, alone=not others):
            flanks.refresh(model, best if flanks.last else [best, *others][len(others) // 2])
        for number, vicinity in vicinities.items():
            found[number] = flanks.narrowed(vicinity)
    return found
