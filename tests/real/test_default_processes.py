"""The shipped model through real processes: what the command line and an editor see of it, also when one dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from caesura import wire
from caesura.client.backend import EngineFailed, job_id
from caesura.client.shared import Engine

from ..lsp.test_lsp import Client

pytestmark = pytest.mark.real

CAESURA = (sys.executable, "-P", "-m", "caesura")
READY_S = 300.0  # limits are reached only where something is wrong
ANSWER_S = 120.0
TOLD_S = 20.0  # far below the deadline of the job
AREA = "def area(width, height):\n    ret"


@asynccontextmanager
async def running() -> AsyncIterator[Engine]:
    found = Engine(client="test")
    await found.start()
    try:
        await found.ready(READY_S)
        yield found
    finally:
        await found.close()


def job(prefix: str, *segments: wire.Text | wire.Hole) -> wire.Infill:
    return wire.Infill(
        job=job_id(),
        document=job_id(),
        prefix=prefix,
        suffix="\n",
        language="python",
        segments=segments,
        deadline_ms=60_000,
    )


async def filled(found: Engine) -> str:
    events = [event async for event in found.infill(job(AREA, wire.Hole(16, "line")))]
    return events[-1].holes[0].text


def test_the_command_line_fills_a_gap(tmp_path: Path) -> None:
    source = tmp_path / "area.py"
    source.write_text(AREA + "\n")
    command = [*CAESURA, "fill", str(source), "--at", "2:8", "--write"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert source.read_text().startswith(AREA)
    assert len(source.read_text()) > len(AREA) + 1


async def test_two_clients_share_one_engine() -> None:
    async with running() as one, running() as two:
        texts = await asyncio.gather(filled(one), filled(two))
        assert texts[0] == texts[1] != ""
        first, second = await one.status(), await two.status()
        assert (first.pid, first.worker_pid) == (second.pid, second.worker_pid)
        assert second.peers == 2


async def test_a_worker_killed_in_the_middle_of_a_fill_is_told_at_once_and_replaced() -> None:
    async with running() as found:
        before = await found.status()
        body = wire.Hole(256, "block")  # several of them, or it might be done before the kill
        gaps = [
            part for name in ("lines", "pages", "books") for part in (wire.Text(f"\n\n\ndef {name}(text):\n"), body)
        ]
        events = found.infill(job("def words(text):\n", body, *gaps))
        await anext(events)
        assert before.worker_pid
        os.kill(before.worker_pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineFailed) as failed:
            async for _ in events:
                pass
        assert failed.value.code == "engine_lost"
        assert time.monotonic() - killed < TOLD_S
        assert await filled(found)
        after = await found.status()
        assert after.pid == before.pid
        assert after.worker_pid != before.worker_pid


@asynccontextmanager
async def language_server() -> AsyncIterator[Client]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*CAESURA, "lsp", stdin=pipe, stdout=pipe, limit=1 << 24)
    client = Client(process)
    try:
        yield client
    finally:
        client._task.cancel()
        process.kill()
        await process.wait()


async def completed(client: Client, column: int) -> str:
    """The text proposed in line 1, or nothing."""
    response = await asyncio.wait_for(client.complete(1, column), ANSWER_S)
    items = response["result"]["items"]
    return str(items[0]["insertText"]) if items else ""


async def test_an_editor_gets_a_completion_and_typing_it_costs_no_job() -> None:
    async with running() as watcher, language_server() as client:
        await client.start(initializationOptions={"deadlineMs": 10_000})
        client.open(AREA.removesuffix("t") + "\n")
        client.type(1, 6, "t")
        proposed = await completed(client, 7)
        assert proposed
        async with asyncio.timeout(ANSWER_S):
            while (before := await watcher.status()).live + before.queued:
                await asyncio.sleep(0.01)
        for number, key in enumerate(proposed[: len(proposed) // 2]):
            client.type(1, 7 + number, key)
            left = await completed(client, 8 + number)
            assert left == proposed[number + 1 :]
        after = await watcher.status()
        assert (after.done, after.live, after.queued) == (before.done, 0, 0)
