"""Where the engine's time goes while somebody types: stacks of Python and native code, sampled from outside.

    python bench/flame.py [--model NAME|PATH] [--places 12] [--seed 7] [--json] [--out bench/results/flame.json]

The worker's scheduler runs in this process over the real model. At each place, a line of a file of the standard
library cut at random, eight keys are typed; each asks for a line and waits for the whole of it. Between places the
context is another, so the first key reads one and the others find it read. py-spy stops the process a hundred times a
second, walks both kinds of frames of each thread, and leaves threads out that sleep; it needs the right to trace
(root, or ptrace_scope 0) and the extra `bench`. plots.py draws the picture.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

# As in worker.py, and for its reason: threads that spin while they wait cost ten times the time on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from caesura import model_store, wire
from caesura.engine import models as engine_models
from caesura.engine import scheduler

from latency import HERE, Place, Report, conditions, places, save, table  # isort: skip  (next to this script)

RATE = 100  # samples a second
BEFORE, AFTER = 6000, 2000  # characters of a file that a job brings
STARTS_S = 3.0  # that py-spy takes to read the symbols
LEAST = 0.002  # of all samples: a stack with less is cut until it has as much
SHOWN = 8  # costs of the table

SECOND = "_worker (concurrent/futures/"  # what the engine's second thread runs below
DISPATCH = "[dispatch]"  # torch finding the operator
WAITS = ("lock_PyThread_acquire_lock", "_queue_SimpleQueue_get")  # a thread has nothing to do
# Native frames by what they begin with: what they are called here. Others are left out.
NATIVE = (
    (re.compile(r"0x[0-9a-f]+ \(\?\)"), "[generated code]"),  # FBGEMM and oneDNN compile their kernels at run time
    (re.compile(r"fbgemm::|PackedLinearWeight"), "[FBGEMM]"),
    (re.compile(r"dnnl::|ideep::|at::native::mkldnn"), "[oneDNN]"),
    (re.compile(r"mkl_"), "[MKL]"),
    (re.compile(r".*(gil_scoped_acquire|take_gil)"), "[waits for the GIL]"),
    (re.compile(r"c10::function_ref|at::TensorIterator|at::internal|at::native::(AVX|\()"), "[loop]"),
    (re.compile(r"at::native::(?:structured_)?(\w+?)(?:_out|_cpu|_symint|_|<|\(| |::)"), r"[\1]"),
    (re.compile(r"torch::|pybind11::|c10::|at::_ops::"), DISPATCH),
)
PYTHON = re.compile(r"(.+) \((\S+\.py)(?::\d+)?\)$")
OUR_FILES = re.compile(r"caesura/|engine/|kernels/")


class Session:
    """One editor at a scheduler."""

    def __init__(self, model: str) -> None:
        self._scheduler = scheduler.Scheduler(engine_models.load(model_store.resolve(model), "cpu"))
        self._jobs = 0

    def __repr__(self) -> str:
        return f"<Session after {self._jobs} jobs>"

    def type_at(self, place: Place) -> None:
        after = "\n".join(place.text.split("\n")[place.line + 1 :])[:AFTER]
        for typed in range(1, len(place.keys) + 1):
            self._jobs += 1
            job = wire.Infill(
                job=str(self._jobs),
                document=place.name,
                prefix=place.before[-BEFORE:] + place.keys[:typed],
                suffix=f"\n{after}",
                language="python",
                deadline_ms=60_000,
                segments=(wire.Hole(48, "line"),),
            )
            self._scheduler.take(b"", job, time.monotonic())
            while self._scheduler.busy:
                self._scheduler.step(time.monotonic)


def sampled(session: Session, where: Iterable[Place], folder: Path) -> list[str]:
    """py-spy's lines, `frame;frame;... samples`, of a session at those places."""
    spy, out = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy")), folder / "stacks"
    told = ["--native", "--rate", str(RATE), "--format", "raw", "--output", str(out), "--duration", "3600"]
    process = subprocess.Popen([spy, "record", "--pid", str(os.getpid()), *told], stdout=subprocess.DEVNULL)
    time.sleep(STARTS_S)
    for place in where:
        session.type_at(place)
    process.send_signal(signal.SIGINT)
    process.wait()
    if not out.exists():
        sys.exit("py-spy could not read this process; run as root, or allow ptrace.")
    return out.read_text("utf-8").splitlines()


def named(frames: Sequence[str]) -> list[str]:
    """A stack in few words: our functions, and in brackets the native code below. Frames that repeat the one before are
    one, and the dispatch of an operator that is found below it is none."""
    names = [name for frame in frames if (name := _python(frame) if PYTHON.match(frame) else _native(frame))]
    worked = [name for name in names[:-1] if name != DISPATCH] + names[-1:]
    return [name for name, _ in itertools.groupby(worked)]


def _python(frame: str) -> str:
    told = PYTHON.match(frame)
    assert told, "asked for frames of Python only"
    if frame.startswith(SECOND):
        return "[second thread]"
    return told[1].rpartition("<locals>.")[2] if OUR_FILES.search(told[2]) else ""


def _native(frame: str) -> str:
    found = ((pattern.match(frame), name) for pattern, name in NATIVE)
    return next((told.expand(name) for told, name in found if told), "")


def stacks(lines: Iterable[str]) -> Counter[str]:
    """Samples of each stack of threads that work inside the engine, joined by semicolons."""
    found: Counter[str] = Counter()
    for line in lines:
        told, _, samples = line.rpartition(" ")
        frames = told.split(";")
        if not any(frame.startswith(WAITS) for frame in frames) and (names := named(frames)):
            found[";".join(names)] += int(samples)
    return found


def costs(found: Counter[str]) -> Counter[str]:
    """Samples of each function of ours, with the native code that it calls and without our functions that it calls."""
    spent: Counter[str] = Counter()
    for stack, samples in found.items():
        ours = [name for name in stack.split(";") if not name.startswith("[")]
        spent[ours[-1] if ours else "[torch]"] += samples
    return spent


def pruned(found: Counter[str], least: float) -> Counter[str]:
    """Stacks with fewer samples than `least` end where that many come together."""
    through: Counter[str] = Counter()
    for stack, samples in found.items():
        names = stack.split(";")
        for depth in range(1, len(names) + 1):
            through[";".join(names[:depth])] += samples
    kept: Counter[str] = Counter()
    for stack, samples in found.items():
        names = stack.split(";")
        while len(names) > 1 and through[";".join(names)] < least:
            names.pop()
        kept[";".join(names)] += samples
    return kept


def measure(model: str, count: int, seed: int) -> Report:
    session, where = Session(model), places(seed)
    report: Report = {"bench": "flame", **conditions(model), "seed": seed, "places": count, "rate": RATE}
    session.type_at(where[count])  # grammars and buffers that are made once
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        found = stacks(sampled(session, where[:count], Path(folder)))
    samples = found.total()
    report["samples"] = samples
    report["costs"] = {name: round(spent / samples, 3) for name, spent in costs(found).most_common(SHOWN)}
    return report | {"stacks": dict(sorted(pruned(found, LEAST * samples).items()))}


def picture(report: Report) -> str:
    """The costs as a person reads them."""
    about = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    rows = [(name, 100 * share) for name, share in report["costs"].items()]
    return f"{about}; {report['samples']} samples\n\n{table(('% of the working threads', ''), rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the engine's time goes.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--places", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "flame.json")
    options = parser.parse_args()
    report = measure(options.model, options.places, options.seed)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
