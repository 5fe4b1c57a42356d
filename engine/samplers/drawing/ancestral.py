"""Accept each open slot by chance while time passes (Sahoo et al. 2024, MDLM's `ddpm_cache`): the reverse of a process
that masks tokens one by one. With score ratios, a slot whose probabilities add up to less than 1 comes later, one with
more earlier (Lou et al. 2024, SEDD's analytic step).

Compared with the exact posterior of that process and with the formula for score ratios, both enumerated, and by
frequencies with the distribution of the data."""

import torch
from torch import Tensor

from caesura.engine.draws import DrawStream
from caesura.engine.samplers import CanvasSampler, Decision, Reading
from caesura.engine.samplers.drawing import drawing


class Ancestral:
    """State of a canvas: how many of the equal steps of its time are `left`. A step that accepts nothing is left out,
    since the next forward would be the same."""

    revises = checks = False

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, seen: Reading) -> Decision:
        accept, self.left = torch.zeros_like(seen.open), self.left or max(1, seen.of - seen.step)
        tried = 0
        while seen.open.any() and not accept.any():
            at = seen.draws.of_slots(DrawStream.ORDER, len(accept), tried)
            accept = seen.open & (at < chances(seen, self.left))
            self.left, tried = max(1, self.left - 1), tried + 1
        return drawing(seen, accept)


def chances(seen: Reading, left: int) -> Tensor:
    """The chance [slots] of each open slot in the next of `left` steps; in the last one all are accepted."""
    certain = torch.ones(len(seen.open), dtype=seen.logits.dtype)
    if left == 1:
        return certain
    return (seen.logits.logsumexp(-1).exp().to(certain.device) if seen.ratios else certain) / left


def begin() -> CanvasSampler:
    return Ancestral()
