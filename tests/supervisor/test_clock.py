"""A wall clock that is set while the engine runs, by its user or by a server of time: nothing waits by it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..audit.calls import preload
from ..support.clients import answer, in_flight, job, running
from .test_processes import client, runtime  # noqa: F401 (a fixture)

HOUR = 3600
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the clock is moved by LD_PRELOAD")


@pytest.fixture
def jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the clock of the processes that are started by the test, by so many seconds."""
    monkeypatch.setenv("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))  # as it was, afterwards
    monkeypatch.setenv("CAESURA_TEST_JUMP", str(tmp_path / "jump"))
    preload(Path(__file__).parents[1] / "audit" / "jump.c", tmp_path)

    def jumps(seconds: int) -> None:
        (tmp_path / "new").write_text(str(seconds))
        (tmp_path / "new").replace(tmp_path / "jump")

    jumps(0)
    return jumps


def test_the_clock_of_the_test_jumps(jump: Callable[[int], None]) -> None:
    def now() -> int:
        asked = subprocess.run([sys.executable, "-c", "import time; print(int(time.time()))"], capture_output=True)
        return int(asked.stdout)

    before = now()
    jump(HOUR)
    assert HOUR <= now() - before < HOUR + 60


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_jobs_leases_and_the_engine_live_through_a_jump(jump: Callable[[int], None], seconds: int) -> None:
    async with running(client()) as engine:
        assert await answer(engine, job()) == "answer"
        before, waiting = await engine.status(), await in_flight(engine)
        jump(seconds)
        assert await answer(engine, job(document="other")) == "answer"
        after = await engine.status()
        assert (after.pid, after.worker_pid, after.peers) == (before.pid, before.worker_pid, before.peers)
        assert 0 <= after.uptime_s - before.uptime_s < 60
        assert not waiting.done()
        waiting.cancel()
