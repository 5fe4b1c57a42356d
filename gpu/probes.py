"""Bounds of this card, before anything of ours is blamed: how fast it copies, multiplies, launches and reads.

copy: bytes read and written a second by a copy on the device.
product: of random numbers in bfloat16, and in e4m3 with a scale a row and a scale a column.
launch: a kernel that does nothing, from Python, in a graph, and in a graph where a launch begins before the one before
    it has ended (programmatic dependent launches).
read: rows of 2,816 bytes like those of an expert, of which a program reads so many bytes of 64 rows at a time.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from caesura.kernels.jit import cdiv, jit, tl, triton

from measuring import Book, Line, Name, captured, clock, command, table, wait  # isort: skip  (of this folder)

if triton:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROW = 2816  # bytes
DEPENDENT = "dependent, in a graph"


class Plan(NamedTuple):
    copied: int = 1 << 30  # bytes
    side: int = 8192  # of the matrices
    launches: int = 1000
    rows: int = 128 * 1408
    repeats: int = 10


TINY = Plan(1 << 12, 32, 2, 64, 1)


@jit
def _nothing(out, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@jit
def _read(codes, out, rows, K: tl.constexpr, BYTES: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, BYTES // 4), tl.int32)
    for start in tl.range(0, K // 4, BYTES // 4, num_stages=4):
        column = start + tl.arange(0, BYTES // 4)
        mask = (row < rows)[:, None] & (column < K // 4)[None, :]
        total += tl.load(codes + row.to(tl.int64)[:, None] * (K // 4) + column[None, :], mask=mask, other=0)
    tl.store(out + row, tl.sum(total, 1), mask=row < rows)


def as_graph(call: Callable[[], object], device: str, repeats: int) -> float:
    """ms"""
    return clock(captured(call) if device == "cuda" else call, device, repeats)["p50_ms"]


def copy(plan: Plan, device: str) -> Line:
    given = torch.zeros(plan.copied, dtype=torch.uint8, device=device)
    into = torch.empty_like(given)
    ms = clock(lambda: into.copy_(given), device, plan.repeats)["p50_ms"]
    return {"ms": ms, "gb_s": 2 * plan.copied / ms / 1e6}


def multiply(plan: Plan, device: str, dtype: str) -> Line:
    n = plan.side
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    call: Callable[[], object] = lambda: a @ b.t()  # noqa: E731
    if dtype == "e4m3":
        codes, others, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones(n, 1, device=device)
        call = lambda: torch._scaled_mm(  # noqa: E731
            codes, others.t(), scale_a=one, scale_b=one.t(), out_dtype=torch.bfloat16
        )
    ms = as_graph(call, device, plan.repeats)
    return {"ms": ms, "tflop_s": 2 * n**3 / ms / 1e9}


def launches(plan: Plan, device: str, way: str) -> Line:
    out, dependent = torch.zeros(1, device=device), way == DEPENDENT
    how: dict[str, Any] = {"launch_pdl": True} if dependent else {}

    def call() -> None:
        for _ in range(plan.launches):
            _nothing[1,](out, DEPENDENT=dependent, **how)

    if way != "from Python":
        return {"us": as_graph(call, device, plan.repeats) / plan.launches * 1e3}
    call()
    wait(device)
    began = time.perf_counter()
    call()
    return {"us": (time.perf_counter() - began) / plan.launches * 1e6}


def read(plan: Plan, device: str, bytes: int, warps: int) -> Line:
    codes = torch.zeros(plan.rows, ROW // 4, dtype=torch.int32, device=device)
    out, tile = torch.empty(plan.rows, dtype=torch.int32, device=device), 64
    grid = (cdiv(plan.rows, tile),)
    call = lambda: _read[grid](  # noqa: E731
        codes, out, plan.rows, K=ROW, BYTES=bytes, TILE=tile, num_warps=warps
    )
    ms = as_graph(call, device, plan.repeats)
    return {"ms": ms, "gb_s": codes.nbytes / ms / 1e6}


def probes(plan: Plan, device: str) -> Iterator[tuple[str, Callable[[], Line]]]:
    yield "copy", partial(copy, plan, device)
    for dtype in ("bf16", "e4m3"):
        yield f"product, {dtype}", partial(multiply, plan, device, dtype)
    for way in ("in a graph", DEPENDENT, "from Python"):
        if way != DEPENDENT or device == "cuda":  # Triton's interpreter does not know it
            yield f"launch, {way}", partial(launches, plan, device, way)
    for bytes in (64, 128, 256):
        for warps in (2, 4):
            yield f"read, {bytes} bytes of a row, {warps} warps", partial(read, plan, device, bytes, warps)


def main() -> int:
    parser = command(__doc__)
    arguments = parser.parse_args()
    book = Book(arguments.book, arguments.device, arguments.seconds)
    found = list(probes(TINY if arguments.tiny else Plan(), arguments.device))
    names: list[Name] = [{"measure": "probe", "what": what} for what, _ in found]
    book.plan(names)
    for name, (_, probe) in zip(names, found, strict=True):
        book.measure(name, probe)
    table("The card", ("what", "ms", "us", "gb_s", "tflop_s"), book.lines())
    return book.report(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
