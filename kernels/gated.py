"""The inner rows of a gated MLP, gelu(gate x) * (up x) or silu(gate x) * (up x), whose matrices gate and up are one
[2 * width, K], gate first.

One launch for weights that are decoded. A tile has rows of gate and the same rows of up. Its columns are split as in
matmul.py, and the program that comes last adds the splits up (jit.py), takes gelu in its tanh form or silu, multiplies
and rounds once. For floats, for FP8 times FP8, and for more rows than decoding is worth, a library multiplies and a
second kernel does the rest. Where the next product wants `Rows8`, a program of that kernel has a whole row and makes
codes and a scale of it.

Bytes: the matrix once, x once a tile, and 2*rows*width written; splits write and read 16*splits*rows*width in L2. 32
rows of 2112 have four splits, 4.3 MB, of which the last program of a tile reads 32 KB, in 0.3 us at the 110 GB/s that
one processor takes from L2 (estimate, not measured). FLOP: 4*rows*width*K.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from caesura.kernels import matmul, tuned
from caesura.kernels.decode import product
from caesura.kernels.fp8 import empty_rows, quantised, store_row
from caesura.kernels.jit import cdiv, counters, fused, is_last, jit, tl, whole
from caesura.kernels.linear import Activations, Dense, Linear, row_operands

Act = Literal["gelu", "silu"]
NAME = "gate and up"  # in a table of block sizes


def reference(x: Activations, gate_up: Linear, rounds: bool = False, act: Act = "gelu") -> Activations:
    gate, up = gate_up(x).chunk(2, -1)
    inner = (silu(gate) if act == "silu" else gelu(gate, approximate="tanh")) * up
    return quantised(inner) if rounds else inner


@jit
def activated(gate, up, SILU: tl.constexpr):
    """gelu(gate) * up in float32, gelu in its tanh form; or silu(gate) * up."""
    # 0.5 * (1 + tanh(t)) is sigmoid(2t); t = sqrt(2/pi) * (gate + 0.044715 * gate^3)
    steep = gate if SILU else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(steep) * up


@jit(do_not_specialize=["rows", "steps"])  # they change from step to step and must not wait for the compiler
def _gate_up(
    x, codes, groups, factor, parts, out, counting, rows, steps, N: tl.constexpr, K: tl.constexpr,
    SILU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`parts` are float32 [splits, tiles, 2 * BLOCK_N, BLOCK_R]."""
    r, both = tl.arange(0, BLOCK_R), tl.arange(0, 2 * BLOCK_N)  # rows of gate, then the same rows of up
    row, split, splits = (tl.program_id(0) * BLOCK_R + r).to(tl.int64), tl.program_id(2), tl.num_programs(2)
    found, column = row < rows, tl.program_id(1) * BLOCK_N + both % BLOCK_N
    of_matrix = tl.where(column < N, column + both // BLOCK_N * N, 2 * N)
    first, last = split * steps, tl.minimum(split * steps + steps, tl.cdiv(K, BLOCK_K))
    total = product(
        x, None, row, found, codes, groups, factor, 0, of_matrix, first, last, 2 * N, K, BLOCK_R, 2 * BLOCK_N, BLOCK_K
    )
    tile, tiles = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.num_programs(0) * tl.num_programs(1)
    place = parts + both[:, None] * BLOCK_R + r[None, :]
    tl.store(place + (split * tiles + tile) * (2 * BLOCK_N * BLOCK_R), total)
    if is_last(counting + tile, splits):
        total = tl.zeros([2 * BLOCK_N, BLOCK_R], tl.float32)
        for number in range(splits):
            total += tl.load(place + (number * tiles + tile) * (2 * BLOCK_N * BLOCK_R), cache_modifier=".cg")
        gate, up = total.reshape(2, BLOCK_N, BLOCK_R).permute(1, 2, 0).split()
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        inner = activated(gate, up, SILU).to(out.dtype.element_ty)
        tl.store(out + row[None, :] * N + n[:, None], inner, mask=(n < N)[:, None] & found[None, :])


@jit
def _gate(both, out, scales, WIDTH: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr):
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    both += row * 2 * WIDTH + n
    gate = tl.load(both, mask=n < WIDTH, other=0.0).to(tl.float32)
    up = tl.load(both + WIDTH, mask=n < WIDTH, other=0.0).to(tl.float32)
    inner = activated(gate, up, SILU)
    if scales is not None:
        inner = inner.to(tl.bfloat16).to(tl.float32)
    store_row(inner, out, scales, row, n, WIDTH)


def launch(x: Activations, gate_up: Linear, rounds: bool = False, act: Act = "gelu") -> Activations:
    """As `gated`."""
    width = gate_up.shape[0] // 2
    if isinstance(x, Tensor) and not (rounds or gate_up.rounds or isinstance(gate_up, Dense)) and matmul.fits(x):
        return launch_product(x, gate_up, act)
    both = gate_up(x)
    out = empty_rows(both, len(both), width) if rounds else both.new_empty(len(both), width)
    how = whole(width) if rounds else {"WIDTH": width, "BLOCK": 512}
    _gate[len(both), cdiv(width, how["BLOCK"])](both, *row_operands(out), SILU=act == "silu", **how)
    return out


def launch_product(x: Tensor, gate_up: Linear, act: Act) -> Tensor:
    """As `gated`, for a matrix that is decoded."""
    (rows, columns), width, x = x.shape, gate_up.shape[0] // 2, x.contiguous()
    out = x.new_empty(rows, width)
    if not rows:
        return out
    assert columns == gate_up.shape[1]
    assert all(tensor.is_contiguous() for tensor in gate_up.tensors)
    how = tuned.blocks(NAME, gate_up.shape, rows, x, gate_up.operands[0]) or blocks(rows, width, columns)
    grid = cdiv(rows, how["BLOCK_R"]), cdiv(width, how["BLOCK_N"])
    steps, splits = matmul.splitting(grid[0] * grid[1], cdiv(columns, how["BLOCK_K"]), how, x.device)
    parts = torch.empty(splits, *grid, 2 * how["BLOCK_N"], how["BLOCK_R"], device=x.device)
    counting = counters(x.device)
    assert grid[0] * grid[1] <= len(counting)
    given = x, *gate_up.operands, parts, out, counting, rows, steps
    _gate_up[*grid, splits](*given, N=width, K=columns, SILU=act == "silu", **how)
    return out


def blocks(rows: int, width: int, columns: int) -> dict[str, int]:
    """Block sizes for a device without its own. A tile has BLOCK_N rows of gate and as many of up."""
    how = matmul.blocks(rows, 2 * width, columns)
    return how | {"BLOCK_N": how["BLOCK_N"] // 2}


def gated(x: Activations, gate_up: Linear, rounds: bool = False, act: Act = "gelu") -> Activations:
    """x [rows, K] and gate_up [2 * width, K], gate first -> gelu(gate x) * (up x), or with `act` "silu" silu of
    the gate; [rows, width] in x's dtype; or as `Rows8`, where the next product `rounds`."""
    return (launch if fused(row_operands(x)[0]) else reference)(x, gate_up, rounds, act)
