"""Whether anything grows while an editor types for long and its engine is killed every minute.

    python bench/soak.py [--minutes 30] [--json] [--out bench/results/soak.json]

The processes of kills.py. Every minute the worker is killed, every fifth the supervisor. Resident memory, descriptors
and threads of the language server, and of the supervisor while it lives, are read every five seconds; the slope is of
least squares, without the first minute. What they grow by a minute is the median slope between any two samples of the
second half, which a few high samples do not move. Ends with 1 where that is over its bound, an answer was of another
text, or a process is left behind.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from kills import own_folder
from latency import HERE, Report, conditions, save, table

sys.path.insert(0, str(HERE.parent))
from caesura.server.engine import Engine
from tests.kills import FAKE, KEY_S, Typist, editor, orphans

PROCESSES = ("server", "supervisor")
SAMPLE_S = 5.0
KILL_S = 60.0
WARM_S = 60.0
LASTS = 5  # workers that a supervisor outlives
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
    server, supervisors, kills = list[Sample](), dict[int, list[Sample]](), 0
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
            server.append(sample(typist.client.process.pid, began))
            supervisors.setdefault(status.pid, []).append(sample(status.pid, began))
            if time.monotonic() - began > KILL_S * (kills + 1) and status.worker_pid:
                kills += 1
                os.kill(status.worker_pid if kills % LASTS else status.pid, signal.SIGKILL)
        fills = await typing
        await watcher.close()
    longest = max(supervisors.values(), key=len)
    return {
        **{"minutes": minutes, "kills": kills, "keys": typist.keys, "fills": fills, "crossed": typist.crossed},
        "server": trend(server),
        "supervisor": trend(longest),
        **{"stale": typist.stale, "orphans": await orphans(runtime)},
    }


def trend(samples: list[Sample]) -> Report:
    seconds, *columns = zip(*[s for s in samples if s[0] > WARM_S] or samples, strict=True)
    memory, descriptors, threads = columns
    slope = statistics.linear_regression(seconds, memory).slope if len(seconds) > 1 else 0.0
    return {
        "samples": len(seconds),
        "mib": [round(memory[0], 2), round(memory[-1], 2)],
        "mib_an_hour": round(3600 * slope, 2),
        "descriptors": [min(descriptors), max(descriptors)],
        "threads": [min(threads), max(threads)],
        "a_minute": {
            name: round(60 * growth(seconds, column), 3) for name, column in zip(BOUNDS, columns, strict=True)
        },
    }


def growth(seconds: Sequence[float], amounts: Sequence[float]) -> float:
    """A second, in the second half: the median over pairs of samples."""
    late = list(zip(seconds, amounts, strict=True))[len(seconds) // 2 :]
    return statistics.median([(b - a) / (t - s) for (s, a), (t, b) in combinations(late, 2)] or [0.0])


def growing(found: Report) -> list[str]:
    """What a trend says grows faster than its bound."""
    return [name for name, bound in BOUNDS.items() if found["a_minute"][name] > bound]


def picture(report: Report) -> str:
    rows = [
        [
            name,
            *report[name]["mib"],
            report[name]["mib_an_hour"],
            report[name]["a_minute"]["mib"],
            *report[name]["descriptors"],
            *report[name]["threads"],
        ]
        for name in PROCESSES
    ]
    head = [
        "",
        "MiB at first",
        "at last",
        "MiB an hour",
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
