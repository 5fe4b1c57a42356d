"""The engine's supervisor and its parts in this process, without the loop: what clients say goes in turn by turn, what
they are told comes out, and time is a number."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from caesura import wire
from caesura.client import launch
from caesura.client.launch import MAX_LOG
from caesura.engine.supervisor import link, supervisor
from caesura.engine.supervisor.admission import Gate
from caesura.engine.supervisor.clients import MAX_BACKLOG, MAX_SLOW_S, Front
from caesura.engine.supervisor.ledger import MAX_JOBS_OF_PEER
from caesura.engine.supervisor.observer import JobEnd, Observer
from caesura.engine.supervisor.process import Child
from caesura.engine.supervisor.supervisor import TEAM_TROUBLE, Supervisor, SupervisorSettings
from caesura.ipc import rendezvous
from caesura.ipc.rendezvous import EnginePlace, Holder, started

from ..support.clients import READY_S, job
from .test_processes import runtime  # noqa: F401 (a fixture)

IDLER = ["sh", "-c", "exec sleep 60"]  # a worker that says nothing
HELLO = wire.Hello(wire.PROTOCOL, "test", "test")


class Alone(Supervisor):
    """One that keeps what clients and the worker are told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(rendezvous.place("fake", "auto"), "fake", "auto", SupervisorSettings(), IDLER)
        self.told: list[wire.EngineMessage] = []
        self.forwarded: list[link.ToWorker] = []
        patch.setattr(self._front, "send", lambda peer, message: self.told.append(message))
        patch.setattr(self._front, "relay", lambda peer, about, frame: self.told.append(wire.decode_engine(frame)))
        patch.setattr(self._child, "send", self._sends)

    def _sends(self, message: link.ToWorker) -> bool:
        self.forwarded.append(message)
        return True

    def says(self, message: wire.ClientMessage, now: float) -> list[wire.EngineMessage]:
        """A client says something; what it is told at once."""
        arrived, self.told = iter([(b"peer", message, wire.encode(message)), None]), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._front, "receive", lambda: next(arrived))
            self._hear_clients(now)
        return self.told

    def works_on(self, request: wire.Infill, now: float) -> None:
        """A job that a worker has, of a client that has just come."""
        self.says(HELLO, now)
        self.says(request, now)
        self._child.start_if_due(now)
        self._child.loaded(link.Ready("fake", "cpu", 0.01), now)
        self._forward(now)

    def close(self) -> None:
        self._child.stop()
        self._front.close()
        self._context.term()


@pytest.fixture
def alone(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alone]:  # noqa: F811
    found = Alone(monkeypatch)
    yield found
    found.close()


def test_a_flood_that_means_nothing_gets_no_longer_turns_than_others(alone: Alone) -> None:
    flood = 3 * supervisor.BURST
    with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
        sender.connect(f"ipc://{rendezvous.place('fake', 'auto').socket}")
        for _ in range(flood):
            sender.send(b"\xc1")
        turns, deadline = [0], time.monotonic() + READY_S
        while turns[-1] < flood and time.monotonic() < deadline:
            time.sleep(0.2)  # for many to have come
            alone._hear_clients(0.0)
            turns.append(alone._dropped)
    assert turns[-1] == flood
    assert max(after - before for before, after in pairwise(turns)) <= supervisor.BURST


def test_a_worker_that_goes_on_and_never_answers_is_replaced_and_its_jobs_are_answered(alone: Alone) -> None:
    request = job(deadline_ms=1000)
    alone.works_on(request, 100.0)
    steps, worker = link.Heartbeat(rendezvous.place("fake", "auto").progress), alone._child.pid
    for now in range(101, 140):
        steps.tick()
        alone._bury_worker(float(now))
        assert (alone._child.pid == worker) == (now <= 135)  # half a minute and a few steps after its deadline
    assert alone.told == [wire.Failed(request.job, "engine_lost", "The engine stopped in the middle of the job.")]


def test_nothing_counts_before_a_hello(alone: Alone) -> None:
    assert alone.says(wire.Query(), 100.0) == []
    answers = alone.says(HELLO, 100.0) + alone.says(wire.Query(), 100.0)
    assert [type(answer) for answer in answers] == [wire.Welcome, wire.Status]


def test_a_client_of_another_protocol_is_told_and_has_no_lease(alone: Alone) -> None:
    (welcome,) = alone.says(wire.Hello(wire.PROTOCOL + 1, "test", "later"), 100.0)
    assert isinstance(welcome, wire.Welcome)
    assert (welcome.state, "restart the older one" in welcome.message) == ("failed", True)
    assert alone.says(wire.Query(), 100.0) == []


def test_a_job_that_is_sent_twice_is_taken_once(alone: Alone) -> None:
    request = job()
    alone.works_on(request, 100.0)
    alone.says(request, 101.0)
    alone._forward(101.0)
    assert len(alone.forwarded) == 1


def test_of_a_message_with_too_many_frames_nothing_is_read(alone: Alone) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
        sender.connect(f"ipc://{rendezvous.place('fake', 'auto').socket}")
        sender.send_multipart([wire.encode(HELLO)] * 2)
        deadline = time.monotonic() + READY_S
        while (received := alone._front.receive()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
    assert received is not None
    assert received[1] is None


def test_a_client_that_says_nothing_for_three_seconds_is_gone_with_its_jobs(alone: Alone) -> None:
    alone.works_on(job(), 100.0)
    alone.says(wire.Ping(), 102.0)
    alone._look_at_the_clock(104.9)
    assert alone._ledger.live()
    alone._look_at_the_clock(105.1)
    assert not alone._ledger.live()
    assert alone.forwarded[-1] == link.Gone(b"peer")


def test_an_answer_that_nobody_can_read_ends_its_job_and_no_other(alone: Alone) -> None:
    requests = job(), job(document="other")
    for request in requests:
        alone.works_on(request, 100.0)
    alone.told = []
    alone._relay(b"peer", msgspec.msgpack.encode({"type": "nothing", "job": requests[0].job}))
    (failed,) = alone.told
    assert isinstance(failed, wire.Failed)
    assert (failed.job, failed.code) == (requests[0].job, "engine_lost")
    assert [live.request for live in alone._ledger.live()] == [requests[1]]


def test_an_observer_sees_one_end_of_each_job_whoever_brings_it_about(alone: Alone) -> None:
    ends = list[tuple[str, str, str, int]]()

    class Seen(Observer):
        def ended(self, end: JobEnd) -> None:
            ends.append((end.job.request.job, end.outcome, end.refusal, end.steps))

    alone._settings = replace(alone._settings, observers=[Seen()])
    old, new, *rest = (job(document=f"{max(1, n)}") for n in range(MAX_JOBS_OF_PEER + 2))
    for message in (HELLO, old, new, *rest):
        alone.says(message, 100.0)
    alone.works_on(new, 100.0)
    lost, refused, cancelled, left = rest[:4]
    timings = wire.Timings()
    answers: list[tuple[wire.EngineMessage, link.Refusal]] = [
        (wire.Locked(new.job, 0, (), step=3, of=8), ""),
        (wire.Done(job=new.job, seq=1, holes=(), steps=4, tokens=wire.Tokens(), timings=timings, stop="complete"), ""),
        (wire.Failed(lost.job, "engine_lost"), ""),
        (wire.Failed(refused.job, "unavailable"), "budget"),
        (wire.Failed(cancelled.job, "cancelled"), ""),
        (wire.Locked(left.job, 0, (), step=2, of=8), ""),
    ]
    for message, refusal in answers:
        alone._relay(b"peer", wire.encode(message), refusal)
    alone._leave(b"peer")
    assert ends[:6] == [
        (old.job, "superseded", "", 0),
        (rest[-1].job, "refused", "busy", 0),
        (new.job, "done", "", 4),
        (lost.job, "engine_lost", "", 0),
        (refused.job, "refused", "budget", 0),
        (cancelled.job, "cancelled", "", 0),
    ]
    assert [(outcome, steps) for _, outcome, _, steps in ends[6:]] == [("left", 2), *[("left", 0)] * 3]
    assert {name for name, *_ in ends} == {request.job for request in (old, new, *rest)}


def test_a_model_that_nobody_asks_for_five_minutes_is_unloaded(alone: Alone) -> None:
    request = job()
    alone.works_on(request, 100.0)
    alone._look_at_the_clock(102.0)
    alone._relay(b"peer", wire.encode(wire.Failed(request.job, "cancelled")))
    alone._look_at_the_clock(401.9)
    assert alone._child.state == "ready"
    alone._look_at_the_clock(402.1)
    assert alone._child.state == "idle"


def test_an_engine_that_cannot_work_ends_when_its_clients_have_left(alone: Alone) -> None:
    alone.says(HELLO, 100.0)
    alone._child.refused(link.LoadFailed("There is not enough memory."), 100.0)
    alone._look_at_the_clock(100.0)
    alone.says(wire.Bye(), 101.0)
    assert not alone._finished(104.9)
    assert alone._finished(105.1)


def test_a_second_signal_ends_at_once(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers, ended = dict[int, Any](), list[int]()
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    monkeypatch.setattr("signal.set_wakeup_fd", lambda *_, **__: -1)
    monkeypatch.setattr("os._exit", ended.append)
    alone._catch_signals()
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert ended == []
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert ended == [128 + signal.SIGTERM]


def test_the_socket_is_the_users_own_whatever_others_may_read_by_default(
    runtime: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modes = list[int]()

    def run(self: Supervisor) -> None:
        modes.append(self._place.socket.stat().st_mode & 0o777)
        Alone.close(self)  # type: ignore[arg-type]

    monkeypatch.setattr(Supervisor, "run", run)
    usual = os.umask(0)
    try:
        supervisor.serve("fake", "auto")
    finally:
        os.umask(usual)
    assert [oct(mode & 0o077) for mode in modes] == ["0o0"]


def test_an_engine_that_ends_leaves_the_socket_of_the_next_one(runtime: Path) -> None:  # noqa: F811
    path = runtime / "front.sock"
    with zmq.Context() as one, zmq.Context() as other:
        first = Front(one, path)
        path.unlink()
        second = Front(other, path)
        first.close()
        left = path.exists()
        second.close()
    assert (left, path.exists()) == (True, False)


@pytest.mark.parametrize(("jobs", "seconds"), [(1, MAX_SLOW_S), (MAX_BACKLOG, 0.0)])
def test_a_client_that_reads_nothing_is_given_up(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, jobs: int, seconds: float
) -> None:
    monkeypatch.setattr(alone._front, "_sent", lambda peer, frame: False)
    for number in range(jobs):
        Front.relay(alone._front, b"peer", str(number), b"")
    assert alone._front.flush(100.0) == []
    assert alone._front.flush(100.0 + seconds) == []
    Front.relay(alone._front, b"peer", "last", b"")
    assert alone._front.flush(100.1 + seconds) == [b"peer"]


def test_a_user_of_a_team_is_told_of_trouble_without_its_processes_and_paths(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, message = "ab" * 32, "The engine's worker ended with code 1; see /home/admin/e-team.log."
    alone._child.state, alone._child.message, alone._child._retry_at = "failed", message, math.inf
    assert alone._welcome("").message == alone._welcome(user).message == message
    monkeypatch.setattr(alone, "_settings", SupervisorSettings(team=True))
    assert alone._welcome("").message == message
    assert alone._status(user, 0.0).message == TEAM_TROUBLE
    alone._front.user = user
    told = alone.says(HELLO, 0.0) + alone.says(job(), 0.0)
    assert [message.message for message in told if isinstance(message, wire.Welcome | wire.Failed)] == [
        TEAM_TROUBLE
    ] * 2


def test_a_crowd_of_strangers_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with zmq.Context() as context:
        gate = Gate(context, lambda key: False)
        for number in range(100):
            gate._judge("remote", "192.0.2.1", b"CURVE", [bytes([number]) * 32])
        gate.close()
    assert len(caplog.messages) == 16


def test_a_process_that_has_taken_over_a_pid_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        now = Holder(process.pid, str(started(process.pid)))
        killed = [rendezvous.kill(holder) for holder in (now._replace(started="1"), now)]
    assert killed == [False, True]


def test_a_log_that_has_grown_long_is_put_aside(runtime: Path) -> None:  # noqa: F811
    place = rendezvous.place("fake", "auto")
    os.truncate(launched(place), MAX_LOG)
    assert launched(place).stat().st_size == MAX_LOG
    os.truncate(place.log(), MAX_LOG + 1)
    assert launched(place).stat().st_size == 0
    assert place.log().with_suffix(".log.1").stat().st_size == MAX_LOG + 1


def launched(place: EnginePlace) -> Path:
    """The log of an engine that has been started and has said nothing."""
    launch._spawn(place, ["true"]).wait()
    return place.log()


def test_a_worker_that_always_ends_is_started_after_pauses_then_not_for_a_minute(runtime: Path) -> None:  # noqa: F811
    with zmq.Context() as context:
        worker = Child(context, rendezvous.place("fake", "auto"), "fake", "auto", ["false"])
        worker.demand(100.0)
        states = []
        for now in (100.0, 110.0, 120.0, 130.0, 140.0, 200.1):
            worker.start_if_due(now)
            assert worker._process, "it was not started"
            worker._process.wait()
            assert worker.death(now, live=False) == "ended with code 1"
            states.append(worker.state)
            worker.start_if_due(now + 0.04)
            assert worker.pid is None
            if worker.state == "failed":
                assert [worker.demand(now + after) for after in (59.9, 60.1)] == [False, True]
    assert states == ["loading"] * 4 + ["failed"] * 2
