"""Compile kernels without the GPU they are for, with TRITON_INTERPRET=0 and tests/kernels on the path.

    python gpu/compiling.py all CAPABILITY   every kernel at DiffusionGemma's shapes and every candidate, into Triton's
                                             cache; leaves two processors free
    python gpu/compiling.py candidates       kernels/tuned/candidates.json: the block sizes that gpu/tune tries

A candidate spills no register, and leaves room for a second block on a processor of an H100 or H200: while one block
waits for memory, another one multiplies.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from itertools import product
from typing import Any

import compiled
import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from caesura.engine.models.diffusion_gemma import Config
from caesura.kernels import attention, experts, gated, head, matmul, tuned

import tuning  # isort: skip  (of this folder)
from stand_in import sizes  # isort: skip

HOPPER = 90
REGISTERS, SHARED, THREADS = 65536, 228 << 10, 2048  # of one of its processors
KEPT = 1 << 10  # bytes of shared memory that the driver takes for each block
Sides = Mapping[str, tuple[int, ...]]
UP: Sides = {"BLOCK_R": (16, 32, 64), "BLOCK_N": (32, 64, 128), "BLOCK_K": (64, 128, 256)}
DOWN: Sides = {"BLOCK_R": (16, 32, 64), "BLOCK_N": (64, 128), "BLOCK_K": (64, 128, 256)}
PRODUCT: Sides = DOWN | {"BLOCK_R": (16, 32, 64, 128)}
GATED: Sides = PRODUCT | {"BLOCK_N": (32, 64)}
ATTENTION: Sides = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (16, 32, 64), "BLOCK_V": (128, 256, 512)}
SCAN: Sides = {"BLOCK_R": (16, 32, 64, 128), "BLOCK_V": (128, 256), "BLOCK_D": (64, 128)}
MEAN: Sides = {"BLOCK_R": (16, 32, 64, 128), "BLOCK_V": (64, 128), "BLOCK_D": (128, 256)}
TRIED: Mapping[str, Sides] = {
    experts.UP: UP | {"num_warps": (2, 4, 8), "num_stages": (3, 4)},
    experts.DOWN: DOWN | {"num_warps": (2, 4, 8), "num_stages": (3, 4)},
    attention.NAME: ATTENTION | {"num_warps": (4, 8), "num_stages": (2, 3)},
    matmul.NAME: PRODUCT | {"num_warps": (2, 4), "num_stages": (4,)},
    gated.NAME: GATED | {"num_warps": (2, 4), "num_stages": (4,)},
    head.SCAN: SCAN | {"num_warps": (4, 8), "num_stages": (2, 3)},
    head.MEAN: MEAN | {"num_warps": (4, 8), "num_stages": (2, 3)},
}
TIMED = {  # their kernels in Triton
    experts.UP: "_up", experts.DOWN: "_down", attention.NAME: "_attend", matmul.NAME: "_multiply",
    gated.NAME: "_gate_up", head.SCAN: "_scan", head.MEAN: "_mean",
}  # fmt: skip


def absent(capability: int) -> None:
    """From now on launches compile for that GPU, and do not run."""
    driver.set_active(compiled.Absent(capability))
    compiled.compiling({})
    attention.capacity = head.capacity = matmul.capacity = lambda _: (132, capability in (90, 100))


def works(rows: int) -> Iterator[tuning.Work]:
    """On tensors without memory."""
    return tuning.works(Config.read(sizes(tiny=False)), "meta", tuning.Plan((rows,), cache=1))


def sided(work: tuning.Work) -> Iterator[tuned.Blocks]:
    """All block sizes that are thought of for this work."""
    sides = TRIED[work.kernel]
    for values in product(*sides.values()):
        blocks = dict(zip(sides, values, strict=True))
        if blocks.get("BLOCK_V", 0) <= work.shape[-1]:
            yield blocks


def fits(work: tuning.Work, blocks: tuned.Blocks) -> bool:
    """True if the kernel spills nothing and a processor has room for two of its blocks."""
    made = list[Any]()
    run = JITFunction.run

    def noted(self: Any, *arguments: Any, **more: Any) -> Any:
        made.append(run(self, *arguments, **more))
        return made[-1]

    JITFunction.run = noted
    try:
        with tuned.using([work.entry(blocks)]):
            work.launch()
    finally:
        JITFunction.run = run
    (kernel,) = (kernel for kernel in made if kernel.metadata.name == TIMED[work.kernel])
    registers, stack = taken(kernel.asm["cubin"])
    threads = 32 * blocks["num_warps"]
    room = min(REGISTERS // (registers * threads), SHARED // (kernel.metadata.shared + KEPT), THREADS // threads)
    return stack == 0 and room >= 2


def taken(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, in steps of eight, and bytes of its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", said.stdout + said.stderr).groups())  # type: ignore[union-attr]
    return -(-registers // 8) * 8, stack


def candidates() -> None:
    absent(HOPPER)
    lists, listed = [], set[str]()
    for work in works(256):
        if work.kernel == matmul.NAME and work.kernel in listed:
            continue  # one list serves all: a matrix's sides change neither registers nor shared memory
        listed.add(work.kernel)
        kept = [blocks for blocks in sided(work) if fits(work, blocks)]
        of = {"kernel": work.kernel, "shape": [*work.shape], "fields": [*TRIED[work.kernel]]}
        values = ",\n".join(json.dumps([*blocks.values()]) for blocks in kept)
        lists.append(f'{json.dumps(of)[:-1]}, "values": [\n{values}\n]}}')
        print(f"{work.kernel} {work.shape}: {len(kept)} of {sum(1 for _ in sided(work))}", flush=True)
    head = f'"capability": {HOPPER}, "triton": "{triton.__version__}", "lists": ['
    tuning.CANDIDATES.write_text("\n".join(["{" + head, ",\n".join(lists), "]}", ""]))


def shares() -> Iterator[tuple[int, int | None]]:
    """Pieces of work for one process each, the longest first: every kernel at so many rows, or a candidate of each."""
    yield from ((rows, None) for rows in reversed(compiled.ROWS))
    most = max(len(tuning.candidates(work, tuning.Plan())) for work in works(256))
    yield from ((256, number) for number in range(most))


def compile(share: tuple[int, int | None]) -> None:
    rows, number = share
    if number is None:
        compiled.ROWS, empty = (rows,), torch.empty
        with redirect_stdout(None):
            compiled.main(CAPABILITY)
        torch.empty = empty  # which that replaces
        return
    for work in works(rows):
        for blocks in tuning.candidates(work, tuning.Plan())[number : number + 1]:
            with tuned.using([work.entry(blocks)]):
                work.launch()


CAPABILITY = HOPPER  # of all processes


def start(capability: int) -> None:
    global CAPABILITY
    CAPABILITY = capability
    absent(capability)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("candidates")
    commands.add_parser("all").add_argument("capability", type=int)
    arguments = parser.parse_args()
    if arguments.command == "candidates":
        return candidates()
    processes = max(1, (os.cpu_count() or 1) - 2)
    with ProcessPoolExecutor(processes, initializer=start, initargs=(arguments.capability,)) as pool:
        count = sum(1 for _ in pool.map(compile, shares()))
    print(f"gpu/compile: {count} shares of kernels are compiled.")


if __name__ == "__main__":
    sys.exit(main())
