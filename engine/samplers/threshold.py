"""Accept every slot whose best token exceeds a threshold, and always the most confident one (Wu et al. 2025,
Fast-dLLM).

Compared with NVlabs/Fast-dLLM llada/generate.py (temperature 0, one block): the same tokens after every forward."""

from caesura.engine.samplers import surest
from caesura.engine.scores import Bools, Statistics

THRESHOLD = 0.9


def select(statistics: Statistics, open: Bools, step: int, of: int) -> Bools:
    """Accepted slots, bool [slots]."""
    del step, of
    return (open & (statistics.prob >= THRESHOLD)) | surest(statistics.prob, open, 1)
