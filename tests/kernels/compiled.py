"""Compile every kernel for a GPU that is not here, at DiffusionGemma's shapes and a 7B code model's.

    TRITON_INTERPRET=0 PYTHONPATH=gpu:bench python tests/kernels/compiled.py CAPABILITY

The launchers run on tensors without memory, with a driver that only says which GPU it would be. Launches are noted,
one for each kernel that Triton would compile, and compiled afterwards. Prints each kernel with the most bytes of shared
memory that it takes. gpu/compiling.py notes what models and gpu/tune launch in the same way.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from caesura.engine.methods.uniform import renoise
from caesura.engine.models.diffusion_gemma.model import Config
from caesura.kernels import attention, decision, experts, fp8, gated, head, matmul, norms, nvfp4, rotary
from caesura.kernels.linear import Dense, Linear

from stand_in import matrices, sizes  # isort: skip  (gpu/)

HIDDEN, WIDTH, EXPERTS, TOP_K = 2816, 704, 128, 8
ROWS = (1, 16, 32, 33, 64, 128, 256)
PROCESSORS = 132  # of an H100 or H200
KERNELS = attention, decision, experts, fp8, gated, head, matmul, norms, renoise, rotary
Key = tuple[str, str]  # a kernel's name, and Triton's key of what it compiles: dtypes, constants, block sizes
run = JITFunction.run


class Absent:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


class Launch(NamedTuple):
    kernel: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def compile(self) -> Any:
        return run(self.kernel, *self.arguments, warmup=True, **self.named)


def absent(capability: int, processors: int = PROCESSORS) -> None:
    """From now on kernels are launched on any tensors, as if these were on that GPU."""
    driver.set_active(Absent(capability))
    for module in KERNELS:
        module.fused = lambda *_, **__: True
    for module in (attention, head, matmul):
        module.capacity = lambda _: (processors, capability // 10 in (9, 10))


@contextmanager
def noted() -> Iterator[dict[Key, Launch]]:
    """Launches are noted and neither compiled nor run: the first one of each kernel that has not been compiled yet."""
    found, keys = dict[Key, Launch](), list[Key]()

    def asked(*, key: str, fn: Any, **_: Any) -> bool:
        keys.append((fn.name, key))
        return True  # that there is nothing to compile

    def note(kernel: Any, *arguments: Any, warmup: bool, **named: Any) -> None:
        run(kernel, *arguments, warmup=True, **named)
        found.setdefault(keys.pop(), Launch(kernel, arguments, named))

    with patch.object(JITFunction, "run", note), patch.object(triton.knobs.runtime, "jit_cache_hook", asked):
        yield found


def coded(shape: tuple[int, ...]) -> list[Linear]:
    """A matrix or a stack in each precision that our kernels decode or multiply."""
    *outer, columns = shape
    codes = torch.empty(shape, dtype=torch.float8_e4m3fn)
    halves = torch.empty(*outer, columns // 2, dtype=torch.uint8)
    scale = torch.empty(*outer, columns // nvfp4.GROUP, dtype=torch.float8_e4m3fn)
    factor = torch.empty(*outer, 1)
    return [
        fp8.Fp8Linear(codes, factor),
        fp8.Fp8Dynamic(codes, factor),
        nvfp4.Nvfp4Linear(halves, scale, factor),
    ]


def stacks() -> Iterator[tuple[Linear, Linear]]:
    shapes = (EXPERTS, 2 * WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)
    dense = [Dense(torch.empty(shape, dtype=torch.bfloat16)) for shape in shapes]
    yield dense[0], dense[1]
    yield from zip(*map(coded, shapes), strict=True)


def code_model(rows: int) -> None:
    """What a pass of Qwen2.5-Coder 7B launches, recorded and not, and with Qwen3's norms of heads."""
    heads, groups, width = 28, 4, 128
    q, qkv = torch.zeros(rows, heads, width, dtype=torch.bfloat16), torch.zeros(rows, 36 * width, dtype=torch.bfloat16)
    keys, values = torch.zeros(2, groups, 4352, width, dtype=torch.bfloat16)
    table, spans = torch.zeros(4, dtype=torch.int64), torch.zeros(rows, 4, dtype=torch.int32)
    mask, turn = torch.ones(rows, 33, dtype=torch.int64), torch.zeros(2, rows, width // 2)
    attention.launch(q, keys, values, None, 1 << 62, spans, table, mask)
    for seen in (None, mask[:, :9].contiguous()):
        attention.launch(q, keys[:, :900], values[:, :900], None, 1 << 62, mask=seen)
    for norm in (None, torch.ones(width)):
        split = qkv.split((heads * width, groups * width, groups * width), 1)
        rotary.launch(*split, norm, norm, turn, 1e-6, keys, values, spans[:, 0].contiguous(), table, scale=0.1)
        rotary.launch(*split, norm, norm, turn, 1e-6, keys[:, :rows], values[:, :rows], scale=0.1)
    x, gate_up = torch.zeros(rows, heads * width), torch.zeros(37_888, 64, dtype=torch.bfloat16)
    for parts in (x.bfloat16(), torch.zeros(6, rows, heads * width)):
        norms.launch_add_norm(x, parts, x[0], 1e-6, torch.bfloat16)
    gated.launch(x[:, :64].bfloat16(), Dense(gate_up), act="silu")


def layers(rows: int) -> None:
    """What stands between products: attention, rotary, and the sums with their norms."""
    for groups, width, window in ((8, 256, 1024), (2, 512, 1 << 62)):
        q = torch.zeros(rows, 16, width, dtype=torch.bfloat16)
        keys, values = torch.zeros(2, groups, 8192, width, dtype=torch.bfloat16)
        for first in (None, 2000):
            attention.launch(q, keys[:, :3000], values[:, :3000], first, window)
        table, spans = torch.zeros(4, dtype=torch.int64), torch.zeros(rows, 4, dtype=torch.int32)
        for rounded in (None, fp8.empty_rows(q, rows, 16 * width)):
            attention.launch(q, keys, values, None, window, spans, table, rounded=rounded)
        k, norm = torch.zeros(rows, groups * width, dtype=torch.bfloat16), torch.ones(width)
        turn = torch.zeros(2, rows, 128 if groups == 8 else 64, dtype=torch.bfloat16)
        v = k if groups == 8 else None
        of_cache = keys[:, :rows], values[:, :rows]
        rotary.launch(q.flatten(1), k, v, norm, norm, turn, 1e-6, *of_cache)
        rotary.launch(q.flatten(1), k, v, norm, norm, turn, 1e-6, keys, values, spans[:, 0].contiguous(), table)
        qs, ks = torch.zeros(2, rows, (16 + groups) * width).split((16 * width, groups * width), 2)
        rotary.launch(qs, ks, None if v is None else ks, norm, norm, turn, 1e-6, *of_cache)
    x, which = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16), torch.zeros(rows, dtype=torch.int64)
    weight, mode = torch.ones(HIDDEN), torch.zeros(rows, dtype=torch.int64)
    norms.launch_enter(which, x.new_zeros(4096, HIDDEN), 2.0, x, which, weight, 1e-6)
    fp8.launch_quantised(x)
    for rounds in (False, True):
        norms.launch_add_signals(x, x, weight, mode, 1e-6, rounds)
        norms.launch_add_attention(x, x, (weight,) * 3, x[0], 1e-6, (rounds, rounds))
        norms.launch_add_experts(x, x, x, (weight,) * 4, x[0, :2], mode, 1e-6, None, rounds)
    pairs, weights = x.new_zeros(rows, TOP_K, HIDDEN), torch.zeros(rows, TOP_K)
    for parts in (x, torch.zeros(2, rows, HIDDEN), torch.zeros(6, rows, HIDDEN)):
        norms.launch_add_attention(x, parts, (weight,) * 3, x[0], 1e-6)
        norms.launch_add_experts(x, parts, pairs, (weight,) * 4, x[0, :2], mode, 1e-6, weights)
    norms.launch_route(x, x.new_zeros(EXPERTS, HIDDEN), x.new_zeros(EXPERTS), TOP_K)


def products(rows: int) -> None:
    """Of matrices of every side that the model has, and of experts, in every precision."""
    x, chosen = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16), torch.zeros(rows, TOP_K, dtype=torch.int64)
    for gate_up, down in stacks():
        for act in ("gelu", "silu"):
            experts.launch(x, torch.zeros(rows, TOP_K), chosen, gate_up, down, act=act)
    config = Config.read(sizes(tiny=False))
    gate_up_of_layer = (2 * config.intermediate_size, HIDDEN)
    for weight in (Dense(x.new_zeros(gate_up_of_layer)), *coded(gate_up_of_layer)):
        gated.launch(x, weight, weight.rounds)
    for shape in matrices(config):
        for weight in coded(shape):
            if not weight.rounds:
                matmul.launch(x.new_zeros(rows, shape[1]), weight)


def vocabulary(rows: int) -> None:
    """The head, and what is decided on its scores."""
    x, embed = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16), torch.zeros(4096, HIDDEN, dtype=torch.bfloat16)
    which, open = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    asked = head.Rows(x, torch.ones(rows), torch.zeros(2, len(embed)), which, open)
    of = head.Head(embed, embed, 30.0)
    seen = head.launch(of, asked)
    head.launch_draw(of, asked, seen, torch.zeros(rows), open)
    head.launch_score(of, x, which)
    canvases = open.expand(16, rows).contiguous()
    of_slots = which, which, which, *torch.zeros(3, rows), *[open] * 4, which, which, which[:1]
    for of_canvases in (None, canvases):
        asked_of = decision.Deciding(*of_slots, of_canvases, torch.zeros(16))
        decision.settle(asked_of, decision.LockRules(0.1, 2, 1))
    decision.launch_accept(torch.zeros(16, rows), canvases, 0.1)
    decision.launch_biases(which, open, open, open, canvases, 3)


def every_kernel(rows: int) -> None:
    """On tensors without memory."""
    with torch.device("meta"):
        for launched in (layers, products, vocabulary, code_model):
            launched(rows)


def main(capability: int) -> None:
    absent(capability)
    with noted() as found:
        for rows in ROWS:
            every_kernel(rows)
    shared = dict[str, int]()
    for (name, _), launch in found.items():
        shared[name] = max(shared.get(name, 0), launch.compile().metadata.shared)
    for name, most in sorted(shared.items()):
        print(name, most)


if __name__ == "__main__":
    main(int(sys.argv[1]))
