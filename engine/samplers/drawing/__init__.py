"""Samplers that draw tokens by their probabilities, as a model was trained to be sampled. The seed of a job decides all
draws: it gives the same fill again, alone or in a batch.
"""

import numpy as np

from caesura.engine.draws import DrawStream
from caesura.engine.samplers import Decision, Reading
from caesura.engine.scores import Bools, told


def drawing(seen: Reading, accept: Bools) -> Decision:
    """Accept slots, each with a token drawn by its probability. In float64: in float32 rare tokens come too seldom
    (Zheng et al. 2024)."""
    drawn, slots = np.full_like(seen.token, -1), np.flatnonzero(accept)
    at = np.asarray(seen.draws.of_slots(DrawStream.TOKEN, len(accept)))[slots]
    (drawn[slots],) = told(seen.scores.draw(slots.tolist(), at))
    return Decision(accept, np.zeros_like(accept), drawn=drawn)
