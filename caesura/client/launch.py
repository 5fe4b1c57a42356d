"""Finds the shared engine or starts it. No other module of the client starts or ends a process."""

import asyncio
import contextlib
import functools
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from caesura import paths
from caesura.ipc import rendezvous
from caesura.ipc.rendezvous import EnginePlace, Holder
from caesura.ipc.silence import Silence, usage

MAX_SPAWNS = 5
BACKOFF_S = (0.1, 5.0)
HELLOS = 3  # unanswered Hellos after which a process counts as hung, unless the machine was too busy to run it
START_S = 30.0  # timeout of a new process to get the lock, on a busy machine
MAX_LOG = 4 << 20  # bytes
_WINDOWS = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(subprocess, "CREATE_NO_WINDOW", 0)

log = logging.getLogger(__name__)


class GaveUp(Exception):
    """No engine can be reached; the message is a sentence for the user."""


def command(model: str, device: str) -> list[str]:
    # -P: the editor starts us inside a project, which may have a caesura.py.
    return [sys.executable, "-P", "-m", "caesura", "engine", "--foreground", "--model", model, "--device", device]


class Launcher:
    """Finds or starts one engine, and counts the attempts."""

    def __init__(self, place: EnginePlace, command: Sequence[str] | None) -> None:
        self._place = place
        self._command = command  # None: start nothing
        self._spawns = 0
        self._silent: Holder | None = None
        self._asked = 0.0  # seconds of Hellos that `_silent` did not answer
        self._silence = Silence(0.0)
        self._process: subprocess.Popen[bytes] | None = None

    async def find(self) -> Holder:
        """The process that holds the lock, started if necessary. Raises GaveUp."""
        while (holder := self._place.holder()) is None:
            if self._command is None:
                raise GaveUp("No engine is running.")
            if self._spawns == MAX_SPAWNS:
                raise GaveUp(f"The engine did not start in {MAX_SPAWNS} tries; {self._place.see_log()}.")
            if self._spawns:
                first, longest = BACKOFF_S
                await asyncio.sleep(min(first * 2**self._spawns, longest) * random.uniform(0.5, 1.5))
            self._spawns += 1
            self._process = await asyncio.to_thread(_spawn, self._place, self._command)
            await _until(lambda: bool(self._place.holder()) or self._ended(), START_S)
        return holder

    async def unanswered(self, holder: Holder, hello_s: float) -> None:
        """`holder` did not answer a Hello of so many seconds. After three it counts as hung and is killed."""
        if holder != self._silent:
            self._silent, self._asked, self._silence = holder, 0.0, Silence(0.0)
        self._asked += hello_s  # not the time in which we did not run ourselves
        silent_s = self._silence.lasts(self._asked, functools.partial(usage, holder.pid))
        if silent_s >= HELLOS * hello_s and rendezvous.kill(holder):
            await _until(lambda: self._place.holder() != holder, 1.0)

    def _ended(self) -> bool:
        """True if our process lost the race for the lock or could not start."""
        return self._process is None or self._process.poll() is not None


async def _until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def _spawn(place: EnginePlace, command: Sequence[str]) -> subprocess.Popen[bytes]:
    with _log(place.log()) as output:
        # Its own session: the engine outlives this editor and gets no signals from its terminal.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            creationflags=_WINDOWS,
        )


def _log(path: Path) -> IO[bytes]:
    """The engine's log, to append to. If it cannot be written, the engine works without one."""
    try:
        paths.private(path.parent)
        if path.exists() and path.stat().st_size > MAX_LOG:
            with contextlib.suppress(PermissionError):  # Windows, if a process still writes it
                path.replace(path.with_suffix(".log.1"))
        return open(path, "ab", opener=paths.own)
    except (OSError, paths.UnsafeFolder) as error:
        _say_unlogged(paths.reason(error))
        return open(os.devnull, "ab")


@functools.cache
def _say_unlogged(why: str) -> None:
    """Warns once per process."""
    log.warning("The engine runs without a log: %s", why)
