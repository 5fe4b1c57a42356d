"""A decoder layer for the rows of one path. A layer is one call that does not hold the GIL: two threads run layers in
parallel, and operators have little overhead.

The weights and `Shape` express how checkpoints differ: biases, layer norm instead of RMS norm, norms of queries and
keys (Qwen3), an MLP without a gate (StarCoder2), rotary positions on the first columns of a head only (LLaDA2), experts
instead of the MLP (`experts.py`). The functions run as TorchScript if this Python supports it and the matrices are
torch's int8, otherwise as plain Python. `kernels/cpu/layers.py` has the same layers in C, but none with experts or with
such heads.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from threading import Semaphore
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

from caesura.engine.models.llama.config import Config
from caesura.kernels import cpu
from caesura.kernels.int8 import Packed, product

COLUMNS = 128  # attention columns are padded to a multiple of this; the capacity of a KV is a multiple too


class AdaptedMatrix(NamedTuple):
    """A matrix W [size, K] that both paths share, packed once with A [rank, K] below it. The context path computes W x,
    the canvas path W x + B (A x); `up` is B transposed [rank, size]. Both add `bias` [size]."""

    packed: Packed
    up: Tensor
    size: int
    bias: Tensor | None


class Norm(NamedTuple):
    """A norm of rows [..., size]: layer norm if there is a bias, else RMS norm (Zhang and Sennrich 2019)."""

    weight: Tensor
    bias: Tensor | None


class Attention(NamedTuple):
    """`head_norms` are those of queries and keys, over the width of a head."""

    norm: Norm
    qkv: AdaptedMatrix
    head_norms: tuple[Norm, Norm] | None
    out: AdaptedMatrix


class Mlp(NamedTuple):
    """`gate_up` is the up projection alone if there is no gate."""

    norm: Norm
    gate_up: AdaptedMatrix
    down: AdaptedMatrix


class Weights(NamedTuple):
    """The weights of one path of a layer: both paths share the matrices, each has its own norms."""

    attention: Attention
    mlp: Mlp


class Sparse(NamedTuple):
    """The weights of one path of a layer with experts. These map the rows [rows, hidden] after attention, and whether
    they are a canvas's, to the layer's output."""

    attention: Attention
    experts: Callable[[Tensor, bool], Tensor]


class Shape(NamedTuple):
    heads: int
    groups: int  # key heads
    width: int  # columns of a head
    eps: float
    gated: bool


def shape_of(config: Config) -> Shape:
    """The sizes that a layer computes with."""
    return Shape(config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps, config.gated)


def attended() -> torch.dtype:
    """The dtype of keys and values: bfloat16, half the memory, where that is fast; else float32."""
    return torch.bfloat16 if cpu.chosen() != "torch" or torch.cpu._is_avx512_bf16_supported() else torch.float32


class PlacedRows(NamedTuple):
    """Rows `first` to `end` go into a KV from row `at` on. `buffers` are its keys and values [groups, capacity, width],
    layer by layer. The bool mask [rows, columns] is for the last columns; without one, rows see all."""

    first: int
    end: int
    at: int
    buffers: Sequence[tuple[Tensor, Tensor]]
    mask: Tensor | None


class KvRows(NamedTuple):
    """Rows `first` to `end` of x. Their keys and values are written to the buffers [groups, capacity, width], starting
    at row `at`. `mask` [rows * share, columns], both padded, is added to the scores of each key head."""

    first: int
    end: int
    keys: Tensor
    values: Tensor
    at: int
    mask: Tensor


def times(x: Tensor, matrix: AdaptedMatrix, canvas: bool) -> Tensor:
    """The product of rows [rows, K] with the matrix of a path, [rows, size]."""
    out = product(x, matrix.packed)
    if canvas:
        out[:, : matrix.size].addmm_(out[:, matrix.size :], matrix.up)
    out = out[:, : matrix.size]
    bias = matrix.bias
    return out if bias is None else out + bias


def normalized(x: Tensor, norm: Norm, eps: float) -> Tensor:
    """Rows [..., size] after the norm, in the same shape."""
    bias = norm.bias
    if bias is None:
        return rms_norm(x, x.shape[-1:], norm.weight, eps)
    return layer_norm(x, x.shape[-1:], norm.weight, bias, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to the first columns of [..., heads, width], as many as cos and sin have. Each pair of
    columns is split between the two halves."""
    part, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    left, right = part.chunk(2, -1)
    turned = part * cos + torch.cat((-right, left), -1) * sin
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


def attention(q: Tensor, span: KvRows, shape: Shape) -> Tensor:
    """Attention of queries [rows, heads, width] over the buffers of a span, [rows, heads * width]. The keys and values
    of the span must be in its buffers already.

    Query heads that share a key head become extra rows of it, so keys are never repeated. These are plain products,
    because torch's fused kernel takes up to twice as long in bfloat16 and saves nothing in float32.
    """
    rows, share, columns = q.shape[0], shape.heads // shape.groups, span.mask.shape[1]
    queries = span.keys.new_zeros(shape.groups, span.mask.shape[0], shape.width)
    folded = queries[:, : rows * share].view(shape.groups, share, rows, shape.width)
    folded.copy_((q * shape.width**-0.5).view(rows, shape.groups, share, shape.width).permute(1, 2, 0, 3))
    scores = torch.baddbmm(span.mask, queries, span.keys[:, :columns].transpose(1, 2))
    out = torch.bmm(scores.softmax(-1), span.values[:, :columns])[:, : rows * share].float()
    return out.view(shape.groups, share, rows, shape.width).permute(2, 0, 1, 3).reshape(rows, -1)


def written_attention(
    x: Tensor,
    weights: Attention,
    spans: list[KvRows],
    cos: Tensor,
    sin: Tensor,
    wanted: Tensor | None,
    shape: Shape,
    canvas: bool,
) -> Tensor:
    """The attention of a layer of one path for rows [rows, hidden]; `cos` and `sin` [rows, 1, columns] encode their
    positions. With `wanted`, only those rows go on after it: the others just leave their keys and values."""
    heads, groups = shape.heads, shape.groups
    qkv = times(normalized(x, weights.norm, shape.eps), weights.qkv, canvas)
    split = qkv.unflatten(-1, (heads + 2 * groups, shape.width))
    turned, head_norms = split[:, : heads + groups], weights.head_norms
    if head_norms is not None:
        of_queries, of_keys = head_norms
        queries = normalized(turned[:, :heads], of_queries, shape.eps)
        turned = torch.cat((queries, normalized(turned[:, heads:], of_keys, shape.eps)), 1)
    turned = rotate(turned, cos, sin)
    parts: list[Tensor] = []
    for span in spans:  # one at a time, because canvases of one KV reuse the same rows of its buffers
        first, end = span.first, span.end
        behind = span.at + end - first
        span.keys[:, span.at : behind] = turned[first:end, heads:].transpose(0, 1)
        span.values[:, span.at : behind] = split[first:end, heads + groups :].transpose(0, 1)
        parts.append(attention(turned[first:end, :heads], span, shape))
    seen = torch.cat(parts) if len(parts) > 1 else parts[0]
    if wanted is not None:
        x, seen = x[wanted], seen[wanted]
    return x + times(seen, weights.out, canvas)


def fed(x: Tensor, gate_up: AdaptedMatrix, down: AdaptedMatrix, shape: Shape, canvas: bool) -> Tensor:
    """The MLP of normed rows [rows, hidden]."""
    inner = times(x, gate_up, canvas)
    if shape.gated:
        gate, up = inner.chunk(2, -1)
        inner = silu(gate) * up
    else:
        inner = gelu(inner, approximate="tanh")
    return times(inner, down, canvas)


def written(
    x: Tensor,
    weights: Weights,
    spans: list[KvRows],
    cos: Tensor,
    sin: Tensor,
    wanted: Tensor | None,
    shape: Shape,
    canvas: bool,
) -> Tensor:
    """A whole layer; see `written_attention`."""
    x, mlp = written_attention(x, weights.attention, spans, cos, sin, wanted, shape, canvas), weights.mlp
    return x + fed(normalized(x, mlp.norm, shape.eps), mlp.gate_up, mlp.down, shape, canvas)


layer, attend = written, written_attention
if sys.version_info < (3, 14):
    # TorchScript is deprecated, but its successor needs a compiler and half a minute to start.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer, attend = torch.jit.script(written), torch.jit.script(written_attention)


class Layers:
    """The layers of one path in PyTorch; `c_layers.Layers` has them in C."""

    def __init__(self, layers: Sequence[Weights | Sparse], shape: Shape, canvas: bool, *, scripted: bool) -> None:
        """`scripted`: run the TorchScript functions."""
        self._layers, self._shape, self._canvas = layers, shape, canvas
        self._layer, self._attend = (layer, attend) if scripted else (written, written_attention)

    def __repr__(self) -> str:
        return f"<Layers {len(self._layers)} {'canvas' if self._canvas else 'context'}>"

    def through(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        spans: Sequence[PlacedRows],
        wanted: Sequence[int] | None = None,
        taps: Sequence[int] = (),
        before: Semaphore | None = None,
        progress: Semaphore | None = None,
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The contract of the C layers; cos and sin are [rows, 1, width]. Each layer acquires `before` at its start and
        releases `progress` at its end, so that two threads can run in step."""
        asked = None if wanted is None else torch.tensor(wanted, dtype=torch.int64, device=x.device)
        share, last, tapped = self._shape.heads // self._shape.groups, len(self._layers) - 1, list[Tensor]()
        masks = [additive(span, share) for span in spans]
        for number, weights in enumerate(self._layers):
            if before is not None:
                before.acquire()
            placed = [
                KvRows(span.first, span.end, *span.buffers[number], span.at, mask)
                for span, mask in zip(spans, masks, strict=True)
            ]
            rest = placed, cos, sin, asked if number == last else None, self._shape, self._canvas
            if isinstance(weights, Sparse):
                x = weights.experts(self._attend(x, weights.attention, *rest), self._canvas)
            else:
                x = self._layer(x, weights, *rest)
            if progress is not None:
                progress.release()
            tapped += [x] * taps.count(number)
        return x, tapped


def rounded(rows: int) -> int:
    """`rows` rounded up to a multiple of 16, or of half the largest power of two below it if that is more."""
    step = max(16, 1 << rows.bit_length() - 2)
    return -(-rows // step) * step


def additive(span: PlacedRows, share: int) -> Tensor:
    """The additive mask of a span over the columns up to its end: 0 where a row sees a column, else -inf, repeated for
    the query heads that share a key head.

    Rows and columns are padded to a few sizes, because oneDNN compiles code for every pair of sizes, which takes half a
    millisecond and half a megabyte each.
    """
    (keys, _), rows, mask = span.buffers[0], span.end - span.first, span.mask
    end = span.at + rows
    added = keys.new_zeros(rounded(rows * share), -(-end // COLUMNS) * COLUMNS)
    added[:, end:] = -torch.inf
    if mask is not None:
        added[: rows * share, end - mask.shape[1] : end].masked_fill_(
            ~mask.to(keys.device).repeat(share, 1), -torch.inf
        )
    return added
