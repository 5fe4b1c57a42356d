"""How many replicas there should be, by how long jobs wait before the engine turns to them. Pure."""

from collections.abc import Sequence

LONG_MS = 50.0  # a longer wait than this asks for one replica more: half of what a first text may take
SHORT_MS = 5.0  # where each wait is shorter, one less will do


def wanted(waits_ms: Sequence[float], now: int) -> int:
    """The number of replicas, from the wait at each of the `now` that run. Ray acts on it once it has stayed the same:
    30 seconds for one more, ten minutes for one less (`upscale_delay_s`, `downscale_delay_s`)."""
    if not waits_ms:
        return now
    if sum(waits_ms) / len(waits_ms) > LONG_MS:
        return now + 1
    return now - 1 if max(waits_ms) < SHORT_MS else now
