"""A team on a real Ray Serve with two replicas of a tiny model: a minute, once for the whole file."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from caesura import wire
from caesura.client.backend import EngineError, EngineFailed
from caesura.client.shared import Engine
from caesura.cluster import isolation
from caesura.ipc import rendezvous

from ..supervisor.test_remote import Editor
from ..support.checkpoints.tiny import make
from ..support.clients import answer, job, running, until
from ..support.machines import Machine, client, free_port, listens
from ..support.team import Team, started, to_its_end
from .test_door import LOST_S
from .test_faults import leaked, planted, secrets_sent, written

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("isolated")]
TEXT = "def total(count, item):\n    return "
START_S = 120.0
EACH = 3  # documents of a replica; eight jobs are what a user may have
HEAD, NOTICED_S = "gcs_server", 10.0  # Ray's head process, and when its loss is noticed at the latest
NAMES, SECRETS = planted()
RAYS = (8000, 9000, 8265, 8404, 8500, 9101, 9500, 30000, 40000)  # ports that Ray and HAProxy listen at in their network


@pytest.fixture
def team(
    home: Path,
    laptop: Machine,
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Team]:
    found = Team(home / "desk", f"127.0.0.1:{free_port()}")
    found.let_in(laptop, NAMES[1])
    (found.home / "team.toml").write_text(
        f'listen = "{found.address}"\n[engine]\nmodel = "{tiny_folder}"\ndevice = "cpu"\nreplicas = 2\n'
        f'models = ["{tiny_folder.parent}/other", "small"]\nmodels_per_replica = 1\n'
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


async def test_a_team_on_ray(team: Team, laptop: Machine, tiny_folder: Path) -> None:
    before = {port for port in RAYS if listens(f"127.0.0.1:{port}")}
    await until(lambda: listens(team.address), START_S)
    async with running(client(NAMES[0])) as found:
        await found.ready(START_S)
        assert all([await answer(found, job(TEXT, document=f"{n}")) for n in range(9)])
        assert {port for port in RAYS if listens(f"127.0.0.1:{port}")} == before, "nobody else reaches Ray"

        await _another_model(team, laptop, found, str(make(tiny_folder.parent / "other", seed=1)))
        await _ghost_text(team, laptop, found)
        told = [*await _replica_lost(team, found), *await secrets_sent(found, SECRETS), *await _head_lost(team, found)]
    team.kill("door")
    await until(lambda: not _left(team), 10.0)
    with team.at():
        assert rendezvous.running() == []
    files = written(team)
    assert any("session_" in str(path) for path in files), "Ray's own files are among them"
    assert leaked([*NAMES, *SECRETS], files, told) == []


async def _replica_lost(team: Team, found: Engine) -> list[str]:
    """The jobs of the replica that is killed fail within LOST_S, all others end as if nothing had been. Returns what
    the user is told."""
    homes = dict[str, int]()
    for name in map(chr, range(ord("a"), ord("z"))):
        place = await _home(team, found, name)
        if list(homes.values()).count(place) < EACH:
            homes[name] = place
        if len(homes) == 2 * EACH:
            break
    assert set(homes.values()) == set(replicas(team)), "each replica has documents"
    victim = homes["a"]
    long, ends = (wire.Hole(256),), dict[str, tuple[BaseException | None, float]]()

    async def watch(name: str, events: AsyncIterator[object]) -> None:
        end = (await asyncio.gather(to_its_end(events), return_exceptions=True))[0]
        ends[name] = end, time.monotonic()

    jobs = {name: job(f"{name}{'y' * 4000}", document=name, deadline_ms=60_000) for name in homes}
    streams = {name: found.infill(msgspec.structs.replace(one, segments=long)) for name, one in jobs.items()}
    await asyncio.gather(*map(started, streams.values()))
    watching = [asyncio.create_task(watch(name, events)) for name, events in streams.items()]
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    await asyncio.wait(watching)
    lost = {name for name, (end, _) in ends.items() if end is not None}
    assert lost == {name for name, pid in homes.items() if pid == victim}
    for name in lost:
        end, at = ends[name]
        assert isinstance(end, EngineFailed)
        assert (end.code, "replica was lost" in str(end)) == ("engine_lost", True)
        assert at - killed < LOST_S
    for name in homes:  # all are served again, at once by the replica that is left
        await _served(found, name)
    await until(lambda: len(replicas(team)) == 2, START_S)
    return [str(end) for end, _ in ends.values()]


async def _home(team: Team, found: Engine, document: str) -> int:
    """The replica of a document: the one that works while the document's jobs are the only ones."""
    pids = replicas(team)
    while True:
        before = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]
        for _ in range(5):
            await answer(found, msgspec.structs.replace(job(TEXT, document=document), segments=(wire.Hole(64),)))
        spent = [sum(psutil.Process(pid).cpu_times()[:2]) - earlier for pid, earlier in zip(pids, before, strict=True)]
        if max(spent) > 0.05 + 3 * min(spent):
            return pids[spent.index(max(spent))]


async def _head_lost(team: Team, found: Engine) -> list[str]:
    """Ray's head process is killed: jobs go on until Ray notices, then the door starts another Ray. Returns what the
    user is told meanwhile."""
    (head,) = [
        process for process in psutil.Process(team.processes["door"].pid).children(True) if process.name() == HEAD
    ]
    before, told = set(replicas(team)), list[str]()
    head.kill()
    killed = time.monotonic()
    while not (there := set(replicas(team))) or there & before:
        assert not there & before or time.monotonic() - killed < NOTICED_S, team.log()
        assert time.monotonic() - killed < START_S, team.log()
        try:
            await answer(found, job(TEXT))
        except EngineError as error:
            told.append(str(error))
        await asyncio.sleep(0.1)
    await found.ready(START_S)
    await _served(found, "after")
    print(f"after the loss of Ray's head: {time.monotonic() - killed:.1f} s, {Counter(told)}")
    return told


async def _ghost_text(team: Team, laptop: Machine, found: Engine) -> None:
    """A user of the model `small` types in an editor with the real language server."""
    assert team.run("team", "invite", NAMES[1], laptop.key(), "--model", "small") == 0
    project = laptop.home / "project"
    project.mkdir()
    assert laptop.run("pair", "use", str(project)) == 0
    async with Editor(project, server=("-m", "caesura", "lsp")) as editor:
        proposed, *_ = await editor.complete((project / "main.py").as_uri(), TEXT)
    assert proposed["insertText"].strip()
    assert (await found.status()).model == "small"
    with laptop.at():
        assert rendezvous.running() == [], "no engine of its own"
    assert team.run("team", "invite", NAMES[1], laptop.key()) == 0


async def _another_model(team: Team, laptop: Machine, found: Engine, other: str) -> None:
    """A user is invited with another model, for which the first makes room, and with the first again."""
    own = await _confidence(found)
    assert team.run("team", "invite", NAMES[1], laptop.key(), "--model", other) == 0
    assert await _confidence(found) != own
    assert (await found.status()).model == Path(other).name
    assert team.run("team", "invite", NAMES[1], laptop.key()) == 0
    assert await _confidence(found) == own


async def _confidence(found: Engine) -> float:
    """A figure that differs between two random models, which answer this text alike."""
    done = [event async for event in found.infill(job(TEXT, document="0")) if isinstance(event, wire.Done)]
    return done[0].holes[0].confidence


async def _served(found: Engine, document: str) -> None:
    for _ in range(50):
        try:
            await answer(found, job(TEXT, document=document))
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
