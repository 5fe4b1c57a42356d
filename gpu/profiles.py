"""Where the time of a step goes: the kernels of one, by their time on the device, next to the time it takes.
One step each of:

gemma: denoise step of DiffusionGemma's 26B shape in FP8, recorded (`served`) and not recorded.
causal: verifying pass of four rows of a 7B code model in bfloat16, with its log-probabilities.
masked: step of Dream 7B in bfloat16 over a text of 768 tokens, with the logits of a hole.

The last two end as in the engine: the host waits for a few numbers of each row.

`wall_ms` is a step without the profiler, `device_ms` what its kernels and copies take. Where these are nearly the same,
the kernels are slow; where they are not, the device waits for the host. On a CPU, calls stand for kernels.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from caesura.engine.methods._forward import on_host
from caesura.engine.methods.uniform import canvases as uniform

import causal  # isort: skip  (beside this script)
import gemma  # isort: skip
import masked  # isort: skip
from measuring import Book, Line, Name, now, run, spread, table  # isort: skip
from stand_in import model, sizes  # isort: skip

SHAPES = ("gemma", "causal", "masked")
FORM = "fp8"
TOP = 15  # kernels that are listed
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
    kv = served.behind(context)
    w = served.canvas(kv, rows, 1000)
    step = partial(uniform.step, served.model, [w], served.replay if way == "served" else None)
    for _ in range(3):  # the first one knows nothing of a step before, the second one may record
        step()
    return step


def activity(device: str) -> ProfilerActivity:
    return ProfilerActivity.CUDA if device.startswith("cuda") else ProfilerActivity.CPU


def seen(step: Step, device: str, steps: int) -> Line:
    """What one of so many steps takes, and its kernels. Nothing waits between two steps, as where the engine serves."""

    def all_of() -> float:
        began = now(device)
        for _ in range(steps):
            step()
        return (now(device) - began) / steps

    wall = spread([all_of() for _ in range(4)][1:])["p50_ms"]
    with profile(activities=[activity(device)]) as found:
        profiled = all_of()
    spent, there = dict[str, list[float]](), device.startswith("cuda")
    for event in found.events() or ():
        if event.device_type == (DeviceType.CUDA if there else DeviceType.CPU):
            us = event.time_range.elapsed_us() if there else event.self_cpu_time_total
            spent.setdefault(event.name, []).append(us / 1e3)
    assert spent, "the profiler saw no kernel"
    most = sorted(((sum(ms) / steps, len(ms) / steps, name) for name, ms in spent.items()), reverse=True)
    busy = sum(ms for ms, _, _ in most)
    return {
        "wall_ms": wall,
        "profiled_ms": profiled,
        "device_ms": busy,
        "of_wall": busy / wall,
        "kernels": sum(count for _, count, _ in most),
        "top": [{"ms": float(f"{ms:.4g}"), "count": count, "kernel": name[:100]} for ms, count, name in most[:TOP]],
    }


def wanted(plan: Plan, shape: str) -> list[Name]:
    """What is profiled of a shape, without the name of the measurement."""
    if shape == "gemma":
        ways = [(rows, way) for rows in plan.canvases for way in ("served", "anew")]
        return [{"context": plan.context, "rows": rows, "way": way} for rows, way in ways]
    return [{"context": plan.text, "rows": ROWS} if shape == "causal" else {"rows": plan.text}]


def made(plan: Plan, shape: str, device: str, *, tiny: bool) -> Callable[..., Step]:
    """A step for each of the `wanted`."""
    if shape == "gemma":
        own = gemma.TINY if tiny else gemma.Plan()
        return partial(stepped, gemma.Served(model(sizes(tiny=tiny), FORM, device, max(own.contexts)), own))
    if shape == "masked":
        text = masked.Served("7B", device, masked.TINY if tiny else masked.Plan(), tiny=tiny)
        return lambda rows: waiting(text.denoising([rows], masked.HOLE + masked.SEAM))
    code = causal.Served("7B", device, causal.TINY if tiny else causal.Plan(), tiny=tiny)
    return lambda context, rows: waiting(code.verifying(context, rows))


def waiting(step: Callable[[], Tensor]) -> Step:
    return lambda: on_host(step()[:, :FEW])


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
        book.measure(name, lambda fields=fields: seen(step(**fields), device, plan.steps))


def show(book: Book) -> None:
    lines = book.lines(measure="profile")
    columns = ("shape", "way", "context", "rows", "wall_ms", "profiled_ms", "device_ms", "of_wall", "kernels")
    table("A step beside its kernels", columns, lines)
    for line in lines:
        about = " ".join(str(value) for name, value in line.items() if name in ("shape", "way", "rows"))
        table(f"{about}: the {TOP} kernels with most time in a step", ("ms", "count", "kernel"), line.get("top", ()))


if __name__ == "__main__":
    sys.exit(run(__doc__, SHAPES, (TINY, Plan()), measure, show))
