"""A team's machine: a door with real keys, a real relay and real gRPC, and replicas that are plain servers."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from caesura import wire
from caesura.client.backend import EngineUnavailable
from caesura.client.shared import Engine

from .clients import answer, job
from .machines import Machine

REPLICA = Path(__file__).parent / "processes" / "grpc_replica.py"
MODELS = ("fake", "typed", "empty", "unknown")  # of fake_engine.py
LOST_S = 0.1  # by then every job of a lost replica has its answer
# The beginning of a command line that ends with us, also by a signal, after which no fixture ends anything.
ENDED_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if sys.platform == "linux" else []
START_S = 120.0  # of a Ray of the door's own


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
        self.processes[name] = subprocess.Popen(
            [*ENDED_WITH_US, sys.executable, *command], env=environment, stdout=log, stderr=log
        )

    def replica(self, fake: str = "fake", protocol: int = wire.PROTOCOL) -> None:
        """Start a replica, whose model `fake` is that model of fake_engine.py."""
        models = [f"{name}={fake if name == 'fake' else name}" for name in MODELS]
        self.begin("replica", str(REPLICA), self.engine.rpartition(":")[2], str(protocol), "2", *models)

    def door(self) -> None:
        self.begin("door", "-P", "-m", "caesura", "team", "serve", str(self.home / "team.toml"))

    def let_in(self, laptop: Machine, name: str = "anna") -> None:
        """Invite a user, whose laptop knows the door from then on."""
        assert self.run("team", "invite", name, laptop.key()) == 0
        assert laptop.run("pair", "with", self.address, self.key(), "--name", "team") == 0

    def end(self) -> None:
        for name in self.processes:
            self.kill(name)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def relay(self) -> int:
        children = Path(f"/proc/{self.processes['door'].pid}/task/{self.processes['door'].pid}/children")
        return int(children.read_text().split()[0])

    def log(self) -> str:
        return (self.home / "door.log").read_text()


async def started(events: AsyncIterator[object]) -> None:
    """A job that will not end has been taken by the replica."""
    assert isinstance(await anext(events), wire.Locked)


async def to_its_end(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


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
