"""The team's door: the engine's supervisor, with a relay where a worker would be. Who comes in is decided as for paired
machines (`caesura.engine.supervisor.admission`)."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from caesura.cluster import config, head, isolation
from caesura.engine.supervisor.ledger import Places
from caesura.engine.supervisor.observer import Observer
from caesura.engine.supervisor.supervisor import AlreadyRunning, Supervisor, SupervisorSettings
from caesura.ipc import rendezvous

DRAIN_S = 10.0
SWITCH_S = 0.0005  # thread switch interval, s; Python's 5 ms delays the door's loop where a thread watches


def serve(path: Path) -> None:
    """Be the door until stopped. Raises BadConfig, NotIsolated, AlreadyRunning, NoPlace, CannotListen,
    paths.DamagedFile or paths.UnsafeFolder."""
    os.umask(0o077)
    team = config.read(path)
    policy = config.policy(path, team)
    here = rendezvous.door()
    lock = here.acquire()
    if lock is None:
        raise AlreadyRunning(here.holder())
    relay = [sys.executable, "-P", "-m", "caesura.cluster.relay", str(path.resolve())]
    if not team.engine.address:
        head.home()
        relay = [*isolation.alone(), *relay]
    with lock, watching(team) as observers:
        settings = SupervisorSettings(
            idle_exit_s=0,
            unload_s=math.inf,  # a relay that rests costs nothing
            drain_s=DRAIN_S,
            listen=team.listen,
            paired=Places(team.clients, team.jobs, team.limits.jobs),
            policy=policy,
            team=True,
            observers=observers,
        )
        Supervisor(here, team.engine.model, team.engine.device, settings, relay).run()


@contextlib.contextmanager
def watching(team: config.Team) -> Iterator[list[Observer]]:
    """Those who watch the door as its configuration says; each costs memory only where it is asked for. Raises
    CannotListen."""
    found = list[Observer]()
    with contextlib.ExitStack() as ends:
        if team.watch.listen or team.watch.traces:
            sys.setswitchinterval(SWITCH_S)
        if team.watch.listen:
            from caesura.cluster.watch import metrics, scrape

            figures = metrics.Metrics(team.engine.offered, time.monotonic)
            ends.enter_context(scrape.answering(figures, team.watch.listen))
            found.append(figures)
        if team.watch.traces:
            from caesura.cluster.watch import traces

            spans = traces.Traces(traces.exporter(team.watch.traces))
            ends.callback(spans.close)
            found.append(spans)
        yield found
