"""Bytes and FLOP of a denoise step of DiffusionGemma, by part, and the least time that they take: the formulas of its
published shapes, no torch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

FLOAT = 4  # bytes
# "sampler" is all that goes over [canvas, vocabulary] but the two products.
PARTS = ("experts", "projections", "dense", "attention", "head", "self-conditioning", "sampler", "rest")


class Work(NamedTuple):
    bytes: float
    flops: float


def work(text: Mapping[str, Any], canvas: int, context: int, size: float = FLOAT) -> dict[str, Work]:
    """Weights and cache read once, logits written and read as often as an unfused sampler must at least, for one step
    over `canvas` rows after `context` tokens; `size` is bytes a parameter."""
    hidden, vocabulary, layers = text["hidden_size"], text["vocab_size"], text["num_hidden_layers"]
    kinds = [(number + 1) % 6 == 0 for number in range(layers)]  # five sliding, one full
    heads, window = text["num_attention_heads"], text["sliding_window"]
    experts, top_k = text["num_experts"], text["top_k_experts"]
    expert = 3 * hidden * text["moe_intermediate_size"]
    touched = experts * (1 - (1 - top_k / experts) ** canvas)  # distinct experts, at uniform routing
    projections = keys = products = 0
    for full in kinds:
        width = text["global_head_dim"] if full else text["head_dim"]
        key_heads = text["num_global_key_value_heads"] if full else text["num_key_value_heads"]
        seen = context if full else min(context, window - 1)
        projections += hidden * width * (2 * heads + (1 if full else 2) * key_heads)
        keys += 2 * seen * key_heads * width
        products += 4 * canvas * (seen + canvas) * heads * width
    gated = 3 * hidden * text["intermediate_size"]
    embedding = hidden * vocabulary

    def matrices(parameters: float) -> Work:
        return Work(parameters * size, 2 * canvas * parameters)

    return {
        "experts": Work(layers * touched * expert * size, 2 * canvas * top_k * expert * layers),
        "projections": matrices(projections),
        "dense": matrices((layers + 1) * gated),  # that of self-conditioning too
        "attention": Work(keys * size, products),
        "head": matrices(embedding),
        "self-conditioning": matrices(embedding),
        "sampler": Work(3 * canvas * vocabulary * FLOAT, 0),
        "rest": Work(layers * hidden * experts * size, 2 * canvas * layers * hidden * experts),  # the router
    }


def bound_ms(parts: Mapping[str, Work], bandwidth: float, peak: float) -> float:
    """The least time of each part at `bandwidth` bytes and `peak` FLOP a second, added up: parts that overlap can
    take less."""
    return 1000 * sum(max(part.bytes / bandwidth, part.flops / peak) for part in parts.values())


def parameters(text: Mapping[str, Any]) -> int:
    """All but the embedding."""
    parts = work({**text, "vocab_size": 0}, 10**6, 1, 1)  # every expert is touched
    return round(sum(parts[name].bytes for name in ("experts", "projections", "dense", "rest")))
