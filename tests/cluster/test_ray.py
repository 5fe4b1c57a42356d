"""A team on a real Ray Serve with two replicas of a tiny model: a minute, once for the whole file."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from caesura import wire
from caesura.client.backend import EngineError, EngineFailed
from caesura.client.shared import Engine
from caesura.cluster import isolation
from caesura.ipc import rendezvous

from ..supervisor.test_processes import answer, job, running, until
from ..supervisor.test_remote import Machine, client, free_port, home, laptop, listens  # noqa: F401 (two are fixtures)
from ..support.checkpoints.tiny import make
from .test_door import Team, started, to_its_end

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(sys.platform != "linux", reason="Ray is started on Linux alone")]
TEXT = "def total(count, item):\n    return "
START_S = 120.0
RAYS = (8000, 9000, 8265, 8404, 8500, 9101, 9500, 30000, 40000)  # ports that Ray and HAProxy listen at in their network


@pytest.fixture
def team(
    home: Path,  # noqa: F811
    laptop: Machine,  # noqa: F811
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Team]:
    found = Team(home / "desk", f"127.0.0.1:{free_port()}")
    assert found.run("team", "invite", "anna", laptop.key()) == 0
    assert laptop.run("pair", "with", found.address, found.key(), "--name", "team") == 0
    (found.home / "team.toml").write_text(
        f'listen = "{found.address}"\n[engine]\nmodel = "{tiny_folder}"\ndevice = "cpu"\nreplicas = 2\n'
        f'models = ["{tiny_folder.parent}/other"]\nmodels_per_replica = 1\n'
    )
    # HAProxy asks for a name server by itself, in a network where there is none.
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    found.door()
    yield found
    found.kill("door")
    shutil.rmtree(found.environment["CAESURA_RUNTIME"], ignore_errors=True)


def replicas(found: Team) -> list[int]:
    """The process numbers of the replicas that this door's relay has started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    ours = {found.processes["door"].pid}
    while more := {int(pid) for pid, parent, _ in rows if int(parent) in ours} - ours:
        ours |= more
    return [int(pid) for pid, _, name in rows if int(pid) in ours and name.startswith("ray::ServeReplica")]


async def test_a_team_on_ray(team: Team, laptop: Machine, tiny_folder: Path) -> None:  # noqa: F811
    before = {port for port in RAYS if listens(f"127.0.0.1:{port}")}
    await until(lambda: listens(team.address), START_S)
    async with running(client()) as found:
        await found.ready(START_S)
        assert all([await answer(found, job(TEXT, document=f"{n}")) for n in range(9)])
        assert {port for port in RAYS if listens(f"127.0.0.1:{port}")} == before, "nobody else reaches Ray"

        own = await confidence(found)
        other = str(make(tiny_folder.parent / "other", seed=1))
        assert team.run("team", "invite", "anna", laptop.key(), "--model", other) == 0
        assert await confidence(found) != own, "another model, for which the first made room"
        assert (await found.status()).model == other
        assert team.run("team", "invite", "anna", laptop.key()) == 0
        assert await confidence(found) == own

        victim, prefix, long = replicas(team)[0], "y" * 4000, (wire.Hole(256),)
        jobs = [job(prefix, document=f"{n}", deadline_ms=60_000) for n in range(7)]
        streams = [found.infill(msgspec.structs.replace(one, segments=long)) for one in jobs]
        for events in streams:
            await started(events)
        os.kill(victim, signal.SIGKILL)
        ends = await asyncio.gather(*map(to_its_end, streams), return_exceptions=True)
        lost = [end for end in ends if end is not None]
        assert lost, "a replica without a document is rare, and was not the one"
        assert all(isinstance(end, EngineFailed) and end.code == "engine_lost" for end in lost)
        assert all("replica was lost" in str(end) for end in lost)

        for n in range(7):  # all are served again, at once by the replica that is left
            await _served(found, f"{n}")
        await until(lambda: len(replicas(team)) == 2, START_S)
    team.kill("door")
    await until(lambda: not _left(team), 10.0)
    with team.at():
        assert rendezvous.running() == []


async def confidence(found: Engine) -> float:
    """A figure that differs between two random models, which answer this text alike."""
    done = [event async for event in found.infill(job(TEXT, document="0")) if isinstance(event, wire.Done)]
    return done[0].holes[0].confidence


async def _served(found: object, document: str) -> None:
    for _ in range(50):
        try:
            await answer(found, job(TEXT, document=document))  # type: ignore[arg-type]
            return
        except EngineError:
            await asyncio.sleep(0.1)
    raise AssertionError("no answer")


def _left(found: Team) -> str:
    """Processes that still have a file of this team."""
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in listed.splitlines() if str(found.home) in line and "pytest" not in line)


def test_an_address_that_another_network_has_is_not_ours() -> None:
    """What the test of ports rests on: a listener in a network of its own is not reached from here."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        port = found.getsockname()[1]
        dial = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        inside = subprocess.run([*isolation.alone(), sys.executable, "-c", dial], capture_output=True)
        assert b"Error" in inside.stderr
