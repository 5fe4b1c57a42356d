"""Where libzmq knows no Unix sockets, as on Windows, clients, engine and worker meet at ports of 127.0.0.1, and nobody
else is let in who can reach them: real processes as in test_processes.py."""

import dataclasses
import os
import signal
import stat
import time
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from caesura.client.connection import Connection, Unanswered
from caesura.client.shared import Engine
from caesura.engine.supervisor import admission, link
from caesura.engine.supervisor.admission import Gate
from caesura.ipc import endpoints, rendezvous
from caesura.ipc.keys import new_keys

from ..supervisor.test_processes import client, one, runtime  # noqa: F401 (fixtures)
from ..support.clients import READY_S, answer, job, running, status_when, until


@pytest.fixture(autouse=True)
def ports(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:  # noqa: F811
    monkeypatch.setattr(endpoints, "UNIX", False)
    monkeypatch.setenv("CAESURA_TEST_PLATFORM", "win32")  # to fake_engine.py


def place() -> rendezvous.EnginePlace:
    (found,) = rendezvous.running()
    return found


async def test_jobs_are_answered_and_a_worker_that_dies_is_replaced(one: Engine) -> None:  # noqa: F811
    assert await answer(one, job()) == "answer"
    os.kill((await one.status()).worker_pid or 0, signal.SIGKILL)
    await status_when(one, lambda status: status.restarts == 1)
    assert await answer(one, job()) == "answer"
    assert place().socket.lstat().st_mode == stat.S_IFREG | 0o600


async def test_several_clients_share_one_engine(one: Engine) -> None:  # noqa: F811
    async with running(client()) as other:
        assert (await other.status()).pid == (await one.status()).pid
        assert await answer(other, job()) == "answer"


async def test_what_a_killed_engine_left_leads_nobody_astray(one: Engine) -> None:  # noqa: F811
    before = await one.status()
    os.kill(before.pid, signal.SIGKILL)
    async with running(client()) as other:
        assert await answer(other, job()) == "answer"
        assert (await other.status()).pid != before.pid


async def test_an_engine_that_ends_takes_its_port_away(one: Engine) -> None:  # noqa: F811
    assert await answer(one, job()) == "answer"
    found = place()
    await one.stop()
    await until(lambda: not found.holder())
    assert not found.socket.exists()


async def hello(endpoint: endpoints.Endpoint, wait_s: float = 0.7) -> bool:
    """Whether the engine answers."""
    context = zmq.asyncio.Context()
    try:
        (await Connection.open(context, endpoint, "stranger", wait_s)).close()
    except Unanswered:
        return False
    finally:
        context.destroy(linger=0)
    return True


async def test_who_cannot_read_the_file_is_not_let_in(one: Engine) -> None:  # noqa: F811
    assert await answer(one, job()) == "answer"
    endpoint = endpoints.at(place().socket)
    assert await hello(endpoint, READY_S)
    assert not await hello(endpoints.Endpoint(endpoint.address))
    assert not await hello(dataclasses.replace(endpoint, keys=new_keys()))
    assert not await hello(dataclasses.replace(endpoint, server=new_keys().public))
    (worker,) = place().stem.parent.glob("*.w*")
    assert not await hello(dataclasses.replace(endpoint, keys=endpoints.at(worker).keys))
    assert len((await one.status()).clients) == 1


def test_the_first_at_the_door_of_the_worker_is_the_worker(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    asked, supervisor = Gate(context, lambda key: True), link.pair(context)
    admission.listen(supervisor, tmp_path / "w")
    endpoint = endpoints.at(tmp_path / "w")
    assert endpoint.keys
    comers = [endpoints.Endpoint(endpoint.address), dataclasses.replace(endpoint, keys=new_keys()), endpoint]
    ends = [link.pair(context) for _ in comers]
    try:
        for end, comer in zip(ends, comers, strict=True):
            endpoints.connect(end, comer)
            end.send(comer.keys.public if comer.keys else b"nobody", zmq.NOBLOCK)
            deadline = time.monotonic() + (READY_S if comer is endpoint else 0.5)
            while time.monotonic() < deadline and not supervisor.poll(5):
                asked.answer()
        assert supervisor.recv(zmq.NOBLOCK) == endpoint.keys.public
        assert not supervisor.poll(50)
    finally:
        for socket in (asked.socket, supervisor, *ends):
            socket.close()
        context.term()
