"""The team's door: the engine's supervisor, with a relay where a worker would be. Who comes in is decided as for paired
machines (`caesura.engine.supervisor.admission`)."""

import hashlib
import math
import os
import sys
from pathlib import Path

from caesura import paths
from caesura.cluster import config, head, isolation
from caesura.engine.supervisor.ledger import Places
from caesura.engine.supervisor.supervisor import AlreadyRunning, Supervisor, SupervisorSettings
from caesura.ipc import pairing
from caesura.ipc.rendezvous import EnginePlace

DRAIN_S = 10.0


def serve(path: Path) -> None:
    """Be the door until stopped. Raises BadConfig, NotIsolated, AlreadyRunning, CannotListen, and what
    else the supervisor raises."""
    os.umask(0o077)
    team, invited = config.read(path), pairing.watched()
    settings = SupervisorSettings(
        idle_exit_s=0,
        unload_s=math.inf,  # a relay that rests costs nothing
        drain_s=DRAIN_S,
        listen=team.listen,
        paired=Places(team.clients, team.jobs),
        policy=config.policy(path, team),
        model_of=lambda user: invited.now.model(user),
    )
    here = EnginePlace(paths.runtime() / f"e-team-{hashlib.sha256(team.listen.encode()).hexdigest()[:10]}")
    lock = here.acquire()
    if lock is None:
        raise AlreadyRunning(here.holder())
    relay = [sys.executable, "-P", "-m", "caesura.cluster.relay", str(path.resolve())]
    if not team.engine.address:
        head.home()
        relay = [*isolation.alone(), *relay]
    with lock:
        Supervisor(here, team.engine.model, team.engine.device, settings, relay).run()
