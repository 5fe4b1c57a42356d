"""Where the time of a step goes: the kernels of one, by their time on the device, next to the time it takes.
One step each of:

gemma: denoise step of DiffusionGemma's 26B shape in FP8, recorded (`served`) and not recorded.
causal: verifying pass of four rows of a 7B code model in bfloat16, with its log-probabilities, likewise.
masked: step of Dream 7B in bfloat16 over a text of 768 tokens, with the logits of a hole.

The last two end as in the engine: the host waits for a few numbers of each row.

`wall_ms` is a step without the profiler, `device_ms` what its kernels and copies take, `gaps_ms` the time between them.
Where the first two are nearly the same, the kernels are slow; where not, the device waits for the host. Kernels are
listed by name and grid, since one name is launched for matrices of several shapes. The trace itself lies next to the
book. On a CPU, calls stand for kernels.
"""

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from caesura.engine.methods.uniform import canvases as uniform

import causal  # isort: skip  (of this folder)
import gemma  # isort: skip
import masked  # isort: skip
from measuring import Book, Line, Name, now, run, spread, table  # isort: skip
from stand_in import model, sizes  # isort: skip

SHAPES = ("gemma", "causal", "masked")
FORM = "fp8"
TOP = 40  # kernels that are listed
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # kinds of events in a trace
ROWS = 4  # of a verifying pass
FEW = 12  # numbers of a row that a search copies
Step = Callable[[], object]


class Plan(NamedTuple):
    """What is measured, in tokens and rows; each time over so many steps."""

    context: int = 1024  # the protocol's
    canvases: Sequence[int] = (256, 32)
    text: int = 768
    steps: int = 10


TINY = Plan(context=24, canvases=(16,), text=64, steps=2)


def stepped(served: gemma.Served, context: int, rows: int, way: str) -> Step:
    """Steps from the middle of one canvas on."""
    kv = served.after(context)
    w = served.canvas(kv, rows, 1000)
    step = partial(uniform.step, served.model, [w], served.replay if way == "served" else None)
    for _ in range(3):  # the first one knows nothing of a step before, the second one may record
        step()
    return step


def activity(device: str) -> ProfilerActivity:
    return ProfilerActivity.CUDA if device.startswith("cuda") else ProfilerActivity.CPU


class Ran(NamedTuple):
    """A kernel of a profile. Times in ms."""

    start: float
    ms: float
    spent: float  # without the calls inside it, which only a CPU has
    name: str
    grid: str


def traced(path: Path) -> list[Ran]:
    """What ran on the device, from a trace in Chrome's format."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    return [
        Ran(e["ts"] / 1e3, e["dur"] / 1e3, e["dur"] / 1e3, e["name"], " ".join(map(str, e["args"].get("grid", ()))))
        for e in events
        if e.get("cat") in ON_DEVICE
    ]


def ran(found: profile, device: str, trace: Path) -> list[Ran]:
    if device.startswith("cuda"):
        found.export_chrome_trace(str(trace))
        return traced(trace)
    return [
        Ran(e.time_range.start / 1e3, e.time_range.elapsed_us() / 1e3, e.self_cpu_time_total / 1e3, e.name, "")
        for e in found.events() or ()
        if e.device_type == DeviceType.CPU
    ]


def summed(kernels: Iterable[Ran], steps: int) -> Line:
    """A step's kernels by name and grid, and the gaps before them. What overlaps leaves no gap."""
    each, end = dict[tuple[str, str], list[float]](), None
    for kernel in sorted(kernels):
        of = each.setdefault((kernel.name, kernel.grid), [0.0, 0.0, 0])
        gap = 0.0 if end is None else max(0.0, kernel.start - end)
        for place, value in enumerate((kernel.spent, gap, 1)):
            of[place] += value / steps
        end = max(end or 0.0, kernel.start + kernel.ms)
    assert each, "the profiler saw no kernel"
    most = sorted(((*values, *of) for of, values in each.items()), reverse=True)
    top = [
        {"ms": float(f"{ms:.4g}"), "gap_ms": float(f"{gap:.4g}"), "count": count, "kernel": name[:100], "grid": grid}
        for ms, gap, count, name, grid in most[:TOP]
    ]
    spent, gaps, counts = (sum(column) for column in list(zip(*most, strict=True))[:3])
    return {"device_ms": spent, "gaps_ms": gaps, "kernels": counts, "top": top}


def seen(step: Step, device: str, steps: int, trace: Path) -> Line:
    """What one of so many steps takes, and its kernels. Nothing waits between two steps, as where the engine serves."""

    def all_of() -> float:
        began = now(device)
        for _ in range(steps):
            step()
        return (now(device) - began) / steps

    wall = spread([all_of() for _ in range(4)][1:])["p50_ms"]
    with profile(activities=[activity(device)]) as found:
        profiled = all_of()
    kernels = summed(ran(found, device, trace), steps)
    return {"wall_ms": wall, "profiled_ms": profiled, "of_wall": kernels["device_ms"] / wall, **kernels}


def wanted(plan: Plan, shape: str) -> list[Name]:
    """What is profiled of a shape, without the name of the measurement."""
    if shape == "gemma":
        ways = [(rows, way) for way in ("served", "unrecorded") for rows in plan.canvases]
        return [{"context": plan.context, "rows": rows, "way": way} for rows, way in ways]
    if shape == "causal":
        return [{"context": plan.text, "rows": ROWS, "way": way} for way in causal.WAYS]
    return [{"rows": plan.text}]


def made(plan: Plan, shape: str, device: str, *, tiny: bool) -> Callable[..., Step]:
    """A step for each of the `wanted`."""
    if shape == "gemma":
        own = gemma.TINY if tiny else gemma.Plan()
        return partial(stepped, gemma.Served(model(sizes(tiny=tiny), FORM, device, max(own.contexts)), own))
    if shape == "masked":
        text = masked.Served("7B", device, masked.TINY if tiny else masked.Plan(), tiny=tiny)
        return lambda rows: waiting(text.denoising([rows], masked.HOLE + masked.SEAM))
    code = causal.Served("7B", device, causal.TINY if tiny else causal.Plan(), tiny=tiny)
    return lambda context, rows, way: waiting(code.verifying(context, rows, way))


def waiting(step: Callable[[], Tensor]) -> Step:
    return lambda: step()[:, :FEW].cpu()


def measure(book: Book, plan: Plan, shape: str, device: str, *, tiny: bool) -> None:
    names = [({"measure": "profile", "shape": shape, **fields}, fields) for fields in wanted(plan, shape)]
    if not book.plan([name for name, _ in names]):
        return
    with profile(activities=[activity(device)]):
        pass  # what it needs of the driver is there before a step is recorded
    try:
        step = made(plan, shape, device, tiny=tiny)
    except Exception as error:
        return book.fail([name for name, _ in names], error)
    for name, fields in names:
        trace = book.path.with_name("-".join(["trace", shape, *map(str, fields.values())]) + ".json.gz")
        book.measure(name, lambda fields=fields, at=trace: seen(step(**fields), device, plan.steps, at))


def show(book: Book) -> None:
    lines = book.lines(measure="profile")
    columns = (
        "shape",
        "way",
        "context",
        "rows",
        "wall_ms",
        "profiled_ms",
        "device_ms",
        "of_wall",
        "gaps_ms",
        "kernels",
    )
    table("A step next to its kernels", columns, lines)
    for line in lines:
        about = " ".join(str(value) for name, value in line.items() if name in ("shape", "way", "rows"))
        columns = ("ms", "gap_ms", "count", "grid", "kernel")
        table(f"{about}: the {TOP} kernels with most time in a step", columns, line.get("top", ()))


if __name__ == "__main__":
    sys.exit(run(__doc__, SHAPES, (TINY, Plan()), measure, show))
