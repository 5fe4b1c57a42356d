# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The LM head and all statistics of its logits for a denoise step, in one pass over the embedding E [V, D]. A CPU never
holds logits of whole rows, [rows, V]; a GPU keeps them once, in 16 bits, for rows that are too flat (below).

    z = cap * tanh(h E^T / cap) + ban        y = z / temperature        p = softmax(y)

For every row: the most probable token, its probability and its lead over the second, the entropy of p, z of that token,
log-sum-exp of z without bans, and the mean embedding p E that the next step is conditioned on (Chen et al. 2022, Analog
Bits). With m = max y, s = sum e^(y-m) and u = sum (y-m) e^(y-m), the entropy is ln s - u/s. Each tile of V gives its
sums, and `merge` combines them.

A token is drawn in two steps (`draw`): a tile by its mass, then a token by the tile's logits, computed again. That
needs one random number a row; the argmax of Gumbel noise would need one a logit, 67 million for 256 rows.

Bytes: E once, 2*V*D in bfloat16, and per row 4*V/TILE*(2*TOP+4) of sums and 2*V of kept logits; FLOP 2*rows*V*D. Whole
logits read by a dozen operations would be 12*4*rows*V bytes: at V = 262,144 and 256 rows more than twice E.

A CPU computes the mean embedding in the same pass, while a tile of E and its logits are in the cache: 2*rows*V*D more
FLOP, no more bytes. A GPU gathers it from the TOP best of each tile, K*D*2 bytes a row, if these have ENOUGH of the
mass; for other open rows it reads E a second time: the logits, kept in bfloat16, become p in place and multiply it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from caesura.kernels import tuned
from caesura.kernels.jit import capacity, cdiv, fused, jit, power, tl

SCAN, MEAN = "head", "mean embedding"  # names in a table of block sizes
TILE = 256  # tokens of a GPU program, for a device without its own
CACHE = 1 << 18  # numbers of E that a CPU works on at once
TOP = 8  # best tokens that a tile reports
KEPT = 64  # best tokens of a row whose embeddings are gathered
ENOUGH = 0.999  # share of the mass, below which a row is too flat to gather
DRAWN = 32  # rows whose tiles of E a CPU gathers at once: 1.4 MB each at 2816
SPLITS = 12  # parts of the vocabulary for rows that are too flat; times 11 blocks at 2816, an H100's processors
FAR = -80.0  # nats below the best; subnormal numbers would make a CPU's products four times slower
NEVER = -1e30  # a ban: finite, so that nothing becomes 0 * inf


@dataclass(frozen=True)
class Head:
    matrix: Tensor  # [V, D], E in the logits
    embed: Tensor  # [V, D], E in the mean; the same in most models
    cap: float  # softcap of the logits


@dataclass(frozen=True)
class Rows:
    """The question: `bans` are float32, 0 for allowed tokens and NEVER for others; `which` of them is for each row.
    Rows that are not `open` get any mean embedding, without a second read of E."""

    hidden: Tensor  # [rows, D]
    temperature: Tensor  # float32 [rows]
    bans: Tensor  # [n, V]
    which: Tensor  # int64 [rows]
    open: Tensor  # bool [rows]

    def some(self, at: Tensor) -> "Rows":
        """Rows by number."""
        return Rows(self.hidden[at], self.temperature[at], self.bans, self.which[at], self.open[at])


class Parts(NamedTuple):
    """Sums of each tile, [rows, tiles]; `top` and `ids` [rows, tiles, k], best first; `mass` and `lean` are s and u."""

    top: Tensor
    ids: Tensor
    raw: Tensor
    told: Tensor
    mass: Tensor
    lean: Tensor


class Seen(NamedTuple):
    """The statistics of each row: best token, its probability, its lead, and the entropy in nats, all cooled; before
    cooling, its logit and log-sum-exp with bans and without; the share of each tile [rows, tiles] of `width` tokens;
    the mean embedding [rows, D]."""

    token: Tensor
    prob: Tensor
    margin: Tensor
    entropy: Tensor
    best: Tensor
    told: Tensor
    raw: Tensor
    shares: Tensor
    width: int
    soft: Tensor

    def some(self, at: Tensor) -> "Seen":
        """Rows by number."""
        return self._replace(**{n: t[at] for n, t in self._asdict().items() if n != "width"})


def observe(head: Head, rows: Rows) -> Seen:
    return launch(head, rows) if fused(rows.hidden) else reference(head, rows)


def logits(head: Head, hidden: Tensor) -> Tensor:
    """All logits, float32 [rows, V], for grammars and tests of parity."""
    z = linear(hidden, head.matrix).float()
    return z.div_(head.cap).tanh_().mul_(head.cap)


# The reference, tile by tile


def breadth(size: int) -> int:
    """Tokens of a tile whose embeddings of `size` numbers stay in a CPU's cache."""
    return max(TILE, CACHE // size)


def reference(head: Head, rows: Rows) -> Seen:
    count, step = len(rows.hidden), breadth(head.matrix.shape[1])
    soft = torch.zeros(count, head.embed.shape[1], device=rows.hidden.device)
    peak = torch.full((count, 1), -torch.inf, device=soft.device)
    parts, work = [], torch.empty(0)
    for low in range(0, len(head.matrix), step):
        part = Head(head.matrix[low : low + step], head.embed[low : low + step], head.cap)
        z = logits(part, rows.hidden)
        work = work if work.shape == z.shape else torch.empty_like(z)
        raw = log_sum(z, z.amax(-1, keepdim=True), work)
        z += rows.bans[:, low : low + step][rows.which]
        best, at = z.max(-1, keepdim=True)
        second = z.scatter_(1, at, -torch.inf).amax(-1, keepdim=True)
        z.scatter_(1, at, best)
        told = log_sum(z, best, work)
        y = torch.sub(z, best, out=work).div_(rows.temperature[:, None]).clamp_(min=FAR)
        p = y.exp()
        parts.append(
            Parts(torch.cat((best, second), 1), torch.cat((at, at), 1) + low, raw, told, p.sum(-1), y.mul_(p).sum(-1))
        )
        highest = torch.maximum(peak, best / rows.temperature[:, None])
        here = (best / rows.temperature[:, None] - highest).exp()
        soft = soft * (peak - highest).exp() + (p.to(part.embed.dtype) @ part.embed).float() * here
        peak = highest
    seen = merge(Parts(*(torch.stack(column, 1) for column in zip(*parts, strict=True))), rows.temperature, step)
    return seen._replace(soft=(soft * seen.prob[:, None]).to(head.embed.dtype))  # at its peak p is 1 / s


def log_sum(z: Tensor, peak: Tensor, work: Tensor) -> Tensor:
    """log-sum-exp [rows] of z with the maximum `peak`, computed in the memory of `work`."""
    return peak[:, 0] + torch.sub(z, peak, out=work).exp_().sum(-1).log()


def merge(parts: Parts, temperature: Tensor, width: int) -> Seen:
    """Rows from the sums of their tiles, without the mean embedding."""
    best, second = parts.top.flatten(1).topk(2).values.unbind(1)
    token = parts.ids[..., 0].gather(1, parts.top[..., 0].argmax(1, keepdim=True))[:, 0]  # the first of equal ones
    below = (parts.top[..., 0] - best[:, None]) / temperature[:, None]
    scale = below.exp()
    mass = parts.mass * scale
    s = mass.sum(-1)
    u = (parts.lean * scale + below.clamp_min(-1e4) * mass).sum(-1)
    margin = (1 - ((second - best) / temperature).exp()) / s
    return Seen(
        token,
        1 / s,
        margin,
        s.log() - u / s,
        best,
        parts.told.logsumexp(-1),
        parts.raw.logsumexp(-1),
        mass / s[:, None],
        width,
        best.new_empty(0),
    )


def score(head: Head, hidden: Tensor, ids: Tensor) -> Tensor:
    """The logit of one token of each row, float32 [rows]."""
    return (launch_score if fused(hidden) else reference_score)(head, hidden, ids)


def reference_score(head: Head, hidden: Tensor, ids: Tensor) -> Tensor:
    z = (hidden.float() * embedding(ids, head.matrix).float()).sum(-1)
    return z.div_(head.cap).tanh_().mul_(head.cap)


def draw(head: Head, rows: Rows, seen: Seen, at: Tensor, wanted: Tensor) -> Tensor:
    """Draw a token [rows] of p for each uniform number `at` in [0, 1): first the tile, then the token in it. Reads one
    tile of embeddings for each `wanted` row, bool [rows]. The other rows keep their most probable token."""
    return (launch_draw if fused(wanted) else reference_draw)(head, rows, seen, at, wanted)


def reference_draw(head: Head, rows: Rows, seen: Seen, at: Tensor, wanted: Tensor) -> Tensor:
    """As `draw`; reads the tiles of few rows at once. The host waits for the number of wanted rows."""
    drawn = seen.token.clone()
    for some in wanted.nonzero()[:, 0].split(DRAWN):
        drawn[some] = _drawn(head, rows.some(some), seen.some(some), at[some])
    return drawn


def _drawn(head: Head, rows: Rows, seen: Seen, at: Tensor) -> Tensor:
    last = len(head.matrix) - 1
    tile, within = fall(seen.shares, at[:, None])
    ids = tile * seen.width + torch.arange(seen.width, device=tile.device)
    known = ids.clamp_max(last)
    z = torch.einsum("rd,rtd->rt", rows.hidden, embedding(known, head.matrix)).float()
    z = z.div_(head.cap).tanh_().mul_(head.cap) + rows.bans[rows.which[:, None], known]
    y = z.masked_fill_(ids > last, -torch.inf).div_(rows.temperature[:, None])
    return ids.gather(1, fall(y.softmax(-1), within)[0])[:, 0]


def fall(shares: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The share among [rows, n] that each number [rows, 1] in [0, 1) falls into, and how far; never a share of 0,
    whatever the rounding of their sum."""
    ends = shares.cumsum(-1)
    at = at * ends[:, -1:]
    place = torch.minimum((ends <= at).sum(-1, keepdim=True), (ends < ends[:, -1:]).sum(-1, keepdim=True))
    return place, (at - (ends - shares).gather(1, place)) / shares.gather(1, place)


# The kernels


@jit
def _capped(z, cap):
    shrunk = tl.exp(-2.0 * tl.abs(z) / cap)  # tanh without overflow
    return tl.where(z < 0, -cap, cap) * (1.0 - shrunk) / (1.0 + shrunk)


@jit(do_not_specialize=["rows"])  # they change from step to step and must not wait for the compiler
def _scan(
    hidden_ptr, matrix_ptr, warm_ptr, bans_ptr, which_ptr, top_ptr, ids_ptr, sums_ptr, kept_ptr,
    rows, vocabulary, cap, tiles,
    D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    # Blocks of rows are next to each other in the launch, so that a tile of E comes from memory once and then from L2.
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    tile = tl.program_id(1)
    v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    d = tl.arange(0, BLOCK_D)
    there = r < rows
    known = v < vocabulary
    z = tl.zeros((BLOCK_R, BLOCK_V), dtype=tl.float32)
    for low in range(0, D, BLOCK_D):
        inside = low + d < D
        h = tl.load(hidden_ptr + r[:, None] * D + low + d[None], mask=there[:, None] & inside[None], other=0.0)
        e = tl.load(
            matrix_ptr + v[:, None].to(tl.int64) * D + low + d[None], mask=known[:, None] & inside[None], other=0.0
        )
        z = tl.dot(h, tl.trans(e), z, input_precision="ieee")
    z = _capped(z, cap)
    out = r * tiles + tile

    z = tl.where(known[None], z, float("-inf"))
    highest = tl.max(z, 1)
    tl.store(sums_ptr + out, highest + tl.log(tl.sum(tl.exp(z - highest[:, None]), 1)), mask=there)
    which = tl.load(which_ptr + r, mask=there, other=0)
    z += tl.load(
        bans_ptr + which[:, None].to(tl.int64) * vocabulary + v[None], mask=there[:, None] & known[None], other=0.0
    )
    best = tl.max(z, 1)
    warm = tl.load(warm_ptr + r, mask=there, other=1.0)
    y = (z - best[:, None]) / warm[:, None]
    p = tl.exp(y)
    size = rows * tiles
    tl.store(sums_ptr + size + out, best + tl.log(tl.sum(tl.exp(z - best[:, None]), 1)), mask=there)
    tl.store(sums_ptr + 2 * size + out, tl.sum(p, 1), mask=there)
    tl.store(sums_ptr + 3 * size + out, tl.sum(tl.maximum(y, -1e4) * p, 1), mask=there)
    held = r[:, None].to(tl.int64) * vocabulary + v[None]
    # Relative to the tile's best: values that matter are near 0, where 16 bits are enough.
    tl.store(kept_ptr + held, tl.maximum(y, -1e4).to(kept_ptr.dtype.element_ty), mask=there[:, None] & known[None])

    for k in range(TOP):
        at = tl.argmax(z, 1)
        tl.store(top_ptr + out * TOP + k, tl.max(z, 1), mask=there)
        tl.store(ids_ptr + out * TOP + k, tile * BLOCK_V + at, mask=there)
        z = tl.where(tl.arange(0, BLOCK_V)[None] == at[:, None], float("-inf"), z)


@jit
def _combine(
    top_ptr, ids_ptr, sums_ptr, warm_ptr, token_ptr, of_row_ptr, shares_ptr, level_ptr, tiles,
    TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`merge` of one row, and the level of each tile: what its kept scores lack to be ln p."""
    row, rows = tl.program_id(0), tl.num_programs(0)
    tile = tl.arange(0, BLOCK)
    known = tile < tiles
    place = row.to(tl.int64) * tiles + tile
    top = tl.load(top_ptr + place * TOP, mask=known, other=float("-inf"))
    raw = tl.load(sums_ptr + place, mask=known, other=float("-inf"))
    sums_ptr += rows.to(tl.int64) * tiles
    told = tl.load(sums_ptr + place, mask=known, other=float("-inf"))
    mass = tl.load(sums_ptr + rows.to(tl.int64) * tiles + place, mask=known, other=0.0)
    lean = tl.load(sums_ptr + 2 * rows.to(tl.int64) * tiles + place, mask=known, other=0.0)
    warm = tl.load(warm_ptr + row)

    best, at = tl.max(top, 0), tl.argmax(top, 0)
    first = (row.to(tl.int64) * tiles + at) * TOP
    second = tl.maximum(tl.load(top_ptr + first + 1), tl.max(tl.where(tile == at, float("-inf"), top), 0))
    below = (top - best) / warm
    scale = tl.exp(below)
    mass *= scale
    total = tl.sum(mass, 0)
    lean = tl.sum(lean * scale + tl.maximum(below, -1e4) * mass, 0)
    tl.store(token_ptr + row, tl.load(ids_ptr + first).to(tl.int64))
    of_row_ptr += row
    tl.store(of_row_ptr, 1 / total)
    tl.store(of_row_ptr + rows, (1 - tl.exp((second - best) / warm)) / total)
    tl.store(of_row_ptr + 2 * rows, tl.log(total) - lean / total)
    tl.store(of_row_ptr + 3 * rows, best)
    highest = tl.max(told, 0)
    tl.store(of_row_ptr + 4 * rows, highest + tl.log(tl.sum(tl.exp(told - highest), 0)))
    highest = tl.max(raw, 0)
    tl.store(of_row_ptr + 5 * rows, highest + tl.log(tl.sum(tl.exp(raw - highest), 0)))
    tl.store(shares_ptr + place, mass / total, mask=known)
    tl.store(level_ptr + place, below - tl.log(total), mask=known)


@jit
def _gather(
    best_ptr, at_ptr, ids_ptr, of_row_ptr, warm_ptr, open_ptr, embed_ptr, soft_ptr, flat_ptr, listed, most,
    ENOUGH: tl.constexpr, D: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of the mean embedding of a row, over the best tokens of all tiles; and whether it is too flat."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    k, d = tl.arange(0, KEPT), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = k < most
    best = tl.load(best_ptr + row * most + k, mask=kept, other=float("-inf"))
    ids = tl.load(ids_ptr + row * listed + tl.load(at_ptr + row * most + k, mask=kept, other=0), mask=kept, other=0)
    prob, peak = tl.load(of_row_ptr + row), tl.load(of_row_ptr + 3 * rows + row)
    p = tl.exp((best - peak) / tl.load(warm_ptr + row)) * prob
    mass = tl.sum(p, 0)
    if tl.program_id(1) == 0:
        tl.store(flat_ptr + row, (mass < ENOUGH) & (tl.load(open_ptr + row) != 0))
    e = tl.load(embed_ptr + ids.to(tl.int64)[:, None] * D + d[None], mask=kept[:, None] & (d < D)[None], other=0.0)
    weights = (p / mass).to(embed_ptr.dtype.element_ty).to(tl.float32)
    soft = tl.sum(e.to(tl.float32) * weights[:, None], 0)
    tl.store(soft_ptr + row * D + d, soft.to(soft_ptr.dtype.element_ty), mask=d < D)


@jit
def _weigh(kept_ptr, level_ptr, flat_ptr, vocabulary, tiles, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """The scores of a flat row become p in place, so that no block of `_mean` computes an exp again."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(flat_ptr + row):
        v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        known = v < vocabulary
        place = kept_ptr + row * vocabulary + v
        y = tl.load(place, mask=known, other=0.0).to(tl.float32)
        level = tl.load(level_ptr + row * tiles + v // TILE, mask=known, other=0.0)
        tl.store(place, tl.exp(y + level).to(kept_ptr.dtype.element_ty), mask=known)


@jit(do_not_specialize=["rows"])
def _mean(
    p_ptr, flat_ptr, embed_ptr, parts_ptr, rows, vocabulary, share,
    D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """p E over a part of the vocabulary, 0 for rows that are not flat. A block without a flat row does not read E."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    split = tl.program_id(2)
    flat = tl.load(flat_ptr + r, mask=r < rows, other=0) > 0
    if tl.max(flat.to(tl.int32), 0) > 0:
        mean = tl.zeros((BLOCK_R, BLOCK_D), dtype=tl.float32)
        p_row = p_ptr + r[:, None].to(tl.int64) * vocabulary
        for low in range(split * share, tl.minimum(split * share + share, vocabulary), BLOCK_V):
            v = low + tl.arange(0, BLOCK_V)
            known = v < vocabulary
            p = tl.load(p_row + v[None], mask=flat[:, None] & known[None], other=0.0)
            e = tl.load(
                embed_ptr + v[:, None].to(tl.int64) * D + d[None], mask=known[:, None] & (d < D)[None], other=0.0
            )
            mean = tl.dot(p, e, mean, input_precision="ieee")
        place = (split * rows + r).to(tl.int64)[:, None] * D + d[None]
        tl.store(parts_ptr + place, mean, mask=flat[:, None] & (d < D)[None])


@jit(do_not_specialize=["rows"])
def _collect(parts_ptr, flat_ptr, out_ptr, rows, splits, D: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """The parts of a flat row, added up; other rows of `out` stay as they are."""
    row = tl.program_id(0)
    if tl.load(flat_ptr + row):
        split, d = tl.arange(0, SPLITS), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        place = (split * rows + row).to(tl.int64)[:, None] * D + d[None]
        parts = tl.load(parts_ptr + place, mask=(split < splits)[:, None] & (d < D)[None], other=0.0)
        tl.store(out_ptr + row.to(tl.int64) * D + d, tl.sum(parts, 0).to(out_ptr.dtype.element_ty), mask=d < D)


@jit
def _fall(shares, at, place):
    """`fall` of one row; `place` are the numbers of the shares. Sums that are made in parallel may fall by a rounding
    error from one share to the next, so that shares of 0 are excluded one by one."""
    ends = tl.cumsum(shares, 0)
    at *= tl.max(ends, 0)
    live = shares > 0
    after = tl.min(tl.where(live & (ends > at), place, place.shape[0]), 0)
    found = tl.minimum(after, tl.max(tl.where(live, place, 0), 0))
    share = tl.sum(tl.where(place == found, shares, 0.0), 0)
    return found, (at - tl.sum(tl.where(place == found, ends, 0.0), 0) + share) / share


@jit
def _draw(
    hidden_ptr, matrix_ptr, warm_ptr, bans_ptr, which_ptr, shares_ptr, at_ptr, wanted_ptr, token_ptr, out_ptr,
    vocabulary, cap, tiles,
    D: tl.constexpr, TILE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One row. Each thread keeps its own sums and adds them up after the loop, so that no step waits for another."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ptr + row)
    if tl.load(wanted_ptr + row):
        t, v, d = tl.arange(0, BLOCK_T), tl.arange(0, TILE), tl.arange(0, BLOCK_D)
        shares = tl.load(shares_ptr + row * tiles + t, mask=t < tiles, other=0.0)
        tile, within = _fall(shares, tl.load(at_ptr + row), t)
        first = tile.to(tl.int64) * TILE
        ids = first + v
        known = ids < vocabulary
        z = tl.zeros((TILE, BLOCK_D), dtype=tl.float32)
        for low in range(0, D, BLOCK_D):
            inside = low + d < D
            h = tl.load(hidden_ptr + row * D + low + d, mask=inside, other=0.0).to(tl.float32)
            e = tl.load(matrix_ptr + ids[:, None] * D + low + d[None], mask=known[:, None] & inside[None], other=0.0)
            z += e.to(tl.float32) * h[None]
        ban = tl.load(bans_ptr + tl.load(which_ptr + row) * vocabulary + ids, mask=known, other=0.0)
        y = (_capped(tl.sum(z, 1), cap) + ban) / tl.load(warm_ptr + row)
        y = tl.where(known, y, float("-inf"))
        token = first + _fall(tl.exp(y - tl.max(y, 0)), within, v)[0]
    tl.store(out_ptr + row, token)


@jit
def _logit(hidden_ptr, matrix_ptr, ids_ptr, out_ptr, cap, D: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    h = tl.load(hidden_ptr + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    e = tl.load(matrix_ptr + tl.load(ids_ptr + row) * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, _capped(tl.sum(h * e, 0), cap))


# Their launchers


def launch(head: Head, rows: Rows) -> Seen:
    (count, size), vocabulary, device = rows.hidden.shape, len(head.matrix), rows.hidden.device
    assert rows.hidden.is_contiguous()
    assert head.matrix.is_contiguous()
    assert head.embed.is_contiguous()
    assert rows.bans.is_contiguous()
    how = tuned.blocks(SCAN, head.matrix.shape, count, rows.hidden) or scan_blocks(count, size)
    tile = how["BLOCK_V"]
    tiles = cdiv(vocabulary, tile)
    top = torch.empty(count, tiles, TOP, device=device)
    ids = torch.empty(count, tiles, TOP, dtype=torch.int32, device=device)
    sums = torch.empty(4, count, tiles, device=device)
    kept = torch.empty(count, vocabulary, dtype=head.embed.dtype, device=device)
    _scan[cdiv(count, how["BLOCK_R"]), tiles](
        rows.hidden, head.matrix, rows.temperature, rows.bans, rows.which, top, ids, sums, kept,
        count, vocabulary, head.cap, tiles, D=size, TOP=TOP, **how,
    )  # fmt: skip
    token, of_row = torch.empty_like(rows.which), torch.empty(6, count, device=device)
    shares, level = torch.empty(2, count, tiles, device=device)
    _combine[count,](
        top, ids, sums, rows.temperature, token, of_row, shares, level, tiles,
        TOP=TOP, BLOCK=power(tiles), num_warps=8,
    )  # fmt: skip
    best, listed = top.flatten(1).topk(min(KEPT, tiles * TOP)), tiles * TOP
    soft, flat = head.embed.new_empty(count, head.embed.shape[1]), torch.empty_like(rows.open)
    _gather[count, cdiv(soft.shape[1], 128)](
        *best, ids, of_row, rows.temperature, rows.open, head.embed, soft, flat, listed, best.values.shape[1],
        ENOUGH=ENOUGH, D=soft.shape[1], KEPT=KEPT, BLOCK=128,
    )  # fmt: skip
    replace_flat(head, kept, level, flat, soft, tile)
    prob, margin, entropy, logit, told, raw = of_row
    return Seen(token, prob, margin, entropy, logit, told, raw, shares, tile, soft)


def scan_blocks(rows: int, size: int) -> dict[str, int]:
    """Block sizes of `_scan`. Shared memory of a stage: (64 + 256) * 64 * 2 bytes = 40 KiB."""
    return {
        "BLOCK_R": min(64, max(16, power(rows))),
        "BLOCK_V": TILE,
        "BLOCK_D": min(64, max(16, power(size))),
        "num_warps": 8,
        "num_stages": 2,
    }


def replace_flat(head: Head, kept: Tensor, level: Tensor, flat: Tensor, soft: Tensor, tile: int) -> None:
    """Write p E into the `flat` rows, bool [rows], of `soft` [rows, D]; p is in `kept` [rows, V], as ln p less `level`
    [rows, tiles], and lies there afterwards."""
    count, vocabulary = kept.shape
    chunk = 16 * tile
    _weigh[count, cdiv(vocabulary, chunk)](
        kept, level, flat, vocabulary, level.shape[1], TILE=tile, BLOCK=chunk, num_warps=8
    )
    launch_mean(head, kept, flat, soft)


def launch_mean(head: Head, p: Tensor, flat: Tensor, soft: Tensor) -> None:
    """As `replace_flat`, of p [rows, V]."""
    (count, vocabulary), size = p.shape, head.embed.shape[1]
    how = tuned.blocks(MEAN, head.embed.shape, count, p)
    how = how or mean_blocks(count, p.itemsize, roomy=capacity(p.device)[1])
    share = how["BLOCK_V"] * cdiv(vocabulary, how["BLOCK_V"] * SPLITS)
    parts = torch.empty(cdiv(vocabulary, share), count, size, device=p.device)
    _mean[cdiv(count, how["BLOCK_R"]), cdiv(size, how["BLOCK_D"]), len(parts)](
        p, flat, head.embed, parts, count, vocabulary, share, D=size, **how
    )
    _collect[count, cdiv(size, 512)](parts, flat, soft, count, len(parts), D=size, SPLITS=power(len(parts)), BLOCK=512)


def mean_blocks(rows: int, itemsize: int, *, roomy: bool) -> dict[str, int]:
    """Block sizes of `_mean`: the larger they are, the less comes from L2. 256 rows of 2816 numbers in 16 bits read 4.4
    GB, in blocks of 64 by 128 they would read 8.9. Shared memory of a stage: (128 + 256) * 64 * 2 bytes = 48 KB."""
    return {
        "BLOCK_R": min(128, max(16, power(rows))),
        "BLOCK_V": 128 // itemsize,
        "BLOCK_D": 512 // itemsize,
        "num_warps": 8,
        "num_stages": 3 if roomy else 2,
    }


def launch_draw(head: Head, rows: Rows, seen: Seen, at: Tensor, wanted: Tensor) -> Tensor:
    """As `draw`, in one launch; a program a row, which ends at once if the row is not wanted."""
    (count, size), (vocabulary, tiles) = rows.hidden.shape, (len(head.matrix), seen.shares.shape[1])
    tensors = rows.hidden, head.matrix, rows.temperature, rows.bans, rows.which, seen.shares, at, wanted, seen.token
    assert all(tensor.is_contiguous() for tensor in tensors)
    out = torch.empty_like(seen.token)
    _draw[count,](
        *tensors, out, vocabulary, head.cap, tiles,
        D=size, TILE=seen.width, BLOCK_T=power(tiles), BLOCK_D=min(64, max(16, power(size))), num_warps=8,
    )  # fmt: skip
    return out


def launch_score(head: Head, hidden: Tensor, ids: Tensor) -> Tensor:
    rows, size = hidden.shape
    hidden, ids = hidden.contiguous(), ids.contiguous()
    out = torch.empty(rows, device=hidden.device)
    if rows:
        _logit[rows,](hidden, head.matrix, ids, out, head.cap, D=size, BLOCK=power(size), num_warps=8)
    return out
