"""The trace of requests and jobs: a file of lines, which `caesura doctor` and the benchmarks read."""

import asyncio
import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from caesura.client.backend import FinishedJob
from caesura.server.records import store, trace
from caesura.server.records.trace import RequestRecord, SessionRecord, Trace

SESSION = SessionRecord("Neovim 0.12", "0.1.0", "utf-8", ("inlineCompletion",), "small", "cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def tracing(path: Path, delay_s: float = 60) -> Trace:
    clock = count(1000.0)
    return Trace(lambda: path, lambda: next(clock), delay_s)


def request(wait: float, answer: trace.AnswerKind = "warm", **stages: float) -> RequestRecord:
    return RequestRecord("python", "line", answer, {"wait": wait, **stages}, steps=3, shown=8, confidence=0.9, job="j1")


async def test_what_is_recorded_is_read_back(path: Path) -> None:
    found = tracing(path)
    found.session(SessionRecord("Neovim 0.12"))
    found.session(SESSION)
    found.record(request(12.5, denoise=8.0))
    found.job(FinishedJob("j1", "done", "automatic", 3, {"denoise": 8.0, "total": 9.25}))
    await found.close()
    [past] = trace.read(path)
    assert past == trace.Past(1001.0, SESSION, [request(12.5, denoise=8.0)], past.jobs)
    assert past.jobs == [FinishedJob("j1", "done", "automatic", 3, {"denoise": 8.0, "total": 9.25})]


async def test_a_line_is_an_object_with_its_session_and_time(path: Path) -> None:
    found = tracing(path)
    found.record(request(12.3456789))
    await found.close()
    line = json.loads(path.read_text())
    assert (line["type"], line["at"], line["ms"]) == ("request", 1000.0, {"wait": 12.346})
    assert len(line["session"]) == 8


async def test_nothing_is_kept_while_it_is_off(path: Path) -> None:
    found = tracing(path)
    found.session(SESSION)
    found.record(request(1))
    found.enable(False)
    found.record(request(2))
    await found.close()
    assert not path.exists()
    found.enable(True)
    found.record(request(3))
    await found.close()
    [past] = trace.read(path)
    assert (past.session, past.requests) == (SESSION, [request(3)])


async def test_a_session_that_is_described_again_in_the_same_words_is_one_line(path: Path) -> None:
    found = tracing(path)
    for _ in range(3):
        found.session(SESSION)
    await found.close()
    assert len(path.read_text().splitlines()) == 1


async def test_it_is_written_without_being_asked_and_off_the_request(path: Path) -> None:
    found = tracing(path, delay_s=0.01)
    found.record(request(1))
    assert not path.exists()
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_a_trace_that_cannot_be_written_does_not_grow(tmp_path: Path) -> None:
    found = tracing(tmp_path / "missing" / "trace.jsonl")
    for _ in range(trace.MOST_PENDING + 10):
        found.record(request(1))
    assert f"{trace.MOST_PENDING} pending" in repr(found)
    await found.close()
    assert "0 pending" in repr(found)


async def test_a_full_file_becomes_the_older_one_and_both_are_read(path: Path) -> None:
    filler = b'{"type":"other"}\n' * (store.MAX_LINES // 17 + 1)
    found = tracing(path)
    found.session(SESSION)
    await found.close()
    store.append(path, filler)
    assert not path.exists()
    later = tracing(path)
    later.session(SessionRecord("VS Code"))
    await later.close()
    assert [past.session.client for past in trace.read(path)] == ["Neovim 0.12", "VS Code"]
    store.append(path, filler)
    assert [past.session.client for past in trace.read(path)] == ["VS Code"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["trace.jsonl.1", "trace.jsonl.lock"]


def test_several_servers_write_whole_lines(path: Path) -> None:
    code = f"""
from pathlib import Path
from caesura.server.records import store
for _ in range(200):
    store.append(Path({str(path)!r}), b'{{"a": "' + b"x" * 3000 + b'"}}\\n')
"""
    servers = [subprocess.Popen([sys.executable, "-P", "-c", code]) for _ in range(3)]
    assert [server.wait(60) for server in servers] == [0, 0, 0]
    lines = [line for file in (store.older(path), path) if file.exists() for line in file.read_bytes().splitlines()]
    assert {len(json.loads(line)["a"]) for line in lines} == {3000}
    assert len(lines) > 300  # 600 at most: what is older than the older file is gone


def test_lines_of_another_version_or_damaged_ones_are_left_out(path: Path) -> None:
    path.write_bytes(
        b'{"type":"session","session":"a","at":1,"client":"Neovim","new":1}\n'
        b'{"type":"request","session":"a","at":1,"language":"go","kind":"line","answer":"unheard of"}\n'
        b'{"type":"session","session":"a","at":1,"client":"\xff"}\n'
        b"{cut of\n"
    )
    [past] = trace.read(path)
    assert (past.session.client, past.requests) == ("Neovim", [])


def test_percentiles_by_stage_and_by_answer() -> None:
    found = [request(wait, denoise=wait / 2) for wait in range(1, 101)] + [request(5, "nothing")]
    assert trace.by_stage(found)["denoise"] == (25.5, 48.0)
    assert trace.by_answer(found) == {"warm": (100, 51, 96), "nothing": (1, 5, 5)}
