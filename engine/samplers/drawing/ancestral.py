"""Accept each open slot by chance while time passes (Sahoo et al. 2024, MDLM's `ddpm_cache`): the reverse of a process
that masks tokens one by one. With score ratios, a slot whose probabilities add up to less than 1 comes later, one with
more earlier (Lou et al. 2024, SEDD's analytic step).

Compared with the exact posterior of that process and with the formula for score ratios, both enumerated, and by
frequencies with the distribution of the data."""

import numpy as np
from numpy.typing import NDArray

from caesura.engine.draws import DrawStream
from caesura.engine.samplers import CanvasSampler, Decision, Reading
from caesura.engine.samplers.drawing import drawing
from caesura.engine.scores import told


class Ancestral:
    """State of a canvas: how many of the equal steps of its time are `left`. A step that accepts nothing is left out,
    since the next forward would be the same."""

    revises = checks = False

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, seen: Reading) -> Decision:
        accept, self.left = np.zeros_like(seen.open), self.left or max(1, seen.of - seen.step)
        tried = 0
        while seen.open.any() and not accept.any():
            at = np.asarray(seen.draws.of_slots(DrawStream.ORDER, len(accept), tried))
            accept = seen.open & (at < chances(seen, self.left))
            self.left, tried = max(1, self.left - 1), tried + 1
        return drawing(seen, accept)


def chances(seen: Reading, left: int) -> NDArray[np.floating]:
    """The chance [slots] of each open slot in the next of `left` steps; in the last one all are accepted."""
    certain = np.ones(len(seen.open))
    if left == 1 or not seen.ratios:
        return certain / left
    (total,) = told(seen.scores.total())
    sums: NDArray[np.floating] = np.exp(total) / left
    return sums


def begin() -> CanvasSampler:
    return Ancestral()
