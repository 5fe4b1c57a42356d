"""Accept the slots of least entropy, as many as Dream's schedule says (Dream's `entropy`; DreamOn and DiffuCoder use it
too).

Compared with Dream's generation_utils.py, as ZHZisZZ/dllm has it (temperature 0): the same tokens after every forward
that changes any."""

from caesura.engine.samplers import CanvasSampler
from caesura.engine.samplers._scheduled import Scheduled, by_time


def begin() -> CanvasSampler:
    return Scheduled(lambda seen: -seen.entropy, by_time)
