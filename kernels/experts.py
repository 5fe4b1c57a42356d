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
   weights that round (fp8.py) take x as `Rows8`, and `inner` in codes: kernel 2 writes the largest magnitude of each
   tile of a pair, and kernel 3 scales a pair by the largest of these as it reads it;
4. weight and sum over top_k, in float32; DiffusionGemma's next norm does it as it reads them (norms.py).
In one launch, 2 and 3 would wait for programs that might not have started, and hang.
No result depends on the order of programs, nor on that of a list: a pair is computed alone.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from caesura.kernels import fp8, tuned
from caesura.kernels.decode import product
from caesura.kernels.fp8 import unit
from caesura.kernels.gated import Act as Act
from caesura.kernels.gated import activated
from caesura.kernels.int8 import PackedStack
from caesura.kernels.jit import cdiv, fused, jit, power, tl
from caesura.kernels.linear import Activations, Dense, Linear, row_operands


class Lists(NamedTuple):
    """The pairs of each expert, int32: how many [experts], and their numbers [experts, pairs] in any order."""

    counts: Tensor
    members: Tensor


Stack = Linear | PackedStack
UP, DOWN = "experts up", "experts down"  # names in a table of block sizes


def reference(
    x: Activations, weights: Tensor, chosen: Tensor, gate_up: Stack, down: Stack, *, act: Act = "gelu"
) -> Tensor:
    return weighted(reference_pairs(x, chosen, gate_up, down, act=act), weights)


def weighted(pairs: Tensor, weights: Tensor) -> Tensor:
    """Rows of the experts [rows, top_k, hidden] by float32 weights [rows, top_k] -> their sum [rows, hidden]."""
    return (pairs * weights[..., None]).sum(1).to(pairs.dtype)


def reference_pairs(x: Activations, chosen: Tensor, gate_up: Stack, down: Stack, *, act: Act = "gelu") -> Tensor:
    """Sorts the rows by expert, so that each matrix is read once; the host waits for the counts."""
    top_k = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount().tolist()
    ordered: Any = x[order // top_k]
    out = x.new_empty(*ordered.shape)
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


@jit
def block_of(counts, members, number, pairs, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr):
    """The expert of a block of pairs, those pairs, and which of them are there. The blocks of an expert lie together;
    after the last block the expert is EXPERTS or higher."""
    e = tl.arange(0, BLOCK_E)
    ends = tl.cumsum(tl.cdiv(tl.load(counts + e, mask=e < EXPERTS, other=0), BLOCK_R))
    expert = tl.sum((ends <= number).to(tl.int64), 0)
    before = tl.max(tl.where(ends <= number, ends, 0), 0)
    place = (number - before) * BLOCK_R + tl.arange(0, BLOCK_R)
    found = place < tl.load(counts + expert, mask=expert < EXPERTS, other=0)
    return expert, tl.load(members + expert * pairs + place, mask=found, other=0), found


@jit(do_not_specialize=["pairs"])
def _up(
    x, scales, members, counts, codes, groups, factor, inner, peaks, pairs, top_k, K: tl.constexpr, N: tl.constexpr,
    SILU: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert, pair, found = block_of(counts, members, tl.program_id(0), pairs, EXPERTS, BLOCK_E, BLOCK_R)
    if expert >= EXPERTS:
        return
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    both = tl.arange(0, 2 * BLOCK_N)  # rows of gate, then the same rows of up
    column = tl.program_id(1) * BLOCK_N + both % BLOCK_N
    both = tl.where(column < N, column + both // BLOCK_N * N, 2 * N)
    row = (pair // top_k).to(tl.int64)
    scale = None if scales is None else tl.load(scales + row, mask=found, other=1.0)
    total = product(
        x, scale, row, found, codes, groups, factor, expert, both, 0, tl.cdiv(K, BLOCK_K), 2 * N, K,
        BLOCK_R, 2 * BLOCK_N, BLOCK_K,
    )  # fmt: skip
    gate, up = total.reshape(2, BLOCK_N, BLOCK_R).permute(1, 2, 0).split()
    hidden = activated(gate, up, SILU).to(inner.dtype.element_ty)
    mask = (n < N)[:, None] & found[None, :]
    tl.store(inner + pair.to(tl.int64)[None, :] * N + n[:, None], hidden, mask=mask)
    if peaks is not None:
        place = pair.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        tl.store(peaks + place, tl.max(tl.abs(hidden.to(tl.float32)), 0), mask=found)


@jit
def largest(peaks, pair, found, TILES: tl.constexpr, BLOCK_T: tl.constexpr):
    """The largest magnitude of each pair, from those of its tiles."""
    tile = tl.arange(0, BLOCK_T)
    mask = found[:, None] & (tile < TILES)[None, :]
    return tl.max(tl.load(peaks + pair[:, None] * TILES + tile[None, :], mask=mask, other=0.0), 1)


@jit(do_not_specialize=["pairs"])
def _down(
    inner, peaks, members, counts, codes, groups, factor, outer, pairs, K: tl.constexpr, N: tl.constexpr,
    TILES: tl.constexpr, BLOCK_T: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert, pair, found = block_of(counts, members, tl.program_id(0), pairs, EXPERTS, BLOCK_E, BLOCK_R)
    if expert >= EXPERTS:
        return
    n, pair = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), pair.to(tl.int64)
    scale = None if peaks is None else unit(largest(peaks, pair, found, TILES, BLOCK_T))
    total = product(
        inner, scale, pair, found, codes, groups, factor, expert, n, 0, tl.cdiv(K, BLOCK_K), N, K,
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
    """Block sizes of kernels 2 ("experts up") and 3 ("experts down"): the device's own, or these. `x` is what is
    multiplied: floats, or codes where the weights round.

    BLOCK_R is at least twice the mean of an expert's pairs, so that most experts need one block. BLOCK_K is 128 bytes
    of a row, or 64 where decoding so many would spill. Decoding uses two warps: four would get sm_90's newest matrix
    instruction, for which NVFP4 goes through shared memory. At 64 rows the sums need the registers of four. Shared
    memory for BLOCK_K columns of 128 weight rows and 64 rows of x: 98 KB in bfloat16, 57 in FP8, 97 KB in NVFP4 (four
    stages, sm_90); 74, 49 and 77 KB on sm_120, which keeps three. Products of codes take 74 KB for `up` and 90 KB for
    `down` in three stages, so that two blocks fit in a processor of sm_90.

    Compiled for sm_90 in blocks of 16, 32 and 64 rows, `up` has 144, 224 and 184 registers in FP8 and 0.11, 0.13 and
    0.15 instructions a weight in its loop; as a product of codes 72, 128 and 176 registers and 0.04, 0.04 and 0.05
    instructions. `down`: 128, 216, 184 registers and 0.10, 0.13, 0.15; then 80, 128, 128 and 0.05, 0.07, 0.13.
    """
    if found := tuned.blocks(kernel, stack.shape, pairs, x, stack.operands[0]):
        return found
    count, height, columns = stack.shape
    block = min(64, max(16, power(cdiv(2 * pairs, count))))
    tile = min(64, max(16, power(height // 2))) if kernel == UP else min(128, max(16, power(height)))
    deep, warps, stages = 128, 4 if isinstance(stack, Dense) or block == 64 else 2, 4
    if stack.rounds:
        warps, stages = 8 if kernel == DOWN and block == 64 else 4, 3
    elif isinstance(stack, Dense):
        deep = 128 // stack.weight.itemsize
    elif isinstance(stack, fp8.Fp8Linear) and block > 16:
        deep = 64
    deep = min(deep, max(32, power(columns)))
    return {"BLOCK_R": block, "BLOCK_N": tile, "BLOCK_K": deep, "num_warps": warps, "num_stages": stages}


def launch(
    x: Activations, weights: Tensor, chosen: Tensor, gate_up: Linear, down: Linear, *, act: Act = "gelu"
) -> Tensor:
    """The four launches."""
    outer, weights = launch_pairs(x, chosen, gate_up, down, act=act), weights.contiguous()
    (rows, top_k), hidden = chosen.shape, x.shape[1]
    assert weights.dtype == torch.float32
    out, tile = x.new_empty(rows, hidden), min(512, power(hidden))
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
    x: Activations, chosen: Tensor, gate_up: Linear, down: Linear, lists: Lists | None = None, *, act: Act = "gelu"
) -> Tensor:
    """The second and third launch, after the first unless there are lists. In 2 and 3 a program has a tile of an
    expert's weights and a block of its pairs. Its neighbour has the expert's next block at the same time, so that the
    tile is read from memory once. There are as many programs as the pairs can make blocks; those left over end at
    once."""
    (rows, top_k), (count, hidden, width) = chosen.shape, down.shape
    assert gate_up.shape == (count, 2 * width, hidden)
    assert x.shape == (rows, hidden)
    assert all(tensor.is_contiguous() for tensor in (*gate_up.tensors, *down.tensors))
    pairs, outer = rows * top_k, x.new_empty(rows, top_k, hidden)
    if not pairs:
        return outer
    counts, members = list_pairs(chosen, count) if lists is None else lists
    inner, (x, scales) = x.new_empty(pairs, width), row_operands(rows_of(x, gate_up))
    how = blocks(UP, gate_up, x, pairs)
    tiles = cdiv(width, how["BLOCK_N"])
    peaks = torch.empty(pairs, tiles, device=x.device) if down.rounds else None
    of_experts = {"EXPERTS": count, "BLOCK_E": power(count)}
    _up[most_blocks(pairs, count, how["BLOCK_R"]), tiles](
        x, scales, members, counts, *gate_up.operands, inner, peaks, pairs, top_k,
        K=hidden, N=width, SILU=act == "silu", **of_experts, **how,
    )  # fmt: skip
    how = blocks(DOWN, down, down.operands[0] if down.rounds else inner, pairs)
    _down[most_blocks(pairs, count, how["BLOCK_R"]), cdiv(hidden, how["BLOCK_N"])](
        inner, peaks, members, counts, *down.operands, outer, pairs,
        K=width, N=hidden, TILES=tiles, BLOCK_T=power(tiles), **of_experts, **how,
    )  # fmt: skip
    return outer


def most_blocks(pairs: int, experts: int, block: int) -> int:
    """Blocks that the lists of experts can have: each may have one that is not full."""
    return min(pairs, (pairs + experts * (block - 1)) // block)


def rows_of(x: Activations, stack: Linear) -> Activations:
    """Rows as a stack multiplies them."""
    return fp8.quantised(x) if stack.rounds and isinstance(x, Tensor) else x


def experts(
    x: Activations, weights: Tensor, chosen: Tensor, gate_up: Stack, down: Stack, *, act: Act = "gelu"
) -> Tensor:
    """x [rows, hidden] through its experts: float32 weights and int64 numbers [rows, top_k]; stacks gate_up
    [experts, 2 * width, hidden], gate first, and down [experts, hidden, width] -> [rows, hidden] in x's dtype."""
    if isinstance(gate_up, PackedStack) or isinstance(down, PackedStack) or not _fused(x, gate_up, down):
        return reference(x, weights, chosen, gate_up, down, act=act)
    return launch(x, weights, chosen, gate_up, down, act=act)


def pairs(x: Activations, chosen: Tensor, lists: Lists | None, gate_up: Linear, down: Linear) -> Tensor:
    """As `experts`, before the rows are weighted and summed: [rows, top_k, hidden]. `lists` are those of `chosen`, if
    they are known."""
    if not _fused(x, gate_up, down):
        return reference_pairs(x, chosen, gate_up, down)
    return launch_pairs(x, chosen, gate_up, down, lists)


def _fused(x: Activations, gate_up: Linear, down: Linear) -> bool:
    return fused(row_operands(x)[0], fp8=not isinstance(gate_up, Dense) or not isinstance(down, Dense))
