"""A silent process: whether it hangs, or the machine is too busy to run it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil  # before a test says that this is another platform: it looks too
import pytest

from caesura.ipc import silence
from caesura.ipc.silence import Silence, Usage

LIMIT_S = 20.0
assert psutil.LINUX


@pytest.mark.parametrize(
    ("does", "share", "wants", "counted"),
    [
        ("it sleeps, is stopped or waits for a lock", 0.0, False, 10.0),
        ("it loops without end", 1.0, True, 10.0),
        ("its four threads loop without end", 4.0, True, 10.0),
        ("it gets a fifth of a processor", 0.2, True, 2.2),
        ("it waits for a processor or a disk, and has none", 0.0, True, 0.7),
        ("it gets a fifth of a processor, on macOS", 0.2, None, 2.2),
        ("it sleeps, on macOS", 0.0, None, 10.0),
    ],
)
def test_the_time_that_counts_against_a_silent_process(
    does: str, share: float, wants: bool | None, counted: float
) -> None:
    found = Silence(100.0)
    for turn in range(1, 101):
        now = 100.0 + turn / 10
        lasts = found.lasts(now, lambda now=now: Usage(7.0 + share * (now - 100.0), wants))  # type: ignore[misc]
    assert lasts == pytest.approx(counted, abs=0.11), does
    found.heard(now)
    assert found.lasts(now, lambda: Usage(0.0, wants)) == 0.0


@contextmanager
def process(code: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", f"print(flush=True); {code}"], stdout=subprocess.PIPE) as found:
        assert found.stdout
        found.stdout.readline()
        try:
            yield found.pid
        finally:
            found.kill()


def becomes(look: Callable[[], Usage], wants: bool | None) -> bool:
    """Whether a process comes to want a processor, or to want none, where the system says so."""
    deadline = time.monotonic() + LIMIT_S
    while (found := look()).wants not in (wants, None) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found.wants in (wants, None)


LOOP = (
    "import threading as t\nthread = t.Thread(target=lambda: exec('while True: pass'))\nthread.start()\nthread.join()"
)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_what_a_process_does_is_seen_from_outside(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with process(f"exec({LOOP!r})") as pid:
        assert becomes(lambda: silence.usage(pid), True)
        before, deadline = silence.usage(pid), time.monotonic() + LIMIT_S
        while silence.usage(pid).cpu_s <= before.cpu_s and time.monotonic() < deadline:
            time.sleep(0.005)
        assert silence.usage(pid).cpu_s > before.cpu_s
        os.kill(pid, signal.SIGSTOP)
        assert becomes(lambda: silence.usage(pid), False)
    with process("import time; time.sleep(60)") as pid:
        assert becomes(lambda: silence.usage(pid), False)
    assert silence.usage(pid) == (0.0, False)
