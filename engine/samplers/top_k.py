"""Accept an equal share of the open slots at each step, the most confident first (MaskGIT; LLaDA's `low_confidence`).

Compared with ML-GSAI/LLaDA generate.py (temperature 0, one block): the same tokens after every forward."""

from caesura.engine.samplers import surest
from caesura.engine.scores import Bools, Statistics


def select(statistics: Statistics, open: Bools, step: int, of: int) -> Bools:
    """Accepted slots, bool [slots]: ceil(open / steps left) of them, so that `of` steps are enough."""
    return surest(statistics.prob, open, -(-int(open.sum()) // max(1, of - step)))
