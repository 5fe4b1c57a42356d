"""What a model computes on, as the engine asks it: about its memory and whether it still works. A GPU's answers are in
`models/devices.py`.
"""

import os
from pathlib import Path
from typing import Protocol


class Device(Protocol):
    """A device of this machine."""

    def free(self) -> int | None:
        """Free bytes, or None if unknown."""

    def give_back(self) -> None:
        """Return memory that nothing uses any more, after memory has run out."""

    def lost(self, error: Exception) -> bool:
        """True if after this error every call to the device fails, so that only a new process helps."""


class Host:
    """The CPU and its memory."""

    def free(self) -> int | None:
        try:
            lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
            return int(lines["MemAvailable"].split()[0]) << 10
        except (OSError, ValueError, KeyError):
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None

    def give_back(self) -> None:
        """Nothing: the allocator keeps what it needs (worker.py)."""

    def lost(self, error: Exception) -> bool:
        return False
