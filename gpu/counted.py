"""What a denoise step of a DiffusionGemma must move and compute, by part, counted on the model's own tensors: each
matrix is read once with its scales, of the experts those that so many rows touch at uniform routing. What goes from one
kernel to the next is not counted, an L2 cache holds it.

bench/roofline.py counts the same from the published sizes, for one number of bytes a parameter.
"""

from collections.abc import Iterable
from math import prod

from torch import Tensor

from caesura.engine.models.diffusion_gemma import DiffusionGemma
from caesura.kernels.linear import Linear

from roofline import Work, bound_ms  # isort: skip  (bench/, on the path by gpu/env)
from measuring import BANDWIDTH, PEAK  # isort: skip  (of this folder)

OF_CANVAS = ("head", "self-conditioning", "sampler")  # parts that a forward over context alone has not
OF_LAYERS = ("experts", "projections", "dense")  # parts that are matrices in the form of the model


def work(model: DiffusionGemma, rows: int, context: int) -> dict[str, Work]:
    """Of a step over so many canvas rows after a context. No row is sure of its token: the embedding is read twice,
    and the scores are kept for the second time in the precision of the weights."""
    c, w = model.config, model.weights
    layers, conditioner = w.layers, w.conditioner
    stacks = [stack for layer in layers for stack in (layer.expert_gate_up, layer.expert_down)]
    routed = sum(prod(stack.shape) for stack in stacks) * c.top_k_experts / c.num_experts
    touched = 1 - (1 - c.top_k_experts / c.num_experts) ** rows

    def products(matrices: Iterable[Linear | Tensor]) -> Work:
        there = list(matrices)
        return Work(sum(m.nbytes for m in there), 2 * rows * sum(prod(m.shape) for m in there))

    keys = multiplied = 0
    for shape in c.shapes:
        seen = rows + (min(context, c.sliding_window - 1) if shape.sliding else context)
        keys += 2 * seen * shape.kv_heads * shape.head_dim * w.embed.itemsize
        multiplied += 4 * rows * seen * c.num_heads * shape.head_dim
    routers = products(layer.router for layer in layers)
    vectors = [t for layer in layers for t in layer if isinstance(t, Tensor) and t.ndim == 1]
    vectors += [w.norm, conditioner.norm]
    return {
        "experts": Work(touched * sum(stack.nbytes for stack in stacks), 2 * rows * routed),
        "projections": products(matrix for layer in layers for matrix in (layer.qkv, layer.o)),
        "dense": products(m for of in (*layers, conditioner) for m in (of.gate_up, of.down)),
        "attention": Work(keys, multiplied),
        "head": products([w.head]),
        "self-conditioning": products([w.embed]),
        "sampler": Work(2 * rows * c.vocab_size * w.embed.itemsize, 0),
        "rest": Work(routers.bytes + sum(vector.nbytes for vector in vectors), routers.flops),
    }


def floor_ms(model: DiffusionGemma, rows: int, context: int, *, canvas: bool = True) -> float:
    """The least time that takes, part by part; without those of a canvas where the rows are context."""
    parts, fast = work(model, rows, context), peak(model.weights.layers[0].qkv)
    found = {n: part for n, part in parts.items() if canvas or n not in OF_CANVAS}
    return sum(bound_ms({n: of}, BANDWIDTH, fast if n in OF_LAYERS else PEAK) for n, of in found.items())


def peak(matrix: Linear) -> float:
    """FLOP a second of its products."""
    return 2 * PEAK if matrix.rounds else PEAK
