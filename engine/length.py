"""The length of a hole on a canvas. A trained null token shows where it ends, and a canvas that does not end doubles,
unless a trained expand token makes two slots of one (canvas/canvas.py). Without a null token, a canvas is tried at
several lengths as rows of the same forwards, and the text that fits best wins. The search of `verify` needs no length:
it ends a hole where the suffix is likely (methods/verify/search.py).
"""

import math
from collections.abc import Iterable, Sequence

NULL = 0.5  # least null probability at which an open slot right of an accepted null becomes null
UNLIKELY = 1e-9  # the least probability that is counted
ENDS = 0.3  # null probability of the last slot in the first forward, below which the hole has too few slots
LINE = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)  # tokens tried for a hole within a line
BLOCK = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # tokens tried for a hole of several lines


def broadcast(open: Sequence[bool], null: Sequence[bool], p_null: Sequence[float]) -> list[int]:
    """Slots of one hole that become null now: open ones right of the first accepted null (DreamOn's deletion)."""
    first = next((i for i, is_null in enumerate(null) if is_null), len(null))
    return [i for i in range(first, len(open)) if open[i] and p_null[i] >= NULL]


def too_short(p_null_last: float, slots: int, most: int) -> bool:
    """True if the first forward shows that the hole needs more slots: double them and start again."""
    return p_null_last < ENDS and slots * 2 <= most


def tried(most: int, *, one_line: bool) -> list[int]:
    """The lengths to try for a hole of at most `most` tokens."""
    return [n for n in (LINE if one_line else BLOCK) if n < most] + [most]


def score(hole: Sequence[float], pins: Sequence[float], weight: float = 1.0) -> float:
    """How well a canvas fits, in nats a token: the mean log-probability of its holes' best tokens, plus `weight` times
    that of its pins. An unlikely pin shows that the hole before it has the wrong length."""
    return mean(hole) + (weight * mean(pins) if pins else 0.0)


def logs(probabilities: Iterable[float]) -> list[float]:
    """Log-probabilities."""
    return [math.log(max(probability, UNLIKELY)) for probability in probabilities]


def mean(numbers: Sequence[float]) -> float:
    """NaN of none."""
    return sum(numbers) / len(numbers) if numbers else math.nan
