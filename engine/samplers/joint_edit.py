"""Accept every slot above a threshold, at least the most confident; at the same time replace an accepted token if the
model is now sure of another. It goes on after the last slot until nothing changes (LLaDA2.1).

Compared with ZHZisZZ/dllm dllm/pipelines/llada21/sampler.py (temperature 0, one block): the same tokens after every
forward, up to one that comes back to a slot that lost it, which a canvas forbids."""

import numpy as np

from caesura.engine.samplers import CanvasSampler, Decision, Reading, surest

ACCEPT = 0.95
REPLACE = 0.9
LOOKS = 16  # most forwards with no slot open


class JointEdit:
    """State of a canvas: forwards with no slot open."""

    revises, checks = True, False

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self, seen: Reading) -> Decision:
        best, prob = seen.statistics.token, seen.statistics.prob
        accept = seen.open & ((prob > ACCEPT) | surest(prob, seen.open, 1))
        replace = seen.held & (prob > REPLACE) & (best != seen.token)
        self.looks += not seen.open.any()
        return Decision(accept | replace, np.zeros_like(accept), again=self.looks < LOOKS)


def begin() -> CanvasSampler:
    return JointEdit()
