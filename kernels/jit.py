"""Triton, if it is installed (a CUDA build of torch on Linux brings it) and there is a GPU; otherwise only the
references run.

A kernel file reads from top to bottom: what is computed and what it must move, the reference in PyTorch, the kernel,
its launcher. The public function takes the kernel where `fused` says so. With TRITON_INTERPRET=1 the launchers run on a
CPU, one program after another: that is how the tests run them.

A kernel whose programs each make a part of a result may finish it in the same launch: the program that comes last
(`is_last`) adds the parts up, in their own order, so that the result does not depend on which one it was. Nobody waits
for another program, which might not have started.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

if torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ:
    try:
        import triton
        import triton.language as tl
        from triton import cdiv, jit
        from triton import next_power_of_2 as power
    except ImportError:
        triton = None
else:  # importing Triton would take 70 MB for nothing
    triton = None
if triton is None:
    cdiv = power = None
    tl: Any = SimpleNamespace(constexpr=None)  # type: ignore[no-redef]  # what the kernels' signatures name

    def jit(function: Any = None, **_: Any) -> Any:
        return function or (lambda function: function)


__all__ = ["capacity", "cdiv", "counters", "fused", "is_last", "jit", "power", "tl", "triton", "whole"]

COUNTERS = 1 << 12  # of a device; the router takes most: one for each expert and for every 16 rows


def fused(x: Tensor, *, fp8: bool = False) -> bool:
    """True if kernels run on this tensor's device; those that read e4m3 need an Ada or a later GPU."""
    return triton is not None and x.is_cuda and not (fp8 and torch.cuda.get_device_capability(x.device) < (8, 9))


def whole(width: int) -> dict[str, int]:
    """Block sizes for one row a program, 16 numbers a thread."""
    return {"WIDTH": width, "BLOCK": power(width), "num_warps": min(8, max(1, power(width) // 512))}


@cache
def capacity(device: torch.device) -> tuple[int, bool]:
    """The number of processors, and True if each has 227 KB of shared memory (Hopper, B200) rather than some 100."""
    if device.type != "cuda":
        return 12, True  # for tests: enough to split work
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.major in (9, 10)


@cache
def counters(device: torch.device) -> Tensor:
    """Zeros, int32 [COUNTERS], for kernels that count their programs. Each leaves zeros, so all share them, also the
    replays of CUDA graphs. A launch that fails runs no program. A fault in a program ends all work on the GPU, until
    another process begins with new zeros.

    Two kernels that count must not run at the same time. So a device works on one stream at a time, as the engine does:
    the stream on which a step is tried before its capture waits for the main one, which then waits for it. A capture
    would only record the zeroing, so the first call comes before it."""
    assert device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@jit
def is_last(counter, programs):
    """True in the last of so many programs that call this for one counter, which is 0 again then. That program sees
    what the others have stored before; it reads it with cache_modifier=".cg", past the cache of its processor."""
    tl.debug_barrier()  # the atomic of one thread publishes the stores of all
    last = tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(counter, 0)
    return last
