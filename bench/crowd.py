"""Many editors at one engine: what each of them waits for, and what the engine gets done.

    python bench/crowd.py [--model NAME|PATH] [--peers 1 4 16 64] [--seconds 40] [--seed 7] [--json]
                          [--out bench/results/crowd.json]

Every peer types eight keys at a place of its own file, at 40 to 120 words a minute, then rests for three seconds and
goes on at the next place. Each key is a job that takes the place of the one before, whatever came of it. The scheduler
runs in this process, on the wall clock over the real model (`measured`), and on a virtual clock where only forwards
take time, as long as the least that DiffusionGemma's weights in FP8 would take on one H200 (`simulated`: a bound, not
a measurement; the steps are those of a tiny model of random weights, with as many tokens of context as the real one's
tokenizer would make, and four contexts in memory). Both once more with one live job at a time. A key that was never
answered counts in the percentiles as one that took for ever.
"""

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import torch
from latency import HERE, Place, Report, conditions, places, save, spread, table

sys.path.insert(0, str(HERE.parent))
from caesura import model_store, wire
from caesura.engine import models as engine_models
from caesura.engine import scheduler
from caesura.engine.cache import KV
from caesura.engine.model import Model, Renoiser, Run
from caesura.engine.models.diffusion_gemma.model import CHUNK
from tests.support.checkpoints import gemma

REST_S = 3.0  # between two places
WORDS = (40, 120)  # a minute, of five keys each
BEFORE, AFTER = 6000, 2000  # characters of a file that a job brings
LETTERS = 3.5  # characters of code in a token of 262,144
FP8_MS = ((16, 4.0), (32, 5.25), (64, 5.9), (128, 6.2), (256, 6.9), (512, 12.0))  # rows, ms: DiffusionGemma's bound


class Clock(Protocol):
    def __call__(self) -> float: ...
    def wait(self, until: float) -> None: ...


class Wall:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._began

    def wait(self, until: float) -> None:
        time.sleep(max(0.0, until - self()))


class Virtual:
    """Time that passes where somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)


class Costed:
    """A model whose forwards take virtual time, by their rows, and that reads context as it would on a GPU."""

    def __init__(self, model: Renoiser, clock: Virtual) -> None:
        self._model, self._clock = model, clock
        self.spec = replace(model.spec, chunk=CHUNK, max_context=int((BEFORE + AFTER) / LETTERS))

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self._pay(len(ids))
        self._model.prefill(ids, kv)

    def hidden(self, runs: Sequence[Run]) -> torch.Tensor:
        self._pay(sum(len(run.ids) + len(run.fresh) for run in runs))
        return self._model.hidden(runs)

    def _pay(self, rows: int) -> None:
        at = min(bisect_left(FP8_MS, (rows, 0.0)), len(FP8_MS) - 1)
        known, ms = FP8_MS[at]
        self._clock.now += ms * max(1.0, rows / known) / 1000


@dataclass(eq=False)
class Key:
    """A key and what came of it; seconds from the key. `last`: nothing is typed after it for a while."""

    at: float
    peer: bytes
    job: wire.Infill
    last: bool
    first: float | None = None  # until locked text, or the answer without any
    whole: float | None = None

    def says(self) -> Iterator[tuple[float, bytes, wire.Infill | wire.Cancel]]:
        """The messages to the engine: their times in seconds, their peer, and the job or its cancel."""
        yield self.at, self.peer, self.job


def crowd(peers: int, seconds: float, seed: int) -> list[Key]:
    """The keys of all peers, by time."""
    found = places(seed)
    keys = [key for peer in range(peers) for key in _typist(peer, found[peer % 8 :: 8], seconds, f"{seed}/{peer}")]
    return sorted(keys, key=lambda key: key.at)


def _typist(peer: int, own: Sequence[Place], seconds: float, seed: str) -> Iterator[Key]:
    """Eight turns make a file, so every eighth place is of the same one."""
    draw = random.Random(seed)
    pause, at, number = 12 / draw.uniform(*WORDS), draw.uniform(0, REST_S), 0
    start = draw.randrange(len(own))
    for place in itertools.cycle([*own[start:], *own[:start]]):
        lines = place.text.split("\n")
        before = "\n".join([*lines[: place.line], lines[place.line][: place.column]])[-BEFORE:]
        after = "\n".join([lines[place.line][place.column :], *lines[place.line + 1 :]])
        for typed in range(1, len(place.keys) + 1):
            if at >= seconds:
                return
            job = wire.Infill(
                job=f"{peer}-{number}",
                document=f"{place.name}-{peer}",
                prefix=before + place.keys[:typed],
                suffix=after[:AFTER],
                language="python",
                deadline_ms=60_000,
                segments=(wire.Hole(48),),
            )
            yield Key(at, str(peer).encode(), job, last=typed == len(place.keys))
            at, number = at + draw.expovariate(1 / pause), number + 1
        at += REST_S


def replay(engine: scheduler.Scheduler, keys: Sequence[Key], clock: Clock, seconds: float) -> list[float]:
    """Take every job when its time has come and step while there is something to do, until `seconds` are over. Fills in
    what came of the keys; returns the seconds of each step, which is how long a cancel may wait."""
    asked, steps = {key.job.job: key for key in keys}, list[float]()
    waiting = sorted((said for key in keys for said in key.says()), key=itemgetter(0))[::-1]
    while clock() < seconds:
        events = list[scheduler.Event]()
        while waiting and waiting[-1][0] <= clock():
            _, peer, message = waiting.pop()
            events += engine.take(peer, message, clock())
        if engine.busy:
            began = clock()
            events += engine.step(clock)
            steps.append(clock() - began)
        else:
            clock.wait(min(seconds, waiting[-1][0] if waiting else seconds))
        for _, event in events:
            if isinstance(event, wire.Locked | wire.Done):
                _hear(asked[event.job], event, clock())
    return steps


def _hear(key: Key, event: wire.Locked | wire.Done, now: float) -> None:
    if key.first is None and (isinstance(event, wire.Done) or any(fill.locked for fill in event.holes)):
        key.first = now - key.at
    if isinstance(event, wire.Done):
        key.whole = now - key.at


def summary(keys: Sequence[Key], steps: Sequence[float], seconds: float) -> Report:
    """Milliseconds; `seen`: keys that got locked text before the next key came. A key so late that its answer would
    have come after the end counts as unanswered."""
    first, whole = ([getattr(key, name) for key in keys] for name in ("first", "whole"))
    rested = [key for key in keys if key.last and key.at < seconds - REST_S]
    return {
        "keys": len(keys),
        "seen": round(sum(f is not None for f in first) / len(keys), 3),
        "first_ms": percentiles(first),
        "rested": len(rested),
        "rested_answered": round(sum(key.whole is not None for key in rested) / max(1, len(rested)), 3),
        "rested_ms": percentiles([key.whole for key in rested]),
        "fills_s": round(sum(value is not None for value in whole) / seconds, 2),
        "step_ms": percentiles(steps),
    }


def percentiles(found: Sequence[float | None]) -> Report:
    """Milliseconds; None where the percentile falls on what was never answered."""
    ms = spread([math.inf if value is None else 1000 * value for value in found])
    return {name: None if value == math.inf else value for name, value in ms.items()}


def measure(model: str, peers: Sequence[int], seconds: float, seed: int) -> Report:
    report: Report = {"bench": "crowd", **conditions(model), "seconds": seconds, "seed": seed, "rows": []}
    real = engine_models.load(model_store.resolve(model))
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        tiny = engine_models.load(str(gemma.published(Path(folder) / "tiny")), "cpu")
    for count, live in itertools.product(peers, (scheduler.LIVE, 1)):
        for kind, begin in (("measured", lambda: (Wall(), real)), ("simulated", lambda: _simulated(tiny))):
            print(f"{kind}, {count} peers, {live} live", file=sys.stderr, flush=True)
            report["rows"].append(
                {"kind": kind, "peers": count, "live": live, **_once(begin, count, live, seconds, seed)}
            )
    return report


def _simulated(tiny: Model) -> tuple[Clock, Model]:
    clock = Virtual()
    return clock, Costed(tiny, clock)  # type: ignore[return-value]


def _once(begin: Callable[[], tuple[Clock, Model]], peers: int, live: int, seconds: float, seed: int) -> Report:
    keys = crowd(peers, seconds, seed)
    clock, model = begin()
    steps = replay(scheduler.Scheduler(model, live=live), keys, clock, seconds)
    return summary(keys, steps, seconds)


def picture(report: Report) -> str:
    """The report as a person reads it."""
    head = ("peers, live jobs", "keys", "seen %", "first p50", "p95", "rested", "%", "whole p50", "p95", "fills/s")
    parts = [f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}; ms"]
    for kind in ("measured", "simulated"):
        lines = [
            (
                f"{row['peers']}, {row['live']}",
                row["keys"],
                100 * row["seen"],
                *(row["first_ms"][p] for p in ("p50", "p95")),
                row["rested"],
                100 * row["rested_answered"],
                *(row["rested_ms"][p] for p in ("p50", "p95")),
                row["fills_s"],
                *(row["step_ms"][p] for p in ("p50", "p95")),
            )
            for row in report["rows"]
            if row["kind"] == kind
        ]
        parts.append(f"{kind}\n{table((*head, 'step p50', 'p95'), lines)}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many editors at one engine.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--peers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the tables")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "crowd.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = measure(options.model, options.peers, options.seconds, options.seed)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
