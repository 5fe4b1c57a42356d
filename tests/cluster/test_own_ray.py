"""A Ray that an administrator runs, with examples/team: replicas come, go and are replaced while users type.

All of it, the test too, is in a network of its own, since Ray's ports are fixed.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from caesura import wire
from caesura.client.backend import EngineError
from caesura.client.shared import Engine
from caesura.cluster import isolation

from ..support.clients import job, until
from ..support.machines import Machine, client, free_port, listens
from ..support.team import ENDED_WITH_US, Team

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="needs Linux and root for its network"),
]
STATUS = "http://127.0.0.1:8265/api/serve/applications/"
EXAMPLES = Path(__file__).parents[2] / "examples" / "team"
CLONE_NEWNET = 0x40000000  # of sched.h
READY_S = 60.0
CHANGE_S = 150.0  # within which so many replicas run; a new one takes 4 s, and an old one ends 30 s later
ANSWER_S = 10.0  # within which each job is answered while replicas change; on two busy cores 4 s were seen
LOOK_S = 0.25
PAUSE_S = 0.2  # of a user, after each answer
USERS = 3


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """This thread, and all that it starts, in a network of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNET) != 0:
        pytest.skip(f"this thread gets no network of its own: {os.strerror(ctypes.get_errno())}")
    isolation.open_loopback()
    yield
    assert libc.setns(before, CLONE_NEWNET) == 0
    os.close(before)


@dataclass(frozen=True)
class Cluster:
    """Ray as engine.sh starts it, in a folder that is also its user's home."""

    folder: Path
    model: Path

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # LD_PRELOAD: HAProxy asks for a name server by itself.
        kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        return kept | {"PATH": path, "HOME": str(self.folder), "CAESURA_RUNTIME": str(self.folder / "run")}

    def write(self, engine: Mapping[str, Any]) -> None:
        """serve.yaml for the tiny model, whose deployment is `engine`."""
        written = yaml.safe_load((EXAMPLES / "serve.yaml").read_text())
        (application,) = written["applications"]
        application["args"] |= {"model": str(self.model), "device": "cpu", "cpus": 0.1}
        application["deployments"] = [{"name": "engine", **engine}]
        (self.folder / "serve.yaml").write_text(yaml.safe_dump(written))

    def start(self) -> "subprocess.Popen[bytes]":
        for name in ("engine.sh", "ray.env"):
            shutil.copy(EXAMPLES / name, self.folder)
        self.write({"num_replicas": 2})
        start = ["sh", str(self.folder / "engine.sh"), "--node-ip-address=127.0.0.1", f"--temp-dir={self.folder}/t"]
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(
                [*ENDED_WITH_US, *isolation.together(), *start],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    async def deploy(self, engine: Mapping[str, Any]) -> None:
        """Takes seconds, in which users type."""
        self.write(engine)
        command = ["sh", "-c", ". ./ray.env && serve deploy serve.yaml"]
        done = partial(subprocess.run, env=self.environment, cwd=self.folder, check=True, capture_output=True)
        await asyncio.to_thread(done, command)

    def replicas(self) -> dict[str, str]:
        """The replicas' states by their ids; none while a deployment begins or goes on."""
        token = (self.folder / ".ray" / "auth_token").read_text().strip()
        asked = urllib.request.Request(STATUS, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            application = json.load(answer)["applications"].get("caesura", {"status": ""})
        if application["status"] != "RUNNING":
            return {}
        return {one["replica_id"]: one["state"] for one in application["deployments"]["engine"]["replicas"]}

    async def reach(self, count: int) -> None:
        """Wait until so many replicas run, and no other is left."""
        begin = time.monotonic()
        found: Collection[str] = ()
        while Counter(found) != Counter(["RUNNING"] * count):
            assert time.monotonic() - begin < CHANGE_S, (found, (self.folder / "log").read_text())
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(OSError):  # it starts
                found = (await asyncio.to_thread(self.replicas)).values()


@pytest.fixture(scope="module")
def cluster(network: None, tiny_folder: Path) -> Iterator[Cluster]:
    found = Cluster(Path(tempfile.mkdtemp(prefix="c-")), tiny_folder)
    ray = found.start()
    try:
        asyncio.run(found.reach(2))
        yield found
    finally:
        ray.kill()
        ray.wait()
        shutil.rmtree(found.folder, ignore_errors=True)


@dataclass
class Ends:
    """The ends of all jobs, "Done" or the sentence of a failure, and the longest time. A user pauses after each."""

    pause_s: float
    count: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0

    async def type(self, found: Engine, document: str, ended: Callable[[], bool]) -> None:
        """One job after the other, each with a longer text, as somebody who types."""
        number = 0
        while not ended():
            text, begin = "    total = count + item\n" * (number % 40), time.monotonic()
            self.count[await _end(found, job(text, document=document))] += 1
            self.longest_s, number = max(self.longest_s, time.monotonic() - begin), number + 1
            await asyncio.sleep(self.pause_s)

    def expect_answers(self) -> None:
        assert set(self.count) == {"Done"}, self.count
        assert self.longest_s < ANSWER_S


async def _end(found: Engine, request: wire.Infill) -> str:
    try:
        return type([event async for event in found.infill(request)][-1]).__name__
    except EngineError as error:
        return str(error)


@contextlib.asynccontextmanager
async def typing(users: list[Engine], documents: int, pause_s: float) -> AsyncIterator[Ends]:
    """Each user types in so many documents at once."""
    ends, ended = Ends(pause_s), False
    async with asyncio.TaskGroup() as tasks:
        for user in users:
            for number in range(documents):
                tasks.create_task(ends.type(user, f"{number}", lambda: ended))
        try:
            yield ends
        finally:
            ended = True


@pytest.fixture
async def users(
    cluster: Cluster,
    home: Path,
    laptop: Machine,
) -> AsyncIterator[list[Engine]]:
    """Connected to a door in front of the replicas."""
    door = Team(home / "desk", f"127.0.0.1:{free_port()}", "127.0.0.1:9000")
    door.let_in(laptop)
    limits = "[limits]\njobs = 100\nsteps_per_minute = 1000000\nburst = 1000000\n"
    engine = f'[engine]\nmodel = "{cluster.model}"\naddress = "{door.engine}"\n'
    (door.home / "team.toml").write_text(f'listen = "{door.address}"\n{engine}{limits}')
    door.door()
    await until(lambda: listens(door.address), READY_S)
    found = [client() for _ in range(USERS)]
    for one in found:
        await one.start()
        await one.ready(READY_S)
    yield found
    for one in found:
        await one.close()
    door.kill("door")
    shutil.rmtree(door.environment["CAESURA_RUNTIME"], ignore_errors=True)


async def test_replicas_come_and_go_without_a_failed_job(cluster: Cluster, users: list[Engine]) -> None:
    async with typing(users, 3, PAUSE_S) as ends:
        await cluster.deploy({"num_replicas": 3})
        await cluster.reach(3)
        await cluster.deploy({"num_replicas": 2})
        await cluster.reach(2)
    ends.expect_answers()


async def test_all_replicas_are_replaced_without_a_failed_job(cluster: Cluster, users: list[Engine]) -> None:
    before = cluster.replicas().keys()
    async with typing(users, 3, PAUSE_S) as ends:
        await cluster.deploy(between(2, 2))
        await cluster.reach(2)
    assert not before & cluster.replicas().keys()
    ends.expect_answers()


async def test_jobs_that_wait_bring_a_replica_and_calm_removes_it(cluster: Cluster, users: list[Engine]) -> None:
    await cluster.deploy(between(2, 2))
    await cluster.reach(2)
    await cluster.deploy(between(2, 3))
    async with typing(users, 8, 0.0) as ends:
        await cluster.reach(3)
    await cluster.reach(2)
    ends.expect_answers()


def between(least: int, most: int) -> dict[str, Any]:
    """A number of replicas that follows how long jobs wait, sooner than in ten minutes."""
    policy = {"policy_function": "caesura.cluster.deployment:scale"}
    soon = {"look_back_period_s": 4, "upscale_delay_s": 2, "downscale_delay_s": 2}
    return {"autoscaling_config": {"min_replicas": least, "max_replicas": most, "policy": policy, **soon}}
