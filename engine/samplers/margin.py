"""Accept the slots whose best token leads the second the most, as many as Dream's schedule says (Kim et al. 2025;
Dream's `topk_margin`).

Compared with Dream's generation_utils.py, as ZHZisZZ/dllm has it (temperature 0): the same tokens after every forward
that changes any."""

from caesura.engine.samplers import CanvasSampler
from caesura.engine.samplers._scheduled import Scheduled, by_time


def begin() -> CanvasSampler:
    return Scheduled(lambda seen: seen.margin, by_time)
