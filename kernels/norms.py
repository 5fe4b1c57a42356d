"""The steps between the matrix products of DiffusionGemma: residual sums, root mean square norms, the router.
The step of Llama's kind, `add_norm`, is x + product and its norm, with x in float32.

    before the layers   x = embedding * scale, and rms(predictions, norm), of which an MLP makes signals
                        x = rms(x + signals), but of a context row x stays, and the view that comes next: rms(x, next)
    after attention     x = x + rms(attention, post)
                        and three views of it: rms(x, mlp), rms(x, moe), rms(x) * router scale / sqrt(D)
    router              p = softmax(router @ view); the top_k of it, renormalised, times a scale of each expert
    after the experts   x = (x + rms(rms(mlp, post mlp) + rms(moe, post moe), post)) * scalar
                        and the view that comes next: rms(x, next)

The attention and the MLP are products that may come in parts (matmul.py), and the experts' rows come before they are
weighted: the kernel adds them up as it reads them, in float32, and rounds the sum, so that no launch writes it.

Norms are float32 inside and rounded to x's dtype where the reference rounds. A program has one row of x, [D], and loads
everything before it computes, so that it waits for memory once. The views share one root mean square. A view whose
product wants `Rows8` becomes codes and a scale at once.

Bytes in 16 bits: 12*rows*D and 10*rows*D, together 4 MB at 64 rows of 2816; of norms each program reads 14*D and 16*D,
from L2. One operation at a time it is 190*rows*D, in some 40 launches, which cost most when rows are few.

The router is apart from the norms: a program with one row would read all of its matrix [E, D], 2*E*D bytes, 0.7 MB. A
block of 16 rows reads it once from L2, cut in E and in D so that many processors read a piece each. The last program of
a block adds the products of the pieces, 8*rows*E*D/256 bytes written and read, 90 KB a block, takes the best, and
appends the rows to the lists of their experts, whose order is that in which the programs come. FLOP: 2*rows*E*D.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm

from caesura.kernels.experts import Lists, empty_lists, weighted
from caesura.kernels.fp8 import empty_rows, quantised, store_row
from caesura.kernels.jit import cdiv, counters, fused, is_last, jit, power, tl, whole
from caesura.kernels.linear import Activations, row_operands
from caesura.kernels.matmul import added

Views = tuple[Tensor, Activations, Activations, Tensor]


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
    ids: Tensor, embed: Tensor, scale: float, soft: Tensor, source: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return embedding(ids[source], embed) * scale, rms(soft[source].to(embed.dtype), norm, eps)


def view(x: Tensor, weight: Tensor, eps: float, rounds: bool) -> Activations:
    return quantised(rms(x, weight, eps)) if rounds else rms(x, weight, eps)


def reference_add_signals(
    x: Tensor, signals: Tensor, following: Tensor, mode: Tensor, eps: float, rounds: bool = False
) -> tuple[Tensor, Activations]:
    x = torch.where(mode[:, None] > 0, rms(x + signals, None, eps), x)
    return x, view(x, following, eps, rounds)


def reference_add_attention(
    x: Tensor,
    attention: Tensor,
    norms: Sequence[Tensor],
    router_scale: Tensor,
    eps: float,
    rounds: tuple[bool, bool] = (False, False),
) -> Views:
    post, mlp, moe = norms
    x = x + rms(added(attention, x.dtype), post, eps)
    both = view(x, mlp, eps, rounds[0]), view(x, moe, eps, rounds[1])
    return x, *both, rms(x, None, eps) * router_scale * x.shape[-1] ** -0.5


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
    rounds: bool = False,
) -> tuple[Tensor, Activations]:
    post_mlp, post_moe, post, following = norms
    moe = moe if weights is None else weighted(moe, weights)
    both = rms(added(mlp, x.dtype), post_mlp, eps) + rms(moe, post_moe, eps)
    x = (x + rms(both, post, eps)) * scalar[mode, None]
    return x, view(x, following, eps, rounds)


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
def _enter(ids, embed, soft, source, norm, x, signals, scale, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    dtype: tl.constexpr = x.dtype.element_ty
    start = tl.program_id(0).to(tl.int64) * WIDTH
    source = tl.load(source + tl.program_id(0))
    d = tl.arange(0, BLOCK)
    soft = rounded(read(soft + source * WIDTH, d, WIDTH), dtype)
    norm = read(norm, d, WIDTH)
    embed = read(embed + tl.load(ids + source) * WIDTH, d, WIDTH)
    tl.store(x + start + d, (embed * scale).to(dtype), mask=d < WIDTH)
    tl.store(signals + start + d, (soft * inverse(soft, eps, WIDTH) * norm).to(dtype), mask=d < WIDTH)


@jit
def _add_signals(x, signals, following, mode, new_x, next_x, scales, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    dtype: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    start = row * WIDTH
    d = tl.arange(0, BLOCK)
    of_canvas = tl.load(mode + row) > 0
    following = read(following, d, WIDTH)
    x = read(x + start, d, WIDTH)
    both = rounded(x + read(signals + start, d, WIDTH), dtype)
    x = tl.where(of_canvas, rounded(both * inverse(both, eps, WIDTH), dtype), x)
    tl.store(new_x + start + d, x.to(dtype), mask=d < WIDTH)
    store_row(rounded(x * inverse(x, eps, WIDTH) * following, dtype), next_x, scales, row, d, WIDTH)


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
    x, attention, post, mlp, moe, router_scale, new_x, mlp_x, mlp_scales, moe_x, moe_scales, router_x, parts, eps, root,
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
    store_row(rounded(x * mlp, dtype), mlp_x, mlp_scales, row, d, WIDTH)
    store_row(rounded(x * moe, dtype), moe_x, moe_scales, row, d, WIDTH)
    x = rounded(rounded(x, dtype) * router_scale, dtype) * root
    tl.store(router_x + start + d, x.to(dtype), mask=inside)


@jit(do_not_specialize=["parts"])
def _add_experts(
    x, mlp, moe, weights, post_mlp, post_moe, post, following, scalar, mode, new_x, next_x, scales, parts, eps,
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
    store_row(rounded(x * inverse(x, eps, WIDTH) * following, dtype), next_x, scales, row, d, WIDTH)


@jit
def _score(
    x, router, sums, row, rows, WIDTH: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """A piece of the product along D, float32. Experts are the dot's first operand, which must be wide on sm_90."""
    e, piece = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E), tl.program_id(2)
    d = piece * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = (e < EXPERTS)[:, None] & (d < WIDTH)[None, :]
    matrix = tl.load(router + e[:, None] * WIDTH + d[None, :], mask=mask, other=0.0)
    mask = (row < rows)[None, :] & (d < WIDTH)[:, None]
    view = tl.load(x + row[None, :] * WIDTH + d[:, None], mask=mask, other=0.0)
    product = tl.dot(matrix, view, input_precision="ieee")
    mask = (e < EXPERTS)[:, None] & (row < rows)[None, :]
    tl.store(sums + (piece * rows + row[None, :]) * EXPERTS + e[:, None], product, mask=mask)


@jit
def _choose(
    sums, expert_scale, weights, chosen, counts, members, row, rows, PIECES: tl.constexpr, EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Choose the experts of some rows. The logits are rounded like the reference's, so that the same ones tie."""
    dtype: tl.constexpr = expert_scale.dtype.element_ty
    e, k, there = tl.arange(0, BLOCK_E)[None, :], tl.arange(0, BLOCK_K)[None, :], (row < rows)[:, None]
    logits = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    for piece in tl.static_range(PIECES):
        place = sums + (piece * rows + row[:, None]) * EXPERTS + e
        logits += tl.load(place, mask=there & (e < EXPERTS), other=0.0, cache_modifier=".cg")
    logits = tl.where(e < EXPERTS, rounded(logits, dtype), float("-inf"))
    p = tl.exp(logits - tl.max(logits, 1)[:, None])
    p = tl.where(e < EXPERTS, p / tl.sum(p, 1)[:, None], -1.0)  # an expert of probability 0 precedes padding
    best = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    numbers = tl.zeros([BLOCK_R, BLOCK_K], tl.int32)
    for slot in range(TOP_K):
        most, number = tl.max(p, 1, return_indices=True)  # the lowest of equals
        best = tl.where(k == slot, most[:, None], best)
        numbers = tl.where(k == slot, number[:, None], numbers)
        p = tl.where(e == number[:, None], -1.0, p)
    there = there & (k < TOP_K)
    scale = tl.load(expert_scale + numbers, mask=there, other=0.0).to(tl.float32)
    pair = row[:, None] * TOP_K + k
    tl.store(weights + pair, best / tl.sum(best, 1)[:, None] * scale, mask=there)
    tl.store(chosen + pair, numbers.to(tl.int64), mask=there)
    listed = there & (numbers < EXPERTS)  # a row of NaN may choose one that is not there
    place = tl.atomic_add(counts + numbers, 1, mask=listed, sem="relaxed")
    tl.store(members + numbers.to(tl.int64) * rows * TOP_K + place, pair.to(tl.int32), mask=listed)


@jit(do_not_specialize=["rows"])
def _route(
    x, router, expert_scale, sums, weights, chosen, counts, members, counting, rows,
    WIDTH: tl.constexpr, PIECES: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ALL_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`counting` has the lengths of the lists so far, then how many blocks of rows have chosen, then how many programs
    of each block have multiplied."""
    block, blocks, listed, done = tl.program_id(0), tl.num_programs(0), counting, counting + EXPERTS
    row = block.to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    _score(x, router, sums, row, rows, WIDTH, EXPERTS, BLOCK_E, BLOCK_D)
    if is_last(done + 1 + block, tl.num_programs(1) * tl.num_programs(2)):
        _choose(
            sums, expert_scale, weights, chosen, listed, members, row, rows,
            PIECES, EXPERTS, TOP_K, BLOCK_R, ALL_E, BLOCK_K,
        )  # fmt: skip
        if is_last(done, blocks):
            e = tl.arange(0, ALL_E)
            tl.store(counts + e, tl.load(listed + e, mask=e < EXPERTS, cache_modifier=".cg"), mask=e < EXPERTS)
            tl.store(listed + e, tl.zeros([ALL_E], tl.int32), mask=e < EXPERTS)


# Their launchers


def empty_view(x: Tensor, rounds: bool) -> tuple[Activations, Tensor, Tensor | None]:
    """A view like x, and the operands of the kernel that makes it."""
    made = empty_rows(x, *x.shape) if rounds else torch.empty_like(x)
    return made, *row_operands(made)


def launch_enter(
    ids: Tensor, embed: Tensor, scale: float, soft: Tensor, source: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    rows, width = soft.shape
    assert embed.is_contiguous()
    assert soft.is_contiguous()
    x, signals = embed.new_empty(2, rows, width)
    _enter[rows,](ids, embed, soft, source, norm, x, signals, scale, eps, **whole(width))
    return x, signals


def launch_add_signals(
    x: Tensor, signals: Tensor, following: Tensor, mode: Tensor, eps: float, rounds: bool = False
) -> tuple[Tensor, Activations]:
    rows, width = x.shape
    assert mode.shape == (rows,)
    assert x.is_contiguous()
    assert signals.is_contiguous()
    new_x, (next_x, *made) = torch.empty_like(x), empty_view(x, rounds)
    _add_signals[rows,](x, signals, following, mode, new_x, *made, eps, **whole(width))
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
    x: Tensor,
    attention: Tensor,
    norms: Sequence[Tensor],
    router_scale: Tensor,
    eps: float,
    rounds: tuple[bool, bool] = (False, False),
) -> Views:
    """At a width of 2816, with seven rows at once, some 120 registers."""
    (rows, width), parts = x.shape, len(attention) if attention.ndim == 3 else 1
    assert attention.shape[-2:] == x.shape
    assert x.is_contiguous()
    assert attention.is_contiguous()
    new_x, router_x = x.new_empty(2, rows, width)
    (mlp_x, *mlp), (moe_x, *moe) = (empty_view(x, each) for each in rounds)
    _add_attention[rows,](
        x, attention, *norms, router_scale, new_x, *mlp, *moe, router_x, parts, eps, width**-0.5,
        **whole(width), PARTS=power(parts),
    )  # fmt: skip
    return new_x, mlp_x, moe_x, router_x


def launch_route(x: Tensor, router: Tensor, expert_scale: Tensor, top_k: int) -> RoutedRows:
    """Blocks have 16 rows however many there are, so that a row is routed alike in any company, and one that has
    multiplied does not choose for many. Shared memory: 512 bytes of 16 rows of x and of 64 experts, 40 KB; without a
    loop there is no second stage. Float32 uses no tensor cores, which would round, but small blocks in registers."""
    (rows, width), count = x.shape, len(router)
    assert router.shape == (count, width)
    assert x.dtype == router.dtype == expert_scale.dtype
    assert x.is_contiguous()
    assert router.is_contiguous()
    deep = min(512 // x.itemsize, max(16, power(width)))
    pieces, block_e = cdiv(width, deep), min(64 if x.itemsize == 2 else 16, max(16, power(count)))
    sums, lists = torch.empty(pieces, rows, count, device=x.device), empty_lists(count, rows * top_k, x.device)
    weights = torch.empty(rows, top_k, device=x.device)
    chosen = torch.empty(rows, top_k, dtype=torch.int64, device=x.device)
    blocks, counting = cdiv(rows, 16), counters(x.device)
    assert count + 1 + blocks <= len(counting)
    _route[blocks, cdiv(count, block_e), pieces](
        x, router, expert_scale, sums, weights, chosen, *lists, counting, rows,
        WIDTH=width, PIECES=pieces, EXPERTS=count, TOP_K=top_k,
        BLOCK_R=16, BLOCK_E=block_e, BLOCK_D=deep, ALL_E=power(count), BLOCK_K=power(top_k), num_warps=4,
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
    rounds: bool = False,
) -> tuple[Tensor, Activations]:
    (rows, width), parts, top_k = x.shape, len(mlp) if mlp.ndim == 3 else 1, 1 if weights is None else weights.shape[1]
    assert mlp.shape[-2:] == x.shape
    assert moe.shape == (x.shape if weights is None else (*weights.shape, width))
    assert all(tensor.is_contiguous() for tensor in (x, mlp, moe, *([] if weights is None else [weights])))
    new_x, (next_x, *made) = torch.empty_like(x), empty_view(x, rounds)
    _add_experts[rows,](
        x, mlp, moe, weights, *norms, scalar, mode, new_x, *made, parts, eps,
        **whole(width), PARTS=power(parts), TOP_K=top_k,
    )  # fmt: skip
    return new_x, next_x


# What a step and its layers call


def enter(
    ids: Tensor, embed: Tensor, scale: float, soft: Tensor, source: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Embeddings [rows, D] of the tokens, int64 [rows], times `scale`; and the norm of `soft` [rows, D], the
    predictions of the last step, of which a small MLP makes signals. Row r has the token and the prediction of row
    source[r]."""
    return (launch_enter if fused(ids) else reference_enter)(ids, embed, scale, soft, source, norm, eps)


def add_signals(
    x: Tensor, signals: Tensor, following: Tensor, mode: Tensor, eps: float, rounds: bool = False
) -> tuple[Tensor, Activations]:
    """Embeddings [rows, D] with those signals added and normed in the rows of a canvas, whose `mode` [rows] is 1, and
    the next norm of that, the first layer's. Where the layer `rounds`, that norm comes as `Rows8`."""
    return (launch_add_signals if fused(x) else reference_add_signals)(x, signals, following, mode, eps, rounds)


def add_norm(x: Tensor, product: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The residual stream x [rows, D], float32, with a product [(parts,) rows, D] added, and its norm by `weight`,
    float32 [D], in `dtype`."""
    return (launch_add_norm if fused(x) else reference_add_norm)(x, product, weight, eps, dtype)


def add_attention(
    x: Tensor,
    attention: Tensor,
    norms: Sequence[Tensor],
    router_scale: Tensor,
    eps: float,
    rounds: tuple[bool, bool] = (False, False),
) -> Views:
    """The residual stream x [rows, D] with its attention [(parts,) rows, D] added, and the views that the MLP, the
    experts and the router read. `norms` are the attention's, the MLP's and the experts', float32 [D]; `router_scale` is
    [D]. Where the MLP or the experts round, their view comes as `Rows8`."""
    call = launch_add_attention if fused(x) else reference_add_attention
    return call(x, attention, norms, router_scale, eps, rounds)


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
    rounds: bool = False,
) -> tuple[Tensor, Activations]:
    """x [rows, D] with both branches added, times scalar[mode], and its next norm: the next layer's first or, after the
    last layer, the model's last. `mlp` is [(parts,) rows, D]. `moe` is [rows, D], or with `weights`, float32
    [rows, top_k], the rows of `experts.pairs`. `norms` are those of the MLP, the experts, both together and the next,
    float32 [D]; `mode` is int64 [rows]. Where the next layer `rounds`, its norm comes as `Rows8`."""
    call = launch_add_experts if fused(x) else reference_add_experts
    return call(x, mlp, moe, norms, scalar, mode, eps, weights, rounds)
