"""Local record files that several servers write at the same time: lines appended, a document replaced under a lock,
and both done in a thread, some seconds after the first news. Nothing of the user's text comes here.
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

MAX_LINES = 1 << 20  # bytes of a file of lines; then it becomes the older one, and what was older is gone
LOCK_S = 1.0

log = logging.getLogger(__name__)
T = TypeVar("T")


class Writer(Generic[T]):
    """Gathers news and writes them in batches. `take` gives what is new, on the event loop; `write` runs in a thread.

    What cannot be written is dropped, and said once: records are never worth an editor's trouble.
    """

    def __init__(self, take: Callable[[], T | None], write: Callable[[T], None], delay_s: float) -> None:
        self._take = take
        self._write = write
        self._delay_s = delay_s
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()
        self._failed = False

    def soon(self) -> None:
        """There is news. Within `delay_s` of the first it is written, with all that has come since."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._later())

    async def close(self) -> None:
        """Write what is left."""
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
                log.warning("What happened is not recorded: %s", error)


def append(file: Path, lines: bytes) -> None:
    """Add whole lines in one write, which the kernel does not mix with another process's. Raises OSError."""
    with open(file, "ab", buffering=0, opener=paths.own) as stream:
        stream.write(lines)
        full = os.fstat(stream.fileno()).st_size > MAX_LINES
    if full:
        with locked(file):
            if file.exists() and file.stat().st_size > MAX_LINES:  # else another process was here first
                file.replace(older(file))


def older(file: Path) -> Path:
    """Where the lines before those of `file` are."""
    return file.with_name(f"{file.name}.1")


def replace(file: Path, content: bytes) -> None:
    """Give a file new content at once: a reader sees the old or the new. Under `locked`. Raises OSError."""
    new = file.with_name(f"{file.name}.new")
    with open(new, "wb", opener=paths.own) as stream:
        stream.write(content)
    new.replace(file)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time. Raises TimeoutError, an OSError, when another one keeps it."""
    with open(file.with_name(f"{file.name}.lock"), "a+b", buffering=0, opener=paths.own) as held:
        if not lock(held, wait_s=LOCK_S):
            raise TimeoutError(f"another process keeps {file.name} locked.")
        yield
