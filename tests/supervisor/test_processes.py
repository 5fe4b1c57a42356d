"""Clients, supervisor and worker as real processes around a fake model: what an editor sees when one of them dies."""

import asyncio
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import zmq
import zmq.asyncio

from caesura import paths, wire
from caesura.client import shared
from caesura.client.backend import EngineBusy, EngineFailed, EngineUnavailable
from caesura.client.connection import Connection, Unanswered
from caesura.client.shared import Engine
from caesura.commands import models
from caesura.engine.supervisor import link
from caesura.engine.supervisor.clients import CannotListen, Front
from caesura.engine.supervisor.clock import Clock
from caesura.engine.supervisor.process import Child
from caesura.engine.weights.stored import write_manifest
from caesura.ipc import keys, rendezvous
from caesura.ipc.endpoints import Endpoint
from caesura.ipc.rendezvous import EnginePlace
from caesura.ipc.silence import Usage
from caesura.server.records import store

from ..support.clients import FAKE, READY_S, alive, answer, first_event, in_flight, job, running, status_when, until
from ..support.processes import points


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    monkeypatch.setenv("CAESURA_RUNTIME", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    yield folder
    monkeypatch.setenv("CAESURA_RUNTIME", str(folder))  # a test may have changed it
    folder.chmod(0o700)
    for place in rendezvous.running():
        if holder := place.holder():
            rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may be in the middle of a write


def client(model: str = "fake", **more: object) -> Engine:
    return Engine(client="test", model=model, command=[sys.executable, str(FAKE), model], **more)  # type: ignore[arg-type]


@pytest.fixture
async def one() -> AsyncIterator[Engine]:
    async with running(client()) as found:
        yield found


# Jobs


async def test_events_are_cumulative_and_end_with_done(one: Engine) -> None:
    events = [event async for event in one.infill(job(holes=2))]
    *partial, done = events
    assert isinstance(done, wire.Done)
    assert [fill.text for fill in done.holes] == ["answer", "answer"]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert all("answer".startswith(event.holes[0].text) for event in partial)


async def test_leaving_the_events_cancels_the_job(one: Engine) -> None:
    await first_event(one, job("endless"))
    await status_when(one, lambda status: status.live == 0)
    assert await answer(one, job()) == "answer"


async def test_a_job_the_scheduler_cannot_take_fails_alone(one: Engine) -> None:
    other = await in_flight(one)
    with pytest.raises(EngineFailed, match="could not read") as failed:
        await answer(one, job("refuse"))
    assert failed.value.code == "invalid"
    assert not other.done()
    other.cancel()


@pytest.mark.parametrize("prefix", ["unreadable", "surrogate"])
async def test_an_answer_that_breaks_the_contract_fails_its_job_alone(one: Engine, prefix: str) -> None:
    other = await in_flight(one)
    before = await one.status()
    with pytest.raises(EngineFailed, match="could not"):
        await answer(one, job(prefix))
    await status_when(one, lambda status: status.live == 1)
    assert (await one.status()).worker_pid == before.worker_pid
    assert not other.done()
    other.cancel()


@pytest.mark.parametrize("prefix", ["x" * (wire.MAX_CONTEXT + 1), "\ud800"])
async def test_a_job_outside_the_bounds_is_refused_before_it_is_sent(one: Engine, prefix: str) -> None:
    with pytest.raises(EngineFailed, match="limits") as failed:
        await answer(one, job(prefix))
    assert failed.value.code == "invalid"


async def test_more_than_eight_jobs_at_once_are_too_many(one: Engine) -> None:
    await one.ready(READY_S)
    tasks = [asyncio.create_task(answer(one, job("endless", document=str(n)))) for n in range(9)]
    done, waiting = await asyncio.wait(tasks, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert [type(task.exception()) for task in done] == [EngineBusy]
    for task in waiting:
        task.cancel()


async def test_jobs_wait_for_the_model_and_the_newest_of_a_document_wins(runtime: Path) -> None:
    async with running(client("waits")) as found:
        await until(lambda: found.condition.progress == "reading, 40 %")
        assert (await found.status()).message == "reading, 40 %"
        old = asyncio.create_task(answer(found, job()))
        expired = asyncio.create_task(answer(found, job(document="other", deadline_ms=300)))
        await status_when(found, lambda status: status.queued == 2)
        new = asyncio.create_task(answer(found, job()))
        with pytest.raises(EngineFailed, match="superseded"):
            await old
        with pytest.raises(EngineFailed, match="not ready in time"):
            await expired
        (runtime / "go").touch()
        assert await new == "answer"
        assert (found.condition.progress, (await found.status()).message) == ("", "")


# Sharing


async def test_two_clients_share_one_engine(one: Engine) -> None:
    async with running(client()) as two:
        assert {*await asyncio.gather(answer(one, job()), answer(two, job()))} == {"answer"}
        first, second = await one.status(), await two.status()
        assert first.pid == second.pid
        assert second.peers == 2
        assert second.done == 2
        assert second.p50_ms["total"] == pytest.approx(12.1)


async def test_eight_simultaneous_first_clients_get_one_supervisor() -> None:
    clients = [client() for _ in range(8)]
    await asyncio.gather(*(c.start() for c in clients))
    await asyncio.gather(*(c.ready(READY_S) for c in clients))
    assert len({(await c.status()).pid for c in clients}) == 1
    assert len(rendezvous.running()) == 1
    await asyncio.gather(*(c.close() for c in clients))


@pytest.mark.long
@pytest.mark.parametrize("race", range(50))
async def test_sixty_four_simultaneous_first_clients_get_one_supervisor(race: int) -> None:
    clients = [client() for _ in range(64)]
    await asyncio.gather(*(c.start() for c in clients))
    await asyncio.gather(*(c.ready(20 * READY_S) for c in clients))
    assert {await answer(c, job(document=str(n))) for n, c in enumerate(clients)} == {"answer"}
    status = [await c.status() for c in clients]
    assert len({s.pid for s in status}) == len({s.worker_pid for s in status}) == len(rendezvous.running()) == 1
    assert status[-1].peers == 64
    await asyncio.gather(*(c.close() for c in clients))


async def test_the_engine_exits_when_nobody_has_used_it_for_a_while(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAESURA_IDLE_EXIT", "0.5")
    async with running(client()) as found:
        await found.ready(READY_S)
        status = await found.status()
    await until(lambda: not rendezvous.running())
    await until(lambda: not alive(status.worker_pid or 0))
    assert not list(runtime.glob("*.sock"))


async def test_a_hello_on_its_way_to_an_engine_that_ends_is_not_lost(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has decided to, because nobody is there, and holds its lock and its socket still."""
    monkeypatch.setenv("CAESURA_IDLE_EXIT", "0.5")
    points.plan(runtime, "closing", "stop")
    async with running(client()) as first:
        await first.ready(READY_S)
        ending = (await first.status()).pid
    await until(lambda: points.happened(runtime) is not None)
    async with running(client()) as second:
        await asyncio.sleep(0.2)  # nothing shows that a hello is in a socket that nobody reads
        os.kill(ending, signal.SIGCONT)
        began = time.monotonic()
        await second.ready(READY_S)
        assert time.monotonic() - began < 15.0  # 1.1 on an idle machine: a second without an answer, and the start
        assert await answer(second, job()) == "answer"
        assert len(rendezvous.running()) == 1
        await until(lambda: not alive(ending))


@pytest.mark.parametrize(("rounds", "idle_s"), [(2, 0.5), pytest.param(100, 0.3, marks=pytest.mark.slow)])
async def test_clients_that_come_when_an_idle_engine_ends_all_get_one(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, idle_s: float
) -> None:
    """So long after the last has left, or up to a turn later, it ends."""
    monkeypatch.setenv("CAESURA_IDLE_EXIT", str(idle_s))
    left, pid, kept, waited = time.monotonic(), 0, 0, list[float]()
    for number in range(rounds):
        come = left + 2.5 * idle_s * (number + 0.5) / rounds
        crowd = [client() for _ in range(3)]

        async def comes(late: Engine, at: float) -> int:
            await asyncio.sleep(at - time.monotonic())
            began = time.monotonic()
            await late.start()
            await late.ready(READY_S)
            waited.append(time.monotonic() - began)
            return (await late.status()).pid

        try:
            (one_pid,) = set(await asyncio.gather(*(comes(c, come + 0.005 * n) for n, c in enumerate(crowd))))
            assert [place.holder() is not None for place in rendezvous.running()] == [True]
            kept, pid = kept + (one_pid == pid), one_pid
        finally:
            await asyncio.gather(*(c.close() for c in crowd))
        left = time.monotonic()
    assert max(waited) < 10.0  # 1.0 on an idle machine
    assert rounds < 50 or 0 < kept < rounds - 1  # on both sides of the end


OLDER = f"""
import runpy, sys
from caesura.ipc import keys, rendezvous
rendezvous.BUILD, sys.argv = "0.0+older", [{str(FAKE)!r}, "fake"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


async def test_a_new_build_has_its_own_engine_and_the_old_one_ends_when_its_clients_have_left(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAESURA_IDLE_EXIT", "0.5")
    with monkeypatch.context() as before:
        before.setattr(rendezvous, "BUILD", "0.0+older")
        place = rendezvous.place("fake", "auto")
    older = Engine(client="older", model="fake", command=[sys.executable, "-c", OLDER], place=place)
    async with running(older):
        endless = await in_flight(older)
        async with running(client()) as newer:
            assert await answer(newer, job()) == "answer"
            old, new = await older.status(), await newer.status()
            assert (old.build, new.build) == ("0.0+older", rendezvous.BUILD)
            assert len({place.holder() for place in rendezvous.running()}) == len({old.pid, new.pid}) == 2
            assert (old.restarts, old.clients, old.live, endless.done()) == (0, ("older",), 1, False)
            endless.cancel()
            assert await answer(older, job()) == "answer"
            await older.close()
            await until(lambda: len(rendezvous.running()) == 1)
            await until(lambda: not alive(old.pid))
            assert await answer(newer, job()) == "answer"
            assert (await newer.status()).pid == new.pid


async def test_an_idle_model_is_unloaded_and_comes_back_with_the_next_job() -> None:
    async with running(client("unloads")) as found:
        assert await answer(found, job()) == "answer"
        status = await status_when(found, lambda status: status.state == "idle")
        assert status.worker_pid is None
        assert found.state == "ready"
        assert await answer(found, job()) == "answer"


async def test_stop_ends_the_engine_and_the_next_use_starts_another(one: Engine) -> None:
    await one.ready(READY_S)
    before = (await one.status()).pid
    await one.stop()
    await until(lambda: not rendezvous.running())
    with pytest.raises(EngineUnavailable, match="stopped"):
        await answer(one, job())
    await until(lambda: one.state == "ready", READY_S)
    assert await answer(one, job()) == "answer"
    assert (await one.status()).pid != before


async def test_sigterm_lets_a_running_job_end(one: Engine) -> None:
    await one.ready(READY_S)
    status = await one.status()
    events = one.infill(job())
    await anext(events)
    os.kill(status.pid, signal.SIGTERM)
    async for event in events:
        last = event
    assert isinstance(last, wire.Done)
    await until(lambda: not rendezvous.running())


async def test_an_engine_that_drains_rests(one: Engine) -> None:
    other = await in_flight(one)
    pid = (await one.status()).pid
    os.kill(pid, signal.SIGTERM)
    await asyncio.sleep(0.2)
    before = processor_s(pid)
    await asyncio.sleep(1.0)
    assert processor_s(pid) - before < 0.5
    with pytest.raises(EngineUnavailable, match="stopped"):
        await other


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Faults


async def test_a_scheduler_that_fails_in_a_step_is_replaced(one: Engine) -> None:
    with pytest.raises(EngineFailed) as failed:
        await answer(one, job("raise"))
    assert failed.value.code == "engine_lost"
    assert await answer(one, job()) == "answer"
    assert "the worker cannot go on" in (await log(one))


async def log(found: Engine) -> str:
    await found.status()
    return rendezvous.place("fake", "auto").log().read_text()


async def test_a_killed_worker_is_told_at_once_and_replaced(one: Engine) -> None:
    task = await in_flight(one)
    worker_pid = (await one.status()).worker_pid
    assert worker_pid
    killed = time.monotonic()
    os.kill(worker_pid, signal.SIGKILL)
    with pytest.raises(EngineFailed) as failed:
        await task
    assert failed.value.code == "engine_lost"
    assert time.monotonic() - killed < 1.0  # 5 ms on an idle machine
    assert await answer(one, job()) == "answer"
    status = await one.status()
    assert status.restarts == 1
    assert status.worker_pid != worker_pid


async def test_a_killed_supervisor_takes_its_worker_along_and_is_replaced(one: Engine) -> None:
    task = await in_flight(one)
    status = await one.status()
    os.kill(status.pid, signal.SIGKILL)
    with pytest.raises(EngineFailed) as failed:
        await task
    assert failed.value.code == "engine_lost"
    await until(lambda: not alive(status.worker_pid or 0))
    assert await answer(one, job()) == "answer"
    assert (await one.status()).pid != status.pid


CHILD = (
    "import os, sys, time; from caesura.engine.worker import die_with; "
    "die_with(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)"
)
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-P', '-c', sys.argv[1]]).wait()"


def test_a_worker_ends_with_its_parent_however_that_ends() -> None:
    parent = subprocess.Popen([sys.executable, "-P", "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    worker = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 1
        while alive(worker) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not alive(worker)
    finally:
        parent.stdout.close()
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


def test_a_worker_whose_parent_has_ended_before_it_began_ends_too() -> None:
    orphan = CHILD.replace("os.getppid()", "1 << 30")  # a process that there is not
    assert (
        subprocess.run([sys.executable, "-P", "-c", orphan], capture_output=True, check=True, timeout=20).stdout == b""
    )


async def test_a_hung_worker_is_killed(one: Engine) -> None:
    with pytest.raises(EngineFailed) as failed:
        await answer(one, job("hang"))
    assert failed.value.code == "engine_lost"
    assert await answer(one, job()) == "answer"


async def test_a_stopped_worker_is_killed(one: Engine) -> None:
    task = await in_flight(one)
    worker_pid = (await one.status()).worker_pid
    assert worker_pid
    os.kill(worker_pid, signal.SIGSTOP)
    with pytest.raises(EngineFailed) as failed:
        await task
    assert failed.value.code == "engine_lost"
    assert not alive(worker_pid)
    assert await answer(one, job()) == "answer"


async def test_an_idle_worker_that_is_stopped_is_noticed_and_replaced(one: Engine) -> None:
    await one.ready(READY_S)
    worker_pid = (await one.status()).worker_pid
    assert worker_pid
    os.kill(worker_pid, signal.SIGSTOP)
    stopped = time.monotonic()
    await status_when(one, lambda status: status.state != "ready")
    assert time.monotonic() - stopped < 10.0  # 2.2 s on an idle machine; patience is 1.5 s here, and a sign may be due
    assert await answer(one, job()) == "answer"
    assert not alive(worker_pid)


async def test_an_engine_that_dies_leaves_its_clients_no_descriptor(one: Engine) -> None:
    counts = []
    for _ in range(4):
        assert await answer(one, job()) == "answer"
        await asyncio.sleep(0.1)  # for what is closed in the background
        counts.append(len(os.listdir("/proc/self/fd")))
        os.kill((await one.status()).pid, signal.SIGKILL)
        with suppress(EngineFailed):  # as long as the client does not know
            await answer(one, job())
    assert counts[-1] <= counts[0]


async def test_an_engine_that_was_stopped_as_a_whole_goes_on_as_it_was(one: Engine) -> None:
    """Longer than a lease lasts and than a worker may be silent."""
    await one.ready(READY_S)
    before = await one.status()
    family = (before.pid, before.worker_pid or 0)
    context, endpoint = zmq.asyncio.Context(), Endpoint(f"ipc://{rendezvous.place('fake', 'auto').socket}")
    other = await Connection.open(context, endpoint, "other", 5.0)
    for number, pause in ((signal.SIGSTOP, 3.2), (signal.SIGCONT, 0.5)):
        for pid in family:
            os.kill(pid, number)
        await asyncio.sleep(pause)
    try:
        other.send(wire.encode(wire.Query()))
        async with asyncio.timeout(5):
            while not isinstance(after := wire.decode_engine(await other._socket.recv()), wire.Status):
                pass
    finally:
        other.close()
        context.destroy(linger=0)
    assert (after.pid, after.worker_pid, after.restarts) == (*family, 0)
    assert await answer(one, job()) == "answer"


async def test_a_client_that_was_stopped_has_its_next_job_answered(one: Engine) -> None:
    await one.ready(READY_S)
    time.sleep(3.2)  # nothing of it runs for longer than its lease lasts
    assert await answer(one, job()) == "answer"


def test_time_stands_still_with_its_process() -> None:
    readings = iter([100.0, 100.1, 100.2, 3700.2, 3700.3])
    clock = Clock(lambda: next(readings))
    began, first, stopped, last = (clock.now() for _ in range(4))
    assert (first - began, last - stopped) == pytest.approx((0.1, 0.1))
    assert 0 < stopped - first < 0.3


@dataclass
class Watched:
    """A worker that the supervisor watches, ready at second 100, whose steps took `step` seconds before."""

    step: float
    device: str = "cpu"
    now: float = 100.0

    def __post_init__(self) -> None:
        place = rendezvous.place("fake", "auto")
        self.process = subprocess.Popen(["sleep", "60"])
        self.steps = link.Heartbeat(place.progress)
        self.child = Child(zmq.Context.instance(), place, "fake", "auto")
        self.child._process = self.process
        self.child.loaded(link.Ready("fake", self.device, self.step), self.now)

    def shows(self, after: float, *, live: bool) -> None:
        """Progress, so many seconds after the last."""
        self.now += after
        self.steps.tick()
        assert self.child.death(self.now, live=live) is None

    def hangs_after(self, most: float, *, live: bool) -> None:
        assert self.child.death(self.now + most - 0.01, live=live) is None
        assert self.child.death(self.now + most + 0.01, live=live) == "made no progress and was killed"
        assert self.process.poll() == -signal.SIGKILL


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("made", [0, 3])
@pytest.mark.parametrize(("step", "most"), [(0.03, 2.5), (0.2, 4.0), (2.0, 10.0)])
def test_how_long_a_worker_may_be_silent_depends_on_the_machine(
    runtime: Path, step: float, most: float, made: int, live: bool
) -> None:
    worker = Watched(step)
    for _ in range(made):
        worker.shows(step, live=True)
    worker.hangs_after(most, live=live)


@pytest.mark.parametrize(
    ("share", "wants", "most"),
    [(0.0, False, 2.5), (1.0, True, 2.5), (0.25, True, 10.0), (0.0, True, 50.0)],
    ids=["it sleeps or is stopped", "it loops", "it loops on a busy machine", "the machine never runs it"],
)
def test_a_worker_hangs_by_the_time_that_the_machine_gives_it(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, share: float, wants: bool, most: float
) -> None:
    worker = Watched(0.03)
    began = now = worker.now
    monkeypatch.setattr("caesura.engine.supervisor.process.usage", lambda pid: Usage(share * (now - began), wants))
    while worker.child.death(now, live=True) is None:
        now += 0.1
    assert now - began == pytest.approx(most, rel=0.15)


def test_a_step_that_may_compile_has_longer_than_an_idle_worker(runtime: Path) -> None:
    Watched(0.03, "cuda").hangs_after(10.0, live=True)
    left = Watched(0.03, "cuda")
    left.shows(0.03, live=True)
    left.hangs_after(10.0, live=False)  # the client has left, the step goes on
    between = Watched(0.03, "cuda")
    between.shows(0.03, live=True)
    between.shows(0.03, live=False)  # it left at the end of a step, and the next one has begun
    between.hangs_after(10.0, live=False)
    idle = Watched(0.03, "cuda")
    idle.shows(0.5, live=False)
    idle.shows(0.5, live=False)
    idle.hangs_after(2.5, live=False)


def test_idle_time_before_a_job_is_no_step(runtime: Path) -> None:
    worker = Watched(0.03)
    worker.shows(0.5, live=False)
    assert worker.child.death(worker.now + 0.47, live=False) is None
    worker.shows(0.5, live=True)
    worker.hangs_after(2.5, live=True)


def test_a_worker_that_is_stuck_while_it_loads_is_killed_and_another_tries(runtime: Path) -> None:
    stuck = ["sh", "-c", "exec sleep 60"]
    worker = Child(zmq.Context.instance(), rendezvous.place("fake", "auto"), "fake", "auto", stuck)
    worker.demand(100.0)
    worker.start_if_due(100.0)
    first = worker.pid
    assert worker.death(399.9, live=True) is None
    assert worker.death(410.0, live=True) == "took too long to load its model"
    assert first
    assert not alive(first)
    worker.start_if_due(416.0)
    assert worker.pid not in (None, first)
    worker.stop()


def test_beside_a_worker_that_cannot_be_killed_there_is_no_other_and_nobody_waits(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs in a driver: no signal ends it until the driver lets it go."""
    sleeper = ["sh", "-c", "exec sleep 60"]
    worker = Child(zmq.Context.instance(), rendezvous.place("fake", "auto"), "fake", "auto", sleeper)
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: None)
    worker.demand(100.0)
    worker.start_if_due(100.0)
    first = worker._process
    assert first
    try:
        began = time.monotonic()
        assert worker.death(400.1, live=True) == "took too long to load its model"
        assert time.monotonic() - began < shared.HELLO_S
        worker.start_if_due(401.0)
        assert (worker.state, worker.pid) == ("loading", None)
        worker.start_if_due(412.0)
        assert (worker.state, worker.pid) == ("failed", None)
        assert "does not end" in worker.message
        assert not worker.demand(415.0)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert worker.demand(415.0)
        worker.start_if_due(415.0)
        assert worker.pid not in (None, first.pid)
    finally:
        monkeypatch.setattr(subprocess.Popen, "kill", kill)
        first.kill()
        worker.stop()


def test_a_model_that_takes_long_to_be_refused_is_not_read_again_at_once(runtime: Path) -> None:
    worker = Child(zmq.Context.instance(), rendezvous.place("fake", "auto"), "fake", "auto", ["sleep", "60"])
    worker.demand(100.0)
    worker.start_if_due(100.0)
    worker.refused(link.LoadFailed("There is not enough memory."), 160.0)
    assert not worker.demand(219.0)
    assert worker.message == "There is not enough memory."
    assert worker.demand(221.0)


async def test_a_full_disk_stops_no_engine_that_runs(one: Engine) -> None:
    await one.ready(READY_S)
    status = await one.status()
    assert status.worker_pid
    for pid in (status.pid, status.worker_pid):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
    assert await answer(one, job()) == "answer"
    with pytest.raises(EngineFailed):
        await answer(one, job("raise"))  # logs a traceback, and the next worker has the same limit
    assert await answer(one, job()) == "answer"
    assert (await one.status()).pid == status.pid


@pytest.mark.parametrize(
    "begin", [EnginePlace.acquire, lambda place: link.Heartbeat(place.progress)], ids=["lock", "progress"]
)
def test_where_the_disk_is_full_an_engine_that_starts_says_so_and_what_to_do(
    runtime: Path, begin: Callable[[EnginePlace], object]
) -> None:
    place, (soft, hard) = rendezvous.place("fake", "auto"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(
            rendezvous.NoPlace, match=rf"^An engine cannot write to {runtime}: .* CAESURA_RUNTIME .*\.$"
        ):
            begin(place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert begin(place)


async def test_where_no_log_can_be_written_the_engine_works_and_says_so_once(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a home that is read-only, full or another user's."""
    (runtime / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(runtime / "file"))
    for _ in range(2):
        async with running(client()) as found:
            assert await answer(found, job()) == "answer"
            await found.stop()
    (told,) = [message for message in caplog.messages if "log" in message]
    assert told == f"The engine runs without a log: {runtime / 'file' / 'caesura' / 'log'}: Not a directory."
    monkeypatch.setattr("caesura.client.launch.BACKOFF_S", (0.001, 0.01))
    async with running(Engine(client="test", command=[sys.executable, "-c", "raise SystemExit(1)"])) as found:
        with pytest.raises(EngineUnavailable, match=r"did not start in 5 tries; it has no log, since .* be written\.$"):
            await found.ready(READY_S)


async def test_where_memory_runs_out_the_worker_goes_first(one: Engine) -> None:
    await one.ready(READY_S)
    status = await one.status()
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (status.pid, status.worker_pid)]
    assert scores[1] == 500 > scores[0]


async def test_a_stuck_supervisor_is_replaced(one: Engine) -> None:
    await one.ready(READY_S)
    stuck = (await one.status()).pid
    os.kill(stuck, signal.SIGSTOP)
    async with running(client()) as two:
        assert await answer(two, job()) == "answer"
        assert (await two.status()).pid != stuck
    assert not alive(stuck)


async def test_a_supervisor_that_the_machine_is_too_busy_to_run_is_waited_for(
    one: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped here, and is said to wait for a processor."""
    waiting = await in_flight(one)
    pid = (await one.status()).pid
    for module in ("launch", "connection"):
        monkeypatch.setattr(f"caesura.client.{module}.usage", lambda pid: Usage(0.0, True))
    os.kill(pid, signal.SIGSTOP)
    async with running(client()) as two:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(shared, "HELLO_S", 0.25)
                await asyncio.sleep(3.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert await answer(two, job()) == "answer"
        assert (await two.status()).pid == pid
    assert not waiting.done()
    waiting.cancel()


async def test_a_job_that_has_stopped_the_engine_twice_is_refused(one: Engine) -> None:
    for _ in range(2):
        with pytest.raises(EngineFailed) as failed:
            await answer(one, job("crash"))
        assert failed.value.code == "engine_lost"
    with pytest.raises(EngineFailed, match="refused"):
        await answer(one, job("crash", document="another"))
    assert await answer(one, job()) == "answer"


def test_a_slow_client_gets_the_newest_of_each_kind(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    front = Front(context, runtime / "front.sock")
    sent: list[wire.EngineMessage] = []
    slow = True

    def send(peer: bytes, frame: bytes) -> bool:
        sent.extend([] if slow else [wire.decode_engine(frame)])
        return not slow

    monkeypatch.setattr(front, "_sent", send)
    messages = [wire.Busy("i"), wire.Failed("j", "expired"), wire.Pong(1), wire.Pong(2)]
    for message in messages:
        front.send(b"p", message)
    slow = False
    front.flush(time.monotonic())
    assert sent == [messages[0], messages[1], messages[3]]
    front.close()
    context.term()


async def test_a_model_that_cannot_be_loaded_is_reported_in_its_own_words() -> None:
    async with running(client("unknown")) as found:
        with pytest.raises(EngineUnavailable, match="There is no model 'unknown'"):
            await found.ready(READY_S)
        with pytest.raises(EngineUnavailable, match="There is no model 'unknown'"):
            await answer(found, job())
        assert found.state == "unavailable"


async def test_a_hostile_model_file_is_a_sentence_and_no_crash(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    file = json.loads((folder / "tokenizer.json").read_text())
    grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    file["normalizer"] = {"type": "Sequence", "normalizers": [grow] * 10}  # the library would end the process
    (folder / "tokenizer.json").write_text(json.dumps(file))
    write_manifest(folder, {})
    async with running(Engine(client="test", model=str(folder))) as found:
        with pytest.raises(EngineUnavailable, match=r"tokenizer\.json is .*damaged"):
            await found.ready(5 * READY_S)
        status = await found.status()
        assert (status.state, status.restarts) == ("failed", 0)


async def test_an_engine_that_always_crashes_is_given_up() -> None:
    async with running(client("crasher")) as found:
        with pytest.raises(EngineUnavailable, match="ended with code 3"):
            await found.ready(READY_S)
        with pytest.raises(EngineUnavailable):
            await answer(found, job())
        assert (await found.status()).worker_pid is None


async def test_a_command_that_cannot_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.client.launch.BACKOFF_S", (0.001, 0.01))
    async with running(Engine(client="test", command=[sys.executable, "-c", "raise SystemExit(1)"])) as found:
        with pytest.raises(EngineUnavailable, match="did not start in 5 tries"):
            await found.ready(READY_S)


async def test_without_spawn_a_missing_engine_is_reported_at_once() -> None:
    async with running(client(spawn=False)) as found:
        with pytest.raises(EngineUnavailable, match="No engine is running"):
            await found.ready(READY_S)


async def test_a_client_without_room_for_a_socket_says_so_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its process has too many files open."""
    full = AsyncMock(side_effect=zmq.ZMQError(errno.EMFILE))
    monkeypatch.setattr("caesura.client.shared.PAUSE_S", 0.0)
    async with running(client()) as found:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "open", full)
            with pytest.raises(EngineUnavailable, match="cannot be reached: Too many open files"):
                await found.ready(READY_S)
        await until(lambda: not found._asked.is_set())  # it waits for somebody to ask
        with pytest.raises(EngineUnavailable):
            await answer(found, job())
        await until(lambda: found.state == "ready", READY_S)


async def test_another_protocol_is_answered(one: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.ready(READY_S)
    place = rendezvous.place("fake", "auto")
    monkeypatch.setattr(wire, "PROTOCOL", wire.PROTOCOL + 1)
    async with running(client(place=place)) as newer:
        with pytest.raises(EngineUnavailable, match=f"speaks protocol {wire.PROTOCOL - 1}"):
            await newer.ready(READY_S)


# Strangers


@pytest.fixture
async def stranger(one: Engine) -> AsyncIterator[zmq.asyncio.Socket]:
    """A bare socket at the engine's door."""
    await one.ready(READY_S)
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"ipc://{rendezvous.place('fake', 'auto').socket}")
    yield socket
    context.destroy(linger=0)


async def test_a_client_that_did_not_wait_for_its_welcome_has_no_lease(one: Engine) -> None:
    await one.ready(READY_S)
    pid = (await one.status()).pid
    context, endpoint = zmq.asyncio.Context(), Endpoint(f"ipc://{rendezvous.place('fake', 'auto').socket}")
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            with pytest.raises(Unanswered):
                await Connection.open(context, endpoint, "test", 0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    await status_when(one, lambda status: status.peers == 1, 2.0)  # before a lease of 3 seconds could end
    context.destroy(linger=0)


async def test_what_nobody_could_have_meant_is_dropped_and_counted(one: Engine, stranger: zmq.asyncio.Socket) -> None:
    nonsense = [
        [b""],
        [b"\x81\xa1a" * 50_000],
        [os.urandom(1000)],
        [b"", wire.encode(wire.Ping())],
        [wire.encode(wire.Ping())] * 3,
        [wire.encode(wire.Pong(1))],
        [wire.encode(job())],  # before its hello
        [wire.encode(wire.Stop())],
    ]
    for frames in nonsense:
        await stranger.send_multipart(frames)
    await status_when(one, lambda status: status.dropped == len(nonsense))
    assert await answer(one, job()) == "answer"
    assert (await one.status()).peers == 1


async def test_a_frame_that_is_too_large_ends_only_its_senders_connection(
    one: Engine, stranger: zmq.asyncio.Socket
) -> None:
    await stranger.send(b"x" * (wire.MAX_FRAME + 1))
    assert await answer(one, job()) == "answer"
    assert (await one.status()).dropped == 0  # it was not read


def test_an_old_libzmq_is_told_in_a_sentence(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    with (
        zmq.Context() as context,
        pytest.raises(CannotListen, match=r"^libzmq .* is too old; install pyzmq with .*\.$"),
    ):
        Front(context, runtime / "front.sock")


def test_of_a_frame_that_is_too_large_nothing_is_read(runtime: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
        front = Front(context, runtime / "front.sock")
        sender.connect(f"ipc://{runtime / 'front.sock'}")
        read = []
        for size, wait_s in ((wire.MAX_FRAME, READY_S), (wire.MAX_FRAME + 1, 0.5)):
            sender.send(bytes(size))  # which no decoder takes
            deadline = time.monotonic() + wait_s
            while (received := front.receive()) is None and time.monotonic() < deadline:
                time.sleep(0.001)
            read.append(received is not None)
        front.close()
    assert read == [True, False]


async def test_a_client_that_floods_and_never_reads_holds_up_nobody(one: Engine, stranger: zmq.asyncio.Socket) -> None:
    await stranger.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", "flood")))
    memory = (await one.status()).memory_mb
    for _ in range(20_000):
        await stranger.send(wire.encode(wire.Query()))
    assert await answer(one, job()) == "answer"
    assert (await one.status()).memory_mb < memory + 20


async def test_a_client_that_falls_silent_loses_its_jobs(one: Engine, stranger: zmq.asyncio.Socket) -> None:
    await stranger.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", "silent")))
    await stranger.send(wire.encode(job("endless")))
    await status_when(one, lambda status: status.live == 1)
    status = await status_when(one, lambda status: status.live == 0)
    assert status.peers == 1


# The runtime folder


async def test_a_folder_open_to_others_is_refused(runtime: Path) -> None:
    runtime.chmod(0o755)
    async with running(client()) as found:
        with pytest.raises(EngineUnavailable, match="chmod 700"):
            await found.ready(READY_S)


def test_a_linked_folder_is_refused(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(runtime)
    monkeypatch.setenv("CAESURA_RUNTIME", str(tmp_path / "link"))
    with pytest.raises(paths.UnsafeFolder, match="symbolic link"):
        rendezvous.place("fake", "auto")


def test_a_folder_of_another_user_is_refused(runtime: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getuid", partial(int, os.getuid() + 1))
        with pytest.raises(paths.UnsafeFolder, match="belongs to another user; set CAESURA_RUNTIME"):
            rendezvous.place("fake", "auto")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of another user, in which we may write."""
    folder, stat = tmp_path / "theirs", Path.stat
    folder.mkdir()
    number = folder.stat().st_ino

    def seen(path: Path, **more: bool) -> os.stat_result:
        state = stat(path, **more)
        return os.stat_result((*state[:4], os.getuid() + 1, *state[5:10])) if state.st_ino == number else state

    monkeypatch.setattr(Path, "stat", seen)
    return folder


@pytest.mark.parametrize("session", ["theirs", "a link to theirs", "ours, and the engine's in it theirs", "missing"])
def test_a_session_of_another_user_gets_no_folder_of_ours(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """As after `sudo -E`: that user could start no engine any more."""
    (tmp_path / "a link to theirs").symlink_to(theirs)
    (tmp_path / "ours, and the engine's in it theirs").mkdir()
    (tmp_path / "ours, and the engine's in it theirs" / "caesura").symlink_to(theirs)
    monkeypatch.delenv("CAESURA_RUNTIME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / session))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert paths.runtime() == tmp_path / f"caesura-{os.getuid()}"
    assert list(theirs.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "makes"),
    [
        ("CAESURA_RUNTIME", paths.runtime),
        ("XDG_DATA_HOME", partial(models.place, "big")),
        ("XDG_CONFIG_HOME", keys.own_keys),
        ("XDG_STATE_HOME", lambda: store.append(paths.logs() / "trace.jsonl", b"")),
    ],
)
def test_a_home_of_another_user_gets_no_folder_of_ours(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, variable: str, makes: Callable[[], object]
) -> None:
    monkeypatch.setenv(variable, str(theirs / "of root"))
    with pytest.raises(paths.UnsafeFolder, match=f"since {theirs} belongs to another user; set .* of your own"):
        makes()
    assert list(theirs.iterdir()) == []


def test_one_process_at_a_time_is_the_engine(runtime: Path) -> None:
    place = rendezvous.place("fake", "auto")
    with place.acquire() or nullcontext() as lock:
        assert lock is not None
        assert place.acquire() is None
    with place.acquire() or nullcontext() as again:
        assert again is not None


def test_a_user_without_a_name_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAESURA_RUNTIME")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)
    assert paths.runtime() == tmp_path / f"caesura-{os.getuid()}"


def test_the_small_model_has_one_engine_whatever_the_device() -> None:
    assert len({rendezvous.place("small", device) for device in ("auto", "cpu", "cuda")}) == 1
    assert rendezvous.place("fake", "cpu") != rendezvous.place("fake", "cuda")


def test_a_runtime_folder_that_cannot_be_written_is_a_sentence(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runtime / "file").touch()
    monkeypatch.setenv("CAESURA_RUNTIME", str(runtime / "file" / "run"))
    with pytest.raises(rendezvous.NoPlace, match=r"^/.*/run: Not a directory\. Set CAESURA_RUNTIME to .*\.$"):
        rendezvous.place("fake", "auto")


def test_a_path_too_long_for_a_socket_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAESURA_RUNTIME", str(runtime / ("x" * 100)))
    with pytest.raises(rendezvous.NoPlace, match="CAESURA_RUNTIME"):
        rendezvous.place("fake", "auto")


async def test_sockets_and_locks_are_the_users_own(one: Engine, runtime: Path) -> None:
    await one.ready(READY_S)
    assert {path.stat().st_mode & 0o077 for path in runtime.glob("e-*")} == {0}
