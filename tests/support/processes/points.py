"""Where a process of the fake engine is killed, stopped or stuck: a file of its runtime folder names a point of
fake_engine.py and what happens there, once. No time decides what it was doing.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def _hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


def _spin() -> None:
    while True:
        pass


def _raise() -> None:
    raise ValueError("a bug")


ACTS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda: os._exit(70),
    "raise": _raise,
    "spin": _spin,
    "gil": _hold_the_gil,
}


def plan(runtime: Path, point: str, act: str = "kill") -> None:
    (runtime / "fault.new").write_text(f"{act} {point}")
    (runtime / "fault.new").rename(runtime / "fault")


def happened(runtime: Path) -> float | None:
    """When, by the monotonic clock that all processes share; None until then."""
    try:
        return float((runtime / "fault.done").read_text())
    except (FileNotFoundError, ValueError):  # not yet written to its end
        return None


def took(text: str) -> None:
    """The fake engine's worker has a job."""
    with Path(os.environ["CAESURA_RUNTIME"], "taken").open("a") as file:
        file.write(f"{time.monotonic():.9f} {text}\0")


def taken(runtime: Path, until: float) -> set[str]:
    """The texts of the jobs that a worker had until then."""
    try:
        texts = [line.split(" ", 1) for line in (runtime / "taken").read_text().split("\0")[:-1]]
    except FileNotFoundError:
        return set()
    return {text for at, text in texts if float(at) <= until}


def reach(point: str) -> None:
    """A point, said by the fake engine."""
    runtime = Path(os.environ["CAESURA_RUNTIME"])
    try:
        act, planned = (runtime / "fault").read_text().split(" ", 1)
    except FileNotFoundError:
        return
    if planned == point:
        (runtime / "fault").unlink()
        (runtime / "fault.done").write_text(f"{time.monotonic():.9f}")
        ACTS[act]()
