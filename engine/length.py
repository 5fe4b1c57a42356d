"""Length is part of the answer: a trained null token says where a hole ends, and a canvas that does not end doubles."""

from collections.abc import Sequence

NULL = 0.5  # an open slot right of an accepted null becomes null where the model gives null at least this
ENDS = 0.3  # below this, at the last slot of the first forward, the hole is longer than its slots


def broadcast(open: Sequence[bool], null: Sequence[bool], p_null: Sequence[float]) -> list[int]:
    """Slots of one hole that become null now: open ones right of the first accepted null (DreamOn's deletion)."""
    first = next((i for i, is_null in enumerate(null) if is_null), len(null))
    return [i for i in range(first, len(open)) if open[i] and p_null[i] >= NULL]


def too_short(p_null_last: float, slots: int, most: int) -> bool:
    """Whether to double the slots and start again, asked after the first forward."""
    return p_null_last < ENDS and slots * 2 <= most
