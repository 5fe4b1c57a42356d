"""How many replicas there should be, by how long jobs wait before the engine turns to them. Pure."""

from collections.abc import Sequence

LONG_MS = 50.0  # a longer wait than this asks for one replica more: half of what a first text may take
SHORT_MS = 5.0  # a shorter one, for CALM_S, for one less
CALM_S = 600.0


def wanted(waits_ms: Sequence[float], now: int, calm_s: float) -> int:
    """The number of replicas, from the wait at each of the `now` that run, and how long it has been short."""
    wait = sum(waits_ms) / len(waits_ms) if waits_ms else 0.0
    if wait > LONG_MS:
        return now + 1
    return now - 1 if calm_s > CALM_S else now


def calm_since(waits_ms: Sequence[float], before: float | None, now: float) -> float | None:
    """Since when, in seconds, no replica lets anybody wait; None while one does."""
    if any(wait > SHORT_MS for wait in waits_ms):
        return None
    return now if before is None else before
