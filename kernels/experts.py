"""Mixture of experts for few rows an expert: every row's top_k experts, weighted and summed.

expert(x) = down @ (gelu(gate @ x) * (up @ x)), gelu in its tanh form; gate and up are one stack, gate first. Gemma 4
and DiffusionGemma have 128 experts of which a row takes 8: a canvas of 16 to 256 rows leaves an expert 2 to 16 of them.

Bytes: n rows touch E * (1 - (1 - top_k/E)^n) of E experts, and a touched one costs 3 * hidden * width weights, read
once: 2 bytes a weight in bfloat16, 1 in FP8, 9/16 in NVFP4. Between the kernels each of the n * top_k pairs (a row and
one of its experts) costs 4 * width and 4 * hidden, part of it in L2. At n = 256, hidden 2816, width 704, FP8: 761 MB of
weights, 29 MB between. FLOP: 6 * n * top_k * hidden * width, 24 GFLOP there: bound by memory, if decoding keeps pace.

Four launches that need nothing of the routing on the host, so that a CUDA graph can hold them:
1. each expert lists its pairs: a counting sort, a program an expert;
2. gate, up and gelu for an expert's pairs -> `inner` [pairs, width];
3. down -> `outer` [pairs, hidden], rounded to x's dtype where the reference rounds;
4. weight and sum over top_k, in float32.
No atomics: nothing depends on who comes first.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import torch
from torch import Tensor
from torch.nn.functional import gelu

from caesura.kernels import fp8, nvfp4
from caesura.kernels.jit import cdiv, fused, jit, power, tl
from caesura.kernels.linear import Dense, Linear


def reference(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Linear, down: Linear) -> Tensor:
    """The rows are sorted by expert, so that each matrix is read once; the host waits for the counts."""
    rows, top_k = chosen.shape
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=gate_up.shape[0]).tolist()
    ordered = x[order // top_k]
    out = torch.empty_like(ordered)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            span = slice(start, start + count)
            gate, up = gate_up[expert](ordered[span]).chunk(2, -1)
            out[span] = down[expert](gelu(gate, approximate="tanh") * up)
            start += count
    back = torch.empty(rows * top_k, x.shape[1], device=x.device)
    back[order] = out * weights.flatten()[order, None]
    return back.view(rows, top_k, -1).sum(1).to(x.dtype)


@jit
def _list(chosen, members, counts, pairs, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    members += expert * pairs
    found = 0
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        mine = (tl.load(chosen + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
        tl.store(members + found + tl.cumsum(mine) - 1, pair, mask=mine > 0)
        found += tl.sum(mine)
    tl.store(counts + expert, found)


# A tile of weights is the first operand of a dot and rows of x are the second. The matrix unit's second operand may be
# narrow, and sm_90's newest instruction takes the first from registers, where weights are decoded, the second never.


@jit
def floats(codes, dtype):
    """e4m3 by way of float32: left alone, sm_90 goes from float16 to bfloat16 by a slow instruction, value by value."""
    if codes.dtype == tl.float8e4nv:
        codes = codes.to(tl.float16).to(tl.float32)
    return codes.to(dtype)


# The three bits of an e2m1 magnitude, moved to where a 16-bit float has its two lowest exponent bits and its highest
# mantissa bit, are that magnitude times 2^(1 - bias), 0.5 included. The group's scale makes up for as much of it as it
# has room for (it is under 2^9 itself), the sum for the rest. Nothing is rounded.


@jit
def nibbles(word, SHIFT: tl.constexpr):
    """The two codes of the lowest byte as two 16-bit floats, the low nibble in the low half. A product by two powers
    of two is two shifts at once."""
    byte = word & 255
    magnitude = (byte * ((1 << SHIFT) + (1 << (SHIFT + 12)))) & (0x00070007 << SHIFT)
    return magnitude | ((byte * ((1 << 12) + (1 << 24))) & 0x80008000)


@jit
def plain_tile(codes, n, k, live, K: tl.constexpr, BLOCK_K: tl.constexpr, dtype: tl.constexpr):
    """Rows n and columns k to k + BLOCK_K of a matrix [N, K] in a float or e4m3, as yet without the rows' factors."""
    column = k + tl.arange(0, BLOCK_K)
    mask = live[:, None] & (column < K)[None, :]
    return floats(tl.load(codes + n[:, None] * K + column[None, :], mask=mask, other=0.0), dtype)


@jit
def nvfp4_tile(
    codes, groups, n, k, live, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, dtype: tl.constexpr
):
    """The same of a matrix in e2m1."""
    half: tl.constexpr = tl.bfloat16 if dtype == tl.bfloat16 else tl.float16
    shift: tl.constexpr = 6 if dtype == tl.bfloat16 else 9
    unit: tl.constexpr = 2.0**117 if dtype == tl.bfloat16 else 2.0**7
    column = k // 8 + tl.arange(0, BLOCK_K // 8)
    mask = live[:, None] & (column < K // 8)[None, :]
    word = tl.load(codes + n[:, None] * (K // 8) + column[None, :], mask=mask, other=0).to(tl.uint32, bitcast=True)
    even = tl.join(nibbles(word, shift), nibbles(word >> 16, shift))
    odd = tl.join(nibbles(word >> 8, shift), nibbles(word >> 24, shift))
    halves = tl.join(even, odd).reshape(BLOCK_N, BLOCK_K // 16, 8)
    column = k // 16 + tl.arange(0, BLOCK_K // 16)
    mask = live[:, None] & (column < K // 16)[None, :]
    scale = tl.load(groups + n[:, None] * (K // 16) + column[None, :], mask=mask, other=0.0)
    scale = (scale.to(tl.float16).to(tl.float32) * unit).to(dtype)
    # odd before even: in the other order ptxas 12.8 swaps the halves of each register, and swaps them back
    odd = (halves >> 16).to(tl.uint16).to(half, bitcast=True).to(dtype) * scale[:, :, None]
    even = halves.to(tl.uint16).to(half, bitcast=True).to(dtype) * scale[:, :, None]
    return tl.join(even, odd).reshape(BLOCK_N, BLOCK_K)


@jit
def product(
    x, row, found, codes, groups, factor, expert, n, N, K: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows n of the expert's matrix [N, K] times rows `row` of x, float32 [BLOCK_N, BLOCK_R]."""
    dtype: tl.constexpr = x.dtype.element_ty
    live = n < N
    if groups is None:
        codes += expert * N * K
    else:
        codes += expert * N * (K // 8)
        groups += expert * N * (K // 16)
    total = tl.zeros((BLOCK_N, BLOCK_R), tl.float32)
    for k in range(0, K, BLOCK_K):
        if groups is None:
            weight = plain_tile(codes, n, k, live, K, BLOCK_K, dtype)
        else:
            weight = nvfp4_tile(codes, groups, n, k, live, K, BLOCK_N, BLOCK_K, dtype)
        column = k + tl.arange(0, BLOCK_K)
        mask = (column < K)[:, None] & found[None, :]
        part = tl.load(x + row[None, :] * K + column[:, None], mask=mask, other=0.0)
        total = tl.dot(weight, part, total, input_precision="ieee")
    if groups is not None:
        total *= 2.0**9 if dtype == tl.bfloat16 else 2.0**7
    if factor is not None:
        total *= tl.load(factor + expert * N + n, mask=live, other=0.0)[:, None]
    return total


@jit
def _up(
    x, members, counts, codes, groups, factor, inner, pairs, top_k, K: tl.constexpr, N: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(2).to(tl.int64)
    count = tl.load(counts + expert)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    both = tl.arange(0, 2 * BLOCK_N)  # rows of gate, then the same rows of up
    column = tl.program_id(1) * BLOCK_N + both % BLOCK_N
    both = tl.where(column < N, column + both // BLOCK_N * N, 2 * N)
    for start in range(tl.program_id(0) * BLOCK_R, count, tl.num_programs(0) * BLOCK_R):
        place = start + tl.arange(0, BLOCK_R)
        found = place < count
        pair = tl.load(members + expert * pairs + place, mask=found, other=0)
        row = (pair // top_k).to(tl.int64)
        total = product(x, row, found, codes, groups, factor, expert, both, 2 * N, K, BLOCK_R, 2 * BLOCK_N, BLOCK_K)
        gate, up = total.reshape(2, BLOCK_N, BLOCK_R).permute(1, 2, 0).split()
        # 0.5 * (1 + tanh(t)) is sigmoid(2t); t = sqrt(2/pi) * (gate + 0.044715 * gate^3)
        hidden = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
        mask = (n < N)[:, None] & found[None, :]
        tl.store(inner + pair.to(tl.int64)[None, :] * N + n[:, None], hidden.to(inner.dtype.element_ty), mask=mask)


@jit
def _down(
    inner, members, counts, codes, groups, factor, outer, pairs, K: tl.constexpr, N: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(2).to(tl.int64)
    count = tl.load(counts + expert)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    for start in range(tl.program_id(0) * BLOCK_R, count, tl.num_programs(0) * BLOCK_R):
        place = start + tl.arange(0, BLOCK_R)
        found = place < count
        pair = tl.load(members + expert * pairs + place, mask=found, other=0).to(tl.int64)
        total = product(inner, pair, found, codes, groups, factor, expert, n, N, K, BLOCK_R, BLOCK_N, BLOCK_K)
        mask = (n < N)[:, None] & found[None, :]
        tl.store(outer + pair[None, :] * N + n[:, None], total.to(outer.dtype.element_ty), mask=mask)


@jit
def _sum(outer, weights, out, top_k, N, TOP_K: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, TOP_K)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (slot < top_k)[:, None] & (n < N)[None, :]
    parts = tl.load(outer + (row * top_k + slot)[:, None] * N + n[None, :], mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weights + row * top_k + slot, mask=slot < top_k, other=0.0)
    total = tl.sum(parts * weight[:, None], 0)
    tl.store(out + row * N + n, total.to(out.dtype.element_ty), mask=n < N)


def operands(stack: Linear) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Codes, a scale per 16 columns, a factor per row. NVFP4's codes eight to a word, the first in its low bits."""
    found: tuple[Tensor, Tensor | None, Tensor | None]
    if isinstance(stack, Dense):
        found = stack.weight, None, None
    elif isinstance(stack, fp8.Linear):
        found = stack.codes, None, stack.scale
    else:
        assert isinstance(stack, nvfp4.Linear)
        found = stack.codes.view(torch.int32), stack.scale, stack.factor
    assert all(tensor is None or tensor.is_contiguous() for tensor in found)
    return found


def blocks(stack: Linear, columns: int, block: int) -> dict[str, int]:
    """How the kernels of 2 and 3 go through weights of `columns` columns for `block` rows of x.

    BLOCK_K is 64 bytes of a row, or 128 where nothing is decoded. Two warps where it is: four would get sm_90's newest
    matrix instruction, for which NVFP4 goes through shared memory. At 64 rows the sums need the registers of four.
    Shared memory, of BLOCK_K columns of 128 weight rows and `block` rows of x: at 64 rows 98 KB in bfloat16, 57 KB in
    FP8, 97 KB in NVFP4 (four stages, sm_90); 74, 49 and 77 KB on sm_120, which keeps three.
    """
    deep = 128 // stack.weight.itemsize if isinstance(stack, Dense) else 64 if isinstance(stack, fp8.Linear) else 128
    warps = 4 if isinstance(stack, Dense) or block == 64 else 2
    return {"BLOCK_R": block, "BLOCK_K": min(deep, max(16, power(columns))), "num_warps": warps, "num_stages": 4}


def launch(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Linear, down: Linear) -> Tensor:
    """The four launches. In 2 and 3 a program has a tile of an expert's weights and every second block of its pairs.
    Its neighbour has the others at the same time, so that both need memory for the tile only once; most have nothing
    to do. A block behind these two, of an expert with four times the mean, reads the tile again."""
    (rows, top_k), (count, hidden, width) = chosen.shape, down.shape
    assert gate_up.shape == (count, 2 * width, hidden)
    assert x.shape == (rows, hidden)
    assert weights.dtype == torch.float32
    x, weights, chosen = x.contiguous(), weights.contiguous(), chosen.contiguous()
    pairs, out = rows * top_k, torch.empty_like(x)
    if not pairs:
        return out
    counts, members = (chosen.new_empty(size, dtype=torch.int32) for size in ((count,), (count, pairs)))
    inner, outer = x.new_empty(pairs, width), x.new_empty(pairs, hidden)
    _list[count,](chosen, members, counts, pairs, BLOCK=min(2048, power(pairs)))

    block = min(64, max(16, power(cdiv(2 * pairs, count))))  # at least twice the mean, so one is enough for most
    splits = min(2, cdiv(rows, block))
    tile = min(64, max(16, power(width)))
    _up[splits, cdiv(width, tile), count](
        x, members, counts, *operands(gate_up), inner, pairs, top_k,
        K=hidden, N=width, BLOCK_N=tile, **blocks(gate_up, hidden, block),
    )  # fmt: skip
    tile = min(128, max(16, power(hidden)))
    _down[splits, cdiv(hidden, tile), count](
        inner, members, counts, *operands(down), outer, pairs,
        K=width, N=hidden, BLOCK_N=tile, **blocks(down, width, block),
    )  # fmt: skip
    tile = min(512, power(hidden))
    _sum[rows, cdiv(hidden, tile)](outer, weights, out, top_k, hidden, TOP_K=power(top_k), BLOCK_N=tile)
    return out


def experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Linear, down: Linear) -> Tensor:
    """x [rows, hidden] through its experts: float32 weights and int64 numbers [rows, top_k]; stacks gate_up
    [experts, 2 * width, hidden], gate first, and down [experts, hidden, width] -> [rows, hidden] in x's dtype."""
    decoded = not isinstance(gate_up, Dense) or not isinstance(down, Dense)
    return (launch if fused(x, fp8=decoded) else reference)(x, weights, chosen, gate_up, down)
