"""How the scripts next to it measure: what the device can do, the clock, and the book in which results lie as soon as
they are known.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from page import table as table  # isort: skip  (of this folder)

MACHINE = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
# Bytes a second, read and written, of a device-to-device copy; floors of another machine are those of an H200.
BANDWIDTH = 3.0e12 if "H100" in MACHINE else 4.3e12
PEAK = 790e12  # FLOP a second in bfloat16, and of codes that are decoded; twice as many of e4m3 times e4m3
UNFINISHED = 75  # exit status: time was over before everything was measured

Name = Mapping[str, Any]  # fields that say what was measured
Line = dict[str, Any]


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def now(device: str) -> float:
    """ms; the device has done all that it was given."""
    wait(device)
    return time.perf_counter() * 1e3


def spread(ms: Iterable[float]) -> dict[str, float]:
    """p50, p95, and of how many."""
    ordered = sorted(ms)
    return {"p50_ms": ordered[len(ordered) // 2], "p95_ms": ordered[int(len(ordered) * 0.95)], "n": len(ordered)}


def clock(call: Callable[[], object], device: str, repeats: int) -> dict[str, float]:
    """p50 and p95 in ms, after three calls that do not count."""
    times = []
    for _ in range(repeats + 3):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        times.append((time.perf_counter() - began) * 1e3)
    return spread(times[3:])


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The same work as one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


class Book:
    """Lines of results in a file, each under its name; `seconds` from now on nothing more is begun.

    What is in the book is not measured again, so a run that was cut off goes on where it was. A failure is a result: it
    would only happen again."""

    def __init__(self, path: Path, device: str, seconds: float) -> None:
        self.path, self._device, self._end = path, device, time.monotonic() + seconds
        self._lines: list[Line] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            whole, _, _ = path.read_text().rpartition("\n")  # a line that was cut off goes
            self._lines = [json.loads(line) for line in whole.splitlines()]
            path.write_text("".join(f"{line}\n" for line in whole.splitlines()))
        self._names: list[Name] = []  # of everything that was wanted, in order
        name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
        self._machine = {"machine": name, "torch": torch.__version__}

    def __repr__(self) -> str:
        return f"<Book {self.path} {len(self._lines)} lines>"

    def plan(self, names: Iterable[Name]) -> bool:
        """These belong to the run; whether any of them is to be measured now."""
        names = list(names)
        self._names += names
        return time.monotonic() < self._end and any(self.find(name) is None for name in names)

    def find(self, name: Name) -> Line | None:
        """What was measured under that name on such a machine."""
        whole = {**name, **self._machine}
        return next((line for line in self._lines if line.items() >= whole.items()), None)

    def measure(self, name: Name, run: Callable[[], Line]) -> None:
        """Book what `run` finds, unless it is known or time is over."""
        if self.find(name) is not None or time.monotonic() >= self._end:
            return
        try:
            found = run()
            wait(self._device)
        except Exception as error:
            self.fail([name], error)
            wait(self._device)  # raises where the device is lost to this process; the next one goes on after this
        else:
            self._write(name, found)

    def fail(self, names: Iterable[Name], error: Exception) -> None:
        sentence = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        for name in names:
            if self.find(name) is None:
                self._write(name, {"failed": sentence})

    def _write(self, name: Name, found: Line) -> None:
        short = {n: float(f"{v:.6g}") if isinstance(v, float) else v for n, v in found.items()}
        line = {**name, **short, **self._machine}
        self._lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)

    def lines(self, **some: Any) -> list[Line]:
        """Of everything planned with these fields, in order; what was not measured says so."""
        names = [name for name in self._names if name.items() >= some.items()]
        return [self.find(name) or {**name, "failed": "not measured"} for name in names]

    def report(self, out: Path | None) -> int:
        """Everything planned as one JSON line on stdout, and in `out` where that is wanted. The exit status."""
        text = json.dumps({**self._machine, "lines": self.lines()})
        if out:
            out.write_text(text + "\n")
        print(text)
        return UNFINISHED if any(self.find(name) is None for name in self._names) else 0


def command(about: str | None) -> argparse.ArgumentParser:
    """The options that every script which measures has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="every size small, for a CPU")
    parser.add_argument("--seconds", type=float, default=500, help="after which nothing more is begun")
    parser.add_argument("--book", type=Path, required=True, help="file of lines; what is in it is not measured again")
    parser.add_argument("--out", type=Path, help="file for all of it as one JSON document")
    return parser


def run(
    about: str | None,
    shapes: Sequence[str],
    plans: tuple[Any, Any],
    measure: Callable[..., None],
    show: Callable[[Book], None],
) -> int:
    """The command of a script that measures models as the engine serves them, shape by shape; its exit status. `plans`
    are the tiny one and the whole one."""
    parser = command(about)
    parser.add_argument("shapes", nargs="*", default=list(shapes), help=f"of {', '.join(shapes)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.shapes) - {*shapes}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    book, plan = Book(arguments.book, arguments.device, arguments.seconds), plans[0 if arguments.tiny else 1]
    for shape in arguments.shapes:
        measure(book, plan, shape, arguments.device, tiny=arguments.tiny)
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    show(book)
    return book.report(arguments.out)
