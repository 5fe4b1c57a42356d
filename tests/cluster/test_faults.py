"""Several users at one door: what one of them does, or a replica, is nothing that another notices."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import psutil
import pytest
import zmq

from caesura import wire
from caesura.client.backend import EngineError, EngineFailed, EngineUnavailable
from caesura.client.shared import Engine
from caesura.ipc.keys import own_keys

from ..support.clients import READY_S, answer, job, running, until
from ..support.machines import Machine, client, dealer, listens
from ..support.planted import leaked, planted, secrets_sent, written
from ..support.processes.fake_engine import said
from ..support.team import Team, served, started, to_its_end

pytestmark = pytest.mark.cluster
LARGE = "x" * 100_000
FLOOD = 1500  # large jobs
GREW = 64 << 20  # bytes; the flood has more than twice as many
KEY_S = 0.002  # so slowly that the door passes each key on
PROMPT_S = 2.0  # generous: a busy machine


@pytest.fixture
async def ben(team: Team) -> AsyncIterator[Engine]:
    """A second user, connected."""
    machine = Machine(team.home.parent / "bens")
    team.let_in(machine, "ben")
    async with AsyncExitStack() as stack:
        with machine.at():
            found = await stack.enter_async_context(running(client()))
            await found.ready(READY_S)
        yield found


def memory(found: Team) -> int:
    """Bytes of the door, its relay and the replica."""
    door = psutil.Process(found.processes["door"].pid)
    processes = [door, *door.children(recursive=True), psutil.Process(found.processes["replica"].pid)]
    return sum(int(process.memory_info().rss) for process in processes)


async def greeted(found: Team) -> "zmq.Socket[bytes]":
    """A client that is only a socket: it sends without end, and reads what the test reads."""
    raw = dealer(found.address, found.key(), own_keys())
    raw.setsockopt(zmq.SNDHWM, 0)
    raw.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", "raw")))
    while await asyncio.to_thread(raw.poll, READY_S * 1000):
        welcome = wire.decode_engine(raw.recv())
        assert isinstance(welcome, wire.Welcome)
        if welcome.state == "ready":
            return raw
    raise AssertionError("the engine is not ready")


async def test_a_user_who_floods_and_reads_nothing_costs_neither_memory_nor_others_their_answers(
    team: Team,
    ben: Engine,
) -> None:
    flood, before = await greeted(team), memory(team)
    for number in range(FLOOD):
        flood.send(wire.encode(job(f"{number}{LARGE}", document=f"{number % 4}")))
        if number % 100 == 0:
            async with asyncio.timeout(PROMPT_S):
                assert await answer(ben, job(document="bens")) == "answer"
    assert memory(team) - before < GREW
    flood.close()


async def test_a_replica_that_stands_still_costs_no_memory_however_much_is_typed(team: Team, ben: Engine) -> None:
    assert await answer(ben, job()) == "answer"
    typist, before = await greeted(team), memory(team)
    team.processes["replica"].send_signal(signal.SIGSTOP)
    for number in range(FLOOD):
        typist.send(wire.encode(job(f"{number}{LARGE}")))
        await asyncio.sleep(KEY_S)
    while wire.job_of(await asyncio.to_thread(typist.recv)) is None:
        pass  # the first refusals: the flood has arrived
    with pytest.raises(EngineError):
        await answer(ben, job(deadline_ms=1000))
    assert memory(team) - before < GREW
    team.processes["replica"].send_signal(signal.SIGCONT)
    await served(ben, READY_S)
    typist.close()


async def test_a_user_sees_no_names_of_the_others_editors(team: Team, ben: Engine) -> None:
    async with running(client("annas editor")) as anna:
        await anna.ready(READY_S)
        assert [(await found.status()).clients for found in (anna, ben)] == [("annas editor",), ("test",)]
        assert (await ben.status()).peers == 2


async def test_users_with_the_same_document_and_job_get_each_their_own_answer_also_after_a_loss(
    team: Team,
    ben: Engine,
) -> None:
    async with running(client()) as anna:
        await anna.ready(READY_S)
        mine, theirs = (found.infill(job("endless", document="main.py")) for found in (anna, ben))
        await started(mine)
        await started(theirs)
        await mine.aclose()
        await started(theirs)  # a cancel ends one's own job only
        team.kill("replica")
        with pytest.raises(EngineFailed, match="replica was lost"):
            await to_its_end(theirs)
        team.replica("typed")
        await until(lambda: listens(team.engine), READY_S)
        await served(anna, READY_S, said(""))
        for turn in range(5):
            texts = [f"of anna {turn}", f"of ben {turn}"]
            same = [msgspec.structs.replace(job(text, document="main.py"), job=f"job {turn}") for text in texts]
            asked = [answer(found, one) for found, one in zip((anna, ben), same, strict=True)]
            assert await asyncio.gather(*asked) == [said(text) for text in texts]


async def test_every_job_of_a_storm_in_which_a_replica_is_lost_is_answered_once(team: Team) -> None:
    raw = await greeted(team)
    ends, asked = Counter[str](), set[str]()

    def hear(wait_ms: int) -> None:
        until = time.monotonic() + wait_ms / 1000  # on a fast machine an endless job's events leave no pause
        while (left := until - time.monotonic()) > 0 and raw.poll(left * 1000):
            message = wire.decode_engine(raw.recv())
            if isinstance(message, wire.Done | wire.Failed | wire.Busy):
                ends[message.job] += 1

    for number in range(120):
        request = job("endless" if number % 5 else "", document=f"{number % 4}", deadline_ms=3000)
        asked.add(request.job)
        raw.send(wire.encode(request))
        if number == 60:
            team.kill("replica")
        if number == 90:
            team.replica()
        hear(5)
        raw.send(wire.encode(wire.Ping()))
    deadline = time.monotonic() + READY_S
    while set(ends) != asked:
        assert time.monotonic() < deadline, asked - set(ends)
        raw.send(wire.encode(wire.Ping()))
        hear(100)
    hear(500)  # nothing comes after an end
    assert ends == Counter(asked)
    raw.close()


async def test_a_replica_of_another_version_is_told_and_one_of_ours_in_its_place_serves(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        team.kill("replica")
        team.replica(protocol=wire.PROTOCOL + 1)
        await until(lambda: listens(team.engine), READY_S)
        with pytest.raises(EngineUnavailable, match="The team's engine is of another version than its door"):
            await answer_once_reached(found)
        team.kill("replica")
        team.replica()
        await until(lambda: listens(team.engine), READY_S)
        await served(found, READY_S)


async def answer_once_reached(found: Engine) -> None:
    """As `answer`, but a replica that cannot be reached yet is asked again."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            await answer(found, job())
        except EngineUnavailable as error:
            if "cannot be reached" not in str(error):
                raise
        await asyncio.sleep(0.05)


# Secrets


async def test_fifty_secrets_are_in_no_log_and_in_nothing_that_users_are_told(team: Team) -> None:
    (who, editor), jobs = planted()
    machine = Machine(team.home.parent / "another")
    team.let_in(machine, who)
    with machine.at():
        async with running(client(editor)) as found:
            await found.ready(READY_S)
            told = await secrets_sent(found, jobs)
            events = found.infill(job("endless", document=f"/home/{jobs[0]}"))
            await started(events)
            team.kill("replica")
            with pytest.raises(EngineFailed) as error:
                await to_its_end(events)
            told.append(str(error.value))
            assert team.run("team", "revoke", who) == 0
            await until(lambda: found.state == "unavailable")
    assert any(path.name == "door.log" for path in written(team))
    assert leaked([who, editor, *jobs], written(team), told) == []
