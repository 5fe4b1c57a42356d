"""Whether anything grows while an editor types for long and its engine is killed every minute.

    python bench/soak.py [--minutes 30] [--json] [--out bench/results/soak.json]

The processes of kills.py. Every minute the worker is killed, every fifth the supervisor. Resident memory, descriptors
and threads of the language server, and of supervisor and worker while they live, are read every five seconds. What they
grow by a minute is the median slope between any two samples of the second half of one life, which a few high samples do
not move. Ends with 1 where that is over its bound, an answer was of another text, or a process is left behind.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import combinations
from pathlib import Path

from kills import own_folder
from latency import HERE, Report, conditions, save, table

sys.path.insert(0, str(HERE.parent))
from caesura.client.shared import Engine
from tests.support.processes.kills import FAKE, KEY_S, Typist, editor, orphans

PROCESSES = ("server", "supervisor", "worker")
SAMPLE_S = 5.0
KILL_S = 60.0
LASTS = 5  # workers that a supervisor outlives
SHORT = 6  # samples: a life with fewer says nothing
# A minute. Half an hour of 30 kills had 0.02 MiB at most, and no descriptor or thread: one descriptor left by each
# supervisor that dies is twice the bound, one by each worker ten times, a megabyte a minute five times.
BOUNDS = {"mib": 0.2, "descriptors": 0.1, "threads": 0.1}

Sample = tuple[float, float, int, int]  # seconds, MiB, descriptors, threads


def sample(pid: int, began: float) -> Sample:
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    threads = len(list((folder / "task").iterdir()))
    descriptors = len(list((folder / "fd").iterdir()))
    return time.monotonic() - began, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, descriptors, threads


async def type_on(typist: Typist, until: float) -> int:
    """Keys without and with a wait for the fill; how many were answered with one."""
    fills = 0
    while time.monotonic() < until:
        task = typist.key()
        done, _ = await asyncio.wait([task], timeout=KEY_S[typist.keys % len(KEY_S)])
        fills += any(task.result() for task in done)
    return fills


async def soak(runtime: Path, minutes: float) -> Report:
    lives: dict[str, dict[int, list[Sample]]] = {name: defaultdict(list) for name in PROCESSES}
    kills = 0
    watcher = Engine(client="soak", model="typed", command=[sys.executable, "-P", str(FAKE), "typed"])
    async with editor() as typist:
        await typist.start()
        await watcher.start()
        await typist.fill()
        began = time.monotonic()
        typing = asyncio.create_task(type_on(typist, began + 60 * minutes))
        while not typing.done():
            await asyncio.sleep(SAMPLE_S)
            await watcher.ready(60)
            status = await watcher.status()
            pids = (typist.client.process.pid, status.pid, status.worker_pid)
            for name, pid in zip(PROCESSES, pids, strict=True):
                if pid:
                    lives[name][pid].append(sample(pid, began))
            if time.monotonic() - began > KILL_S * (kills + 1) and status.worker_pid:
                kills += 1
                os.kill(status.worker_pid if kills % LASTS else status.pid, signal.SIGKILL)
        fills = await typing
        await watcher.close()
    return {
        **{"minutes": minutes, "kills": kills, "keys": typist.keys, "fills": fills, "crossed": typist.crossed},
        **{name: trend(lives[name].values()) for name in PROCESSES},
        **{"stale": typist.stale, "orphans": await orphans(runtime)},
    }


def trend(lives: Collection[list[Sample]]) -> Report:
    """Of a process that lives once or is killed. Memory at first and at last is of its longest life."""
    lives = [life for life in lives if len(life) >= SHORT] or list(lives)
    longest = max(lives, key=len)
    _, _, descriptors, threads = zip(*(sample for life in lives for sample in life), strict=True)
    return {
        "lives": len(lives),
        "samples": sum(map(len, lives)),
        "mib": [round(longest[0][1], 2), round(longest[-1][1], 2)],
        "descriptors": [min(descriptors), max(descriptors)],
        "threads": [min(threads), max(threads)],
        "a_minute": {name: round(60 * growth(lives, column), 3) for column, name in enumerate(BOUNDS, 1)},
    }


def growth(lives: Sequence[list[Sample]], column: int) -> float:
    """A second, in the second half of a life: the median over pairs of samples."""
    pairs = (pair for life in lives for pair in combinations(life[len(life) // 2 :], 2))
    return statistics.median([(float(b[column]) - a[column]) / (b[0] - a[0]) for a, b in pairs] or [0.0])


def growing(found: Report) -> list[str]:
    """What a trend says grows faster than its bound."""
    return [name for name, bound in BOUNDS.items() if found["a_minute"][name] > bound]


def picture(report: Report) -> str:
    rows = [
        [
            name,
            report[name]["lives"],
            *report[name]["mib"],
            report[name]["a_minute"]["mib"],
            *report[name]["descriptors"],
            *report[name]["threads"],
        ]
        for name in PROCESSES
    ]
    head = [
        "",
        "lives",
        "MiB at first",
        "at last",
        "MiB a minute",
        "descriptors least",
        "most",
        "threads least",
        "most",
    ]
    sums = ", ".join(
        f"{report[name]} {name}" for name in ("minutes", "kills", "keys", "fills", "crossed", "stale", "orphans")
    )
    grow = [f"{name}: {what} grow" for name in PROCESSES for what in growing(report[name])]
    return "\n".join([table(head, rows), sums, *grow])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "soak.json")
    options = parser.parse_args()
    with own_folder() as runtime:
        report = {"conditions": conditions("fake"), **asyncio.run(soak(runtime, options.minutes))}
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))
    grow = any(growing(report[name]) for name in PROCESSES)
    sys.exit(bool(report["stale"] or report["orphans"] or grow))


if __name__ == "__main__":
    main()
