"""A team's door with its own Ray and two replicas: what it adds, what a loss costs, and what many users get.

    python bench/team.py PART... [--users 8 16 64] [--seconds 30] [--json] [--out bench/results/team.json]

Parts: jobs, cancels, kill, affinity, crowd, flood, footprint, ports (as root), each with a tiny random model, whose
steps cost next to nothing; small: five users with the model `small`. Each part is an entry of the result, and
takes less than three minutes. bench/README.md says what the figures mean. `pip install -e '.[test,bench,cluster]'`
first.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from caesura import wire
from caesura.client.backend import EngineBusy, EngineFailed, EngineUnavailable, job_id
from caesura.client.shared import Engine
from caesura.ipc import pairing, rendezvous

from emulators import offset  # isort: skip  (next to this script)
from latency import HERE, WAIT_MS, Editor, Report, conditions, places, save, spread, table  # isort: skip
from typist import press, stretches  # isort: skip

sys.path.insert(0, str(HERE.parent))
from tests.cluster.test_ray import replicas
from tests.support.checkpoints import tiny
from tests.support.machines import Machine, free_port, listens
from tests.support.team import Team

START_S, DONE_S = 150.0, 20.0
TEXT = "def total(count, item):\n    return "
TURNS, AGAIN = 10, 20  # of each way, and jobs in each
CANCELS = 200
DOCUMENTS, OWNERS, AFTERWARDS_S = 9, 3, 4.0  # at the kill, of so many users, and how long they go on
AGAIN_S = 0.05  # until a user asks again after a failure
PEOPLE, ROUNDS = 7, 3  # an odd number, since with an even one taking turns looks like affinity
NEW_STREAM_S = 21.0  # a document's next stream: the door leaves one after 20 seconds
WARM, SMALL = 8, 5  # users who ask before the clock runs, and users of the model `small`
SEED, PLACES = 7, 20  # at which an editor of one of them types
REST_S = 0.5  # a key with a longer pause after it is one whose answer somebody waits for
BETWEEN_S = 2.0  # between two stretches
BEFORE, AFTER = 6000, 2000  # characters of a file that a job brings; the tiny model, with a token for each, gets
SHORTER = 4  # times less
FLOOD = 8  # jobs at once, as many as the limits allow one user
FREE = "[limits]\nsteps_per_minute = 100000000\nburst = 100000000\n"  # so that budgets are not what is measured
BRIDGE, HERE_IP, THERE_IP = "caesura-door", "10.213.7.1", "10.213.7.2"


# The door and its users


@contextlib.contextmanager
def started(model: str, users: int, host: str = "127.0.0.1") -> Iterator[tuple[Team, list[Machine]]]:
    """A door that is starting, and the machines of those who were invited."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    desk = Team(folder / "desk", f"{host}:{free_port()}")
    machines = [Machine(folder / f"user{number}") for number in range(users)]
    with contextlib.redirect_stdout(sys.stderr):
        for number, machine in enumerate(machines):
            desk.let_in(machine, f"user{number}")
    if model == "tiny":
        model = str(tiny.make(folder / "tiny"))
    config = f'listen = "{desk.address}"\n[engine]\nmodel = "{model}"\ndevice = "cpu"\nreplicas = 2\n{FREE}'
    (desk.home / "team.toml").write_text(config)
    desk.door()
    try:
        yield desk, machines
    finally:
        desk.kill("door")
        subprocess.run(["rm", "-rf", str(folder), desk.environment["CAESURA_RUNTIME"]], check=False)


async def until(condition: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def editors(desk: Team, machines: Sequence[Machine]) -> AsyncIterator[list[Engine]]:
    """A client of each machine, connected."""
    await until(lambda: listens(desk.address), START_S)
    found = list[Engine]()
    for machine in machines:
        with machine.at():  # its keys are read as it connects
            (remote,) = pairing.pairs().engines
            found.append(Engine(client="bench", spawn=False, remote=remote))
            await found[-1].start()
            await found[-1].ready(START_S)
    try:
        yield found
    finally:
        for engine in found:
            await engine.close()


def job(document: str = "d", tokens: int = 8, prefix: str = TEXT) -> wire.Infill:
    return wire.Infill(
        job=job_id(),
        document=document,
        prefix=prefix,
        suffix="\n",
        segments=(wire.Hole(tokens),),
        deadline_ms=60_000,
    )


async def ended(events: AsyncIterator[Any]) -> str:
    """In which way a job ends."""
    try:
        async for event in events:
            if isinstance(event, wire.Done):
                return "done"
    except EngineFailed as error:
        return error.code
    except EngineBusy:
        return "busy"
    except EngineUnavailable:
        return "unavailable"
    return "never"


def since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


# What a job and an event cost


@dataclass
class Over:
    """Milliseconds over the engine's own times, in which it counts a job from its arrival: until the first event, each
    event (its steps taken as equally long), and the answer."""

    first: list[float] = field(default_factory=list)
    event: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


async def time_one(engine: Engine, over: Over) -> None:
    began, seen = time.perf_counter(), list[tuple[int, float]]()
    async for event in engine.infill(job()):
        if isinstance(event, wire.Locked):
            seen.append((event.step, since(began)))
            continue
        own, steps = event.timings, event.steps
        over.whole.append(since(began) - own.total_ms)
        if seen and own.first_lock_ms is not None:
            over.first.append(seen[0][1] - own.first_lock_ms)
        over.event += [ms - own.total_ms + own.denoise_ms * (steps - step) / steps for step, ms in seen]


async def jobs(desk: Team, machines: Sequence[Machine]) -> Report:
    """The same job over the local socket and through the door, by turns."""
    over = {"local": Over(), "door": Over()}
    async with editors(desk, machines) as (door,):
        local = Engine(client="bench", model=str(desk.home.parent / "tiny"), device="cpu")
        with Machine(desk.home.parent / "alone").at():
            await local.start()
            await local.ready(START_S)
            ways = {"local": local, "door": door}
            for turn in range(-1, TURNS):  # the first one warms
                for way in ways if turn % 2 else reversed(ways):
                    for _ in range(AGAIN):
                        await time_one(ways[way], over[way] if turn >= 0 else Over())
            await local.stop()
            await local.close()
    return {
        f"{way}, {name}": spread(values) for name in ("first", "event", "whole") for way in over
        for values in [getattr(over[way], name)]
    }  # fmt: skip


async def cancels(desk: Team, machines: Sequence[Machine]) -> Report:
    """From leaving a job after its first event until the engine says that it has no job, the asking included."""
    free, late = list[float](), 0
    async with editors(desk, machines) as (door,):
        for number in range(CANCELS):
            events = door.infill(job(f"c{number % 7}", 256, TEXT + "x" * 3000))
            first = await anext(events)
            began = time.perf_counter()
            await events.aclose()
            late += isinstance(first, wire.Done)
            while (await door.status()).live:
                await asyncio.sleep(0)
            free.append(since(began))
    return {"asked": CANCELS, "ended before": late, "ms until free": spread(free), "most": round(max(free), 1)}


async def kill(desk: Team, machines: Sequence[Machine]) -> Report:
    """A replica is killed while each document has one job after the other."""
    ends: list[list[tuple[str, float]]] = [[] for _ in range(DOCUMENTS)]

    async def ask(door: Engine, number: int) -> None:
        while True:
            end = await ended(door.infill(job(f"k{number}", 64, f"{number} {'y' * 1000}")))
            ends[number].append((end, time.perf_counter()))
            await asyncio.sleep(0 if end == "done" else AGAIN_S)

    async with editors(desk, machines) as doors:
        pids = replicas(desk)
        asking = [asyncio.create_task(ask(doors[number % len(doors)], number)) for number in range(DOCUMENTS)]
        await until(lambda: all(ends), START_S)
        os.kill(pids[0], signal.SIGKILL)
        killed = time.perf_counter()
        await until(lambda: len(set(replicas(desk)) - {pids[0]}) == 2, START_S)
        replaced = time.perf_counter() - killed
        await asyncio.sleep(AFTERWARDS_S)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
    after = [[(end, 1000 * (at - killed)) for end, at in one if at > killed] for one in ends]
    lost = [[ms for end, ms in one if end == "engine_lost"] for one in after]
    hit, spared = (
        [one for one, gone in zip(after, lost, strict=True) if bool(gone) == wanted] for wanted in (True, False)
    )
    return {
        "documents": DOCUMENTS,
        "jobs lost": sum(map(len, lost)),
        "ms until told": spread([ms for gone in lost for ms in gone]),
        "ms until such a document is answered": spread([next(ms for end, ms in one if end == "done") for one in hit]),
        "ms until another one is": spread([next(ms for end, ms in one if end == "done") for one in spared]),
        "ends after the kill": dict(Counter(end for one in after for end, _ in one)),
        "s until two replica processes": round(replaced, 1),
    }


# Which replica answers


def worked(pids: Sequence[int]) -> list[float]:
    """The CPU seconds of each process so far, by the kernel's count."""
    return [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]


async def affinity(desk: Team, machines: Sequence[Machine]) -> Report:
    """Who answered is told by the kernel: the replica whose CPU time grows, since only one job runs at a time."""
    served: list[list[int]] = [[] for _ in machines]
    shares = list[float]()
    async with editors(desk, machines) as found:
        pids = replicas(desk)
        for turn in range(ROUNDS):
            for number, engine in enumerate(found):
                before = worked(pids)
                while sum(spent := [b - a for a, b in zip(before, worked(pids), strict=True)]) < 0.3:
                    await ended(engine.infill(job(f"of {number}", 64)))
                served[number].append(max(range(len(pids)), key=spent.__getitem__))
                shares.append(max(spent) / sum(spent))
            await asyncio.sleep(NEW_STREAM_S if turn + 1 < ROUNDS else 0)
    return {
        "users": len(machines),
        "streams of each": ROUNDS,
        "always at the same replica": sum(len(set(one)) == 1 for one in served),
        "users of each replica": [sum(one[0] == pid for one in served) for pid in range(len(pids))],
        "least share of CPU time of who answered": round(min(shares), 3),
    }


# Many users


@dataclass
class Typed:
    """A document while its recorded keys are typed."""

    text: str
    cursor: int = 0

    def key(self, text: str, after: str = "") -> None:
        self.text = self.text[: self.cursor] + text + after + self.text[self.cursor :]
        self.cursor += len(text)

    def over(self, text: str) -> None:
        closed = len(text) if self.text.startswith(text, self.cursor) else 0
        self.text = self.text[: self.cursor] + self.text[self.cursor + closed :]
        self.key(text)

    def back(self, count: int) -> None:
        self.text = self.text[: self.cursor - count] + self.text[self.cursor :]
        self.cursor -= count

    def to(self, line: int, column: int) -> None:
        self.cursor = offset(self.text, line, column)


@dataclass
class Pressed:
    """A key that changed the text, at seconds from the beginning, and what came of its job; seconds from the key."""

    at: float
    job: wire.Infill
    pause: float  # until the next one
    first: float = math.inf
    whole: float = math.inf
    end: str = ""


def recorded(user: int, seconds: float, shorter: int) -> list[Pressed]:
    """The keys of a user: recorded stretches, each user's from another one on, in a text that nobody else has."""
    found, keys, at, number = stretches(), list[Pressed](), user % 8 / 4, user
    while at < seconds:
        stretch = found[number % len(found)]
        document, name = Typed(stretch.start), f"{stretch.name} of {user}"
        for event in stretch.events:
            at += event[0] / 1000
            press(document, event)  # type: ignore[arg-type]
            if event[1] == "to":
                continue
            prefix = f"# {user}\n{document.text[: document.cursor]}"[-BEFORE // shorter :]
            suffix = document.text[document.cursor :][: AFTER // shorter]
            keys.append(Pressed(at, msgspec.structs.replace(job(name, 48, prefix), suffix=suffix), 0.0))
        at, number = at + BETWEEN_S, number + 1
    keys = [key for key in keys if key.at < seconds]
    for key, following in itertools.pairwise(keys):
        key.pause = following.at - key.at
    keys[-1].pause = BETWEEN_S
    return keys


async def type_all(engine: Engine, keys: Sequence[Pressed], began: float) -> None:
    """Each key's job takes the place of the one before."""

    async def ask(key: Pressed) -> None:
        async def heard() -> AsyncIterator[Any]:
            async for event in engine.infill(key.job):
                if isinstance(event, wire.Done) or any(fill.locked for fill in event.holes):
                    key.first = min(key.first, time.perf_counter() - began - key.at)
                if isinstance(event, wire.Done):
                    key.whole = time.perf_counter() - began - key.at
                yield event

        assert not key.end
        key.end = await ended(heard())

    asking = list[asyncio.Task[None]]()
    for key in keys:
        await asyncio.sleep(max(0.0, key.at - (time.perf_counter() - began)))
        asking.append(asyncio.create_task(ask(key)))
    await asyncio.wait(asking, timeout=DONE_S)


async def typing(found: Sequence[Engine], seconds: float, shorter: int = SHORTER) -> Report:
    people = [recorded(user, seconds, shorter) for user in range(len(found))]
    began = time.perf_counter()
    await asyncio.gather(*(type_all(engine, keys, began) for engine, keys in zip(found, people, strict=True)))
    return summary([key for keys in people for key in keys], people)


def summary(keys: Sequence[Pressed], people: Sequence[Sequence[Pressed]]) -> Report:
    """`seen`: keys that had locked text or their answer before the next key. `rested`: those with a pause after them;
    `least_answered` is the share of the user who got the least. Milliseconds."""
    rested = [key for key in keys if key.pause >= REST_S]
    own = [[key for key in one if key.pause >= REST_S] for one in people]
    return {
        "users": len(people),
        "keys": len(keys),
        "keys_s": round(len(keys) / max(key.at for key in keys), 1),
        "seen": share([key.first < key.pause for key in keys]),
        "rested": len(rested),
        "rested_answered": share([key.end == "done" for key in rested]),
        "least_answered": min(share([key.end == "done" for key in one]) for one in own if one),
        "first_ms": finite([key.first for key in rested]),
        "whole_ms": finite([key.whole for key in rested]),
        "ends": dict(Counter(key.end or "none" for key in keys)),
    }


def share(found: Sequence[bool]) -> float:
    return round(sum(found) / max(1, len(found)), 3)


def finite(seconds: Sequence[float]) -> Report:
    """None where the percentile falls on what was never answered."""
    return {name: None if value == math.inf else value for name, value in spread([1000 * s for s in seconds]).items()}


async def crowd(
    desk: Team, machines: Sequence[Machine], counts: Sequence[int], seconds: float, shorter: int = SHORTER
) -> Report:
    """`cpu`: the share of one core that each part took."""
    report: Report = {}
    async with editors(desk, machines) as found:
        parts = {"replicas": replicas(desk), "relay": [desk.relay()], "door": [desk.processes["door"].pid]}
        parts |= {"haproxy": [proxy(desk)], "clients": [os.getpid()]}
        for engine in found[:WARM]:
            await ended(engine.infill(job()))
        for count in counts:
            before, began = {name: sum(worked(pids)) for name, pids in parts.items()}, time.perf_counter()
            report[f"{count} users"] = await typing(found[:count], seconds, shorter)
            took = time.perf_counter() - began
            cpu = {name: round((sum(worked(pids)) - before[name]) / took, 2) for name, pids in parts.items()}
            report[f"{count} users"]["cpu"] = cpu
    return report


async def small(desk: Team, machines: Sequence[Machine], seconds: float) -> Report:
    found = await crowd(desk, machines, [len(machines)], seconds, 1)
    return found | {"an editor": await asyncio.to_thread(session, desk, machines[0])}


def session(desk: Team, machine: Machine) -> Report:
    """A real language server of a user: places of files that it has not seen, and one more key at each, which mostly is
    what was proposed. Each waits for the whole fill."""
    pids, folder, shown = replicas(desk), machine.home / "project", Counter[str]()
    ms: dict[str, list[float]] = {"place": [], "key": []}
    folder.mkdir()
    before = sum(worked(pids))
    with machine.at(), contextlib.redirect_stdout(sys.stderr):
        assert machine.run("pair", "use", str(folder)) == 0
        with Editor() as editor:
            editor.initialize(folder, deadlineMs=WAIT_MS, minConfidence=0, speculate=False, stats=False)
            editor.tell("initialized", {})
            for place in places(SEED)[:PLACES]:
                for column, one in enumerate(ms, place.column):
                    began = time.perf_counter()
                    if one == "place":
                        editor.open(place.text, folder / place.name)
                    else:
                        editor.type(place.line, place.column, place.keys[0])
                    shown[one] += bool(editor.complete(place.line, column, invoked=True))
                    ms[one].append(since(began))
                editor.close()
        own = rendezvous.running()
    return {
        "places": PLACES,
        "shown": dict(shown),
        **{f"{one} to whole fill, ms": spread(values) for one, values in ms.items()},
        "CPU seconds of the replicas": round(sum(worked(pids)) - before, 1),
        "engines of its own": len(own),
        "said": editor.said,
    }


def proxy(desk: Team) -> int:
    """HAProxy: the newest, since one that it has replaced ends when its streams do."""
    door = psutil.Process(desk.processes["door"].pid)
    found = [process for process in door.children(recursive=True) if process.name() == "haproxy"]
    return max(found, key=psutil.Process.create_time).pid


async def flood(desk: Team, machines: Sequence[Machine], seconds: float) -> Report:
    """The same users type twice, the second time while another one asks for long answers as fast as it may."""
    async with editors(desk, machines) as (greedy, *found):
        calm = await typing(found, seconds)
        got = Counter[str]()

        async def pour(number: int) -> None:
            while True:
                end = await ended(greedy.infill(job(f"f{number}", 256, f"{number} " + "z" * 4000)))
                got[end] += 1

        pouring = [asyncio.create_task(pour(number)) for number in range(FLOOD)]
        busy = await typing(found, seconds)
        for task in pouring:
            task.cancel()
        await asyncio.gather(*pouring, return_exceptions=True)
    return {"calm": calm, "while one floods": busy, "the flood's jobs": dict(got)}


# The machine


def pss(processes: Sequence[psutil.Process]) -> float:
    """MiB; pages that processes share count once."""
    return round(sum(process.memory_full_info().pss for process in processes) / 2**20, 1)


async def footprint(desk: Team, machines: Sequence[Machine], began: float) -> Report:
    async with editors(desk, machines) as (engine,):
        ready = time.perf_counter() - began
        await ended(engine.infill(job()))
        tree = psutil.Process(desk.processes["door"].pid)
        all_of_it = [tree, *tree.children(recursive=True)]
        answering = [psutil.Process(pid) for pid in replicas(desk)]
        relay = psutil.Process(desk.relay())
        return {
            "start to two replicas, s": round(ready, 1),
            "processes": len(all_of_it),
            "MiB": pss(all_of_it),
            "MiB of the door": pss([tree]),
            "MiB of the relay": pss([relay]),
            "MiB of the two replicas": pss(answering),
        }


REACH = f"""
import asyncio
async def reached(port):
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection("{HERE_IP}", port), 5)
        writer.close()
        return port
    except OSError:
        return 0
async def main():
    found = []
    for first in range(1, 65536, 512):
        found += await asyncio.gather(*map(reached, range(first, min(65536, first + 512))))
    print([port for port in found if port])
asyncio.run(main())
"""


@contextlib.contextmanager
def neighbour() -> Iterator[Callable[[], list[int]]]:
    """Another network next to ours. Yields what lists our ports that can be reached from there, of all 65,535."""
    sleeper = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    inside = ["nsenter", "--net", "--target", str(sleeper.pid)]
    run = ["ip", "link", "add", BRIDGE, "type", "veth", "peer", "name", "eth0", "netns", str(sleeper.pid)]
    try:
        time.sleep(0.5)  # unshare has become sleep
        for command in (
            run,
            ["ip", "address", "add", f"{HERE_IP}/24", "dev", BRIDGE],
            ["ip", "link", "set", BRIDGE, "up"],
            [*inside, "ip", "address", "add", f"{THERE_IP}/24", "dev", "eth0"],
            [*inside, "ip", "link", "set", "eth0", "up"],
        ):
            subprocess.run(command, check=True)

        def scan() -> list[int]:
            answer = subprocess.run([*inside, sys.executable, "-c", REACH], capture_output=True, text=True, check=True)
            return list(json.loads(answer.stdout))

        yield scan
    finally:
        sleeper.kill()
        sleeper.wait()


def listening(pid: int) -> int:
    """How many ports processes listen at in the network of a process."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return len({row[1].rpartition(":")[2] for row in rows if row[3] == "0A"})


async def ports() -> Report:
    with neighbour() as scan:
        before = scan()
        with started("tiny", 1, HERE_IP) as (desk, machines):
            async with editors(desk, machines):
                after, inside = scan(), listening(replicas(desk)[0])
                new = sorted(set(after) - set(before))
                door = int(desk.address.rpartition(":")[2])
        return {
            "reached before": len(before),
            "reached after": len(after),
            "new ones": ["the door's" if port == door else port for port in new],
            "ports that Ray and HAProxy listen at": inside,
            "reached once it has ended": len(scan()),
        }


# All of it


async def with_door(part: str, users: Sequence[int], seconds: float) -> Report:
    began = time.perf_counter()
    one: dict[str, Callable[[Team, Sequence[Machine]], Awaitable[Report]]] = {
        "jobs": jobs,
        "cancels": cancels,
        "kill": kill,
        "affinity": affinity,
        "footprint": lambda desk, machines: footprint(desk, machines, began),
        "crowd": lambda desk, machines: crowd(desk, machines, users, seconds),
        "flood": lambda desk, machines: flood(desk, machines, seconds),
        "small": lambda desk, machines: small(desk, machines, seconds),
    }
    count = {"kill": OWNERS, "affinity": PEOPLE, "crowd": max(users), "flood": PEOPLE + 1, "small": SMALL}.get(part, 1)
    with started("small" if part == "small" else "tiny", count) as (desk, machines):
        began = time.perf_counter()
        return await one[part](desk, machines)


def picture(report: Report) -> str:
    rows = list[tuple[object, ...]]()

    def flat(name: str, value: object) -> None:
        if isinstance(value, dict) and "p95" not in value:
            for key, inner in value.items():
                flat(f"{name}: {key}", inner)
        else:
            rows.append((name, *value.values()) if isinstance(value, dict) else (name, None, str(value), None))

    for part in PARTS:
        if part in report:
            flat(part, report[part]["found"])
    return table(("", "n", "p50", "p95"), rows)


PARTS = ("jobs", "cancels", "kill", "affinity", "crowd", "flood", "footprint", "ports", "small")


def main() -> None:
    parser = argparse.ArgumentParser(description="A team's door with its own Ray and two replicas.")
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART")
    parser.add_argument("--users", type=int, nargs="+", default=[8, 16, 64], metavar="N", help="of the crowd")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "team.json")
    options = parser.parse_args()
    report: Report = json.loads(options.out.read_text()) if options.out.exists() else {"bench": "team"}
    for part in options.parts:
        about = conditions("small" if part == "small" else "tiny")
        found = asyncio.run(ports() if part == "ports" else with_door(part, options.users, options.seconds))
        report[part] = {"conditions": about, "found": found}
        save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
