"""Compile kernels without the GPU they are for, with TRITON_INTERPRET=0 and tests/kernels on the path.

    python gpu/compiling.py all CAPABILITY PROCESSORS   every kernel that recorded steps and passes and gpu/tune launch,
                                                        into Triton's cache; leaves two cores free
    python gpu/compiling.py candidates                  kernels/tuned/candidates.json: block sizes that gpu/tune tries

Launches are noted on tensors without memory, by the code that launches them on a card, so none is forgotten: a kernel
depends on rows, splits, dtypes and shapes too.

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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import prod
from multiprocessing import get_context

import compiled
import triton

from caesura.engine.methods.uniform.graphs import BUCKETS
from caesura.engine.models.diffusion_gemma.model import Config
from caesura.engine.models.llama import trunk
from caesura.kernels import attention, experts, gated, head, matmul, tuned

import causal  # isort: skip  (of this folder)
import tuning  # isort: skip
from stand_in import EXACT, FORMS, model, sizes, step  # isort: skip

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


def works(rows: Sequence[int]) -> list[tuning.Work]:
    """On tensors without memory."""
    with compiled.noted():
        return list(tuning.works(Config.read(sizes(tiny=False)), "meta", tuning.Plan(rows, cache=1)))


def sided(work: tuning.Work) -> Iterator[tuned.Blocks]:
    """All block sizes that are thought of for this work."""
    sides = TRIED[work.kernel]
    for values in product(*sides.values()):
        blocks = dict(zip(sides, values, strict=True))
        if blocks.get("BLOCK_V", 0) <= work.shape[-1]:
            yield blocks


def fits(work: tuning.Work, blocks: tuned.Blocks) -> bool:
    """True if the kernel spills nothing and a processor has room for two of its blocks."""
    with compiled.noted() as found:
        tuning.launched(work, blocks)
    (launch,) = (launch for (name, _), launch in found.items() if name == TIMED[work.kernel])
    kernel = launch.compile()
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
    compiled.absent(HOPPER)
    lists, listed = [], set[str]()
    for work in works((256,)):
        if work.kernel == matmul.NAME and work.kernel in listed:
            continue  # one list serves all: 28 of its 29 fit with the other sides too, and gpu/tune times each
        listed.add(work.kernel)
        kept = [blocks for blocks in sided(work) if fits(work, blocks)]
        of = {"kernel": work.kernel, "shape": [*work.shape], "fields": [*TRIED[work.kernel]]}
        values = ",\n".join(json.dumps([*blocks.values()]) for blocks in kept)
        lists.append(f'{json.dumps(of)[:-1]}, "values": [\n{values}\n]}}')
        print(f"{work.kernel} {work.shape}: {len(kept)} of {sum(1 for _ in sided(work))}", flush=True)
    head = f'"capability": {HOPPER}, "triton": "{tuned.version()}", "kernels": "{tuned.digest()}", "lists": ['
    tuning.CANDIDATES.write_text("\n".join(["{" + head, ",\n".join(lists), "]}", ""]))


def needed() -> dict[compiled.Key, compiled.Launch]:
    """The first launch of every kernel that a card will need."""
    with compiled.noted() as found:
        for rows in compiled.ROWS:
            compiled.every_kernel(rows)
        steps()
        passes(*causal.SHAPES)
        tries()
    return found


def steps() -> None:
    """Recorded steps of DiffusionGemma in every precision and size. Six layers have all kinds."""
    config = sizes(tiny=False)
    text = config["text_config"]
    config["text_config"] = text | {"num_hidden_layers": 6, "layer_types": text["layer_types"][:6]}
    for form in (*FORMS, EXACT):
        served = model(config, form, "meta", 8192)
        for rows in BUCKETS:
            step(served, rows)()


def passes(*shapes: str) -> None:
    """Recorded passes of code models."""
    trunk.on_gpu = lambda _: True
    for shape in shapes:
        for recorded in causal.recorded(causal.model(shape, "meta", tiny=False)):
            recorded.replay()


def tries() -> None:
    """Everything that gpu/tune launches: formulas and candidates, and what draws new rows."""
    for work in works(tuning.Plan().rows):
        work.draw()
        for blocks in (None, *tuning.tried(work, tuning.Plan())):
            tuning.launched(work, blocks)


def size(launch: compiled.Launch) -> int:
    """Of its tiles: large ones take the compiler longest."""
    return prod(side for name, side in launch.named.items() if name.startswith("BLOCK"))


LAUNCHES: list[compiled.Launch] = []  # processes inherit them


def compile(number: int) -> str | None:
    """The kernel's name if this Triton does not compile it; gpu/tune leaves it out."""
    try:
        LAUNCHES[number].compile()
    except triton.TritonError:
        return LAUNCHES[number].kernel.__name__
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("candidates")
    everything = commands.add_parser("all")
    for number in ("capability", "processors"):
        everything.add_argument(number, type=int)
    arguments = parser.parse_args()
    if arguments.command == "candidates":
        return candidates()
    compiled.absent(arguments.capability, arguments.processors)
    LAUNCHES[:] = sorted(needed().values(), key=size, reverse=True)
    processes = max(1, (os.cpu_count() or 1) - 2)
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        failed = [name for name in pool.map(compile, range(len(LAUNCHES))) if name]
    print(f"gpu/compile: {len(LAUNCHES) - len(failed)} kernels are compiled; not: {', '.join(failed) or 'none'}.")


if __name__ == "__main__":
    sys.exit(main())
