"""Decoder layers in C: one call takes a lane of rows through all of them. Has the structures of cpu.h and fills them.

engine/models/llama/layer.py is the same in PyTorch. Keys and values are bfloat16; all widths are multiples of 16.
"""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caesura.kernels.cpu import F32, GROUP, C, Matrix, N, P, Packed, address, chosen, library, variants

WIDTHS = 16  # heads, rows and the MLP are multiples of it


def fits(hidden: int, inner: int, heads: int, width: int) -> bool:
    """True if there is a library, and it supports layers of these widths."""
    whole = all(size % GROUP == 0 for size in (hidden, inner, heads * width))
    return chosen() != "torch" and whole and width % WIDTHS == 0


class _Norm(ctypes.Structure):
    _fields_ = (("weight", P), ("bias", P))


class _Product(ctypes.Structure):
    _fields_ = (("matrices", P), ("count", N), ("down", P), ("up", P), ("bias", P))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention", _Norm),
        ("qkv", _Product),
        ("query", _Norm),
        ("key", _Norm),
        ("out", _Product),
        ("mlp", _Norm),
        ("gate_up", _Product),
        ("down", _Product),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, N) for name in ("hidden", "heads", "groups", "width", "inner", "rank")),
        ("eps", ctypes.c_float),
        ("gated", C),
    )


class _Span(ctypes.Structure):
    _fields_ = (("first", N), ("end", N), ("at", N), ("masked", N), ("mask", P))


class _Buffer(ctypes.Structure):
    _fields_ = (("keys", P), ("values", P), ("capacity", N))


class _Lane(ctypes.Structure):
    _fields_ = (
        ("shape", ctypes.POINTER(_Shape)),
        ("layers", ctypes.POINTER(_Layer)),
        *(("count", N), ("x", P), ("rows", N), ("cos", P), ("sin", P)),
        *(("spans", ctypes.POINTER(_Span)), ("span_count", N), ("buffers", ctypes.POINTER(_Buffer))),
        *(("wanted", ctypes.POINTER(N)), ("wanted_count", N)),
        *(("taps", ctypes.POINTER(N)), ("tap_count", N), ("tapped", P)),
        ("work", P),
    )


class Projection(NamedTuple):
    """W x, + B (A x) if there are `down` (A) and `up` (B), + bias."""

    weight: Packed
    down: Matrix | None = None
    up: Matrix | None = None
    bias: F32 | None = None


class Norm(NamedTuple):
    """The RMS norm, or the layer norm if there is a bias."""

    weight: F32
    bias: F32 | None = None


class Shape(NamedTuple):
    hidden: int
    heads: int
    groups: int  # key heads
    width: int  # of a head
    inner: int  # of the MLP
    eps: float
    gated: bool


class Layer(NamedTuple):
    attention: Norm
    qkv: Projection
    heads: tuple[Norm, Norm] | None  # of queries and keys
    out: Projection
    mlp: Norm
    gate_up: Projection
    down: Projection


class KvRows(NamedTuple):
    """Rows `first` to `end` go into a KV from row `at` on. `buffers` are, for each layer, the addresses of its keys
    [groups, width, capacity] and values [groups, capacity, width], uint16 with the bits of bfloat16, and the capacity,
    a multiple of WIDTHS. The bool mask [rows, columns] is for the last columns; without one, rows see all."""

    first: int
    end: int
    at: int
    buffers: Sequence[tuple[int, int, int]]
    mask: NDArray[np.bool_] | None


def normalized(x: F32, norm: Norm, eps: float) -> F32:
    """Rows [rows, size] float32 after the norm, as in the layers; size is a multiple of WIDTHS."""
    x = np.ascontiguousarray(x)
    out, (weight, bias) = np.empty_like(x), (None if part is None else floats(part) for part in norm)
    assert weight is not None
    held = _Norm(address(weight), None if bias is None else address(bias))
    library().caesura_normalize(variants()[chosen()], address(x), *x.shape, ctypes.byref(held), eps, address(out))
    return out


def floats(of: NDArray[Any]) -> F32:
    """As the library reads them."""
    return np.ascontiguousarray(of, np.float32)


class Layers:
    """Layers of one path."""

    def __init__(self, layers: Sequence[Layer], shape: Shape) -> None:
        products = [product for layer in layers for product in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        rank = max(product.down.rows if product.down else 0 for product in products)
        self.count = len(layers)
        self._kept = list[Any]()  # keeps the targets of pointers alive
        self._shape = _Shape(**shape._asdict(), rank=rank)
        self._layers = (_Layer * len(layers))(*map(self._layer, layers))
        self._variant, self._local = variants()[chosen()], threading.local()

    def __repr__(self) -> str:
        return f"<Layers {self.count}>"

    def _pointer(self, numbers: F32 | None) -> int | None:
        if numbers is None:
            return None
        self._kept.append(floats(numbers))
        return address(self._kept[-1])

    def _matrix(self, matrix: Matrix | None) -> int | None:
        self._kept.append(matrix)
        return None if matrix is None else ctypes.addressof(matrix.held)

    def _norm(self, norm: Norm | None) -> _Norm:
        return _Norm() if norm is None else _Norm(self._pointer(norm.weight), self._pointer(norm.bias))

    def _linear(self, of: Projection) -> _Product:
        self._kept.append(of.weight)
        weight = ctypes.addressof(of.weight.held), len(of.weight.matrices)
        return _Product(*weight, self._matrix(of.down), self._matrix(of.up), self._pointer(of.bias))

    def _layer(self, layer: Layer) -> _Layer:
        query, key = layer.heads or (None, None)
        return _Layer(
            self._norm(layer.attention),
            self._linear(layer.qkv),
            self._norm(query),
            self._norm(key),
            self._linear(layer.out),
            self._norm(layer.mlp),
            self._linear(layer.gate_up),
            self._linear(layer.down),
        )

    def through(
        self,
        x: F32,
        cos: F32,
        sin: F32,
        spans: Sequence[KvRows],
        wanted: Sequence[int] | None = None,
        taps: Sequence[int] = (),
    ) -> tuple[F32, Sequence[F32]]:
        """Take x [rows, hidden] float32 through all layers, in place; cos and sin [rows, width] are of the positions.
        Returns the `wanted` rows, or all, and x after each of the `taps` [taps, rows, hidden]."""
        tapped = np.empty((len(taps), *x.shape), np.float32)
        rows = range(len(x)) if wanted is None else [row % len(x) for row in wanted]
        assert len(rows) <= len(x)
        masks = [None if span.mask is None else np.ascontiguousarray(span.mask) for span in spans]
        found = [
            _Span(span.first, span.end, span.at, *((0, None) if mask is None else (mask.shape[1], address(mask))))
            for span, mask in zip(spans, masks, strict=True)
        ]
        buffers = [_Buffer(*span.buffers[number]) for number in range(self.count) for span in spans]
        assert all(part.dtype == np.float32 and part.flags.c_contiguous for part in (x, cos, sin))
        lane = _Lane(
            shape=ctypes.pointer(self._shape),
            layers=self._layers,
            count=self.count,
            x=address(x),
            rows=len(x),
            cos=address(cos),
            sin=address(sin),
            spans=(_Span * len(found))(*found),
            span_count=len(found),
            buffers=(_Buffer * len(buffers))(*buffers),
            wanted=(N * len(rows))(*rows),
            wanted_count=-1 if wanted is None else len(rows),
            taps=(N * len(taps))(*taps),
            tap_count=len(taps),
            tapped=address(tapped),
        )
        lane.work = self._work(library().caesura_lane_bytes(self._variant, ctypes.byref(lane)))
        library().caesura_through(self._variant, ctypes.byref(lane))
        return x[: len(rows)], list(tapped)

    def _work(self, size: int) -> int:
        """Work memory of at least `size` bytes, kept by this thread."""
        work = getattr(self._local, "work", None)
        if work is None or len(work) < size:
            work = self._local.work = np.empty(size, np.uint8)
        return address(work)
