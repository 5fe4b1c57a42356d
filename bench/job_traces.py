"""The jobs that a typist's server gives an engine, as numbers: what bench/capacity.py replays.

    python bench/job_traces.py [--model NAME|PATH] [--stretches N] [--out bench/results/jobs-MODEL.json]

Each stretch of typing_stretches/ is replayed by its emulated editor against the real language server, in this process
and on a clock of its own. The engine runs each job alone and at once, through the real scheduler over the real model,
and says its events when they would have come: time passes as long as each step took. What was debounced, superseded,
cancelled, speculated or typed through is decided by the server, and is in the recording as the jobs that it gave and
left. A context is kept as two numbers only: its length, and how much of it begins an earlier one.
"""

import argparse
import asyncio
import json
import os
import queue
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in worker.py
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from emulators import EDITORS, Message
from latency import HERE, Report, conditions
from simulator import own_records, replay
from typist import STRETCHES, Stretch, stretches

sys.path.insert(0, str(HERE.parent))
from caesura import model_store, wire
from caesura.client.backend import Condition, FinishedJob
from caesura.engine import models as engine_models
from caesura.engine.cache import common
from caesura.engine.canvas.layout import lay
from caesura.engine.model import Model
from caesura.engine.scheduler import LEAST_SLOTS, Event, Scheduler
from caesura.server.app import App
from caesura.server.lsp.framing import Framer
from tests.support.processes.clock import Clock

ALONE = b"alone"  # the only peer
REST_S = 1.0  # after the last key of a stretch


class Step(NamedTuple):
    """A step of a job that runs alone: rows of its canvas or token tree, new rows of its context, seconds, and of them
    the CPU time of our own code: all but the model."""

    rows: int
    fresh: int
    seconds: float
    own: float
    events: list[Event]


@dataclass
class GivenJob:
    """A job, at seconds from the start of its stretch, and when the server left it, if it did before its end."""

    job: wire.Infill
    at: float
    context: list[int]
    steps: list[Step]
    left: float | None = None


@dataclass
class Counted:
    """Counts the rows that the model computes, and the seconds of CPU that it takes in this thread."""

    model: Model
    rows: int = 0
    fresh: int = 0
    spent: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def prefill(self, ids: Sequence[int], kv: Any) -> None:
        self.fresh += len(ids)
        self._timed(self.model.prefill, ids, kv)

    def forward(self, trees: Sequence[Any], canvases: Sequence[Any] = ()) -> Any:
        self.rows += sum(len(run.ids) for run in (*trees, *canvases))
        self.fresh += sum(len(run.fresh) for run in (*trees, *canvases))
        return self._timed(self.model.forward, trees, canvases)  # type: ignore[attr-defined]

    def _timed(self, part: Callable[..., Any], *given: Any) -> Any:
        began = time.thread_time()
        found = part(*given)
        self.spent += time.thread_time() - began
        return found


@dataclass
class Alone:
    """An engine that nobody else uses. `given` are its jobs."""

    model: Model
    given: list[GivenJob] = field(default_factory=list)
    began: float = 0.0
    condition = Condition("ready", "recorded", "cpu")
    on_change: Callable[[], None] = lambda: None
    on_job: Callable[[FinishedJob], None] = lambda job: None

    def __post_init__(self) -> None:
        self._counted = Counted(self.model)
        self._scheduler = Scheduler(self._counted)  # type: ignore[arg-type]

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        now = asyncio.get_running_loop().time
        found = GivenJob(job, now() - self.began, self._context(job), self._steps(job))
        self.given.append(found)
        over = False
        try:
            for step in found.steps:
                await asyncio.sleep(step.seconds)
                for _, event in step.events:
                    assert isinstance(event, wire.Locked | wire.Done), event
                    over = isinstance(event, wire.Done)
                    yield event
        finally:
            found.left = None if over else now() - self.began

    def _context(self, job: wire.Infill) -> list[int]:
        return lay(self.model, self._scheduler.vocabulary, job, LEAST_SLOTS).context

    def _steps(self, job: wire.Infill) -> list[Step]:
        steps, counted = list[Step](), self._counted
        self._scheduler.take(ALONE, job, time.perf_counter())
        while self._scheduler.busy:
            counted.rows, counted.fresh, counted.spent = 0, 0, 0.0
            began, worked = time.perf_counter(), time.thread_time()
            events = self._scheduler.step(time.perf_counter)
            own = time.thread_time() - worked - counted.spent
            steps.append(Step(counted.rows, counted.fresh, time.perf_counter() - began, own, events))
        return steps


class Link:
    """A server in this process, as an editor reaches it."""

    encoding = "utf-16"

    def __init__(self, engine: Alone) -> None:
        self.server = App(lambda options, client, remote: engine).server
        self._framer, self._count = Framer(), 0
        self._answers = dict[int, Callable[[Message], None]]()
        self._handed, self._idle = queue.Queue[bytes](), threading.Event()
        self._serving = asyncio.create_task(self.server.serve_in_loop(self._read, self._write))

    def __repr__(self) -> str:
        return f"<Link {self._count} requests, {len(self._answers)} open>"

    def notify(self, method: str, params: object) -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: object, answer: Callable[[Message], None]) -> int:
        self._count += 1
        self._answers[self._count] = answer
        self._send({"id": self._count, "method": method, "params": params})
        return self._count

    async def begin(self, encodings: Sequence[str], name: str) -> None:
        asked = {
            "processId": None,
            "clientInfo": {"name": name},
            "rootUri": None,
            "capabilities": {"general": {"positionEncodings": list(encodings)}},
        }
        await asyncio.sleep(0)  # the reader has begun
        known = asyncio.get_running_loop().create_future()
        self.request("initialize", asked, known.set_result)
        self.encoding = (await known)["result"]["capabilities"]["positionEncoding"]
        self.notify("initialized", {})

    async def end(self) -> None:
        self.server.stop(0)
        await self._serving

    def _send(self, message: Message) -> None:
        """Returns once the reader has passed the message on to the loop."""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._idle.clear()
        self._handed.put(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._idle.wait()

    def _read(self) -> bytes:
        self._idle.set()
        return self._handed.get()

    def _write(self, data: bytes) -> None:
        for body in self._framer.feed(data):
            message = json.loads(body)
            if "method" not in message:
                self._answers.pop(message["id"])(message)
            elif "id" in message:
                items = (message.get("params") or {}).get("items")
                self._send({"id": message["id"], "result": [None] * len(items) if items else None})


async def type_one(model: Model, stretch: Stretch) -> list[GivenJob]:
    """The jobs of a stretch."""
    kind, engine = EDITORS[stretch.editor], Alone(model)
    link = Link(engine)
    await link.begin(kind.encodings, kind.name)
    engine.began = asyncio.get_running_loop().time()
    await replay(link, stretch, 1.0)  # type: ignore[arg-type]
    await asyncio.sleep(REST_S)
    await link.end()
    return engine.given


def record(model: Model, stretch: Stretch) -> list[GivenJob]:
    """The same, on a clock that waits for nobody."""
    clock = Clock()
    asyncio.set_event_loop(clock)
    try:
        return clock.run_until_complete(type_one(model, stretch))
    finally:
        clock.close()


def numbers(given: Sequence[GivenJob]) -> list[Report]:
    """The jobs of a stretch, without their text. `like` is the earlier job whose context begins most alike, `same` how
    much of it; `rows` are those of each step once the context is read, `first` the steps until text is locked."""
    found, keys = list[Report](), list(dict.fromkeys(job.job.document for job in given))
    for number, job in enumerate(given):
        alike = [common(job.context, other.context) for other in given[:number]]
        same = max(alike, default=0)
        asked = [step for step in job.steps if step.rows]
        locks = [index for index, step in enumerate(asked, 1) if any(locked(event) for _, event in step.events)]
        found.append(
            {
                "at": round(job.at, 4),
                "left": job.left and round(job.left, 4),
                "priority": job.job.priority,
                "document": keys.index(job.job.document),
                "context": len(job.context),
                "like": alike.index(same) if same else None,
                "same": same,
                "rows": [step.rows for step in asked],
                "first": locks[0],
            }
        )
    return found


def locked(event: wire.EngineMessage) -> bool:
    """True at a job's first text, or at its answer without any."""
    return isinstance(event, wire.Done) or (isinstance(event, wire.Locked) and any(fill.locked for fill in event.holes))


def measure(name: str, chosen: Sequence[Stretch], out: Path) -> None:
    """Record the stretches that `out` does not have yet. Each is saved when it is there."""
    model = engine_models.load(model_store.resolve(name))
    engine = {"chunk": model.spec.chunk, "rows": model.spec.rows, "contexts": model.cache().entries}
    report: Report = {"bench": "jobs", **conditions(name), "engine": engine, "stretches": {}}
    if out.exists():
        report = json.loads(out.read_text())
    for stretch in chosen:
        if stretch.name in report["stretches"]:
            continue
        print(stretch.name, file=sys.stderr, flush=True)
        given = record(model, stretch)
        report["stretches"][stretch.name] = {
            "file": stretch.file,
            "seconds": round(sum(event[0] for event in stretch.events) / 1000, 2),
            "jobs": numbers(given),
            "steps": [(step.rows, step.fresh, round(1000 * step.seconds, 2)) for job in given for step in job.steps],
            "own": [round(1000 * step.own, 3) for job in given for step in job.steps],
        }
        out.write_text(json.dumps(report, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="The jobs of a typist's server, as numbers.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--stretches", type=int, metavar="N", help="only the first N")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out or HERE / "results" / f"jobs-{options.model}.json"
    with own_records():
        measure(options.model, stretches(STRETCHES)[: options.stretches], out)


if __name__ == "__main__":
    main()
