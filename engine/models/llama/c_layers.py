"""The layers of `llama/layer.py` in the form of the C library, if it is built and supports their widths."""

from collections.abc import Sequence
from itertools import accumulate
from typing import overload

from torch import Tensor, from_numpy

from caesura.engine.models.llama.layer import AdaptedMatrix, Norm, PlacedRows, Shape, Weights
from caesura.kernels import cpu
from caesura.kernels.cpu import layers as native
from caesura.kernels.cpu import repack


class Layers:
    """The layers of one path, which take and give tensors; keys and values are bfloat16."""

    def __init__(self, of: Sequence[Weights], shape: Shape, canvas: bool) -> None:
        self._layers = native.Layers(
            [
                native.Layer(
                    norm(seen.norm),
                    linear(seen.qkv, canvas),
                    seen.head_norms and (norm(seen.head_norms[0]), norm(seen.head_norms[1])),
                    linear(seen.out, canvas),
                    norm(mlp.norm),
                    linear(mlp.gate_up, canvas),
                    linear(mlp.down, canvas),
                )
                for seen, mlp in of
            ],
            native.Shape(
                of[0].attention.qkv.packed.columns,
                shape.heads,
                shape.groups,
                shape.width,
                of[0].mlp.down.packed.columns,
                shape.eps,
                shape.gated,
            ),
        )

    def __repr__(self) -> str:
        return repr(self._layers)

    def through(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        spans: Sequence[PlacedRows],
        wanted: Sequence[int] | None = None,
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """As `kernels.cpu.layers.Layers.through`."""
        placed = [
            native.KvRows(
                span.first,
                span.end,
                span.at,
                [(keys.data_ptr(), values.data_ptr(), keys.shape[1]) for keys, values in span.buffers],
                None if span.mask is None else span.mask.numpy(),
            )
            for span in spans
        ]
        out, tapped = self._layers.through(x.numpy(), cos.numpy(), sin.numpy(), placed, wanted, taps)
        return from_numpy(out), [from_numpy(rows) for rows in tapped]


def normalized(x: Tensor, of: Norm, eps: float) -> Tensor:
    """Rows [rows, size] float32 after the norm, as in the layers."""
    return from_numpy(native.normalized(x.numpy(), norm(of), eps))


def norm(of: Norm) -> native.Norm:
    return native.Norm(floats(of.weight), floats(of.bias))


@overload
def floats(of: Tensor) -> cpu.F32: ...
@overload
def floats(of: None) -> None: ...
def floats(of: Tensor | None) -> cpu.F32 | None:
    return None if of is None else of.float().numpy()


def linear(matrix: AdaptedMatrix, canvas: bool) -> native.Projection:
    """A matrix of one path; that of the canvas path includes the low-rank update, with B in 8 bits."""
    ends = accumulate(one.rows for one in matrix.packed.matrices)
    below = next(number for number, end in enumerate(ends, 1) if end == matrix.size)  # A, if any, is after W
    weight, down = cpu.Packed(*matrix.packed.matrices[:below]), matrix.packed.matrices[below:]
    if not (canvas and down):
        return native.Projection(weight, bias=floats(matrix.bias))
    coded = repack.packed("q8", [repack.plain(matrix.up.T.numpy())])
    return native.Projection(weight, down[0], coded, floats(matrix.bias))
