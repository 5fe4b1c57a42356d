"""A DiffusionGemma of random weights, which stands in for the published one in every measurement of time."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from caesura.engine.methods.uniform.graphs import Common, Recording
from caesura.engine.methods.uniform.renoise import by_entropy
from caesura.engine.model import ModelSpec
from caesura.engine.models.diffusion_gemma.files import Conditioner, LayerWeights, Shape, Weights
from caesura.engine.models.diffusion_gemma.model import CHUNK, PINS, Config, DiffusionGemma
from caesura.engine.noise import Uniform
from caesura.kernels import fp8, nvfp4
from caesura.kernels.linear import Dense, Linear

PUBLISHED = Path(__file__).with_name("diffusiongemma-26b.json")
FORMS = ("bf16", "fp8", "nvfp4")
EXACT = "fp8-exact"  # FP8 with activations as they come
Make = Callable[..., Linear]


def sizes(*, tiny: bool) -> dict[str, Any]:
    """The published configuration, or the same with every size small, for a CPU."""
    config: dict[str, Any] = json.loads(PUBLISHED.read_text())
    if tiny:
        small = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2}
        small |= {"num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32}
        small |= {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, "vocab_size": 128}
        config["text_config"] |= small | {"layer_types": config["text_config"]["layer_types"][:6], "sliding_window": 16}
        config |= {"canvas_length": 16, "boi_token_id": 1, "eoi_token_id": 2, "image_token_id": 3}
    return config


def maker(form: str, device: str) -> Make:
    """Random matrices in that precision, drawn as they are stored: quantising 26 billion numbers takes too long."""

    def make(*shape: int) -> Linear:
        *outer, rows, columns = shape
        if form == "bf16":
            return Dense(torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02)
        if form in ("fp8", EXACT):
            codes = torch.randn(shape, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
            kind = fp8.Fp8Linear if form == EXACT else fp8.Fp8Dynamic
            return kind(codes, torch.full((*outer, rows, 1), 0.02, device=device))
        codes = torch.randint(256, (*outer, rows, columns // 2), dtype=torch.uint8, device=device)
        scale = torch.ones(*outer, rows, columns // nvfp4.GROUP, device=device).to(torch.float8_e4m3fn)
        return nvfp4.Nvfp4Linear(codes, scale, torch.full((*outer, rows, 1), 0.01, device=device))

    return make


def matrices(c: Config) -> list[tuple[int, int]]:
    """Shapes [N, K] of a layer's matrices: q, k and v together and o of both kinds, gate and up together, down."""
    d, found = c.hidden_size, {(2 * c.intermediate_size, c.hidden_size), (c.hidden_size, c.intermediate_size)}
    for shape in c.shapes:
        q, kv = c.num_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        found |= {(q + (2 if shape.sliding else 1) * kv, d), (d, q)}
    return sorted(found)


def weights(c: Config, form: str, device: str) -> Weights:
    make, dense, d = maker(form, device), maker("bf16", device), c.hidden_size
    one = torch.ones(d, device=device)

    def layer(shape: Shape) -> LayerWeights:
        q, kv = c.num_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        head = torch.ones(shape.head_dim, device=device)
        half = torch.ones(max(d, c.num_experts), device=device, dtype=torch.bfloat16)
        return LayerWeights(
            shape,
            *[one] * 7,
            qkv=make(q + (2 if shape.sliding else 1) * kv, d),
            o=make(d, q),
            q_norm=head,
            k_norm=head,
            gate_up=make(2 * c.intermediate_size, d),
            down=make(d, c.intermediate_size),
            router=dense(c.num_experts, d).dense(torch.bfloat16),
            router_scale=half[:d],
            expert_scale=half[: c.num_experts],
            expert_gate_up=make(c.num_experts, 2 * c.moe_intermediate_size, d),
            expert_down=make(c.num_experts, d, c.moe_intermediate_size),
            scalar=half[:2] * 0.5,
        )

    embed = dense(c.vocab_size, d).dense(torch.bfloat16)
    wide = c.intermediate_size
    conditioner = Conditioner(one, dense(2 * wide, d), dense(d, wide))
    return Weights(embed, embed, one, conditioner, [layer(shape) for shape in c.shapes])


class Pieces:
    """As much of a tokenizer as a canvas asks for; its tokens are numbers."""

    def __init__(self, size: int) -> None:
        self.pieces = [b" %d" % number for number in range(size)]

    def __repr__(self) -> str:
        return f"<Pieces {len(self.pieces)}>"

    def encode(self, text: str) -> Sequence[int]:
        return [int(word) for word in text.split()]


def model(config: dict[str, Any], form: str, device: str, context: int) -> DiffusionGemma:
    """Its logits are flat: no slot is ever sure, so no canvas is done before its last step, and the embedding is read
    a second time for every row."""
    c = Config.read(config)
    noise = Uniform(c.vocab_size, canvas=c.canvas_length)
    chunk = CHUNK // 8 if device == "cpu" else CHUNK
    spec = ModelSpec(noise, noise.method, context, chunk, tail=0, head=PINS, sampler="entropy_bound", prompt="chat")
    return DiffusionGemma("random", c, weights(c, form, device), Pieces(c.vocab_size), spec)  # type: ignore[arg-type]


def step(model: DiffusionGemma, rows: int) -> Callable[[], None]:
    """A step of so many rows as it is recorded. Its launches do not depend on the length of the context."""
    assert isinstance(model.spec.noise, Uniform)
    bans = torch.zeros(4, model.width, device=model.device)
    stops = torch.zeros(2, dtype=torch.int64, device=model.device)
    kv = model.cache().lease([])
    kv.reserve(rows)
    return Recording(Common(model, model.spec.noise.schedule, by_entropy, bans, stops), kv, rows)._step
