"""How long a process has been silent, without the time in which the machine was too busy to run it.

By the clock alone, a busy machine looks like a hang. Time is an argument.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.2  # between two looks at a silent process
# The least share of time that counts while a process waits for the machine: a hang is noticed at most 20 times later.
STARVED = 0.05


class Usage(NamedTuple):
    """Of a process: the seconds that its threads have run, and whether one of them runs, or waits for a processor or a
    disk; None if the system does not say."""

    cpu_s: float
    wants: bool | None


class Silence:
    """Counts how long a process has been silent. Time counts in full while it sleeps, is stopped or runs. While it
    waits for a processor or a disk, only its CPU time counts, but at least the share STARVED."""

    def __init__(self, now: float) -> None:
        self.heard(now)

    def __repr__(self) -> str:
        return f"<Silence {self._counted:.1f} s, {self._usage}>"

    def heard(self, now: float) -> None:
        self._looked, self._counted = now, 0.0
        self._usage: Usage | None = None  # at the last look
        self._starves = False

    def lasts(self, now: float, look: Callable[[], Usage]) -> float:
        """Call this often: what the process did since the last look is judged by what it does at this one."""
        passed = now - self._looked
        if passed >= LOOK_S:
            before, self._usage = self._usage, look()
            if before is None:
                self._counted += passed
            else:
                ran = self._usage.cpu_s - before.cpu_s
                self._starves = ran > 0 if self._usage.wants is None else self._usage.wants
                self._counted += min(passed, max(ran, STARVED * passed)) if self._starves else passed
            self._looked, passed = now, 0.0
        return self._counted + (0.0 if self._starves else passed)


def usage(pid: int) -> Usage:
    """The usage of a process; zero if it has ended, or runs elsewhere (`pid` 0). On Windows `pid` may be the launcher
    of a virtual environment, which uses no CPU time: the clock alone then decides about its worker."""
    if not pid:
        return Usage(0.0, False)
    if sys.platform != "linux":
        import psutil

        try:
            times = psutil.Process(pid).cpu_times()
            return Usage(times.user + times.system, None)
        except psutil.Error:
            return Usage(0.0, False)
    ticks, states = 0, set[str]()
    with suppress(OSError):  # the process ended, or a thread
        for thread in Path(f"/proc/{pid}/task").iterdir():
            states.add(_fields(thread)[0])
    with suppress(OSError):
        fields = _fields(Path(f"/proc/{pid}"))
        ticks = int(fields[11]) + int(fields[12])  # fields 14 and 15: in user and in kernel mode
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), bool(states & {"R", "D"}))


def _fields(folder: Path) -> list[str]:
    """Those after the name, which may contain spaces, brackets and half a character."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
