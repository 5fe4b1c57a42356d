"""The layers of `_llama_layer.py` in the form of the C library, if it is built and supports their widths."""

from collections.abc import Sequence

from torch.nn.functional import pad

from caesura.engine.models._llama_layer import AdaptedMatrix, Shape, Weights
from caesura.engine.weights import stored
from caesura.kernels import cpu
from caesura.kernels.cpu import layers as native


def fits(hidden: int, inner: int, shape: Shape) -> bool:
    """True if the library supports layers of these widths."""
    whole = all(size % cpu.GROUP == 0 for size in (hidden, inner, shape.heads * shape.width))
    return cpu.chosen() != "torch" and whole and shape.width % native.WIDTHS == 0


def layers(of: Sequence[Weights], shape: Shape, canvas: bool) -> native.Layers:
    """The layers `of` one path, for the library."""
    return native.Layers(
        [
            native.Layer(
                native.Norm(*seen.norm),
                linear(seen.qkv, canvas),
                seen.head_norms and (native.Norm(*seen.head_norms[0]), native.Norm(*seen.head_norms[1])),
                linear(seen.out, canvas),
                native.Norm(*mlp.norm),
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


def linear(matrix: AdaptedMatrix, canvas: bool) -> native.Projection:
    """A matrix of one path; that of the canvas path includes the low-rank update, with B in 8 bits."""
    weight, *down = matrix.packed.matrices
    if not (canvas and down):
        return native.Projection(weight, bias=matrix.bias)
    up = matrix.up.T
    coded = cpu.Matrix("q8", *stored.q8(pad(up, (0, -up.shape[1] % stored.GROUP))))
    return native.Projection(weight, down[0], coded, matrix.bias)
