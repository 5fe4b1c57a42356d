"""Locks on files, which end with the process that holds them."""

import sys
import time
from io import FileIO

RETRY_S = 0.005

if sys.platform == "win32":
    import msvcrt

    _BYTE = 1 << 30  # behind all that is written, for Windows keeps others from reading what is locked

    def _lock(file: FileIO, *, shared: bool) -> bool:
        """Windows has no shared locks: who only looks may meet another who does, and is wrong for a moment."""
        file.seek(_BYTE)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            file.seek(0)
        return True

else:
    import fcntl

    def _lock(file: FileIO, *, shared: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def lock(file: FileIO, *, wait_s: float = 0.0, shared: bool = False) -> bool:
    """Take the lock of a file until it is closed, `shared` with others who share it. False where another process has it
    for longer than `wait_s`."""
    deadline = time.monotonic() + wait_s
    while not _lock(file, shared=shared):
        if time.monotonic() > deadline:
            return False
        time.sleep(RETRY_S)
    return True
