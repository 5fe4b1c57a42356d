"""The book of clients and jobs: who has a lease, which jobs are taken, and which texts are refused after crashes."""

from typing import Any

import msgspec
import pytest

from caesura import wire
from caesura.engine.supervisor.ledger import MAX_JOBS, MAX_PEERS, OVERDUE_S, PAIRED, Ledger, Places

PEER = b"peer"
Taken = wire.Failed | wire.Busy | None


def job(name: str, prefix: str = "", **more: Any) -> wire.Infill:
    """A job in a document of its own, unless told otherwise."""
    fields = {"document": name, "suffix": "", "segments": (wire.Hole(),), "deadline_ms": 1000.0, **more}
    return wire.Infill(job=name, prefix=prefix, **fields)


@pytest.fixture
def ledger() -> Ledger:
    """With one client, greeted at 0."""
    found = Ledger()
    assert found.greet(PEER, "test", 0.0)
    return found


def admit(ledger: Ledger, peer: bytes, request: wire.Infill, now: float) -> Taken:
    return ledger.admit(peer, request, wire.encode(request), now)


def forward(ledger: Ledger) -> None:
    """The worker has every job."""
    for waiting in ledger.waiting():
        waiting.frame = None


def crash(ledger: Ledger, prefix: str, now: float, **more: Any) -> Taken:
    """The worker dies of a text, if that is taken."""
    refusal = admit(ledger, PEER, job(prefix, prefix, **more), now)
    if refusal is None:
        forward(ledger)
        ledger.crash(now)
    return refusal


# Leases


def test_a_lease_ends_when_nothing_was_heard_for_its_time(ledger: Ledger) -> None:
    assert ledger.silent(3.0, 3.0) == []
    assert ledger.silent(3.1, 3.0) == [PEER]
    assert ledger.hear(PEER, 3.0)
    assert ledger.silent(6.0, 3.0) == []
    assert ledger.greet(PEER, "test", 6.0)
    assert ledger.silent(9.0, 3.0) == []


def test_a_client_that_has_not_said_hello_is_not_heard_and_has_no_jobs(ledger: Ledger) -> None:
    assert not ledger.hear(b"stranger", 0.0)
    assert ledger.find(b"stranger", "a") is None
    ledger.settle(b"stranger", "a")
    assert not ledger.leave(b"stranger")


def test_a_hello_again_keeps_the_name_and_the_jobs(ledger: Ledger) -> None:
    admit(ledger, PEER, job("a"), 0.0)
    assert ledger.greet(PEER, "other", 1.0)
    assert ledger.peers[PEER].client == "test"
    assert ledger.find(PEER, "a")


def test_a_client_that_leaves_takes_its_jobs_along(ledger: Ledger) -> None:
    admit(ledger, PEER, job("a"), 0.0)
    assert ledger.leave(PEER)
    assert list(ledger.jobs()) == []


def test_paired_machines_take_no_place_of_a_client_of_this_one() -> None:
    ledger = Ledger()

    def greeted(paired: bool) -> list[bytes]:
        keys = [b"%d %d" % (paired, n) for n in range(2 * MAX_PEERS)]
        return [key for key in keys if ledger.greet(key, "test", 0.0, user="ab" * paired)]

    def admitted(peers: list[bytes]) -> int:
        return sum(admit(ledger, peer, job(f"{n}"), 0.0) is None for peer in peers for n in range(2))

    elsewhere = greeted(True)
    assert admitted(elsewhere) == MAX_JOBS // 4
    here = greeted(False)
    assert (len(elsewhere), len(here)) == (MAX_PEERS // 4, MAX_PEERS)
    assert admitted(here) == MAX_JOBS


def test_one_user_of_a_team_leaves_room_for_the_others() -> None:
    ledger = Ledger(Places(2 * MAX_PEERS, MAX_JOBS))
    annas = [ledger.greet(b"%d" % number, "test", 0.0, user="anna") for number in range(MAX_PEERS)]
    assert annas.count(True) == PAIRED.peers
    assert ledger.greet(b"bens", "test", 0.0, user="ben")


# Jobs


def test_while_jobs_wait_the_newest_of_a_document_and_kind_takes_the_place_of_the_older(ledger: Ledger) -> None:
    fill = job("fill", document="d", kind="fill")
    for request in (job("first", document="d"), job("other"), fill, job("second", document="d")):
        assert admit(ledger, PEER, request, 0.0) is None
    assert [old.request.job for old in ledger.supersede(PEER, job("second", document="d"))] == ["first"]
    assert [one.request.job for one in ledger.waiting()] == ["other", "fill", "second"]


def test_what_the_worker_has_is_not_superseded_here(ledger: Ledger) -> None:
    admit(ledger, PEER, job("first", document="d"), 0.0)
    forward(ledger)
    assert ledger.supersede(PEER, job("second", document="d")) == []
    assert [one.request.job for one in ledger.live()] == ["first"]


def test_a_client_has_eight_jobs_at_most_and_may_replace_them(ledger: Ledger) -> None:
    for number in range(8):
        assert admit(ledger, PEER, job(str(number)), 0.0) is None
    assert admit(ledger, PEER, job("ninth"), 0.0) == wire.Busy("ninth")
    assert admit(ledger, PEER, job("again", document="0"), 0.0) is None


def test_a_client_of_another_machine_has_as_many_jobs_as_a_team_gives_it() -> None:
    ledger = Ledger(Places(jobs_of_peer=20))
    ledger.greet(PEER, "test", 0.0, user="ab")
    assert [admit(ledger, PEER, job(str(number)), 0.0) for number in range(20)] == [None] * 20
    assert admit(ledger, PEER, job("more"), 0.0) == wire.Busy("more")


def test_a_client_may_replace_its_jobs_where_all_clients_together_have_no_place_left(ledger: Ledger) -> None:
    for number in range(MAX_JOBS // 8):
        ledger.greet(b"%d" % number, "other", 0.0)
        for name in range(8):
            admit(ledger, b"%d" % number, job(str(name)), 0.0)
    assert admit(ledger, PEER, job("new"), 0.0) == wire.Busy("new")
    assert admit(ledger, b"0", job("again", document="7"), 0.0) is None


def test_a_job_that_has_its_answer_is_owed_none(ledger: Ledger) -> None:
    admit(ledger, PEER, job("a"), 0.0)
    ledger.settle(PEER, "a")
    ledger.settle(PEER, "a")
    assert list(ledger.jobs()) == []


def test_a_job_is_overdue_half_a_minute_after_its_deadline_once_the_worker_has_it(ledger: Ledger) -> None:
    admit(ledger, PEER, job("a"), 1.0)
    assert not ledger.overdue(100.0)
    forward(ledger)
    assert not ledger.overdue(1.0 + 1.0 + OVERDUE_S)
    assert ledger.overdue(1.0 + 1.0 + OVERDUE_S + 0.01)


# Crashes


def test_of_a_crash_only_the_jobs_that_the_worker_had_are_lost(ledger: Ledger) -> None:
    admit(ledger, PEER, job("lost"), 0.0)
    forward(ledger)
    admit(ledger, PEER, job("waits"), 0.0)
    assert [one.request.job for one in ledger.crash(0.0)] == ["lost"]
    assert [one.request.job for one in ledger.jobs()] == ["waits"]


@pytest.mark.parametrize(
    "changed",
    [
        {"job": "another", "document": "another"},
        *({"deadline_ms": 50.0}, {"priority": "invoked"}, {"seed": 1}, {"draft": ("a",)}, {"min_probability": 0.5}),
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_text_is_refused_whatever_else_comes_with_it(ledger: Ledger, changed: dict[str, Any]) -> None:
    request = msgspec.structs.replace(job("poison", "poison"), **changed)
    crash(ledger, "poison", 0.0)
    crash(ledger, "poison", 0.0)
    refusal = admit(ledger, PEER, request, 1.0)
    assert isinstance(refusal, wire.Failed)
    assert (refusal.job, refusal.code) == (request.job, "invalid")
    assert refusal.message == "This text stopped the engine twice; it is refused for 10 minutes."


@pytest.mark.parametrize("changed", [{"prefix": "other"}, {"suffix": "other"}, {"segments": (wire.Hole(5),)}])
def test_another_text_is_taken(ledger: Ledger, changed: dict[str, Any]) -> None:
    crash(ledger, "poison", 0.0)
    crash(ledger, "poison", 0.0)
    assert admit(ledger, PEER, msgspec.structs.replace(job("poison", "poison"), **changed), 1.0) is None


def test_one_crash_of_a_text_is_no_reason(ledger: Ledger) -> None:
    crash(ledger, "poison", 0.0)
    assert admit(ledger, PEER, job("poison", "poison"), 0.0) is None


def test_a_text_that_stopped_the_engine_twice_is_let_in_again_after_ten_minutes(ledger: Ledger) -> None:
    taken = [crash(ledger, "poison", now) is None for now in (0.0, 1.0, 600.9, 601.1)]
    assert taken == [True, True, False, True]


def test_two_crashes_ten_minutes_apart_are_no_reason(ledger: Ledger) -> None:
    assert [crash(ledger, "unlucky", now) for now in (0.0, 600.0, 600.0)] == [None, None, None]
    assert crash(ledger, "unlucky", 600.0) is not None


def test_of_the_texts_that_stopped_the_engine_the_latest_256_are_remembered(ledger: Ledger) -> None:
    for text in ("first", *map(str, range(255)), "first", *map(str, range(1000, 1255))):
        assert crash(ledger, text, 0.0) is None
    assert admit(ledger, PEER, job("first", "first"), 0.0) is not None
    assert crash(ledger, "one more", 0.0) is None
    assert admit(ledger, PEER, job("first", "first"), 0.0) is None


def test_a_ledger_shows_what_it_holds(ledger: Ledger) -> None:
    admit(ledger, PEER, job("a"), 0.0)
    forward(ledger)
    admit(ledger, PEER, job("b"), 0.0)
    assert repr(ledger) == "<Ledger 1 peers, 2 jobs, 1 forwarded>"
