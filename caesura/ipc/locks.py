"""File locks, which end with the process that holds them."""

import sys
import time
from io import FileIO

RETRY_S = 0.005

if sys.platform == "win32":
    import msvcrt

    _BYTE = 1 << 30  # after everything written: Windows lets nobody read a locked byte

    def _lock(file: FileIO, *, shared: bool) -> bool:
        """Windows has no shared locks: two processes that only look may see each other as the holder for a moment."""
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
    """Lock a file until it is closed; a `shared` lock only excludes exclusive ones. Returns False if another process
    holds it for longer than `wait_s`."""
    deadline = time.monotonic() + wait_s
    while not _lock(file, shared=shared):
        if time.monotonic() > deadline:
            return False
        time.sleep(RETRY_S)
    return True
