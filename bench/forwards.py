"""Forwards per fill: what each way to need fewer of them is worth.

    python bench/forwards.py [--model NAME|PATH] [--places 24] [--seed 7] [--json] [--out bench/results/forwards.json]

A place in a standard library file and its author's next eight keys, each a job that runs to its end. A key that the
proposal before foresaw needs no job, as in the server; where each key is a job all the same, what is left of that
proposal is its draft. The scheduler runs in this process; one way is switched off at a time, and all rows type the same
keys. Counted are calls of the model, whatever rides along in them, and their rows.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from latency import HERE, Place, Report, conditions, places, save, spread, table

from caesura.engine.scores import Scores

sys.path.insert(0, str(HERE.parent))
from caesura import model_store, wire
from caesura.engine import models as engine_models
from caesura.engine import scheduler
from caesura.engine.cache import KV, Cache
from caesura.engine.methods import verify
from caesura.engine.model import Model, Run

BEFORE, AFTER = 6000, 2000  # characters of a file that a job brings, as the server's
SLOTS = 48  # tokens of a hole at most
LATE_MS = 60_000


class Counted:
    """A model that counts its forwards and their rows."""

    def __init__(self, model: Model) -> None:
        self._model, self.forwards, self.rows = model, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self._count(len(ids))
        self._model.prefill(ids, kv)

    def denoise(self, runs: Sequence[Run]) -> Scores:
        self._count(_rows(runs))
        return self._model.denoise(runs)

    def hidden(self, runs: Sequence[Run]) -> torch.Tensor:
        self._count(_rows(runs))
        return self._model.hidden(runs)  # type: ignore[attr-defined]

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> Any:
        self._count(_rows([*trees, *canvases]))
        return self._model.forward(trees, canvases)  # type: ignore[attr-defined]

    def _count(self, rows: int) -> None:
        self.forwards += 1
        self.rows += rows


def _rows(runs: Sequence[Run]) -> int:
    fresh = {id(run.kv): len(run.fresh) for run in runs if run.fresh}
    return sum(len(run.ids) for run in runs) + sum(fresh.values())


@dataclass
class Way:
    """How the keys are typed: `change` switches something off in the engine."""

    change: Callable[[ExitStack], object] = lambda stack: None
    method: str | None = None
    sampler: str | None = None
    warm: bool = True  # the rest of the proposal before is a draft
    foreseen: bool = True  # a key that it began with needs no job
    least: float = 0.0  # of the job


def without_lookup(stack: ExitStack) -> None:
    stack.enter_context(patch.object(verify, "lookup", lambda *_: []))
    stack.enter_context(patch.object(verify, "Repeats", lambda _: None))


def _context_apart(stack: ExitStack) -> None:
    """What is missing of a context is read before the canvas's first forward, which else takes it along."""
    begin = scheduler.Scheduler._begin

    def first(self: scheduler.Scheduler, live: scheduler.Running, fresh: Sequence[int]) -> None:
        if fresh:
            assert live.kv is not None
            self.model.prefill(fresh, live.kv)
        begin(self, live, ())

    stack.enter_context(patch.object(scheduler.Scheduler, "_begin", first))


def _canvas_always(stack: ExitStack) -> None:
    """Also for ghost text."""
    stack.enter_context(patch.object(verify, "canvas_drafts", lambda model, *_, **__: model.spec.noise is not None))


def _without_cache(stack: ExitStack) -> None:
    lease = Cache.lease

    def anew(self: Cache, ids: list[int]) -> KV:
        self._free.clear()
        return lease(self, ids)

    stack.enter_context(patch.object(Cache, "lease", anew))


WAYS = {
    "all of them": Way(),
    "each key a job, with a draft": Way(foreseen=False),
    "each key a job, without": Way(foreseen=False, warm=False),
    "no lookup": Way(without_lookup),
    "a canvas for ghost text too": Way(_canvas_always),
    "nothing followed that is less likely than 0.01": Way(least=0.01),
    "new context in a forward of its own": Way(_context_apart),
    "no context kept": Way(_without_cache),
    "canvas alone": Way(sampler="threshold"),
    "left to right, one token a forward": Way(method="left_to_right"),
}


@dataclass
class Seen:
    """Of one way: forwards and rows of each job, its milliseconds, and the text of each key."""

    forwards: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def type_all(model: Model, found: Sequence[Place], way: Way) -> Seen:
    seen, counted = Seen(), Counted(model)
    with ExitStack() as stack:
        way.change(stack)
        engine = scheduler.Scheduler(counted)  # type: ignore[arg-type]
        for number, place in enumerate(found):
            shown = ""
            for typed, key in enumerate(place.keys, 1):
                rest = shown[1:] if shown[:1] == key else ""
                if rest and way.foreseen:
                    shown = rest
                else:
                    draft = (rest,) if rest and way.warm else None
                    with _timed(seen, counted):
                        shown = _fill(engine, _job(f"{number}-{typed}", place, typed, draft, way))
                seen.texts.append(shown)
    return seen


@contextmanager
def _timed(seen: Seen, counted: Counted) -> Iterator[None]:
    began, forwards, rows = time.perf_counter(), counted.forwards, counted.rows
    yield
    seen.ms.append((time.perf_counter() - began) * 1000)
    seen.forwards.append(counted.forwards - forwards)
    seen.rows.append(counted.rows - rows)


def _job(name: str, place: Place, typed: int, draft: tuple[str] | None, way: Way) -> wire.Infill:
    before = place.before
    return wire.Infill(
        job=name,
        document=place.name,
        prefix=(before + place.keys[:typed])[-BEFORE:],
        suffix=place.text[len(before) :][:AFTER],
        segments=(wire.Hole(SLOTS, kind="line"),),
        language="python",
        draft=draft,
        method=way.method,
        sampler=way.sampler,
        min_probability=way.least,
        deadline_ms=LATE_MS,
    )


def _fill(engine: scheduler.Scheduler, job: wire.Infill) -> str:
    events = engine.take(b"bench", job, time.monotonic())
    while engine.busy:
        events += engine.step(time.monotonic)
    _, last = events[-1]
    assert isinstance(last, wire.Done), last
    return last.holes[0].text


def measure(model: str, number: int, seed: int) -> Report:
    report: Report = {"bench": "forwards", **conditions(model), "places": number, "seed": seed, "ways": {}}
    real, found = engine_models.load(model_store.resolve(model)), places(seed)[:number]
    type_all(real, found[:2], Way())  # the first forwards of a process are slower
    usual = list[str]()
    for name, way in WAYS.items():
        if way.method == "left_to_right" and real.spec.null_id is None:
            continue  # a model that cannot verify has no such way
        print(name, file=sys.stderr, flush=True)
        seen = type_all(real, found, way)
        usual = usual or seen.texts
        report["ways"][name] = {
            "jobs": len(seen.ms),
            "forwards_a_job": round(sum(seen.forwards) / len(seen.ms), 2),
            "forwards_a_key": round(sum(seen.forwards) / len(seen.texts), 2),
            "rows_a_key": round(sum(seen.rows) / len(seen.texts), 1),
            "ms": spread(seen.ms),
            "same_text": round(sum(a == b for a, b in zip(seen.texts, usual, strict=True)) / len(usual), 3),
        }
    return report


def picture(report: Report) -> str:
    """The report as a person reads it."""
    head = ("", "jobs", "forwards a job", "a key", "rows a key", "ms a job p50", "p95", "same text %")
    lines = [
        (
            name,
            *(way[k] for k in ("jobs", "forwards_a_job", "forwards_a_key", "rows_a_key")),
            way["ms"]["p50"],
            way["ms"]["p95"],
            100 * way["same_text"],
        )
        for name, way in report["ways"].items()
    ]
    title = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    return f"{title}\n{table(head, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Forwards per fill.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--places", type=int, default=24)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "forwards.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = measure(options.model, options.places, options.seed)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
