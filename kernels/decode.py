"""Stored weights as a kernel reads them: a tile at a time, decoded in registers, and its product with rows of x.

Decoding may be the bottleneck. Instructions a weight in the loop of `matmul.py` compiled for sm_90, in blocks of 16,
32, 64 and 128 rows: 3.4, 4.3, 5.0, 6.1 in FP8 and 5.3, 6.4, 7.5, 8.2 in NVFP4. 132 processors at 1.755 GHz issue 30e12
a second. Estimate, not measured: with every slot used, blocks of 16 rows take 8.6 TB/s from memory in FP8 and 3.2 in
NVFP4; with 60 % of the slots 5.2 and 1.9. So FP8 is bound by memory. NVFP4 is bound by decoding on Hopper, which has no
arithmetic in e2m1: at 0.57 of an H100's 3.35 TB/s and 0.44 of the 4.3 TB/s that an H200 copies with, or 0.3 ps a weight
instead of 0.23 to 0.3 in FP8. There it saves memory but hardly any time.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from caesura.kernels.jit import jit, tl

# A tile of weights is the first operand of a dot and rows of x are the second. The matrix unit's second operand may be
# narrow, and sm_90's newest instruction takes the first from registers, where weights are decoded, the second never.


@jit
def floats(codes, dtype):
    """Convert e4m3 by way of float32: sm_90's own way from float16 to bfloat16 is slow, value by value."""
    if codes.dtype == tl.float8e4nv and dtype != tl.float8e4nv:
        codes = codes.to(tl.float16).to(tl.float32)
    return codes.to(dtype)


# The three bits of an e2m1 magnitude, moved to the two lowest exponent bits and the highest mantissa bit of a 16-bit
# float, are that magnitude times 2^(1 - bias), 0.5 included. The group's scale undoes as much of the factor as it can
# hold (it is below 2^9 itself), the sum undoes the rest. Nothing is rounded.


@jit
def nibbles(word, SHIFT: tl.constexpr):
    """The two codes of the lowest byte as two 16-bit floats, the low nibble in the low half. Multiplying by the sum of
    two powers of two does two shifts at once."""
    byte = word & 255
    magnitude = (byte * ((1 << SHIFT) + (1 << (SHIFT + 12)))) & (0x00070007 << SHIFT)
    return magnitude | ((byte * ((1 << 12) + (1 << 24))) & 0x80008000)


@jit
def plain_tile(codes, n, step, live, K: tl.constexpr, BLOCK_K: tl.constexpr, dtype: tl.constexpr):
    """Rows n of a matrix [N, K] of floats or e4m3, in block `step` of BLOCK_K columns, without the rows' factors."""
    column = step * BLOCK_K + tl.arange(0, BLOCK_K)
    mask = live[:, None] & (column < K)[None, :]
    return floats(tl.load(codes + n[:, None] * K + column[None, :], mask=mask, other=0.0), dtype)


@jit
def nvfp4_tile(
    codes, groups, n, step, live, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, dtype: tl.constexpr
):
    """The same for a matrix in e2m1."""
    half: tl.constexpr = tl.bfloat16 if dtype == tl.bfloat16 else tl.float16
    shift: tl.constexpr = 6 if dtype == tl.bfloat16 else 9
    unit: tl.constexpr = 2.0**117 if dtype == tl.bfloat16 else 2.0**7
    column = step * (BLOCK_K // 8) + tl.arange(0, BLOCK_K // 8)
    mask = live[:, None] & (column < K // 8)[None, :]
    word = tl.load(codes + n[:, None] * (K // 8) + column[None, :], mask=mask, other=0).to(tl.uint32, bitcast=True)
    even = tl.join(nibbles(word, shift), nibbles(word >> 16, shift))
    odd = tl.join(nibbles(word >> 8, shift), nibbles(word >> 24, shift))
    halves = tl.join(even, odd).reshape(BLOCK_N, BLOCK_K // 16, 8)
    column = step * (BLOCK_K // 16) + tl.arange(0, BLOCK_K // 16)
    mask = live[:, None] & (column < K // 16)[None, :]
    scale = tl.load(groups + n[:, None] * (K // 16) + column[None, :], mask=mask, other=0.0)
    scale = (scale.to(tl.float16).to(tl.float32) * unit).to(dtype)
    # odd before even: in the other order ptxas 12.8 swaps the halves of each register, and swaps them back
    odd = (halves >> 16).to(tl.uint16).to(half, bitcast=True).to(dtype) * scale[:, :, None]
    even = halves.to(tl.uint16).to(half, bitcast=True).to(dtype) * scale[:, :, None]
    return tl.join(even, odd).reshape(BLOCK_N, BLOCK_K)


@jit
def product(
    x, scale, row, found, codes, groups, factor, matrix, n, first, last, N, K: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows n of a matrix [N, K] of a stack times rows `row` of x, over the blocks of BLOCK_K columns from `first` to
    before `last`; float32 [BLOCK_N, BLOCK_R]. With `scale`, float32 [BLOCK_R], rows of x are codes, or become codes as
    they are read, and nothing is decoded."""
    dtype: tl.constexpr = x.dtype.element_ty if scale is None else codes.dtype.element_ty
    live = n < N
    if groups is None:
        codes += matrix * N * K
    else:
        codes += matrix * N * (K // 8)
        groups += matrix * N * (K // 16)
    inverse = None if scale is None else (1.0 / scale)[None, :]
    # Hopper adds products of codes with some 14 bits: so many columns, then float32.
    exact: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
    total = tl.zeros((BLOCK_N, BLOCK_R), tl.float32)
    for step in range(first, last):
        if groups is None:
            weight = plain_tile(codes, n, step, live, K, BLOCK_K, dtype)
        else:
            weight = nvfp4_tile(codes, groups, n, step, live, K, BLOCK_N, BLOCK_K, dtype)
        column = step * BLOCK_K + tl.arange(0, BLOCK_K)
        mask = (column < K)[:, None] & found[None, :]
        part = tl.load(x + row[None, :] * K + column[:, None], mask=mask, other=0.0)
        if part.dtype != dtype:
            part = (part.to(tl.float32) * inverse).to(dtype)
        total = tl.dot(weight, part, total, input_precision="ieee", max_num_imprecise_acc=exact)
    if groups is not None:
        total *= 2.0**9 if dtype == tl.bfloat16 else 2.0**7
    if scale is not None:
        total *= scale[None, :]
    if factor is not None:
        total *= tl.load(factor + matrix * N + n, mask=live, other=0.0)[:, None]
    return total
