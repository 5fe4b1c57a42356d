"""x W^T for few rows of x and a matrix W [N, K] in FP8 or NVFP4, which is decoded in registers: the kernel of
`fp8.Linear` and `nvfp4.Linear`, which have the reference.

Bytes: W once, 1 or 9/16 a weight, and 2*rows*(N + K). A matrix that is widened first costs its codes and 2 bytes a
weight twice: 5 times as much in FP8, 8 times in NVFP4, less what L2 holds of it. FLOP: 2*rows*N*K, in bfloat16: at an
H200's 790 TFLOP/s and 4.3 TB/s bound by memory up to 90 rows in FP8 and 50 in NVFP4.

Programs: tiles of 64 rows of W make 44 for N = 2816, on 132 processors. So K is split until each processor has two
programs: 6 splits, 264 programs, and the next kernel adds them up (`products`). Two programs load 48 KB of FP8 at a
time, half of it in NVFP4; a processor that waits 0.7 us for memory needs 23 KB for its share of an H200's bandwidth.
From 65 rows on a tile is 128 by 128 and has a processor to itself. No atomics: no result depends on the order of
programs.

The rest comes from L2: x once a tile, 2*rows*K*N/64 or 128, and the splits written and read, 8*splits*rows*N; beyond
128 rows also W once a block. With N = K = 2816, MB:

    rows   W in FP8   in NVFP4   x       splits
    16     7.9        4.5        4.0     2.2
    64     7.9        4.5        15.9    8.7
    256    15.9       8.9        31.7    17.3
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import torch
from torch import Tensor

from caesura.kernels import tuned
from caesura.kernels.decode import product
from caesura.kernels.jit import capacity, cdiv, fused, jit, power, tl
from caesura.kernels.linear import Activations, Dense, Linear

NAME = "product"  # in a table of block sizes

# Rows above which decoding in each block costs more than widening W once for cuBLAS. An estimate, not measured.
MOST = 512


@jit(do_not_specialize=["rows", "steps"])  # they change from step to step and must not wait for the compiler
def _multiply(
    x, codes, groups, factor, out, rows, steps, N: tl.constexpr, K: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # Blocks of rows are next to each other in the launch, so that a tile of W comes from memory once and then from L2.
    row = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split, found = tl.program_id(2), row < rows
    first, last = split * steps, tl.minimum(split * steps + steps, tl.cdiv(K, BLOCK_K))
    total = product(x, None, row, found, codes, groups, factor, 0, n, first, last, N, K, BLOCK_R, BLOCK_N, BLOCK_K)
    place = (split * rows + row)[None, :] * N + n[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(n < N)[:, None] & found[None, :])


@jit(do_not_specialize=["splits", "size"])
def _add(parts, out, splits, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    split, at = tl.arange(0, SPLITS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (split < splits)[:, None] & (at < size)[None, :]
    part = tl.load(parts + split.to(tl.int64)[:, None] * size + at[None, :], mask=mask, other=0.0)
    tl.store(out + at, tl.sum(part, 0).to(out.dtype.element_ty), mask=at < size)


def blocks(rows: int, width: int, columns: int) -> dict[str, int]:
    """Block sizes for a matrix [width, columns], for a device without its own.

    A warp decodes what it multiplies. Up to 32 rows two warps have half a tile each; with mma.sync four warps, or two
    at 64 rows, would decode the same half twice. Four have sm_90's newest instruction, for which NVFP4 goes through
    shared memory. Compiled for 16, 32, 64 and 128 rows on sm_90: 36, 48, 88 and 88 KB of shared memory in FP8, 26, 38,
    82 and 80 KB in NVFP4, at most 188 registers a thread; on sm_120 at most 72 KB and 188.
    """
    block = min(128, max(16, power(rows)))
    tile, deep = (64, 128) if block < 128 else (128, 64)
    return {
        "BLOCK_R": block,
        "BLOCK_N": min(tile, max(16, power(width))),
        "BLOCK_K": min(deep, max(16, power(columns))),
        "num_warps": 2 if block < 64 else block // 16,
        "num_stages": 4,
    }


def splitting(tiles: int, depth: int, how: dict[str, int], device: torch.device) -> tuple[int, int]:
    """How many of `depth` blocks of K a program takes, and how many programs share a tile."""
    programs = capacity(device)[0] * (2 if how["BLOCK_R"] < 128 else 1)
    steps = cdiv(depth, max(1, programs // tiles))
    return steps, cdiv(depth, steps)  # no split without a step


def parts(x: Tensor, weight: Linear) -> Tensor:
    """x [..., K] -> the product in splits that add up to it, [splits, rows, N]: float32, or x's dtype if it is one."""
    (width, columns), x = weight.shape, x.contiguous()
    rows = x.numel() // columns
    if not rows:
        return x.new_empty(1, 0, width)
    assert x.shape[-1] == columns
    assert all(tensor.is_contiguous() for tensor in weight.tensors)
    how = tuned.blocks(NAME, weight.shape, rows, x, weight.operands[0]) or blocks(rows, width, columns)
    grid, depth = (cdiv(rows, how["BLOCK_R"]), cdiv(width, how["BLOCK_N"])), cdiv(columns, how["BLOCK_K"])
    steps, splits = splitting(grid[0] * grid[1], depth, how, x.device)
    dtype = x.dtype if splits == 1 else torch.float32
    out = torch.empty(splits, rows, width, dtype=dtype, device=x.device)
    _multiply[*grid, splits](x, *weight.operands, out, rows, steps, N=width, K=columns, **how)
    return out


def launch(x: Tensor, weight: Linear) -> Tensor:
    """x [..., K] -> [..., N] in x's dtype."""
    found = parts(x, weight)
    splits, _, width = found.shape
    if splits == 1:
        return found.view(*x.shape[:-1], width)
    out = x.new_empty(*x.shape[:-1], width)
    _add[cdiv(out.numel(), 512),](found, out, splits, out.numel(), SPLITS=power(splits), BLOCK=512)
    return out


def products(x: Activations, weight: Linear) -> Tensor:
    """x [rows, K] -> parts that add up to the product, [parts, rows, N]: one in x's dtype, or several in float32. The
    kernel that reads them adds them up, which spares a launch. `Rows8` are for weights that round, which give one part
    in bfloat16."""
    if weight.rounds or isinstance(weight, Dense):
        return weight(x)[None]
    assert isinstance(x, Tensor)
    return parts(x, weight) if fits(x) else weight(x)[None]


def added(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """[(parts,) rows, N] -> their sum [rows, N], rounded to `dtype`."""
    return parts if parts.ndim == 2 else parts.sum(0, dtype=torch.float32).to(dtype)


def fits(x: Tensor) -> bool:
    """True if the kernel is the faster way for these rows on this device."""
    return fused(x, fp8=True) and x.numel() <= MOST * x.shape[-1]
