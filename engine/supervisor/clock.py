"""The time that leases, deadlines and the patience with a worker are counted in: it stands still with this process."""

import time
from collections.abc import Callable

LAPSE_S = 0.25  # between two readings, on a busy machine: whatever is longer is none of the time that counts


class Clock:
    """Seconds. While this process was stopped, or had no processor or memory, nobody was heard and no worker watched:
    what they did meanwhile is not known, so it is nobody's silence. (A machine that sleeps stops `read` itself.)"""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._last = read()
        self._lapsed = 0.0

    def __repr__(self) -> str:
        return f"<Clock {self._lapsed:.1f} s behind>"

    def now(self) -> float:
        """Has to be asked at every turn."""
        last, self._last = self._last, self._read()
        self._lapsed += max(0.0, self._last - last - LAPSE_S)
        return self._last - self._lapsed
