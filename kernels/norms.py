"""The steps between the matrix products of DiffusionGemma: residual sums, root mean square norms, the router.
The step of Llama's kind, `add_norm`, is x + product and its norm, with x in float32.

    before the layers   x = embedding * scale, and rms(predictions, norm), of which an MLP makes signals
                        x = rms(x + signals), and the view that comes next: rms(x, next)
    after attention     x = x + rms(attention, post)
                        and three views of it: rms(x, mlp), rms(x, moe), rms(x) * router scale / sqrt(D)
    router              p = softmax(router @ view); the top_k of it, renormalised, times a scale of each expert
    after the experts   x = (x + rms(rms(mlp, post mlp) + rms(moe, post moe), post)) * scalar
                        and the view that comes next: rms(x, next)

The attention and the MLP are products that may come in parts (matmul.py), and the experts' rows come before they are
weighted: the kernel adds them up as it reads them, in float32, and rounds the sum, so that no launch writes it.

Norms are float32 inside and rounded to x's dtype where the reference rounds. A program has one row of x, [D], and loads
everything before it computes, so that it waits for memory once. The views share one root mean square.

Bytes in 16 bits: 12*rows*D and 10*rows*D, together 4 MB at 64 rows of 2816; of norms each program reads 14*D and 16*D,
from L2. One operation at a time it is 190*rows*D, in some 40 launches, which cost most when rows are few.

The router is apart from the norms: a program with one row would read all of its matrix [E, D], 2*E*D bytes, 0.7 MB. A
block of up to 64 rows reads it once, cut in E and in D so that many processors read a piece each. `_choose`
adds the products of the pieces, 8*rows*E*D/256 bytes written and read, takes the best, and appends the row to the lists
of its experts, whose order is that in which the programs come. FLOP: 2*rows*E*D.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm

from caesura.kernels.experts import Lists, empty_lists, weighted
from caesura.kernels.jit import cdiv, fused, jit, power, tl
from caesura.kernels.matmul import added

Views = tuple[Tensor, Tensor, Tensor, Tensor]


class RoutedRows(NamedTuple):
    """The weights, float32, and numbers, int64, of each row's experts, [rows, top_k]; and the list of each expert, if
    the kernel has made it."""

    weights: Tensor
    chosen: Tensor
    lists: Lists | None


# The references


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root mean square norm in float32, in x's dtype; the weight multiplies directly."""
    return rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)


def reference_enter(
    ids: Tensor, embed: Tensor, scale: float, soft: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return embedding(ids, embed) * scale, rms(soft.to(embed.dtype), norm, eps)


def reference_add_signals(x: Tensor, signals: Tensor, following: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = rms(x + signals, None, eps)
    return x, rms(x, following, eps)


def reference_add_attention(
    x: Tensor, attention: Tensor, norms: Sequence[Tensor], router_scale: Tensor, eps: float
) -> Views:
    post, mlp, moe = norms
    x = x + rms(added(attention, x.dtype), post, eps)
    return x, rms(x, mlp, eps), rms(x, moe, eps), rms(x, None, eps) * router_scale * x.shape[-1] ** -0.5


def reference_route(x: Tensor, router: Tensor, expert_scale: Tensor, top_k: int) -> RoutedRows:
    probabilities = linear(x, router).softmax(-1, dtype=torch.float32)
    weights, chosen = probabilities.topk(top_k, -1)
    return RoutedRows(weights / weights.sum(-1, keepdim=True) * expert_scale[chosen], chosen, None)


def reference_add_experts(
    x: Tensor,
    mlp: Tensor,
    moe: Tensor,
    norms: Sequence[Tensor],
    scalar: Tensor,
    mode: Tensor,
    eps: float,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    post_mlp, post_moe, post, following = norms
    moe = moe if weights is None else weighted(moe, weights)
    both = rms(added(mlp, x.dtype), post_mlp, eps) + rms(moe, post_moe, eps)
    x = (x + rms(both, post, eps)) * scalar[mode, None]
    return x, rms(x, following, eps)


def reference_add_norm(
    x: Tensor, product: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    x = x + (product if product.ndim == 2 else product.sum(0, dtype=torch.float32))
    return x, rms(x, weight, eps).to(dtype)


# The kernels


@jit
def read(ptr, d, WIDTH: tl.constexpr):
    return tl.load(ptr + d, mask=d < WIDTH, other=0.0).to(tl.float32)


@jit
def read_sum(parts, row, d, count, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """A row of parts [count, rows, WIDTH], added up. PARTS is at least `count`; no load waits for another."""
    start = row * WIDTH + d
    total = tl.load(parts + start, mask=d < WIDTH, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        start += tl.num_programs(0).to(tl.int64) * WIDTH
        total += tl.load(parts + start, mask=d < tl.where(part < count, WIDTH, 0), other=0.0).to(tl.float32)
    return total


@jit
def read_weighted(pairs, weights, row, d, WIDTH: tl.constexpr, TOP_K: tl.constexpr):
    """A row of its experts' rows [rows, TOP_K, WIDTH], weighted and added up; or without weights [rows, WIDTH]."""
    first = row * TOP_K
    total = read(pairs + first * WIDTH, d, WIDTH)
    if weights is not None:
        total *= tl.load(weights + first)
        for slot in tl.static_range(1, TOP_K):
            total += read(pairs + (first + slot) * WIDTH, d, WIDTH) * tl.load(weights + first + slot)
    return total


@jit
def rounded(x, dtype: tl.constexpr):
    return x.to(dtype).to(tl.float32)


@jit
def inverse(x, eps, WIDTH: tl.constexpr):
    """1 / root mean square of a row; columns after its end are 0."""
    return tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)


@jit
def _enter(ids, embed, soft, norm, x, signals, scale, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    dtype: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = row * WIDTH
    d = tl.arange(0, BLOCK)
    soft = rounded(read(soft + start, d, WIDTH), dtype)
    norm = read(norm, d, WIDTH)
    embed = read(embed + tl.load(ids + row) * WIDTH, d, WIDTH)
    tl.store(x + start + d, (embed * scale).to(dtype), mask=d < WIDTH)
    tl.store(signals + start + d, (soft * inverse(soft, eps, WIDTH) * norm).to(dtype), mask=d < WIDTH)


@jit
def _add_signals(x, signals, following, new_x, next_x, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    dtype: tl.constexpr = x.dtype.element_ty
    start = tl.program_id(0).to(tl.int64) * WIDTH
    d = tl.arange(0, BLOCK)
    following = read(following, d, WIDTH)
    x = rounded(read(x + start, d, WIDTH) + read(signals + start, d, WIDTH), dtype)
    x = rounded(x * inverse(x, eps, WIDTH), dtype)
    tl.store(new_x + start + d, x.to(dtype), mask=d < WIDTH)
    tl.store(next_x + start + d, (x * inverse(x, eps, WIDTH) * following).to(dtype), mask=d < WIDTH)


@jit(do_not_specialize=["parts"])
def _add_norm(
    x, product, weight, new_x, next_x, parts, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    start, weight = row * WIDTH + d, read(weight, d, WIDTH)
    x = read(x + row * WIDTH, d, WIDTH) + read_sum(product, row, d, parts, WIDTH, PARTS)
    tl.store(new_x + start, x, mask=d < WIDTH)
    tl.store(next_x + start, (x * inverse(x, eps, WIDTH) * weight).to(next_x.dtype.element_ty), mask=d < WIDTH)


@jit(do_not_specialize=["parts"])
def _add_attention(
    x, attention, post, mlp, moe, router_scale, new_x, mlp_x, moe_x, router_x, parts, eps, root,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = row * WIDTH
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    attention = rounded(read_sum(attention, row, d, parts, WIDTH, PARTS), dtype)
    x = read(x + start, d, WIDTH)
    post, mlp, moe = read(post, d, WIDTH), read(mlp, d, WIDTH), read(moe, d, WIDTH)
    router_scale = read(router_scale, d, WIDTH)

    x = rounded(x + rounded(attention * inverse(attention, eps, WIDTH) * post, dtype), dtype)
    tl.store(new_x + start + d, x.to(dtype), mask=inside)
    x = x * inverse(x, eps, WIDTH)
    tl.store(mlp_x + start + d, (x * mlp).to(dtype), mask=inside)
    tl.store(moe_x + start + d, (x * moe).to(dtype), mask=inside)
    x = rounded(rounded(x, dtype) * router_scale, dtype) * root
    tl.store(router_x + start + d, x.to(dtype), mask=inside)


@jit(do_not_specialize=["parts"])
def _add_experts(
    x, mlp, moe, weights, post_mlp, post_moe, post, following, scalar, mode, new_x, next_x, parts, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, TOP_K: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = row * WIDTH
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    mode = tl.load(mode + row)
    mlp = rounded(read_sum(mlp, row, d, parts, WIDTH, PARTS), dtype)
    moe = rounded(read_weighted(moe, weights, row, d, WIDTH, TOP_K), dtype)
    x = read(x + start, d, WIDTH)
    post_mlp, post_moe = read(post_mlp, d, WIDTH), read(post_moe, d, WIDTH)
    post, following = read(post, d, WIDTH), read(following, d, WIDTH)
    scalar = tl.load(scalar + mode).to(tl.float32)

    mlp = rounded(mlp * inverse(mlp, eps, WIDTH) * post_mlp, dtype)
    moe = rounded(moe * inverse(moe, eps, WIDTH) * post_moe, dtype)
    both = rounded(mlp + moe, dtype)
    x = rounded(x + rounded(both * inverse(both, eps, WIDTH) * post, dtype), dtype)
    x = rounded(x * scalar, dtype)
    tl.store(new_x + start + d, x.to(dtype), mask=inside)
    tl.store(next_x + start + d, (x * inverse(x, eps, WIDTH) * following).to(dtype), mask=inside)


@jit(do_not_specialize=["rows"])
def _score(
    x, router, sums, counts, rows, WIDTH: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A piece of the product along D, float32. Experts are the dot's first operand, which must be wide on sm_90. Their
    lists are empty from here on."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    piece = tl.program_id(2)
    if piece + tl.program_id(0) == 0:
        tl.store(counts + e, tl.zeros([BLOCK_E], tl.int32), mask=e < EXPERTS)
    d = piece * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = (e < EXPERTS)[:, None] & (d < WIDTH)[None, :]
    matrix = tl.load(router + e[:, None] * WIDTH + d[None, :], mask=mask, other=0.0)
    mask = (row < rows)[None, :] & (d < WIDTH)[:, None]
    view = tl.load(x + row[None, :] * WIDTH + d[:, None], mask=mask, other=0.0)
    product = tl.dot(matrix, view, input_precision="ieee")
    mask = (e < EXPERTS)[:, None] & (row < rows)[None, :]
    tl.store(sums + (piece * rows + row[None, :]) * EXPERTS + e[:, None], product, mask=mask)


@jit(do_not_specialize=["rows"])
def _choose(
    sums, expert_scale, weights, chosen, counts, members, rows,
    PIECES: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Choose the experts of one row. The logits are rounded like the reference's, so that the same ones tie."""
    dtype: tl.constexpr = expert_scale.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    piece, e, k = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K)
    mask = (piece < PIECES)[:, None] & (e < EXPERTS)[None, :]
    logits = tl.sum(tl.load(sums + (piece[:, None] * rows + row) * EXPERTS + e[None, :], mask=mask, other=0.0), 0)
    logits = tl.where(e < EXPERTS, rounded(logits, dtype), float("-inf"))
    p = tl.exp(logits - tl.max(logits, 0))
    p = tl.where(e < EXPERTS, p / tl.sum(p, 0), -1.0)  # an expert of probability 0 precedes padding
    best = tl.zeros([BLOCK_K], tl.float32)
    numbers = tl.zeros([BLOCK_K], tl.int32)
    for slot in range(TOP_K):
        number = tl.argmax(p, 0)  # the lowest of equals
        best = tl.where(k == slot, tl.max(p, 0), best)
        numbers = tl.where(k == slot, number, numbers)
        p = tl.where(e == number, -1.0, p)
    scale = tl.load(expert_scale + numbers, mask=k < TOP_K, other=0.0).to(tl.float32)
    tl.store(weights + row * TOP_K + k, best / tl.sum(best, 0) * scale, mask=k < TOP_K)
    tl.store(chosen + row * TOP_K + k, numbers.to(tl.int64), mask=k < TOP_K)
    listed = (k < TOP_K) & (numbers < EXPERTS)  # a row of NaN may choose one that is not there
    place = tl.atomic_add(counts + numbers, 1, mask=listed)
    pair = (row * TOP_K + k).to(tl.int32)
    tl.store(members + numbers.to(tl.int64) * rows * TOP_K + place, pair, mask=listed)


# Their launchers


def whole(width: int) -> dict[str, int]:
    """Block sizes for one row, 16 numbers a thread: at 2816, with seven rows at once, some 120 registers."""
    return {"WIDTH": width, "BLOCK": power(width), "num_warps": min(8, max(1, power(width) // 512))}


def launch_enter(
    ids: Tensor, embed: Tensor, scale: float, soft: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    rows, width = soft.shape
    assert embed.is_contiguous()
    assert soft.is_contiguous()
    x, signals = embed.new_empty(2, rows, width)
    _enter[rows,](ids, embed, soft, norm, x, signals, scale, eps, **whole(width))
    return x, signals


def launch_add_signals(x: Tensor, signals: Tensor, following: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    assert x.is_contiguous()
    assert signals.is_contiguous()
    new_x, next_x = x.new_empty(2, rows, width)
    _add_signals[rows,](x, signals, following, new_x, next_x, eps, **whole(width))
    return new_x, next_x


def launch_add_norm(
    x: Tensor, product: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    (rows, width), parts = x.shape, len(product) if product.ndim == 3 else 1
    assert product.shape[-2:] == x.shape
    assert x.is_contiguous()
    assert product.is_contiguous()
    new_x, next_x = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    _add_norm[rows,](x, product, weight, new_x, next_x, parts, eps, **whole(width), PARTS=power(parts))
    return new_x, next_x


def launch_add_attention(
    x: Tensor, attention: Tensor, norms: Sequence[Tensor], router_scale: Tensor, eps: float
) -> Views:
    (rows, width), parts = x.shape, len(attention) if attention.ndim == 3 else 1
    assert attention.shape[-2:] == x.shape
    assert x.is_contiguous()
    assert attention.is_contiguous()
    new_x, mlp_x, moe_x, router_x = x.new_empty(4, rows, width)
    _add_attention[rows,](
        x, attention, *norms, router_scale, new_x, mlp_x, moe_x, router_x, parts, eps, width**-0.5,
        **whole(width), PARTS=power(parts),
    )  # fmt: skip
    return new_x, mlp_x, moe_x, router_x


def launch_route(x: Tensor, router: Tensor, expert_scale: Tensor, top_k: int) -> RoutedRows:
    """Shared memory: 512 bytes of 64 rows of x and of 64 experts, 64 KB; without a loop there is no second stage.
    Float32 uses no tensor cores, which would round, but small blocks in registers."""
    (rows, width), count = x.shape, len(router)
    assert router.shape == (count, width)
    assert x.dtype == router.dtype == expert_scale.dtype
    assert x.is_contiguous()
    assert router.is_contiguous()
    deep = min(512 // x.itemsize, max(16, power(width)))
    pieces = cdiv(width, deep)
    block_r, block_e = (min(64 if x.itemsize == 2 else 16, max(16, power(size))) for size in (rows, count))
    sums, lists = torch.empty(pieces, rows, count, device=x.device), empty_lists(count, rows * top_k, x.device)
    _score[cdiv(rows, block_r), cdiv(count, block_e), pieces](
        x, router, sums, lists.counts, rows,
        WIDTH=width, EXPERTS=count, BLOCK_R=block_r, BLOCK_E=block_e, BLOCK_D=deep, num_warps=4,
    )  # fmt: skip
    weights = torch.empty(rows, top_k, device=x.device)
    chosen = torch.empty(rows, top_k, dtype=torch.int64, device=x.device)
    _choose[rows,](
        sums, expert_scale, weights, chosen, *lists, rows,
        PIECES=pieces, EXPERTS=count, TOP_K=top_k,
        BLOCK_P=power(pieces), BLOCK_E=power(count), BLOCK_K=power(top_k), num_warps=1,
    )  # fmt: skip
    return RoutedRows(weights, chosen, lists)


def launch_add_experts(
    x: Tensor,
    mlp: Tensor,
    moe: Tensor,
    norms: Sequence[Tensor],
    scalar: Tensor,
    mode: Tensor,
    eps: float,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    (rows, width), parts, top_k = x.shape, len(mlp) if mlp.ndim == 3 else 1, 1 if weights is None else weights.shape[1]
    assert mlp.shape[-2:] == x.shape
    assert moe.shape == (x.shape if weights is None else (*weights.shape, width))
    assert all(tensor.is_contiguous() for tensor in (x, mlp, moe, *([] if weights is None else [weights])))
    new_x, next_x = x.new_empty(2, rows, width)
    _add_experts[rows,](
        x, mlp, moe, weights, *norms, scalar, mode, new_x, next_x, parts, eps,
        **whole(width), PARTS=power(parts), TOP_K=top_k,
    )  # fmt: skip
    return new_x, next_x


# What a step and its layers call


def enter(ids: Tensor, embed: Tensor, scale: float, soft: Tensor, norm: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Embeddings [rows, D] of the tokens, int64 [rows], times `scale`; and the norm of `soft` [rows, D], the
    predictions of the last step, of which a small MLP makes signals."""
    return (launch_enter if fused(ids) else reference_enter)(ids, embed, scale, soft, norm, eps)


def add_signals(x: Tensor, signals: Tensor, following: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Embeddings with those signals added, [rows, D], normed, and the next norm of that, the first layer's."""
    return (launch_add_signals if fused(x) else reference_add_signals)(x, signals, following, eps)


def add_norm(x: Tensor, product: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The residual stream x [rows, D], float32, with a product [(parts,) rows, D] added, and its norm by `weight`,
    float32 [D], in `dtype`."""
    return (launch_add_norm if fused(x) else reference_add_norm)(x, product, weight, eps, dtype)


def add_attention(x: Tensor, attention: Tensor, norms: Sequence[Tensor], router_scale: Tensor, eps: float) -> Views:
    """The residual stream x [rows, D] with its attention [(parts,) rows, D] added, and the views that the MLP, the
    experts and the router read. `norms` are the attention's, the MLP's and the experts', float32 [D]; `router_scale` is
    [D]."""
    call = launch_add_attention if fused(x) else reference_add_attention
    return call(x, attention, norms, router_scale, eps)


def route(x: Tensor, router: Tensor, expert_scale: Tensor, top_k: int) -> RoutedRows:
    """The router's view of x [rows, D], its matrix [E, D] and a scale [E] of each expert -> the experts of each row,
    best first. Among equals the kernel takes the lowest number; the
    reference takes those of Transformers, by `topk`."""
    return (launch_route if fused(x) else reference_route)(x, router, expert_scale, top_k)


def add_experts(
    x: Tensor,
    mlp: Tensor,
    moe: Tensor,
    norms: Sequence[Tensor],
    scalar: Tensor,
    mode: Tensor,
    eps: float,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [rows, D] with both branches added, times scalar[mode], and its next norm: the next layer's first or, after the
    last layer, the model's last. `mlp` is [(parts,) rows, D]. `moe` is [rows, D], or with `weights`, float32
    [rows, top_k], the rows of `experts.pairs`. `norms` are those of the MLP, the experts, both together and the next,
    float32 [D]; `mode` is int64 [rows]."""
    call = launch_add_experts if fused(x) else reference_add_experts
    return call(x, mlp, moe, norms, scalar, mode, eps, weights)
