"""bench/capacity.py on a team of made-up users: what a replica is spared, and what an event costs."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from caesura.engine import memory

BENCH = Path(__file__).parents[2] / "bench"
ENGINE = {"chunk": 64, "rows": 512, "contexts": 14}
SECONDS = 30.0


@pytest.fixture(scope="module")
def capacity() -> Iterator[ModuleType]:
    """The benchmark is a script that imports what lies beside it."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("capacity")
    sys.path.remove(str(BENCH))


def recording(*, left: float | None = None, steps: int = 2) -> dict[str, Any]:
    """Four files, in each a key every half second for ten seconds: each adds a token to a context of 500. The server
    leaves each job after `left` seconds."""
    jobs = [
        {
            "at": number / 2,
            "left": left and number / 2 + left,
            "priority": "automatic",
            "document": 0,
            "context": 500 + number,
            "like": number - 1 if number else None,
            "same": 499 + number if number else 0,
            "rows": [4] * steps,
            "first": 1,
        }
        for number in range(20)
    ]
    return {"stretches": {name: {"file": name, "seconds": 10.0, "jobs": jobs} for name in "abcd"}}


def served(capacity: ModuleType, found: dict[str, Any], step_ms: float = 5.0) -> Any:
    return capacity.Served(
        "made up", "measured", capacity.recorded(found), capacity.StepTable([(4, step_ms)], 0.2), ENGINE
    )


def run(capacity: ModuleType, found: dict[str, Any], team: Any, users: int = 4) -> Any:
    return capacity.played(served(capacity, found), team, users, SECONDS, seed=1)


def test_a_document_finds_its_context_where_its_last_job_was(capacity: ModuleType) -> None:
    sticky, by_turns = (run(capacity, recording(), capacity.Team(3, affinity=affinity)) for affinity in (True, False))
    assert len(sticky.asked) == len(by_turns.asked) > 150
    assert by_turns.read > 2 * sticky.read


def test_a_job_that_was_left_costs_no_further_step(capacity: ModuleType) -> None:
    stayed, left = (run(capacity, recording(left=left, steps=60), capacity.Team(1), 1) for left in (None, 0.03))
    assert left.busy < stayed.busy / 3
    assert all(one.whole is None for one in left.asked)


def test_what_nobody_waited_for_is_not_counted(capacity: ModuleType) -> None:
    for left, counted in ((0.1, 0), (0.2, len(run(capacity, recording(), capacity.Team(1)).asked))):
        found = run(capacity, recording(left=left), capacity.Team(1))
        assert capacity.summary([found], 0, SECONDS)["jobs"] == counted


def test_the_jobs_of_a_dead_replica_fail_and_its_documents_come_back_cold(capacity: ModuleType) -> None:
    quiet, killed = (run(capacity, recording(steps=60), capacity.Team(2, kill=kill)) for kill in (1e9, 15.02))
    assert quiet.failed == 0
    assert killed.failed > 0
    assert killed.read > quiet.read
    late = [one for one in killed.asked if one.arrives - one.at > 0.1]
    assert late
    assert all(15.02 < one.at < 16.02 <= one.arrives < 16.03 for one in late)


def test_a_new_replica_takes_its_share_of_the_documents_and_no_job_fails(capacity: ModuleType) -> None:
    found = recording()
    asked, _ = capacity.crowd_of(40, capacity.recorded(found), 60.0, 1)
    before, after = (capacity.routed(asked, capacity.Team(2, grow=grow)) for grow in (1e9, 15.0))
    moved = {one.session for one in after[capacity.Place(2, 0)]}
    assert 0.1 < len(moved) / len({one.session for one in asked}) < 0.6
    assert sum(map(len, before.values())) == sum(map(len, after.values())) == len(asked)
    assert run(capacity, found, capacity.Team(2, grow=15.0)).failed == 0


def test_more_replicas_carry_more_users_and_a_run_can_be_repeated(capacity: ModuleType) -> None:
    trial = capacity.Trial(SECONDS, least=1)
    slow = served(capacity, recording(), 50.0)
    curves = {replicas: trial.curve(slow, replicas) for replicas in (1, 3)}
    assert 0 < capacity.carried(curves[1]) < capacity.carried(curves[3])
    assert trial.curve(slow, 1) == curves[1]


def test_an_event_is_reported_with_what_it_cost(capacity: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "EVENT_LEAST", 12)
    found = capacity.Trial(50.0).event(served(capacity, recording()), capacity.Team(2, kill=capacity.EVENT_S), 12)
    assert found["event"] == "kill"
    assert 0 < found["above_s"] < 6
    before = [p95 for at, p95 in found["windows"] if at < 0]
    assert all(p95 < capacity.LIMIT_MS for p95 in before)


def test_a_gpu_keeps_as_many_contexts_as_the_engine_would(capacity: ModuleType) -> None:
    large = capacity.gemma_contexts(json.loads(capacity.GEMMA.read_text()))
    assert capacity.decoder_contexts(capacity.SHAPES["7B"]) == memory.MOST_CONTEXTS > large > 64


def test_a_table_is_a_line_between_its_entries_and_grows_beyond_them(capacity: ModuleType) -> None:
    table = capacity.measured([(0, 64, 32.0), (1, 0, 10.0), (4, 1, 13.0), (4, 0, 13.0), (64, 0, 100.0), (9, 99, 7.0)])
    assert table(1, 0, 1) == 10.0
    assert table(2, 10, 1) == pytest.approx(11 + 5)
    assert table(128, 0, 2) == pytest.approx(200)
