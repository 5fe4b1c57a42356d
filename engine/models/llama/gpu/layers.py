"""The layers of a decoder of the Llama kind on a GPU, in kernels; `layer.py` has them for a CPU. Products and
what lies between them are in the dtype of the matrices, the residual stream in float32.

`fixed` is the same for rows whose place is read on the device, so that a pass can be recorded (`passes.py`).
"""

from collections.abc import Sequence
from threading import Semaphore
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu

from caesura.engine.models.llama.layer import (
    AdaptedMatrix,
    Attention,
    Norm,
    PlacedRows,
    Shape,
    Sparse,
    Weights,
    normalized,
)
from caesura.kernels import matmul
from caesura.kernels.attention import attention, bits
from caesura.kernels.gated import gated
from caesura.kernels.linear import Dense, Linear
from caesura.kernels.matmul import added
from caesura.kernels.norms import add_norm
from caesura.kernels.rotary import turned

EVERYTHING = 1 << 62  # a window that hides nothing


class Placed(NamedTuple):
    """Rows of one sequence, with what a replay reads again. `spans`, int32 [rows, 4], and `places`, int32 [rows], are
    as in `Fixed`; `mask` are the `attention.bits` of which of the last columns a row sees. A kernel takes shapes from
    `buffers`, and addresses from `tables`, int64 [layers, 4] (`KV.addresses`)."""

    spans: Tensor
    places: Tensor
    mask: Tensor
    tables: Tensor
    buffers: Sequence[tuple[Tensor, Tensor]]


class GpuLayers:
    """See `llama_layer.Layers`. No matrix has an adapter, and whole heads turn."""

    def __init__(self, layers: Sequence[Weights | Sparse], shape: Shape, dtype: torch.dtype, *, canvas: bool) -> None:
        """`dtype` is the dtype of the matrices."""
        self._layers, self._shape = [biased(layer, dtype) for layer in layers], shape
        self._dtype, self._canvas = dtype, canvas
        self.dense = all(isinstance(layer, Weights) for layer in layers)

    def __repr__(self) -> str:
        return f"<GpuLayers {len(self._layers)} {'canvas' if self._canvas else 'context'}>"

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
        """As `llama_layer.Layers.through`."""
        asked = None if wanted is None else torch.tensor(wanted, dtype=torch.int64, device=x.device)
        masks = [None if s.mask is None else bits(s.mask, s.at + s.end - s.first).to(x.device) for s in spans]
        turn, last, tapped = turns(cos, sin), len(self._layers) - 1, list[Tensor]()
        h = self._normed(x, self._layers[0].attention.norm)
        for number, weights in enumerate(self._layers):
            if before is not None:
                before.acquire()
            qkv, parts = products(h, weights.attention.qkv), list[Tensor]()
            for span, mask in zip(spans, masks, strict=True):  # canvases of one KV reuse the same rows of its buffers
                rows, end = slice(span.first, span.end), span.at + span.end - span.first
                keys, values = (buffer[:, :end] for buffer in span.buffers[number])
                own = keys[:, span.at :], values[:, span.at :]
                q = turned(*self._turning(qkv[..., rows, :], weights.attention, turn[:, rows]), *own, scale=self._scale)
                parts.append(attention(q, keys, values, None, EVERYTHING, mask=mask))
            seen = torch.cat(parts) if len(parts) > 1 else parts[0]
            if asked is not None and number == last:
                x, seen = x[asked], seen[asked]
            x, h = self._after(x, seen, number)
            if progress is not None:
                progress.release()
            tapped += [x] * taps.count(number)
        return x, tapped

    def fixed(self, x: Tensor, cos: Tensor, sin: Tensor, rows: Placed) -> Tensor:
        """Rows x [rows, hidden] after all layers. Needs nothing from the host."""
        turn = turns(cos, sin)
        h = self._normed(x, self._layers[0].attention.norm)
        for number, (buffers, table) in enumerate(zip(rows.buffers, rows.tables, strict=True)):
            weights = self._layers[number].attention
            qkv = self._turning(products(h, weights.qkv), weights, turn)
            q = turned(*qkv, *buffers, rows.places, table, scale=self._scale)
            x, h = self._after(x, attention(q, *buffers, None, EVERYTHING, rows.spans, table, rows.mask), number)
        return x

    @property
    def _scale(self) -> float:
        return float(self._shape.width**-0.5)

    def _normed(self, x: Tensor, norm: Norm) -> Tensor:
        return normalized(x, norm, self._shape.eps).to(self._dtype)

    def _added(self, x: Tensor, product: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """The rows with a product [(parts,) rows, hidden] added, and their norm."""
        if norm.bias is None:
            return add_norm(x, product, norm.weight, self._shape.eps, self._dtype)
        x = x + (product if product.ndim == 2 else product.sum(0, dtype=torch.float32))
        return x, self._normed(x, norm)

    def _turning(
        self, qkv: Tensor, weights: Attention, turn: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor, float]:
        """The first arguments of `turned`."""
        heads, groups, width, eps, _ = self._shape
        q, k, v = qkv.split((heads * width, groups * width, groups * width), -1)
        q_norm, k_norm = (None, None) if weights.head_norms is None else (norm.weight for norm in weights.head_norms)
        return q, k, v, q_norm, k_norm, turn, eps

    def _after(self, x: Tensor, seen: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The output of a layer from its input and its attention, and the norm of it that the next layer reads; after
        the last layer nobody reads that."""
        weights, seen = self._layers[number], products(seen, self._layers[number].attention.out)
        following = self._layers[min(number + 1, len(self._layers) - 1)].attention.norm
        if isinstance(weights, Sparse):
            x = weights.experts(x + added(seen, self._dtype), self._canvas)
            return x, self._normed(x, following)
        x, h = self._added(x, seen, weights.mlp.norm)
        return self._added(x, products(self._inner(h, weights.mlp.gate_up), weights.mlp.down), following)

    def _inner(self, h: Tensor, gate_up: AdaptedMatrix) -> Tensor:
        if self._shape.gated and gate_up.bias is None:
            made = gated(h, linear_of(gate_up), act="silu")
            assert isinstance(made, Tensor)
            return made
        inner = added(products(h, gate_up), self._dtype)
        if not self._shape.gated:
            return gelu(inner, approximate="tanh")
        gate, up = inner.chunk(2, -1)
        return silu(gate) * up


def turns(cos: Tensor, sin: Tensor) -> Tensor:
    """The table of `turned` from cos and sin [rows, 1, width], whose halves are the same."""
    return torch.stack([table[:, 0, : table.shape[2] // 2] for table in (cos, sin)])


def linear_of(matrix: AdaptedMatrix) -> Linear:
    packed = matrix.packed
    return packed if isinstance(packed, Linear) else Dense(packed)


def products(x: Tensor, matrix: AdaptedMatrix) -> Tensor:
    """The product of rows [rows, K], in parts that add up (`matmul.products`); with a bias in one, [rows, size]."""
    packed, bias = matrix.packed, matrix.bias
    if bias is None:
        return matmul.products(x, linear_of(matrix))
    return linear(x, packed, bias) if isinstance(packed, Tensor) else packed(x) + bias


def biased(layer: Weights | Sparse, dtype: torch.dtype) -> Weights | Sparse:
    """The layer with the biases of its products in their dtype."""

    def of(matrix: AdaptedMatrix) -> AdaptedMatrix:
        return matrix if matrix.bias is None else matrix._replace(bias=matrix.bias.to(dtype))

    seeing = layer.attention
    layer = layer._replace(attention=seeing._replace(qkv=of(seeing.qkv), out=of(seeing.out)))
    if isinstance(layer, Sparse):
        return layer
    return layer._replace(mlp=layer.mlp._replace(gate_up=of(layer.mlp.gate_up), down=of(layer.mlp.down)))
