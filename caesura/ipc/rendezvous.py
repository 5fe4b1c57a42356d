"""The files by which a client finds the shared engine: a lock, a socket and a log for each protocol, build, model,
device and drafting model. The models `coder` and `small` always run on the CPU, so each has one place for all devices.

The process that holds the lock is the engine. The socket cannot tell, since its file outlives the process.
"""

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import caesura
from caesura import model_store, paths, wire
from caesura.ipc import endpoints, locks

# Two installations of one version (a virtual environment, a checkout) may hold different code and share no engine.
_HOME = hashlib.sha256(os.fsencode(Path(caesura.__file__).resolve().parent)).hexdigest()[:6]
BUILD = f"{caesura.__version__}+{_HOME}"

_MAX_SOCKET_PATH = 107  # bytes of sun_path without its final NUL


class NoPlace(Exception):
    """The runtime folder cannot hold the files of an engine; the message is a sentence for the user."""


class Holder(NamedTuple):
    """The process that holds a lock. `pid` is 0 until the process has written its own."""

    pid: int
    started: str


@dataclass(frozen=True)
class EnginePlace:
    """The files of one engine: their names begin with `e-KEY` in the runtime folder."""

    stem: Path

    @property
    def lock(self) -> Path:
        return self.stem.with_suffix(".lock")

    @property
    def socket(self) -> Path:
        return self.stem.with_suffix(".sock")

    @property
    def progress(self) -> Path:
        return self.stem.with_suffix(".progress")

    def link(self, generation: int) -> Path:
        """The socket between supervisor and worker. Each worker has a new one, which no old frame can reach."""
        return self.stem.with_suffix(f".w{generation}")

    def log(self) -> Path:
        return paths.logs() / f"{self.stem.name}.log"

    def see_log(self) -> str:
        """The end of a sentence: where to read more."""
        log = self.log()
        return f"see {log}" if os.access(log, os.W_OK) else f"it has no log, since {log.parent} cannot be written"

    def holder(self) -> Holder | None:
        """The engine's process; None if nobody holds the lock."""
        try:
            lock = FileIO(self.lock)
        except FileNotFoundError:
            return None
        with lock:
            # Shared, so that clients that look at the same time do not see each other as the engine.
            if locks.lock(lock, shared=True):
                return None
            pid, _, start = lock.read(256).decode("ascii", "replace").strip().partition(" ")
            return Holder(int(pid), start) if pid.isdecimal() else Holder(0, "")

    def acquire(self) -> FileIO | None:
        """Become the engine. Returns the lock, held until the file is closed or the process ends; None if another
        process holds it. Raises NoPlace."""
        with writing(self.lock):
            lock = FileIO(self.lock, "a+", opener=paths.own)
            # A client that looks holds the lock for microseconds only.
            if not locks.lock(lock, wait_s=0.5):
                lock.close()
                return None
            lock.truncate(0)
            lock.write(f"{os.getpid()} {started(os.getpid())}\n".encode())
        return lock


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Write a file that an engine needs. Raises NoPlace, for example if the disk is full."""
    try:
        yield
    except OSError as error:
        why = f"An engine cannot write to {file.parent}: {error.strerror or error}."
        raise NoPlace(f"{why} Repair that, or set CAESURA_RUNTIME to another folder.") from error


def _runtime() -> Path:
    """Raises NoPlace or UnsafeFolder."""
    try:
        return paths.runtime()
    except OSError as error:
        raise NoPlace(f"{paths.reason(error)} Set CAESURA_RUNTIME to a folder that can be written.") from error


def place(model: str, device: str) -> EnginePlace:
    """The place of the engine for `model` on `device`. Raises NoPlace, UnsafeFolder or NoModel."""
    drafting = model_store.drafting()
    device = "cpu" if model_store.named(model) in model_store.PACKAGES and not drafting else device
    parts = [str(wire.PROTOCOL), BUILD, model_store.identity(model), device]
    parts += [model_store.identity(drafting)] if drafting else []
    found = EnginePlace(_runtime() / f"e-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:10]}")
    longest = len(os.fsencode(found.link(1_000_000)))
    if endpoints.UNIX and longest > _MAX_SOCKET_PATH:
        raise NoPlace(f"{found.stem.parent} is too long for a socket; set CAESURA_RUNTIME to a shorter path.")
    return found


def door() -> EnginePlace:
    """The place of a team's door: an account runs one. Raises NoPlace or UnsafeFolder."""
    return EnginePlace(_runtime() / "e-team")


def running() -> list[EnginePlace]:
    """All running engines of this user, of any build and model, and the team's door. Raises NoPlace or UnsafeFolder."""
    files = sorted(_runtime().glob("e-*.lock"))
    return [found for file in files if (found := EnginePlace(file.with_suffix(""))).holder()]


def started(pid: int) -> str | None:
    """The start time of a process, as the system writes it; None if there is no such process. No two processes have the
    same pid and start time."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        return stat.rpartition(")")[2].split()[19]  # field 22; the name before it may contain spaces and brackets
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def kill(holder: Holder) -> bool:
    """Kill exactly this process, never a later one with the same pid. Returns False if it had ended."""
    if not holder.pid:
        return False
    if sys.platform != "linux":
        import psutil

        try:
            process = psutil.Process(holder.pid)  # checks the start time again before it kills
            if repr(process.create_time()) == holder.started:
                process.kill()
                return True
        except psutil.Error:  # it has ended, or belongs to another user
            pass
        return False
    try:
        pidfd = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return False
    try:
        if started(holder.pid) != holder.started:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
