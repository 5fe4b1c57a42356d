"""Samplers that accept the best slots by a score, as many as a published schedule says."""

from collections.abc import Callable

import numpy as np

from caesura.engine.samplers import Decision, Reading, surest
from caesura.engine.scores import Floats, Statistics

LAST = 1e-3  # time at which Dream's schedule ends; it begins at 1

# Slots to accept at a step (from 0) of several, with so many open now, and so many at the first step.
Quota = Callable[[int, int, int, int], int]


class Scheduled:
    """State of a canvas: the step of the schedule. A step that accepts nothing is left out, since the next forward
    would be the same."""

    revises = checks = False

    def __init__(self, score: Callable[[Statistics], Floats], count: Quota) -> None:
        self.score, self.count = score, count
        self.step, self.of, self.first = 0, 0, 0

    def __call__(self, seen: Reading) -> Decision:
        still, accepted = int(seen.open.sum()), 0
        if not self.of:
            self.of, self.first = max(1, seen.of - seen.step), still
        while still and accepted <= 0:
            accepted = self.count(self.step, self.of, still, self.first) if self.step + 1 < self.of else still
            self.step += 1
        return Decision(surest(self.score(seen.statistics), seen.open, accepted), np.zeros_like(seen.open))


def by_time(step: int, of: int, still: int, first: int) -> int:
    """Dream's: the share of the open slots that the time from 1 to 0.001 loses in this step; rounded down, in float32
    as there."""
    del first
    times = np.linspace(1, LAST, of + 1, dtype=np.float32)
    return int(np.float32(still) * (1 - times[step + 1] / times[step]))


def evenly(step: int, of: int, still: int, first: int) -> int:
    """RND1's: the number of open slots falls in a line from `first` to 0; rounded down, in float32 as there."""
    return still - int(np.float32(first) * ((of - 1 - step) / of))
