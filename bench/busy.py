"""Fills of the shipped model on a busy machine, and how soon a worker that really hangs is noticed there.

    python bench/busy.py [--fills 200] [--load 8] [--times 5] [--json] [--out bench/results/busy.json]

`--load` processes that loop without end run on all processors. *silence* is the longest time between two signs of
progress of a worker, which a watchdog by the clock would take for a hang. Then workers of a model of a dozen lines are
stopped, loop, or hold the GIL in the middle of a job, and *hang* is the time until that is answered. Ends with 1 where
a fill failed, a process of the engine was replaced, or a hang lasted longer than a worker may be silent.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latency import HERE, Report, conditions, save, spread, table

from kills import HANGS, own_folder  # isort: skip  (next to this, and makes `tests` importable)
from tests.support.processes import points  # isort: skip

from caesura import model_store, wire
from caesura.client.backend import EngineError, EngineFailed, job_id
from caesura.client.shared import Engine
from caesura.engine.supervisor import link
from caesura.engine.supervisor.process import Patience
from caesura.ipc import rendezvous
from caesura.ipc.silence import STARVED

START_S = 300.0
DEADLINE_MS = 60_000.0
LOOK_S = 0.005
FAKE = HERE.parent / "tests" / "support" / "processes" / "fake_engine.py"
HUNG_MS = 1000 * Patience().hang_s / STARVED


@contextmanager
def busy(load: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Watch(threading.Thread):
    """The longest time in which a worker showed no progress."""

    def __init__(self, progress: Path) -> None:
        super().__init__(daemon=True)
        self._counter, self._over = link.Heartbeat(progress), threading.Event()
        self.longest_s = 0.0

    def run(self) -> None:
        seen, since = self._counter.read(), time.monotonic()
        while not self._over.wait(LOOK_S):
            count, now = self._counter.read(), time.monotonic()
            self.longest_s = max(self.longest_s, now - since)
            if count != seen:
                seen, since = count, now

    def end(self) -> None:
        self._over.set()
        self.join()


def jobs(count: int) -> Iterator[wire.Infill]:
    """A line of our own files each, at a random place, with 3,000 characters before it."""
    texts, rng = [path.read_text() for path in sorted((HERE.parent / "engine").rglob("*.py"))], random.Random(0)
    for _ in range(count):
        lines = rng.choice([text for text in texts if text.count("\n") > 40]).splitlines(keepends=True)
        at = rng.randrange(20, len(lines) - 5)
        yield wire.Infill(
            job=job_id(),
            document=job_id(),
            prefix="".join(lines[:at])[-3000:],
            suffix="".join(lines[at + 1 :])[:1500],
            language="python",
            segments=(wire.Hole(16, "line"),),
            deadline_ms=DEADLINE_MS,
        )


async def fills(count: int) -> Report:
    model = model_store.resolve(model_store.DEFAULT)
    engine, ms, failed = Engine(client="bench"), list[float](), list[str]()
    try:
        await engine.start()
        await engine.ready(START_S)
        before, watch = await engine.status(), Watch(rendezvous.place(model, "auto").progress)
        watch.start()
        for job in jobs(count):
            began = time.monotonic()
            try:
                async for _ in engine.infill(job):
                    pass
                ms.append(1000 * (time.monotonic() - began))
            except EngineError as error:
                failed.append(str(error))
        watch.end()
        after = await engine.status()
        await engine.stop()
    finally:
        await engine.close()
    return {
        "fill_ms": spread(ms),
        "silence_s": round(watch.longest_s, 2),
        "failed": failed,
        "killed": after.restarts + (after.pid != before.pid),
    }


async def hang(runtime: Path, act: str) -> float:
    """Milliseconds from a worker's hang to the answer of its job."""
    engine = Engine(client="bench", model="typed", command=[sys.executable, "-P", str(FAKE), "typed"])
    try:
        await engine.start()
        await engine.ready(START_S)
        points.plan(runtime, "step 3", act)
        try:
            async for _ in engine.infill(next(jobs(1))):
                pass
        except EngineFailed:
            answered = time.monotonic()
        began = points.happened(runtime)
        assert began is not None
        return 1000 * (answered - began)
    finally:
        await engine.close()


def measure(count: int, load: int, times: int, out: Path) -> Report:
    report: Report = {"conditions": conditions(model_store.DEFAULT), "busy": load, "hangs": []}
    with busy(load):
        with own_folder():
            report["fills"] = asyncio.run(fills(count))
            save(report, out)
        for act in HANGS:
            ms = []
            for _ in range(times):
                with own_folder() as runtime:
                    ms.append(asyncio.run(hang(runtime, act)))
            report["hangs"].append({"act": act, "hang_ms": spread(ms) | {"max": round(max(ms), 1)}})
            save(report, out)
    return report


def picture(report: Report) -> str:
    done, names = report["fills"], ("n", "p50", "p95")
    rows: list[list[object]] = [["fill, ms", *(done["fill_ms"][name] for name in names), None]]
    for hang in report["hangs"]:
        rows.append([f"hang, ms: {hang['act']}", *(hang["hang_ms"][name] for name in (*names, "max"))])
    killed = f"{done['killed']} killed, {len(done['failed'])} failed, longest silence {done['silence_s']} s"
    return f"{table(('', *names, 'max'), rows)}\n{killed}, {report['busy']} busy processes"


def broken(report: Report) -> list[str]:
    """The promises that were not kept, a sentence each."""
    done = report["fills"]
    over = [f"A fill failed: {why}" for why in done["failed"]]
    over += [f"{done['killed']} processes were replaced."] if done["killed"] else []
    hangs = [(hang["act"], hang["hang_ms"]["max"]) for hang in report["hangs"]]
    return over + [f"{act}: answered after {ms} ms, over {HUNG_MS:g}." for act, ms in hangs if ms > HUNG_MS]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fills", type=int, default=200)
    parser.add_argument("--load", type=int, default=8)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "busy.json")
    options = parser.parse_args()
    report = measure(options.fills, options.load, options.times, options.out)
    print(json.dumps(report) if options.json else picture(report))
    sentences = broken(report)
    print(*sentences, sep="\n", file=sys.stderr)
    sys.exit(bool(sentences))


if __name__ == "__main__":
    main()
