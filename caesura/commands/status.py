"""`caesura status` and `caesura stop`: the running engines."""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from caesura import wire
from caesura.characters import shown
from caesura.client.backend import EngineError
from caesura.client.backends import named
from caesura.client.backends.named import NamedService
from caesura.client.shared import Engine
from caesura.commands import team
from caesura.commands.common import print_json
from caesura.ipc import pairing, rendezvous

STOP_S = 5.0
PATIENCE_S = 3.0  # with a service that does not report its state
# The first words of the names of our own clients other than editors.
OURS = ("command line", "demo", "caesura demo", "bench", "simulator")


def status(options: argparse.Namespace) -> None:
    """Print every engine of this user: one for each model and version, and those of paired machines."""
    found = asyncio.run(_statuses())
    away = asyncio.run(_remotes())
    backends = asyncio.run(_backends())
    if options.json:
        print_json({"engines": found, "remote": away, "backends": backends})
    elif not found and not rendezvous.running():  # if one runs, stderr says that it did not answer
        print("No engine is running; an editor or `caesura fill` starts it.")
    for one in [] if options.json else found:
        print(_line(one))
    if not options.json and (door := team.running()):
        print(door)
    for other in [] if options.json else away:
        about = _line(other.status) if other.status else other.trouble
        print(f"on {other.name} ({other.address}): {about}")
        if rules := str(other.policy):
            print(f"  {shown(rules)}")
    for service in [] if options.json else backends:
        about = f"{service.state}: {service.model}" if service.state == "ready" else service.trouble
        print(f"{service.name} ({service.url}): {about}")


class Away(msgspec.Struct, frozen=True):
    """The engine of a paired machine; `trouble` is the reason if there is no status."""

    name: str
    address: str
    status: wire.Status | None
    trouble: str = ""
    policy: wire.Policy = wire.Policy()


class Behind(msgspec.Struct, frozen=True):
    """A service that the user has named; `trouble` says why it is not ready."""

    name: str
    url: str
    state: str
    model: str
    trouble: str = ""


async def _backends() -> list[Behind]:
    """Each is asked for its model, with the key that it needs."""
    return list(await asyncio.gather(*map(_behind, named.services())))


async def _behind(service: NamedService) -> Behind:
    from caesura.client.backends import kinds

    backend = kinds.backend(service)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await backend.described()
    except (EngineError, TimeoutError):
        pass
    found = backend.condition
    await backend.close()
    trouble = found.message or ("" if found.state == "ready" else f"{service.name} does not answer.")
    return Behind(service.name, service.url, found.state, found.model, trouble)


async def _remotes() -> list[Away]:
    return list(await asyncio.gather(*map(_away, pairing.pairs().engines)))


async def _away(remote: pairing.Remote) -> Away:
    found = Engine(client="command line", spawn=False, remote=remote)
    await found.start()
    try:
        return Away(remote.name, remote.address, await found.status(), policy=found.condition.policy)
    except EngineError as error:
        return Away(remote.name, remote.address, None, str(error))
    finally:
        await found.close()


async def _statuses() -> list[wire.Status]:
    """The status of every engine that answers; stderr names the others."""
    found = []
    for place in rendezvous.running():
        try:
            found.append(await _status(place=place))
        except EngineError as error:
            print(f"caesura: {place.stem.name}: {shown(error)}", file=sys.stderr)
    return found


async def _status(*, place: rendezvous.EnginePlace) -> wire.Status:
    found = Engine(client="command line", spawn=False, place=place)
    await found.start()
    try:
        return await found.status()
    finally:
        await found.close()


def _line(one: wire.Status) -> str:
    memory = one.memory_mb + (one.worker_memory_mb or 0)
    clients = _clients(one.clients) if one.clients else f"{one.peers} clients"  # engines of older builds send no names
    process, took = (f", process {one.pid}", f"{memory:.0f} MiB, ") if one.pid else ("", "")  # of a team: not told
    lines = [
        f"{one.state}: {one.model} on {one.device}{process}, up {one.uptime_s:.0f} s",
        f"  {clients}, {one.live} jobs running, {one.queued} waiting, {one.done} done",
        f"  {took}{one.restarts} restarts, build {one.build}",
    ]
    if one.p50_ms:
        stages = ", ".join(f"{stage} {one.p50_ms[stage]:.0f}/{one.p95_ms[stage]:.0f}" for stage in one.p50_ms)
        lines.append(f"  p50/p95 ms: {stages}")
    return "\n".join([*lines, *([f"  {one.message}"] if one.message else [])])


def _clients(names: Sequence[str]) -> str:
    """The names of the editors and the number of our other clients, without this command."""
    editors = Counter(name for name in names if not name.startswith(OURS))
    others = max(0, len(names) - editors.total() - 1)
    found = [f"{count} {name}" if count > 1 else name for name, count in editors.items()]
    found += [f"{others} other client{'s' * (others > 1)}"] if others else []
    return ", ".join(found) or "no clients"


def stop(options: argparse.Namespace) -> None:
    """Stop this user's engines, but not a team's door, which serves others."""
    if door := team.running():
        print(door)
    places = [place for place in rendezvous.running() if place != rendezvous.door()]
    if not places:
        print("No engine is running.")
    for place in places:
        if holder := place.holder():
            asyncio.run(_stop(place))
            _end(place, holder)
            print(f"Stopped process {holder.pid}.")


async def _stop(place: rendezvous.EnginePlace) -> None:
    found = Engine(client="command line", spawn=False, place=place)
    await found.start()
    try:
        async with asyncio.timeout(STOP_S):
            await found.stop()
    except (EngineError, TimeoutError):
        pass  # it has another protocol, or hangs
    finally:
        await found.close()


def _end(place: rendezvous.EnginePlace, holder: rendezvous.Holder) -> None:
    deadline = time.monotonic() + STOP_S
    while place.holder() == holder and time.monotonic() < deadline:
        time.sleep(0.02)
    if place.holder() == holder:
        rendezvous.kill(holder)
