"""Bytes and FLOP of a denoise step of a DiffusionGemma by part, counted on the model's own tensors: each matrix is read
once with its scales, of the experts those that so many rows touch at uniform routing. Values that go from one kernel to
the next are not counted, an L2 cache holds them.

bench/roofline.py counts the same from the published sizes, for one number of bytes a parameter.
"""

from math import prod

from torch import Tensor

from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.kernels.linear import Linear

from roofline import Work, bound_ms  # isort: skip  (bench/, on the path by gpu/env)
from measuring import BANDWIDTH, PEAK  # isort: skip  (of this folder)

OF_CANVAS = ("conditioner", "head", "self-conditioning", "sampler")  # parts that a forward over context alone has not
Matrix = Linear | Tensor


def matrices(model: DiffusionGemma) -> dict[str, list[Matrix]]:
    """All that rows are multiplied by, in whatever precision each is."""
    w = model.weights
    layers, conditioner = w.layers, w.conditioner
    return {
        "experts": [stack for layer in layers for stack in (layer.expert_gate_up, layer.expert_down)],
        "projections": [matrix for layer in layers for matrix in (layer.qkv, layer.o)],
        "dense": [matrix for layer in layers for matrix in (layer.gate_up, layer.down)],
        "conditioner": [conditioner.gate_up, conditioner.down],
        "head": [w.head],
        "self-conditioning": [w.embed],
        "rest": [layer.router for layer in layers],
    }


def flops(model: DiffusionGemma, rows: int, matrix: Matrix) -> float:
    """Of a matrix, or of a stack of experts."""
    c = model.config
    return 2 * rows * prod(matrix.shape) * (c.top_k_experts / c.num_experts if len(matrix.shape) == 3 else 1)


def work(model: DiffusionGemma, rows: int, context: int) -> dict[str, Work]:
    """A step over so many canvas rows after a context. Assumes no row is sure: the embedding is read twice, and the
    scores are kept for the second time in the precision of the weights."""
    c, w = model.config, model.weights
    parts = {
        name: Work(sum(m.nbytes for m in there), sum(flops(model, rows, m) for m in there))
        for name, there in matrices(model).items()
    }
    touched = 1 - (1 - c.top_k_experts / c.num_experts) ** rows
    keys = multiplied = 0
    for shape in c.shapes:
        seen = rows + (min(context, c.sliding_window - 1) if shape.sliding else context)
        keys += 2 * seen * shape.kv_heads * shape.head_dim * w.embed.itemsize
        multiplied += 4 * rows * seen * c.num_heads * shape.head_dim
    vectors = [t for layer in w.layers for t in layer if isinstance(t, Tensor) and t.ndim == 1]
    vectors += [w.norm, w.conditioner.norm]
    experts, rest = parts["experts"], parts["rest"]
    return parts | {
        "experts": experts._replace(bytes=touched * experts.bytes),
        "attention": Work(keys, multiplied),
        "sampler": Work(2 * rows * c.vocab_size * w.embed.itemsize, 0),
        "rest": rest._replace(bytes=rest.bytes + sum(vector.nbytes for vector in vectors)),
    }


def floor_ms(model: DiffusionGemma, rows: int, context: int, *, canvas: bool = True) -> float:
    """The least time of each part, added up; without those of a canvas where the rows are context. Parts that overlap,
    bytes of one with FLOP of another, could take less."""
    found = {n: part for n, part in work(model, rows, context).items() if canvas or n not in OF_CANVAS}
    for name, there in matrices(model).items():
        if name in found:  # as many FLOP at PEAK as take that time
            slow = sum(flops(model, rows, m) * (PEAK / peak(m) if isinstance(m, Linear) else 1) for m in there)
            found[name] = found[name]._replace(flops=slow)
    return bound_ms(found, BANDWIDTH, PEAK)


def peak(matrix: Linear) -> float:
    """FLOP a second of its products."""
    return 2 * PEAK if matrix.rounds else PEAK
