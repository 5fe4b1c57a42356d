"""Mixture of experts for few rows an expert: every row's top_k experts, weighted and summed.

expert(x) = down @ (act(gate @ x) * (up @ x)); act is gelu in its tanh form (Gemma) or silu (Llama's kind); gate and up
are one stack, gate first. In Gemma 4 and DiffusionGemma a row takes 8 of 128 experts: an expert gets 2 to 16 rows of a
canvas of 16 to 256.

Bytes: n rows touch E * (1 - (1 - top_k/E)^n) of E experts, and a touched one costs 3 * hidden * width weights, read
once: 2 bytes a weight in bfloat16, 1 in FP8, 9/16 in NVFP4. Between the kernels each of the n * top_k pairs (a row and
one of its experts) costs 4 * width and 4 * hidden, part of it in L2. At n = 256, hidden 2816, width 704, FP8: 761 MB of
weights, 29 MB between. FLOP: 6 * n * top_k * hidden * width, 24 GFLOP there: bound by memory, if decoding keeps pace.

Four launches that need no routing on the host, so that a CUDA graph can hold them:
1. each expert lists its pairs: a counting sort, one program for each expert; DiffusionGemma's router lists them as it
   chooses (norms.py);
2. gate, up and act for an expert's pairs -> `inner` [pairs, width];
3. down -> `outer` [pairs, hidden], rounded to x's dtype where the reference rounds;
4. weight and sum over top_k, in float32; DiffusionGemma's next norm does it as it reads them (norms.py).
No result depends on the order of programs, nor on that of a list: a pair is computed alone.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from caesura.kernels import fp8, tuned
from caesura.kernels.decode import product
from caesura.kernels.gated import Act as Act
from caesura.kernels.gated import activated
from caesura.kernels.int8 import PackedStack
from caesura.kernels.jit import cdiv, fused, jit, power, tl
from caesura.kernels.linear import Dense, Linear


class Lists(NamedTuple):
    """The pairs of each expert, int32: how many [experts], and their numbers [experts, pairs] in any order."""

    counts: Tensor
    members: Tensor


Stack = Linear | PackedStack
UP, DOWN = "experts up", "experts down"  # names in a table of block sizes


def reference(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Stack, down: Stack, *, act: Act = "gelu") -> Tensor:
    return weighted(reference_pairs(x, chosen, gate_up, down, act=act), weights)


def weighted(pairs: Tensor, weights: Tensor) -> Tensor:
    """Rows of the experts [rows, top_k, hidden] by float32 weights [rows, top_k] -> their sum [rows, hidden]."""
    return (pairs * weights[..., None]).sum(1).to(pairs.dtype)


def reference_pairs(x: Tensor, chosen: Tensor, gate_up: Stack, down: Stack, *, act: Act = "gelu") -> Tensor:
    """Sorts the rows by expert, so that each matrix is read once; the host waits for the counts."""
    top_k = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount().tolist()
    ordered = x[order // top_k]
    out = torch.empty_like(ordered)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            span = slice(start, start + count)
            gate, up = gate_up[expert](ordered[span]).chunk(2, -1)
            out[span] = down[expert]((silu(gate) if act == "silu" else gelu(gate, approximate="tanh")) * up)
            start += count
    back = torch.empty_like(out)
    back[order] = out
    return back.view(*chosen.shape, x.shape[1])


@jit(do_not_specialize=["pairs"])  # they change from step to step and must not wait for the compiler
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


@jit(do_not_specialize=["pairs"])
def _up(
    x, members, counts, codes, groups, factor, inner, pairs, top_k, K: tl.constexpr, N: tl.constexpr,
    SILU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
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
        total = product(
            x, row, found, codes, groups, factor, expert, both, 0, tl.cdiv(K, BLOCK_K), 2 * N, K,
            BLOCK_R, 2 * BLOCK_N, BLOCK_K,
        )  # fmt: skip
        gate, up = total.reshape(2, BLOCK_N, BLOCK_R).permute(1, 2, 0).split()
        hidden = activated(gate, up, SILU)
        mask = (n < N)[:, None] & found[None, :]
        tl.store(inner + pair.to(tl.int64)[None, :] * N + n[:, None], hidden.to(inner.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["pairs"])
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
        total = product(
            inner, pair, found, codes, groups, factor, expert, n, 0, tl.cdiv(K, BLOCK_K), N, K,
            BLOCK_R, BLOCK_N, BLOCK_K,
        )  # fmt: skip
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


def blocks(kernel: str, stack: Linear, x: Tensor, pairs: int) -> dict[str, int]:
    """Block sizes of kernels 2 ("experts up") and 3 ("experts down"): the device's own, or these.

    BLOCK_R is at least twice the mean of an expert's pairs, so that most experts need one block. BLOCK_K is 64 bytes of
    a row, or 128 for weights that are not decoded. Decoding uses two warps: four would get sm_90's newest matrix
    instruction, for which NVFP4 goes through shared memory. At 64 rows the sums need the registers of four. Shared
    memory for BLOCK_K columns of 128 weight rows and 64 rows of x: 98 KB in bfloat16, 57 in FP8, 97 KB in NVFP4 (four
    stages, sm_90); 74, 49 and 77 KB on sm_120, which keeps three.
    """
    if found := tuned.blocks(kernel, stack.shape, pairs, x, stack.operands[0]):
        return found
    count, height, columns = stack.shape
    block = min(64, max(16, power(cdiv(2 * pairs, count))))
    tile = min(64, max(16, power(height // 2))) if kernel == UP else min(128, max(16, power(height)))
    deep = 128 // stack.weight.itemsize if isinstance(stack, Dense) else 64 if isinstance(stack, fp8.Fp8Linear) else 128
    warps = 4 if isinstance(stack, Dense) or block == 64 else 2
    deep = min(deep, max(16, power(columns)))
    return {"BLOCK_R": block, "BLOCK_N": tile, "BLOCK_K": deep, "num_warps": warps, "num_stages": 4}


def launch(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Linear, down: Linear, *, act: Act = "gelu") -> Tensor:
    """The four launches."""
    outer, weights = launch_pairs(x, chosen, gate_up, down, act=act), weights.contiguous()
    (rows, top_k), hidden = chosen.shape, x.shape[1]
    assert weights.dtype == torch.float32
    out, tile = torch.empty_like(x), min(512, power(hidden))
    if rows:
        _sum[rows, cdiv(hidden, tile)](outer, weights, out, top_k, hidden, TOP_K=power(top_k), BLOCK_N=tile)
    return out


def list_pairs(chosen: Tensor, count: int) -> Lists:
    """The first launch: the pairs of each of `count` experts."""
    pairs, chosen = chosen.numel(), chosen.contiguous()
    lists = empty_lists(count, pairs, chosen.device)
    _list[count,](chosen, lists.members, lists.counts, pairs, BLOCK=min(2048, power(pairs)))
    return lists


def empty_lists(count: int, pairs: int, device: torch.device) -> Lists:
    return Lists(*(torch.empty(size, dtype=torch.int32, device=device) for size in ((count,), (count, pairs))))


def launch_pairs(
    x: Tensor, chosen: Tensor, gate_up: Linear, down: Linear, lists: Lists | None = None, *, act: Act = "gelu"
) -> Tensor:
    """The second and third launch, after the first unless there are lists. In 2 and 3 a program has a tile of an
    expert's weights and every second block of its pairs. Its neighbour has the other blocks at the same time, so that
    the tile is read from memory once; most have no pairs. A third block, of an expert with four times the mean, reads
    the tile again."""
    (rows, top_k), (count, hidden, width) = chosen.shape, down.shape
    assert gate_up.shape == (count, 2 * width, hidden)
    assert x.shape == (rows, hidden)
    assert all(tensor.is_contiguous() for tensor in (*gate_up.tensors, *down.tensors))
    x = x.contiguous()
    pairs, outer = rows * top_k, x.new_empty(rows, top_k, hidden)
    if not pairs:
        return outer
    counts, members = list_pairs(chosen, count) if lists is None else lists
    inner = x.new_empty(pairs, width)
    how = blocks(UP, gate_up, x, pairs)
    _up[min(2, cdiv(rows, how["BLOCK_R"])), cdiv(width, how["BLOCK_N"]), count](
        x, members, counts, *gate_up.operands, inner, pairs, top_k, K=hidden, N=width, SILU=act == "silu", **how
    )
    how = blocks(DOWN, down, x, pairs)
    _down[min(2, cdiv(rows, how["BLOCK_R"])), cdiv(hidden, how["BLOCK_N"]), count](
        inner, members, counts, *down.operands, outer, pairs, K=width, N=hidden, **how
    )
    return outer


def experts(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Stack, down: Stack, *, act: Act = "gelu") -> Tensor:
    """x [rows, hidden] through its experts: float32 weights and int64 numbers [rows, top_k]; stacks gate_up
    [experts, 2 * width, hidden], gate first, and down [experts, hidden, width] -> [rows, hidden] in x's dtype."""
    if isinstance(gate_up, PackedStack) or isinstance(down, PackedStack) or not _fused(x, gate_up, down):
        return reference(x, weights, chosen, gate_up, down, act=act)
    return launch(x, weights, chosen, gate_up, down, act=act)


def pairs(x: Tensor, chosen: Tensor, lists: Lists | None, gate_up: Linear, down: Linear) -> Tensor:
    """As `experts`, before the rows are weighted and summed: [rows, top_k, hidden]. `lists` are those of `chosen`, if
    they are known."""
    if not _fused(x, gate_up, down):
        return reference_pairs(x, chosen, gate_up, down)
    return launch_pairs(x, chosen, gate_up, down, lists)


def _fused(x: Tensor, gate_up: Linear, down: Linear) -> bool:
    return fused(x, fp8=not isinstance(gate_up, Dense) or not isinstance(down, Dense))
