"""Frozen flanks: in a long text whose rows all see each other, most steps compute only the rows near the slots. The
rows further away keep the keys and values of an earlier forward (Ma et al. 2025, dInfer: vicinity refresh). That is an
approximation: theirs would change a little with every accepted token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from caesura.engine.models import Run

EVERY = 8  # forwards, of which one computes all rows
CHANGED = 0.5  # share of the slots; after so many changes the next forward computes all rows
DOUBT = 0.5  # probability below which the last accept of a canvas is decided by a forward of all rows
WORTH = 2  # a canvas with so many times the rows near its slots, or more, has flanks


@dataclass(eq=False)
class Flanks:
    """The far rows of a canvas. They are the first rows of its KV, with their own positions: attention does not depend
    on the order of rows. `age` counts the forwards since the `last` one of all rows."""

    radius: int  # rows next to a slot that are near
    shift: int  # as in `Model`
    last: Run | None = None
    far: list[int] = field(default_factory=list)
    age: int = 0
    approximate: bool = False

    def narrowed(self, run: Run) -> Run:
        """The rows of a canvas that this forward computes."""
        near = self._near(run)
        if len(run.ids) < WORTH * len(near):
            return run
        far = sorted(set(range(len(run.ids))).difference(near))
        if self._stale(run, far):
            run.kv.truncate(0)
            self.last, self.far, self.age = run, far, 0
            return self._only(run, far + near)
        run.kv.length = len(far)  # since the forward of all rows
        self.age += 1
        self.approximate = True
        return self._only(run, near)

    def doubt(self, probabilities: Sequence[float]) -> bool:
        """True if an accept of the last open slots is unsure and comes from frozen flanks; then the next forward
        computes all rows."""
        doubtful = self.age > 0 and min(probabilities) < DOUBT
        if doubtful:
            self.age = EVERY
        return doubtful

    def _near(self, run: Run) -> list[int]:
        wanted = range(len(run.ids)) if run.wanted is None else run.wanted
        around = (range(row - self.shift - self.radius, row + self.radius + 1) for row in wanted)
        return sorted({row for rows in around for row in rows if 0 <= row < len(run.ids)})

    def _stale(self, run: Run, far: list[int]) -> bool:
        last = self.last
        if last is None or self.age + 1 >= EVERY or far != self.far or len(run.ids) != len(last.ids):
            return True
        changed = {row for row, ids in enumerate(zip(run.ids, last.ids, strict=True)) if ids[0] != ids[1]}
        return not changed.isdisjoint(far) or len(changed) >= CHANGED * len(run.wanted or run.ids)

    def _only(self, run: Run, rows: list[int]) -> Run:
        """The run of these rows, in this order."""
        place = {row: number for number, row in enumerate(rows)}
        wanted = [place[max(0, row - self.shift)] + self.shift for row in run.wanted or range(len(run.ids))]
        return replace(
            run, ids=[run.ids[row] for row in rows], positions=[run.positions[row] for row in rows], wanted=wanted
        )
