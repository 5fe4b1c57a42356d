"""Read the published files of DiffusionGemma: config.json in both spellings, the tensors by name, and the schedule in
generation_config.json. Everything is checked; nothing is computed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from caesura.engine.noise import Schedule
from caesura.engine.weights.forms import Rounded
from caesura.engine.weights.stored import WeightsError
from caesura.kernels.fp8 import Fp8Dynamic, Fp8Linear
from caesura.kernels.linear import Linear, joined
from caesura.model_store.reading import fields, reason

SLIDING, FULL = "sliding_attention", "full_attention"

ROUNDED = Rounded(  # over nine tenths of the bytes; the rest stays exact
    (
        r"layers\.\d+\.self_attn\.[qkvo]_proj\.weight$",
        r"layers\.\d+\.mlp\.(gate|up|down)_proj\.weight$",
        r"layers\.\d+\.(experts|moe|moe\.experts)\.(gate_up_proj|down_proj|\d+\.)",
    )
)


class Shape(NamedTuple):
    """The attention sizes of one layer."""

    sliding: bool
    head_dim: int
    kv_heads: int


@dataclass(frozen=True)
class Config:
    """The sizes of the text model, from either spelling of config.json (`global_*` keys or `per_layer_config`)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_experts: int
    top_k_experts: int
    moe_intermediate_size: int
    sliding_window: int
    max_position_embeddings: int
    canvas_length: int
    rms_norm_eps: float
    softcap: float
    sliding_theta: float
    full_theta: float
    full_rotary: float  # the fraction of a head that has rotary positions in a full-attention layer
    shapes: tuple[Shape, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Config":
        """The sizes in config.json. Raises WeightsError if a field is missing or not a possible number."""
        try:
            text = config["text_config"]
            rope = text["rope_parameters"]
            kinds = rope[SLIDING].get("rope_type", "default"), rope[FULL].get("rope_type", "proportional")
            if kinds != ("default", "proportional"):
                raise ValueError(f"rope_type {kinds} instead of default and proportional")
            shapes = tuple(_shapes(text))
            made = cls(
                **{name: int(text[name]) for name in _SIZES},
                num_layers=len(shapes),
                num_heads=int(text["num_attention_heads"]),
                canvas_length=int(config.get("canvas_length", 256)),
                rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
                softcap=float(text.get("final_logit_softcapping", 30.0)),
                sliding_theta=float(rope[SLIDING]["rope_theta"]),
                full_theta=float(rope[FULL]["rope_theta"]),
                full_rotary=float(rope[FULL].get("partial_rotary_factor", 1.0)),
                shapes=shapes,
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            said = f"{type(error).__name__} {reason(error)}"
            raise WeightsError(f"config.json is damaged or of another kind of model: {said}.") from error
        made._check(text)
        return made

    def _check(self, text: Mapping[str, Any]) -> None:
        numbers = [v for v in vars(self).values() if isinstance(v, int | float)]
        if not all(0 < n <= 2**31 for n in numbers) or not all(min(s[1:]) > 0 for s in self.shapes):
            raise WeightsError("config.json is damaged: every size must be above 0.")
        if self.full_rotary > 1:
            raise WeightsError("config.json is damaged: partial_rotary_factor must be at most 1.")
        if any(s.head_dim % 2 or self.num_heads % s.kv_heads for s in self.shapes):
            raise WeightsError(
                "config.json is damaged: head_dim must be even, and the key heads must divide the heads."
            )
        if self.top_k_experts > self.num_experts:
            raise WeightsError("config.json is damaged: it asks for more experts per token than there are.")
        if text.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh" or text.get("attention_bias"):
            raise WeightsError("config.json asks for an activation or a bias that DiffusionGemma does not have.")
        if text.get("use_bidirectional_attention") == "all":
            raise WeightsError("config.json asks for a context that is not causal, which is not supported.")


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
    "sliding_window",
    "max_position_embeddings",
)


def _shapes(text: Mapping[str, Any]) -> list[Shape]:
    kinds = list(text["layer_types"])
    if len(kinds) != int(text["num_hidden_layers"]) or not set(kinds) <= {SLIDING, FULL}:
        raise ValueError("layer_types does not name every layer")
    width, heads = int(text["head_dim"]), int(text["num_key_value_heads"])
    full = {"head_dim": text.get("global_head_dim"), "num_key_value_heads": text.get("num_global_key_value_heads")}
    found = []
    for number, kind in enumerate(kinds):
        own = text.get("per_layer_config", {}).get(str(number), full if kind == FULL else {})
        found.append(
            Shape(kind == SLIDING, int(own.get("head_dim") or width), int(own.get("num_key_value_heads") or heads))
        )
    return found


class LayerWeights(NamedTuple):
    """The weights of one layer. Norms are float32. `scalar` [2] is for context rows, then for canvas rows. Matrices
    that multiply the same rows are one: a GPU waits for one product instead of several."""

    shape: Shape
    input_norm: Tensor
    post_attention_norm: Tensor
    pre_mlp_norm: Tensor
    post_mlp_norm: Tensor
    pre_moe_norm: Tensor
    post_moe_norm: Tensor
    post_norm: Tensor
    qkv: Linear  # rows of q, k and v; a full-attention layer has no v: its values are its keys before norm and rotary
    o: Linear
    q_norm: Tensor
    k_norm: Tensor
    gate_up: Linear  # [2 * width, hidden], gate rows first
    down: Linear
    router: Tensor
    router_scale: Tensor
    expert_scale: Tensor
    expert_gate_up: Linear  # [experts, 2 * width, hidden], gate rows first
    expert_down: Linear
    scalar: Tensor


class Conditioner(NamedTuple):
    norm: Tensor
    gate_up: Linear
    down: Linear


class Weights(NamedTuple):
    """All weights of a checkpoint. `head` is `embed` itself unless an exporter untied them."""

    embed: Tensor
    head: Tensor
    norm: Tensor
    conditioner: Conditioner
    layers: list[LayerWeights]


def canonical(stored: str) -> str | None:
    """Our name of a published tensor, whichever of the two modes it is stored under; None for a tensor that the text
    model does not need."""
    if re.search(r"vision_tower|embed_vision|multi_modal_projector|rotary_emb", stored):
        return None
    if stored == "lm_head.weight":
        return "head.weight"
    name = re.sub(r"^(model\.)?(decoder|encoder\.language_model|language_model)\.", "", stored)
    if name.endswith(".layer_scalar") and "encoder." in stored:
        return f"encoder.{name}"
    name = name.replace(".moe.per_expert_scale", ".router.per_expert_scale")
    return re.sub(r"\.moe\.(experts\.)?", ".experts.", name)


class TensorSource(Protocol):
    """Tensors by our names; see `Checkpoint`, which is one."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor: ...
    def optional(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor | None: ...
    def linear(self, stem: str, shape: tuple[int, int], dtype: torch.dtype | None = None) -> Linear: ...
    def experts(
        self,
        stem: str,
        joined: str,
        parts: Sequence[str],
        shape: tuple[int, int, int],
        dtype: torch.dtype | None = None,
    ) -> Linear: ...
    def finish(self) -> None: ...


def read(c: Config, checkpoint: TensorSource) -> Weights:
    """Read every tensor of the text model exactly once. Raises WeightsError for a tensor that is missing, unknown or of
    the wrong shape."""
    d = c.hidden_size
    embed = checkpoint.tensor("embed_tokens.weight", (c.vocab_size, d))
    dtype = torch.float32 if embed.dtype == torch.float32 else torch.bfloat16

    def tensor(name: str, *shape: int) -> Tensor:
        return checkpoint.tensor(name, shape, dtype)

    def norm(name: str, size: int = d) -> Tensor:
        return checkpoint.tensor(f"{name}.weight", (size,), torch.float32)

    def matrix(name: str, rows: int, columns: int) -> Linear:
        return checkpoint.linear(name, (rows, columns), dtype)

    def matrices(at: str, **heights: int) -> Linear:
        """The matrices of a module as one; `heights` are the rows of each, by name."""
        return joined([matrix(f"{at}.{name}_proj", rows, d) for name, rows in heights.items()], dtype)

    def scalar(name: str) -> Tensor:
        canvas = tensor(name, 1)
        context = checkpoint.optional(f"encoder.{name}", (1,), dtype)
        return torch.cat((canvas if context is None else context, canvas))

    def layer(at: str, shape: Shape) -> LayerWeights:
        attn, mlp, moe, wide = f"{at}.self_attn", f"{at}.mlp", f"{at}.experts", c.moe_intermediate_size
        q, kv = c.num_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return LayerWeights(
            shape=shape,
            input_norm=norm(f"{at}.input_layernorm"),
            post_attention_norm=norm(f"{at}.post_attention_layernorm"),
            pre_mlp_norm=norm(f"{at}.pre_feedforward_layernorm"),
            post_mlp_norm=norm(f"{at}.post_feedforward_layernorm_1"),
            pre_moe_norm=norm(f"{at}.pre_feedforward_layernorm_2"),
            post_moe_norm=norm(f"{at}.post_feedforward_layernorm_2"),
            post_norm=norm(f"{at}.post_feedforward_layernorm"),
            qkv=matrices(attn, q=q, k=kv, v=kv) if shape.sliding else matrices(attn, q=q, k=kv),
            o=matrix(f"{attn}.o_proj", d, q),
            q_norm=norm(f"{attn}.q_norm", shape.head_dim),
            k_norm=norm(f"{attn}.k_norm", shape.head_dim),
            gate_up=matrices(mlp, gate=c.intermediate_size, up=c.intermediate_size),
            down=matrix(f"{mlp}.down_proj", d, c.intermediate_size),
            router=tensor(f"{at}.router.proj.weight", c.num_experts, d),
            router_scale=tensor(f"{at}.router.scale", d),
            expert_scale=tensor(f"{at}.router.per_expert_scale", c.num_experts),
            expert_gate_up=checkpoint.experts(
                moe, "gate_up_proj", ("gate_proj", "up_proj"), (c.num_experts, 2 * wide, d), dtype
            ),
            expert_down=checkpoint.experts(moe, "down_proj", ("down_proj",), (c.num_experts, d, wide), dtype),
            scalar=scalar(f"{at}.layer_scalar"),
        )

    at = "self_conditioning"
    conditioner = Conditioner(
        norm(f"{at}.pre_norm"),
        matrices(at, gate=c.intermediate_size, up=c.intermediate_size),
        matrix(f"{at}.down_proj", d, c.intermediate_size),
    )
    layers = [layer(f"layers.{number}", shape) for number, shape in enumerate(c.shapes)]
    untied = checkpoint.optional("head.weight", (c.vocab_size, d), dtype)
    embed = embed.to(dtype)
    weights = Weights(embed, embed if untied is None else untied, norm("norm"), conditioner, layers)
    checkpoint.finish()
    return weights


def rounding(weights: Weights) -> Weights:
    """The same tensors; FP8 matrices of the layers multiply rows in FP8."""

    def of(part: Any) -> Any:
        return Fp8Dynamic(*part.tensors) if isinstance(part, Fp8Linear) else part

    return weights._replace(layers=[LayerWeights(*map(of, layer)) for layer in weights.layers])


def said_of_generation(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """config.json and generation_config.json, which wins. Raises UnusableModel."""
    stored = fields(path) if path.exists() else {}
    return {**config, **{name: value for name, value in stored.items() if value is not None}}


def generation(stored: Mapping[str, Any], path: Path, tokens: int) -> tuple[Schedule, frozenset[int]]:
    """The schedule and the tokens that end a text, padding included, from the settings that `path` has `stored`. Raises
    WeightsError if a token is not below `tokens`, or if the schedule is damaged."""
    try:
        bound = stored.get("sampler_config", {}).get("entropy_bound")
        fields = {
            "steps": stored.get("max_denoising_steps"),
            "t_min": stored.get("t_min"),
            "t_max": stored.get("t_max"),
            "entropy_bound": bound,
            "stability": stored.get("stability_threshold"),
            "confidence": stored.get("confidence_threshold"),
        }
        kinds = {name: type(value) for name, value in vars(Schedule()).items()}
        schedule = Schedule(**{name: kinds[name](value) for name, value in fields.items() if value is not None})
        stops, pad = stored.get("eos_token_id", 1), stored.get("pad_token_id") or 0
        ends = frozenset(int(token) for token in (*(stops if isinstance(stops, list) else [stops]), pad))
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"{path} is damaged ({reason(error)}); download the model again.") from error
    if not all(0 <= token < tokens for token in ends):
        raise WeightsError(f"{path} names an end token that does not exist; download the model again.")
    cool = 0.01 <= schedule.t_min <= schedule.t_max <= 100
    if not (1 <= schedule.steps <= 1000 and cool and schedule.entropy_bound >= 0 and schedule.confidence >= 0):
        raise WeightsError(f"{path} has a schedule outside the possible range; download the model again.")
    return schedule, ends
