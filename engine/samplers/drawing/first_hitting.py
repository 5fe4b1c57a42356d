"""Accept one open slot a step, anywhere (Zheng et al. 2024; BD3-LM's sampler): the order in which a process that masks
tokens one by one is reversed, without steps that accept nothing. A canvas with more slots than steps accepts equal
shares.

Compared by frequencies with the distribution of the data, from which it draws exactly."""

import numpy as np

from caesura.engine.draws import DrawStream
from caesura.engine.samplers import CanvasSampler, Decision, Reading, surest
from caesura.engine.samplers.drawing import drawing


class FirstHitting:
    revises = checks = False

    def __call__(self, seen: Reading) -> Decision:
        share = -(-int(seen.open.sum()) // max(1, seen.of - seen.step))
        order = np.asarray(seen.draws.of_slots(DrawStream.ORDER, len(seen.open)))
        return drawing(seen, surest(order, seen.open, share))


def begin() -> CanvasSampler:
    return FirstHitting()
