"""A team's door with real keys, a real relay and real gRPC; replicas are plain servers that can be killed. What a user
sees when one of these parts breaks."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caesura import wire
from caesura.client.backend import EngineFailed, EngineUnavailable
from caesura.client.shared import Engine
from caesura.ipc import pairing

from ..supervisor.test_processes import READY_S, answer, job, running, until
from ..supervisor.test_remote import Machine, client, free_port, home, laptop, listens  # noqa: F401 (two are fixtures)

pytestmark = pytest.mark.cluster
REPLICA = Path(__file__).parent / "grpc_replica.py"
MODELS = ("fake", "typed", "empty", "unknown")  # of fake_engine.py
LOST_S = 0.1  # by then every job of a lost replica has its answer


@dataclass(frozen=True)
class Team(Machine):
    """The machine of a door and of its replica."""

    address: str = ""
    engine: str = ""
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """With a short path, for Ray's sockets."""
        return super().environment | {"CAESURA_RUNTIME": f"{tempfile.gettempdir()}/c-{self.home.parent.name[8:]}"}

    def begin(self, name: str, *command: str) -> None:
        log = (self.home / f"{name}.log").open("ab")
        environment = os.environ | self.environment
        self.processes[name] = subprocess.Popen([sys.executable, *command], env=environment, stdout=log, stderr=log)

    def replica(self, fake: str = "fake", protocol: int = wire.PROTOCOL) -> None:
        """Whose model of that name is `fake`."""
        models = [f"{name}={fake if name == 'fake' else name}" for name in MODELS]
        self.begin("replica", str(REPLICA), self.engine.rpartition(":")[2], str(protocol), "2", *models)

    def door(self) -> None:
        self.begin("door", "-P", "-m", "caesura", "team", "serve", str(self.home / "team.toml"))

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def relay(self) -> int:
        children = Path(f"/proc/{self.processes['door'].pid}/task/{self.processes['door'].pid}/children")
        return int(children.read_text().split()[0])

    def log(self) -> str:
        return (self.home / "door.log").read_text()


@pytest.fixture
async def team(home: Path, laptop: Machine) -> AsyncIterator[Team]:  # noqa: F811
    """A door that lets the laptop in, and that the laptop knows, with one replica."""
    found = Team(home / "desk", f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    assert found.run("team", "invite", "anna", laptop.key()) == 0
    assert laptop.run("pair", "with", found.address, found.key(), "--name", "team") == 0
    (found.home / "team.toml").write_text(
        f'listen = "{found.address}"\n[limits]\njobs = 3\n'
        f'[engine]\naddress = "{found.engine}"\nmodel = "fake"\nmodels = ["typed", "empty", "unknown"]\n'
    )
    found.replica()
    found.door()
    await until(lambda: listens(found.address), READY_S)
    yield found
    for process in found.processes.values():
        process.kill()
        process.wait()


async def started(events: AsyncIterator[object]) -> None:
    """A job that will not end has been taken by the replica."""
    assert isinstance(await anext(events), wire.Locked)


async def to_its_end(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


async def test_an_invited_user_gets_fills_from_the_first_document_to_the_last(team: Team) -> None:
    async with running(client()) as found:
        welcome = await found.ready(READY_S)
        assert welcome.device == "fake"
        assert [await answer(found, job(document=f"{n}")) for n in range(150)] == ["answer"] * 150


async def test_a_user_who_is_revoked_is_out(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        assert team.run("team", "revoke", "anna") == 0
        await until(lambda: found.state == "unavailable")


async def test_every_cancel_arrives(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        for _ in range(50):
            async with aclosing(found.infill(job("endless"))) as events:
                await started(events)
        assert await answer(found, job(document="other")) == "answer"
        status = await found.status()
        await until(lambda: status.live <= 1)
        assert (await found.status()).live == 0


async def test_a_replica_that_is_killed_fails_each_job_at_once_and_the_next_one_is_served(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        streams = [found.infill(job("endless", document=name)) for name in "abc"]
        for events in streams:
            await started(events)
        team.kill("replica")
        killed = time.monotonic()
        for events in streams:
            with pytest.raises(EngineFailed, match=r"^The engine's replica was lost in the middle of the job\.$"):
                await to_its_end(events)
        assert time.monotonic() - killed < LOST_S
        with pytest.raises(EngineUnavailable, match=r"^The team's engine cannot be reached"):
            await answer(found, job())
        team.replica()
        port = int(team.engine.rpartition(":")[2])
        await until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, READY_S)
        await served(found, 3.0)


async def served(found: Engine, within_s: float, with_text: str = "answer") -> None:
    """Ask until there is an answer."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            assert await answer(found, job()) == with_text
            return
        except EngineUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_a_relay_that_is_killed_is_replaced_and_its_jobs_are_answered(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        events = found.infill(job("endless"))
        await started(events)
        os.kill(team.relay(), 9)
        killed = time.monotonic()
        with pytest.raises(EngineFailed, match="stopped in the middle of the job"):
            await to_its_end(events)
        assert time.monotonic() - killed < LOST_S
        assert await answer(found, job()) == "answer"


async def test_a_door_that_is_started_again_is_found_again(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        events = found.infill(job("endless"))
        await started(events)
        team.kill("door")
        with pytest.raises(EngineFailed):
            await to_its_end(events)
        team.door()
        await until(lambda: listens(team.address), READY_S)
        await served(found, READY_S)


async def test_one_user_gets_so_many_jobs_and_no_log_has_what_they_hold(team: Team) -> None:
    async with running(client()) as found, running(client()) as other:
        await found.ready(READY_S)
        await other.ready(READY_S)
        streams = [found.infill(job("endless", document=name)) for name in ("a_secret", "b", "c")]
        for events in streams:
            await started(events)
        with pytest.raises(Exception, match="too much to do"):
            await answer(other, job("word_of_the_text"))
        for events in streams:
            await events.aclose()
        team.kill("replica")
        with pytest.raises((EngineUnavailable, EngineFailed)) as error:
            await answer(other, job("word_of_the_text"))
        assert not any(part in str(error.value) for part in ("127.0.0.1", "grpc", "Traceback", team.engine))
    for log in team.home.glob("*.log"):
        text = log.read_text()
        assert "word_of_the_text" not in text
        assert "a_secret" not in text


async def test_a_door_that_its_configuration_does_not_fit_says_so(laptop: Machine, home: Path) -> None:  # noqa: F811
    path = home / "team.toml"
    path.write_text("listen = 3")
    assert laptop.run("team", "serve", str(path)) == 1
    assert pairing.pairs().clients == ()
