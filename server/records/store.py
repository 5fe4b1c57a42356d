"""Local record files that several servers write: lines are appended, whole files replaced under a lock, both in a
thread and in batches. They hold no text of the user's.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from caesura import paths
from caesura.ipc.locks import lock

MAX_LINES = 1 << 20  # bytes of a file of lines; then it replaces the older one
LOCK_S = 1.0  # wait for another process's lock

log = logging.getLogger(__name__)
T = TypeVar("T")


class BatchWriter(Generic[T]):
    """Writes records in batches. `take` returns the new records, on the event loop; `write` runs in a thread.

    Records that cannot be written are dropped, with one warning.
    """

    def __init__(self, take: Callable[[], T | None], write: Callable[[T], None], delay_s: float) -> None:
        self._take = take
        self._write = write
        self._delay_s = delay_s
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()
        self._failed = False

    def soon(self) -> None:
        """Write within `delay_s`, together with all records until then."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._later())

    async def close(self) -> None:
        """Write the rest."""
        self._now.set()
        if self._task is not None:
            await self._task
        await self._flush()

    async def _later(self) -> None:
        try:
            async with asyncio.timeout(self._delay_s):
                await self._now.wait()
        except TimeoutError:
            pass
        await self._flush()

    async def _flush(self) -> None:
        try:
            while (news := self._take()) is not None:  # more may come while a thread writes
                await asyncio.to_thread(self._write, news)
        except (OSError, paths.UnsafeFolder) as error:
            if not self._failed:
                self._failed = True
                log.warning("Statistics or traces are not recorded: %s", paths.reason(error))


def append(file: Path, lines: bytes) -> None:
    """Append whole lines in one write, which the kernel does not mix with those of other processes. Raises OSError or
    UnsafeFolder."""
    paths.private(file.parent)
    with open(file, "ab", buffering=0, opener=paths.own) as stream:
        stream.write(lines)
        full = os.fstat(stream.fileno()).st_size > MAX_LINES
    if full:
        with locked(file):
            if file.exists() and file.stat().st_size > MAX_LINES:  # else another process was first
                file.replace(older(file))


def older(file: Path) -> Path:
    """The file of the lines before those in `file`."""
    return file.with_name(f"{file.name}.1")


def replace(file: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content. Call under `locked`. Raises OSError."""
    new = file.with_name(f"{file.name}.new")
    with open(new, "wb", opener=paths.own) as stream:
        stream.write(content)
    new.replace(file)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the file's lock. Raises UnsafeFolder, or an OSError: TimeoutError if another process keeps it."""
    paths.private(file.parent)
    with open(file.with_name(f"{file.name}.lock"), "a+b", buffering=0, opener=paths.own) as held:
        if not lock(held, wait_s=LOCK_S):
            raise TimeoutError(f"another process keeps {file.name} locked.")
        yield
