"""Attention of a few rows over the KV cache and each other: a canvas sees every column, context rows are causal within
a window; or each row sees two spans of columns, which the device knows. The scale is 1 and the softmax float32.

Query heads that share a key head count as more rows: M = rows * heads / key heads. A program keeps the float32 sums of
a block of M and reads its columns once (Milakov and Gimelshein, Online normalizer calculation for
softmax, 2018; Dao et al., FlashAttention, 2022). Few rows make few blocks, so the columns are split as well until every
processor has work, and a second kernel merges the splits (Dao et al., Flash-Decoding, 2023).

Bytes in 16 bits: keys and values 4*columns*key heads*width read from memory once, and again from L2 by every further
block of M; q and the result 4*rows*heads*width. Splits, if there are more than one, write and read
8*splits*rows*heads*width of partial sums. FLOP: 4*rows*heads*columns*width. A head of 512 reads its keys from L2 and
computes its scores twice, see `_blocks`: 6 for 4.

The last split of a block could merge them all in the same launch (jit.py), but alone: at 32 rows a sliding layer has 8
blocks of 16 splits, 1 MB each, which one processor reads from L2 in 9 us. The second kernel takes some 4, its launch
included (estimates, not measured).

Where the next product wants `Rows8`, a head's program of the second kernel writes its part in 16 bits; the one that
comes last of a row reads the row again, 8 to 16 KB in L2, and makes codes and a scale of it. That is a launch less.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from caesura.kernels import fp8, tuned
from caesura.kernels.fp8 import store_row
from caesura.kernels.jit import capacity, cdiv, counters, fused, is_last, jit, power, tl
from caesura.kernels.linear import Rows8

NAME = "attention"  # in a table of block sizes
WORD = 64  # columns whose bits are a number of a mask; a multiple of the columns of a block


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    first: int | None,
    window: int,
    spans: Tensor | None = None,
    table: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """As `attention`. Query heads that share a key head become more rows, so that keys are read once."""
    rows, heads, width = q.shape
    groups = keys.shape[0]
    share = heads // groups
    shown, start = None, 0
    if spans is not None:
        spans = spans - (0 if table is None else table[3])
        start, stop = int(spans[:, ::2].amin()), int(spans[:, 1::2].amax())
        keys, values = keys[:, start:stop], values[:, start:stop]
        at = torch.arange(start, stop, device=q.device)
        low, context, own, end = spans[:, :, None].unbind(1)
        shown = ((low <= at) & (at < context)) | ((own <= at) & (at < end))
    elif first is not None:
        at = torch.arange(first, first + rows, device=q.device)[:, None]
        columns = torch.arange(keys.shape[1], device=q.device)
        shown = (columns <= at) & (columns > at - window)
    if mask is not None:
        last = start + keys.shape[1]
        bits = (mask[:, :, None] >> torch.arange(WORD, device=q.device) & 1).bool().flatten(1)
        bits = bits[:, : bits.shape[1] - -last % WORD]
        bits = pad(bits, (keys.shape[1] - bits.shape[1], 0), value=True)  # or cut
        shown = bits if shown is None else shown & bits
    folded = q.view(rows, groups, share, width).permute(1, 2, 0, 3)  # [groups, share, rows, width]
    keys, values = keys[:, None], values[:, None]
    if q.dtype == torch.float32:  # torch's fused kernel for CPUs has a fast exp, off by a thousandth of a logit
        scores = folded @ keys.transpose(2, 3)
        if shown is not None:
            scores.masked_fill_(~shown, -torch.inf)
        out = scores.softmax(-1) @ values
    elif shown is None:
        flat = folded.reshape(1, groups, share * rows, width)
        out = scaled_dot_product_attention(flat, keys[None, :, 0], values[None, :, 0], scale=1.0)
        out = out.view(groups, share, rows, width)
    else:
        wide = (groups, share, *keys.shape[2:])
        out = scaled_dot_product_attention(folded, keys.expand(wide), values.expand(wide), attn_mask=shown, scale=1.0)
    return out.permute(2, 0, 1, 3).reshape(rows, -1)


# Values that change from step to step are not specialised: a longer context must not wait for the compiler.
@jit(do_not_specialize=["rows", "columns", "first", "window", "words", "splits"])
def _attend(
    q,
    keys,
    values,
    spans,  # int32 [rows, 4], the two spans of columns that a row sees; or None: there are `columns`
    table,  # int64 [4], which replaces keys, values and their heads' strides, and is taken from spans; or None
    mask,  # int64 [rows, words], a bit for each of the last columns, 1 where a row sees it; or None
    out,  # the result; or [splits, rows, heads, width] float32 sums of values, not yet divided, and next to them
    peaks,  # [splits, rows, heads] float32, the largest score times log2(e); or None
    totals,  # [splits, rows, heads] float32, the sum of the weights; or None
    rows,
    columns,
    first,
    window,
    words,
    splits,
    q_row,
    q_head,
    key_head,
    key_column,
    value_head,
    value_column,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    PARTS: tl.constexpr = BLOCK_D // BLOCK_V
    block, split = tl.program_id(0), tl.program_id(2)
    group, part = tl.program_id(1) // PARTS, tl.program_id(1) % PARTS
    if table is not None:
        keys, values = tl.load(table), tl.load(table + 1)
        # The hint is on the pointer: of a number Triton drops it, and then loads two bytes at a time.
        keys = tl.multiple_of(keys.to(tl.pointer_type(q.dtype.element_ty)), 16)
        values = tl.multiple_of(values.to(tl.pointer_type(q.dtype.element_ty)), 16)
        key_head = tl.load(table + 2) * WIDTH
        value_head = key_head
    d = tl.arange(0, BLOCK_D)
    e = part * BLOCK_V + tl.arange(0, BLOCK_V)
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    row, head = m // SHARE, group * SHARE + m % SHARE  # the heads of a row lie together: a causal block spans few rows
    q += row.to(tl.int64)[:, None] * q_row + head[:, None] * q_head
    queries = tl.load(q + d[None, :], mask=(row < rows)[:, None] & (d < WIDTH)[None, :], other=0.0)

    low, high = 0, columns
    if spans is not None:
        # Rows after the last one are the last one again, so that they widen nothing.
        spans += tl.minimum(row, rows - 1) * 4
        before = 0
        if table is not None:
            before = tl.load(table + 3).to(tl.int32)
        farthest, context = tl.load(spans) - before, tl.load(spans + 1) - before
        own, end = tl.load(spans + 2) - before, tl.load(spans + 3) - before
        low, high = tl.minimum(tl.min(farthest, 0), tl.min(own, 0)), tl.maximum(tl.max(context, 0), tl.max(end, 0))
    masked = tl.cdiv(high, 64) * 64 - words * 64  # the column of the mask's first bit
    if CAUSAL:
        last = tl.minimum((block * BLOCK_M + BLOCK_M - 1) // SHARE, rows - 1)
        low = tl.maximum(low, first + block * BLOCK_M // SHARE - window + 1)
        high = tl.minimum(high, first + last + 1)
    each = tl.cdiv(tl.cdiv(high - low, BLOCK_N), splits) * BLOCK_N
    start = low + split * each
    stop = tl.minimum(start + each, high)

    keys += group.to(tl.int64) * key_head
    values += group.to(tl.int64) * value_head
    # Finite, so that a row that sees nothing of a block gets weights exp2(-inf - peak) = 0 instead of exp2(-inf + inf).
    peak = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for n in range(start, stop, BLOCK_N):
        at = n + tl.arange(0, BLOCK_N)
        there = at < stop
        k = tl.load(keys + at[:, None] * key_column + d, mask=there[:, None] & (d < WIDTH)[None, :], other=0.0)
        # exp(s) = exp2(s * log2(e)), since the hardware has exp2. Multiplied into q, log2(e) would be rounded.
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * 1.4426950408889634
        seen = there[None, :]
        if CAUSAL:
            ahead = first + row[:, None] - at[None, :]
            seen = seen & (ahead >= 0) & (ahead < window)
        if spans is not None:
            of_context = (at[None, :] >= farthest[:, None]) & (at[None, :] < context[:, None])
            of_own = (at[None, :] >= own[:, None]) & (at[None, :] < end[:, None])
            seen = seen & (of_context | of_own)
        if mask is not None:
            bit = tl.maximum(n - masked, 0)
            word = tl.load(mask + row * words + bit // 64, mask=row < tl.where(n < masked, 0, rows), other=-1)
            seen = seen & (((word[:, None] >> (bit % 64 + tl.arange(0, BLOCK_N))[None, :]) & 1) == 1)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        decay = tl.exp2(peak - higher)
        total = total * decay + tl.sum(weights, 1)
        v = tl.load(values + at[:, None] * value_column + e, mask=there[:, None] & (e < WIDTH)[None, :], other=0.0)
        sums = tl.dot(weights.to(v.dtype), v, sums * decay[:, None], input_precision="ieee")
        peak = higher

    place = row.to(tl.int64) * HEADS + head
    if peaks is None:
        sums = sums / total[:, None]
    else:
        place += split.to(tl.int64) * rows * HEADS
        if part == 0:
            tl.store(peaks + place, peak, mask=row < rows)
            tl.store(totals + place, total, mask=row < rows)
    out += place[:, None] * WIDTH + e[None, :]
    tl.store(out, sums.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (e < WIDTH)[None, :])


@jit(do_not_specialize=["splits", "places"])
def _merge(
    sums, peaks, totals, out, codes, scales, counting, splits, places,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Merge one head of one row: the sums of the splits, scaled to their highest peak; eight splits at once, so that
    their loads do not wait for each other. With `codes` the last head of a row rounds the row."""
    place = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    peak = tl.full([], -1e30, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    whole = tl.zeros([BLOCK_D], tl.float32)
    for n in range(0, splits, 8):
        split = n + tl.arange(0, 8)
        at = place + split * places
        one = tl.load(peaks + at, mask=split < splits, other=float("-inf"))
        part = tl.load(totals + at, mask=split < splits, other=0.0)
        held = (split < splits)[:, None] & (d < WIDTH)[None, :]
        tile = tl.load(sums + at[:, None] * WIDTH + d[None, :], mask=held, other=0.0)
        higher = tl.maximum(peak, tl.max(one, 0))
        decay, weights = tl.exp2(peak - higher), tl.exp2(one - higher)
        total = total * decay + tl.sum(part * weights, 0)
        whole = whole * decay + tl.sum(tile * weights[:, None], 0)
        peak = higher
    tl.store(out + place * WIDTH + d, (whole / total).to(out.dtype.element_ty), mask=d < WIDTH)
    if codes is not None:
        row = place // HEADS
        if is_last(counting + row, HEADS):
            at = tl.arange(0, BLOCK)
            inside = at < HEADS * WIDTH
            values = tl.load(out + row * HEADS * WIDTH + at, mask=inside, other=0.0, cache_modifier=".cg")
            store_row(values.to(tl.float32), codes, scales, row, at, HEADS * WIDTH)


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    first: int | None,
    window: int,
    spans: Tensor | None = None,
    table: Tensor | None = None,
    mask: Tensor | None = None,
    rounded: Rows8 | None = None,
) -> Tensor:
    """As `attention`. `rounded` gets the rows in e4m3 too."""
    rows, heads, width = q.shape
    groups, columns, _ = keys.shape
    assert spans is None or (first is None and spans.shape == (rows, 4) and spans.is_contiguous())
    assert table is None or (spans is not None and keys.is_contiguous() and values.is_contiguous())
    assert mask is None or (first is None and mask.is_contiguous())
    assert q.dtype == keys.dtype == values.dtype
    assert q.stride(2) == keys.stride(2) == values.stride(2) == 1
    share = heads // groups
    processors, roomy = capacity(q.device)
    how = tuned.blocks(NAME, (heads, groups, width), rows, q)
    how = how or _blocks(rows * share, width, q.element_size(), roomy)
    block_m, block_n, block_v = how["BLOCK_M"], how["BLOCK_N"], how["BLOCK_V"]
    block_d = max(16, power(width))
    grid = cdiv(rows * share, block_m), groups * block_d // block_v
    reach = columns if first is None else min(columns, window + block_m // share)
    if table is not None:
        reach = window + rows  # whatever the buffers have now, others may have more
    # A split has at least as many columns as a block has rows: then its partial sums are twice the columns' bytes.
    splits = max(1, min(processors // (grid[0] * grid[1]), reach // block_m))
    steps = cdiv(reach, block_n)
    splits = cdiv(steps, cdiv(steps, splits))  # no split without a step

    out = torch.empty(rows, heads * width, dtype=q.dtype, device=q.device)
    sums, peaks, totals = out, None, None
    merges = splits > 1 or rounded is not None
    if merges:
        sums = torch.empty(splits, rows, heads, width, device=q.device)
        peaks, totals = torch.empty(2, splits, rows, heads, device=q.device)
    _attend[*grid, splits](
        q,
        keys,
        values,
        spans,
        table,
        mask,
        sums,
        peaks,
        totals,
        rows,
        columns,
        first or 0,
        min(window, (first or 0) + rows),  # no row sees further back; must fit 32 bits
        0 if mask is None else mask.shape[1],
        splits,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        HEADS=heads,
        SHARE=share,
        WIDTH=width,
        CAUSAL=first is not None,
        BLOCK_D=block_d,
        **how,
    )
    if merges:
        codes = scales = counting = None
        if rounded is not None:
            codes, scales, counting = rounded.codes, rounded.scale, counters(q.device)
            assert rows <= len(counting)
        _merge[rows * heads,](
            sums, peaks, totals, out, codes, scales, counting, splits, rows * heads,
            HEADS=heads, WIDTH=width, BLOCK_D=block_d, BLOCK=power(heads * width),
        )  # fmt: skip
    return out


def _blocks(m: int, width: int, itemsize: int, roomy: bool) -> dict[str, int]:
    """Rows, columns and value width of a program's blocks, and its warps, for a device without its own.

    In 16 bits a warp has 16 rows, since the compiler makes further warps repeat the others' scores, and the sums of its
    rows are at most 256 wide, 128 registers a thread. So a head of 512 has two programs, each for half of the values.
    Shared memory holds the block of q, the columns of keys and values in use, and on Hopper those being loaded. If
    `roomy`, it is 128 KB + 2 * 32 * (1 + 1/2) KB = 224 KB for heads of 512 and 64 + 2 * 64 * (1/2 + 1/2) = 192 KB
    for 256; else 64 + 16 * (1 + 1/2) = 88 KB and 32 + 32 * (1/2 + 1/2) = 64 KB, and a few KB for the weights.
    """
    if itemsize == 4:  # no tensor cores, which would round: small blocks, which registers hold
        block_m, block_n, warps = 16, 16, 4
    else:
        block_m = 128 if roomy and m > 64 else 64
        block_n, warps = max(16, min(block_m // 2, (16384 if roomy else 8192) // width)), block_m // 16
    block_v = min(max(16, power(width)), 256)
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_V": block_v, "num_warps": warps, "num_stages": 2}


def bits(mask: Tensor, end: int, words: int | None = None) -> Tensor:
    """A bool mask [rows, n] on a CPU, of the last n columns before `end` -> its bits for `attention`, int64
    [rows, words]. The last word has the WORD columns, from a multiple of WORD on, in which `end` lies. Without
    `words` there are as many as the mask needs; columns before it are seen."""
    rows, count = mask.shape
    after = -end % WORD
    size = WORD * (words or -(-(count + after) // WORD))
    assert size >= count + after
    wide = torch.ones(rows, size, dtype=torch.bool)
    wide[:, size - after - count : size - after] = mask
    return torch.from_numpy(np.packbits(wide.numpy(), 1, "little").view(np.int64))


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    first: int | None,
    window: int,
    spans: Tensor | None = None,
    table: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """q [rows, heads, width], keys and values [key heads, columns, width] -> [rows, heads * width].

    If `first` is None, every row sees every column. Otherwise row r is at column first + r and sees the last `window`
    columns up to its own.

    With `spans`, int32 [rows, 4] on the device, row r sees the columns from spans[r, 0] to spans[r, 1] and from
    spans[r, 2] to spans[r, 3]: context, and rows of its own kind. A CUDA graph gets whole buffers, and each replay sets
    what is seen. With `table` too, int64 [4] on the device, a kernel takes only heads and width from keys and values,
    both contiguous: their addresses and how many columns they have are in the table, then the number of the first
    column, from which spans count too; and each replay sets them.

    With `mask`, the `bits` of a mask, where `first` is None, a row sees the last columns that it says, and all
    before them. Every row must see a column; spans must begin at a multiple of WORD and end at the same column.
    """
    return (launch if fused(q) else reference)(q, keys, values, first, window, spans, table, mask)


def rounded_attention(
    q: Tensor, keys: Tensor, values: Tensor, window: int, spans: Tensor, table: Tensor | None
) -> Rows8:
    """As `attention` of spans, with its rows as a product wants them that rounds."""
    if not fused(q, fp8=True):
        return fp8.quantised(attention(q, keys, values, None, window, spans, table))
    rounded = fp8.empty_rows(q, len(q), q.shape[1] * q.shape[2])
    launch(q, keys, values, None, window, spans, table, rounded=rounded)
    return rounded
