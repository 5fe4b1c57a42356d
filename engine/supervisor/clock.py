"""The clock of leases, deadlines and the worker's watchdog: it stops while this process does not run."""

import time
from collections.abc import Callable

LAPSE_S = 0.25  # the longest time between two readings that counts, on a busy machine


class Clock:
    """Seconds. While this process is stopped, or starved of processor or memory, it hears no client and watches no
    worker, so it must not count that time as their silence. (A machine that sleeps stops `read` itself.)"""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._last = read()
        self._lapsed = 0.0

    def __repr__(self) -> str:
        return f"<Clock {self._lapsed:.1f} s behind>"

    def now(self) -> float:
        """Call this at every turn of the loop."""
        last, self._last = self._last, self._read()
        self._lapsed += max(0.0, self._last - last - LAPSE_S)
        return self._last - self._lapsed
