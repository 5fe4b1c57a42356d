"""The steps between the q, k and v products of a layer and its attention: the norm of every head, rotary positions (Su
et al., RoFormer, 2021), and the write of keys and values into the KV cache.

    q = turn(rms(q) * q_norm)        k = turn(rms(k) * k_norm)        v = rms(v), or rms(k) in a layer without v

Pairs are (i, i + width/2); in a full layer only the first quarter turns (Gemma 4's "proportional" kind). cos and sin
come from a table in x's dtype, made by PyTorch once a forward, or once a canvas whose steps are recorded. The table is
read from L2: 2*pairs values a row, 512 bytes in a sliding layer and 256 in a full one.

Bytes in 16 bits: 2*rows*(heads + 2*key heads)*width read and as many written; if v is k, k is read once. With 16 heads:
at 256 rows 8.4 MB in a sliding layer (8 key heads of 256) and 10 MB in a full one (2 of 512), at 16 rows 0.5 and 0.6
MB. FLOP: some 10 a value. So for few rows the cost is the launch: one instead of twenty.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from functools import cache

import torch
from torch import Tensor

from caesura.kernels.jit import cdiv, fused, jit, power, tl
from caesura.kernels.matmul import added
from caesura.kernels.norms import rms


def rotary(positions: Tensor, width: int, theta: float, part: float, dtype: torch.dtype) -> Tensor:
    """cos and sin [2, rows, pairs] for positions [rows]; the first `part` of a head's width / 2 pairs turns. Exponents
    are relative to the whole width."""
    return cos_sin(positions[:, None] * frequencies(width, theta, int(part * width // 2), positions.device)).to(dtype)


def cos_sin(angles: Tensor) -> Tensor:
    """cos and sin, float32 [2, ...], of angles in radians, float64 [...]. Rounded once, so that all libraries and
    devices have the same: a product rounds its rows to 8 bits, where one other bit grows from layer to layer."""
    assert angles.dtype == torch.float64
    table = torch.empty(2, *angles.shape, dtype=torch.float32, device=angles.device)
    torch.cos(angles, out=table[0])
    torch.sin(angles, out=table[1])
    return table


@cache
def frequencies(width: int, theta: float, pairs: int, device: torch.device) -> Tensor:
    """Radians from one position to the next, float64 [pairs], of the first `pairs` of a head's width / 2. Power and
    inverse are rounded to float32 as in Transformers: a wrong last bit turns position 200,000 by 0.01. The power is
    computed in float64, since each library has another one in float32; and on the CPU, since a GPU has too."""
    exponents = torch.arange(0, 2 * pairs, 2, dtype=torch.float32) / width
    return (1.0 / (theta ** exponents.double()).float()).double().to(device)


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    turn: Tensor,
    eps: float,
    keys: Tensor,
    values: Tensor,
    places: Tensor | None = None,
    table: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """As `turned`. The norm is float32 and rounded to x's dtype; what follows is rounded at every step."""
    width = keys.shape[2]
    q, k, v = added(q, keys.dtype), added(k, keys.dtype), None if v is None else added(v, keys.dtype)
    q, k = q.unflatten(1, (-1, width)), k.unflatten(1, (-1, width))
    v = k if v is None else v.unflatten(1, (-1, width))
    if places is None:
        places = torch.arange(len(q), device=q.device)
    if table is not None:
        places = places - table[3]
    kept = places < keys.shape[1]
    if scale is None:
        q, k, v = _rotated(rms(q, q_norm, eps), turn), _rotated(rms(k, k_norm, eps), turn), rms(v, None, eps)
    else:
        q, k = (
            _rotated(x.float() if norm is None else rms(x.float(), norm, eps), turn)
            for x, norm in ((q, q_norm), (k, k_norm))
        )
        q *= scale
    keys[:, places[kept]] = k[kept].transpose(0, 1).to(keys.dtype)
    values[:, places[kept]] = v[kept].transpose(0, 1)
    return q.to(keys.dtype)


def _rotated(x: Tensor, turn: Tensor) -> Tensor:
    (cos, sin), half = turn[:, :, None], x.shape[2] // 2
    pairs = cos.shape[2]
    left, right = x[..., :pairs], x[..., half : half + pairs]
    out = x.clone()
    out[..., :pairs] = left * cos - right * sin
    out[..., half : half + pairs] = right * cos + left * sin
    return out


@jit
def _load(x, part, parts, head, d, live, dtype: tl.constexpr, HALF: tl.constexpr, PARTS: tl.constexpr):
    """Both halves of some heads of a row, float32 [BLOCK_H, BLOCK_D]; their parts are `part` numbers apart, add up,
    and the sum is rounded."""
    x += head[:, None] * (2 * HALF) + d
    mask = live[:, None] & (d < HALF)
    left = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(x + HALF, mask=mask, other=0.0).to(tl.float32)
    for number in tl.static_range(1, PARTS):
        x += part
        mask = live[:, None] & (d < tl.where(number < parts, HALF, 0))
        left += tl.load(x, mask=mask, other=0.0).to(tl.float32)
        right += tl.load(x + HALF, mask=mask, other=0.0).to(tl.float32)
    return left.to(dtype).to(tl.float32), right.to(dtype).to(tl.float32)


@jit
def _store(x, left, right, d, live, HALF: tl.constexpr):
    mask = live[:, None] & (d < HALF)
    tl.store(x + d, left.to(x.dtype.element_ty), mask=mask)
    tl.store(x + HALF + d, right.to(x.dtype.element_ty), mask=mask)


@jit
def _norm(left, right, weight, eps, d, HALF: tl.constexpr, PLAIN: tl.constexpr):
    if weight is not None or not PLAIN:
        scale = tl.rsqrt(tl.sum(left * left + right * right, 1) * (0.5 / HALF) + eps)[:, None]
        left, right = left * scale, right * scale
    if weight is not None:
        left *= tl.load(weight + d, mask=d < HALF, other=0.0)
        right *= tl.load(weight + HALF + d, mask=d < HALF, other=0.0)
    return left, right


@jit
def _rotate(left, right, cos, sin, dtype: tl.constexpr):
    """Every product is rounded, as the reference's is."""
    left, right = left.to(dtype).to(tl.float32), right.to(dtype).to(tl.float32)
    across, along = (right * sin).to(dtype).to(tl.float32), (right * cos).to(dtype).to(tl.float32)
    return (left * cos).to(dtype).to(tl.float32) - across, along + (left * sin).to(dtype).to(tl.float32)


@jit(do_not_specialize=["columns", "parts"])
def _turn(
    q,
    k,
    v,  # or None: it is k
    q_norm,
    k_norm,
    turn,
    out,
    keys,
    values,
    places,  # int32 [rows], the column of each row; or None: its number
    table,  # int64 [4], which replaces keys, values, their columns and their heads' strides; or None
    columns,
    part,
    parts,
    eps,
    scale,
    q_row,
    k_row,
    v_row,
    turn_row,
    turn_sin,
    key_head,
    key_column,
    value_head,
    value_column,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    PAIRS: tl.constexpr,
    PARTS: tl.constexpr,
    PLAIN: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """A block of heads of one row: those of q, then those of k and v."""
    dtype: tl.constexpr = out.dtype.element_ty
    between: tl.constexpr = tl.float32 if PLAIN else dtype
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if table is not None:
        keys, values, columns = tl.load(table), tl.load(table + 1), tl.load(table + 2)
        # The hint is on the pointer: of a number Triton drops it, and then loads two bytes at a time.
        keys = tl.multiple_of(keys.to(tl.pointer_type(dtype)), 16)
        values = tl.multiple_of(values.to(tl.pointer_type(dtype)), 16)
        key_head = columns * (2 * HALF)
        value_head = key_head
    head = tl.arange(0, BLOCK_H)
    # Each head reads norms and table again, from L1: sharing them through shared memory would wait.
    d = tl.broadcast_to(tl.arange(0, BLOCK_D)[None, :], BLOCK_H, BLOCK_D)
    turn += row * turn_row + d
    cos = tl.load(turn, mask=d < PAIRS, other=1.0).to(tl.float32)
    sin = tl.load(turn + turn_sin, mask=d < PAIRS, other=0.0).to(tl.float32)
    before = tl.cdiv(HEADS, BLOCK_H)
    if block < before:
        head += block * BLOCK_H
        live = head < HEADS
        left, right = _load(q + row * q_row, part, parts, head, d, live, dtype, HALF, PARTS)
        left, right = _norm(left, right, q_norm, eps, d, HALF, PLAIN)
        left, right = _rotate(left, right, cos, sin, between)
        if PLAIN:
            left, right = left * scale, right * scale
        _store(out + (row * HEADS + head)[:, None] * (2 * HALF), left, right, d, live, HALF)
    else:
        head += (block - before) * BLOCK_H
        column = row
        if places is not None:
            column = tl.load(places + row).to(tl.int64)
        if table is not None:
            column -= tl.load(table + 3)
        live = head < tl.where(column < columns, GROUPS, 0)
        left, right = _load(k + row * k_row, part, parts, head, d, live, dtype, HALF, PARTS)
        v_left, v_right = left, right
        if v is not None:
            v_left, v_right = _load(v + row * v_row, part, parts, head, d, live, dtype, HALF, PARTS)
        left, right = _norm(left, right, k_norm, eps, d, HALF, PLAIN)
        left, right = _rotate(left, right, cos, sin, between)
        group = head.to(tl.int64)[:, None]
        _store(keys + group * key_head + column * key_column, left, right, d, live, HALF)
        v_left, v_right = _norm(v_left, v_right, None, eps, d, HALF, PLAIN)
        _store(values + group * value_head + column * value_column, v_left, v_right, d, live, HALF)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    turn: Tensor,
    eps: float,
    keys: Tensor,
    values: Tensor,
    places: Tensor | None = None,
    table: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """As `turned`."""
    rows, (groups, columns, width) = q.shape[-2], keys.shape
    heads, half, pairs = q.shape[-1] // width, width // 2, turn.shape[2]
    part, parts = (q.stride(0), len(q)) if q.ndim == 3 else (0, 1)
    assert columns == rows or places is not None
    assert places is None or (places.shape == (rows,) and places.is_contiguous())
    assert table is None or (places is not None and keys.is_contiguous() and values.is_contiguous())
    assert k.shape[-1] == groups * width
    assert all(x is None or x.stride(0) == q.stride(0) for x in (k, v)) or parts == 1
    assert turn.shape[:2] == (2, rows)
    assert all(x is None or x.stride(-1) == 1 for x in (q, k, v, q_norm, k_norm, turn, keys, values))
    out = torch.empty(rows, heads, width, dtype=keys.dtype, device=q.device)
    # 8 values of a half are 16 bytes, one load of a thread. So a head and its sum fit in one warp.
    block_d = power(half)
    block_h = min(power(groups), max(1, 512 // block_d))
    _turn[rows, cdiv(heads, block_h) + cdiv(groups, block_h)](
        q,
        k,
        v,
        q_norm,
        k_norm,
        turn,
        out,
        keys,
        values,
        places,
        table,
        columns,
        part,
        parts,
        eps,
        1.0 if scale is None else scale,
        q.stride(-2),
        k.stride(-2),
        0 if v is None else v.stride(-2),
        turn.stride(1),
        turn.stride(0),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        HEADS=heads,
        GROUPS=groups,
        HALF=half,
        PAIRS=pairs,
        PARTS=power(parts),
        PLAIN=scale is not None,
        BLOCK_H=block_h,
        BLOCK_D=block_d,
        num_warps=max(1, block_h * block_d // 256),
        enable_fp_fusion=False,  # a product fused with a sum would not be rounded
    )
    return out


def turned(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    turn: Tensor,
    eps: float,
    keys: Tensor,
    values: Tensor,
    places: Tensor | None = None,
    table: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Products q [(parts,) rows, heads * width], k and v [(parts,) rows, key heads * width] and `turn` of `rotary` ->
    q [rows, heads, width], normed and turned. If there are parts, q, k and v are columns of one product (matmul.py).
    Keys and values are written into views [key heads, rows, width] of a cache. A layer without v has the values rms(k).

    With `places`, int32 [rows] on the device, row r goes to column places[r] of a view of any length, or nowhere if
    that is after its end: a CUDA graph gets whole buffers, and each replay sets the places of its rows. With `table`
    too, int64 [4] on the device, a kernel takes only heads and width from keys and values: see `attention`.

    With a `scale`, as decoders of the Llama kind: q is multiplied by it, there is no norm without a weight, values are
    kept as they come, and nothing is rounded until it is stored."""
    return (launch if fused(q) else reference)(q, k, v, q_norm, k_norm, turn, eps, keys, values, places, table, scale)
