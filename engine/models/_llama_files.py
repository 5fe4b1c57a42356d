"""What the files of a published model of Llama's kind hold: sizes, tensors by name, rotary scaling, and what fits. The
families differ in names and flags; their tensors become those of our own stored form, which `BlockLlama` computes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from caesura.engine import memory
from caesura.engine.cache import Kept
from caesura.engine.canvas.canvas import MAX_ROWS
from caesura.engine.models import LoadChoice
from caesura.engine.models.block_llama import MATRICES, BlockLlama, Config, attended, wavelengths
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.checkpoint import AGAIN, FLOATS, Entry, headers, stored
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import cpu, int8

ACTIVATIONS = {"starcoder2": "gelu_pytorch_tanh"}  # by model_type; of all others SiLU with a gate
CONTEXTS = 14  # kept at most
FLOAT = {"cuda": torch.bfloat16, "meta": torch.float32}  # of matrices, by device; on a CPU they are int8
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
Spellings = dict[str, list[list[str]]]


class Names(NamedTuple):
    """Our name of a tensor -> its names in a file, one below the other; of several spellings the first that is there.
    Those of `layer` follow the layer's own name, which has its number in the place of {}."""

    outer: Spellings
    at: str
    layer: Spellings


OUTER: Spellings = {
    "embed": [["model.embed_tokens.weight"]],
    "norm": [["model.norm.weight"]],
    "norm_bias": [["model.norm.bias"]],
    "head": [["lm_head.weight"]],
}
LAYER: Spellings = {
    "attn_norm": [["input_layernorm.weight"]],
    "attn_norm_bias": [["input_layernorm.bias"]],
    "qkv": [[f"self_attn.{part}_proj.weight" for part in "qkv"]],
    "qkv_bias": [[f"self_attn.{part}_proj.bias" for part in "qkv"]],
    "q_norm": [["self_attn.q_norm.weight"]],
    "k_norm": [["self_attn.k_norm.weight"]],
    "out": [["self_attn.o_proj.weight"]],
    "out_bias": [["self_attn.o_proj.bias"]],
    "mlp_norm": [["post_attention_layernorm.weight"]],
    "mlp_norm_bias": [["post_attention_layernorm.bias"]],
    "gate_up": [["mlp.gate_proj.weight", "mlp.up_proj.weight"], ["mlp.c_fc.weight"]],
    "gate_up_bias": [["mlp.gate_proj.bias", "mlp.up_proj.bias"], ["mlp.c_fc.bias"]],
    "down": [["mlp.down_proj.weight"], ["mlp.c_proj.weight"]],
    "down_bias": [["mlp.down_proj.bias"], ["mlp.c_proj.bias"]],
}
HUB = Names(OUTER, "model.layers.{}.", LAYER)
USELESS = (".rotary_emb.inv_freq", ".attn.masked_bias")  # buffers that old files hold


def canonical(name: str) -> str | None:
    """A stored name, or None for what is left out on purpose."""
    return None if name.endswith(USELESS) else name


class Published(Mapping[str, Tensor]):
    """The tensors of a hub's folder by their names, each read as float32 when it is asked for; on "meta" a tensor has a
    shape and no values."""

    def __init__(self, folder: Path, device: str) -> None:
        self._entries: dict[str, Entry] = {entry.name: entry for entry in headers(folder) if canonical(entry.name)}
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        if entry.dtype not in FLOATS:
            raise WeightsError(f"{entry.path}: {name} is of type {entry.dtype}; only floats can be read; {AGAIN}.")
        return torch.empty(entry.shape, device="meta") if self._device == "meta" else stored(entry).float()

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Renamed(Mapping[str, Tensor]):
    """Our names over those of a file. Embedding and head have as many rows as there are tokens: files pad them."""

    def __init__(
        self, tensors: Mapping[str, Tensor], layers: int, tokens: int, *, tied: bool, names: Names = HUB
    ) -> None:
        self._tensors, self._tokens = tensors, tokens
        self._parts = dict[str, list[str]]()
        for name, spellings in names.outer.items():
            self._find(name, spellings)
        for layer in range(layers):
            for name, spellings in names.layer.items():
                named = [[names.at.format(layer) + part for part in parts] for parts in spellings]
                self._find(f"layers.{layer}.{name}", named)
        used = {part for parts in self._parts.values() for part in parts}
        left = [name for name in tensors if name not in used]
        if left:
            raise WeightsError(
                f"{len(left)} tensors have no place in this model: {', '.join(sorted(left)[:3])}; it is another model, "
                "or in a format that cannot be read yet."
            )
        if tied:
            self._parts.pop("head", None)

    def _find(self, name: str, spellings: Sequence[list[str]]) -> None:
        for parts in spellings:
            if all(part in self._tensors for part in parts):
                self._parts[name] = parts
                return

    def __getitem__(self, name: str) -> Tensor:
        parts = [self._tensors[part] for part in self._parts[name]]
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        if name not in ("embed", "head"):
            return whole
        if len(whole) < self._tokens:
            raise WeightsError(f"The model has {self._tokens} tokens, and weights for {len(whole)} of them.")
        return whole[: self._tokens]

    def __contains__(self, name: object) -> bool:
        return name in self._parts  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def built(
    name: str,
    config: dict[str, Any],
    tokenizer: Tokenizer,
    tensors: Mapping[str, Tensor],
    choice: LoadChoice,
    *,
    usual: int,
    least: int,
    tokens: int = 0,
    names: Names = HUB,
) -> BlockLlama:
    """The trunk of a model whose `config` is spelled as that of the hub's Llama. A context has `usual` tokens unless
    the user chooses others, `least` of them at least. Where the tokenizer does not know all ids there are `tokens`.
    Raises WeightsError."""
    shape, limit = read(name, config, max(tokens, tokenizer.size)), most(name, config, least)
    if choice.context is not None and not least <= choice.context <= limit:
        raise WeightsError(f"{name} takes {least:,} to {limit:,} tokens of context, not {choice.context:,}.")
    context, device = choice.context or min(usual, limit), chosen(choice.device)
    dtype = torch.float32 if choice.exact else FLOAT.get(device[:4])
    contexts = CONTEXTS if device == "meta" else fitting(name, shape, context, device, least, dtype)
    tied = bool(config.get("tie_word_embeddings"))
    base = Renamed(tensors, shape.num_layers, shape.vocab_size, tied=tied, names=names)
    if not shape.gated and "norm_bias" not in base:
        raise WeightsError(f"{name} lacks the biases of its layer norms; {AGAIN}.")
    stretch = stretched(name, config, shape)
    if device == "cpu":
        torch.set_num_threads(1)  # as in block_llama.py
    model = BlockLlama(name, shape, tokenizer, base, None, device, dtype, contexts, stretch)
    model.max_context = context
    return model


def read(name: str, config: dict[str, Any], tokens: int) -> Config:
    """The sizes, from the hub's config.json. Raises WeightsError for a model that would be computed wrongly."""
    family = str(config.get("model_type"))
    wanted = ACTIVATIONS.get(family, "silu")
    found = config.get("hidden_act", wanted)
    if found != wanted:
        raise WeightsError(
            f"{name} is a {family} with the activation {str(found)[:40]}; only {wanted} can be computed."
        )
    if "quantization_config" in config:
        raise WeightsError(f"{name} is quantised in a way that cannot be read; take its GGUF file or the original.")
    heads = config.get("num_attention_heads")
    return Config.read(
        {
            "vocab_size": tokens,
            "hidden_size": config.get("hidden_size"),
            "num_layers": config.get("num_hidden_layers"),
            "num_heads": heads,
            "num_kv_heads": config.get("num_key_value_heads", heads),
            "intermediate_size": config.get("intermediate_size"),
            "rope_theta": rope(config).get("rope_theta", config.get("rope_theta", 10_000.0)),
            "rms_norm_eps": config.get("rms_norm_eps", config.get("norm_epsilon")),
            "head_dim": config.get("head_dim"),
            "gated": wanted == "silu",
        }
    )


def rope(config: dict[str, Any]) -> dict[str, Any]:
    """What a config says of rotary positions, in either spelling."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, dict) else {}


def stretched(name: str, config: dict[str, Any], shape: Config) -> Tensor | None:
    """By how much wavelengths are longer than usual, [head_dim / 2], as the config says."""
    scaling = rope(config)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return torch.full((shape.head_dim // 2,), float(scaling["factor"]))
        if kind == "llama3":
            return llama3(wavelengths(shape), *(float(scaling[key]) for key in LLAMA3))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"The config of {name} is damaged: its rotary scaling lacks {error}.") from error
    raise WeightsError(f"{name} scales its rotary positions by {str(kind)[:40]!r}, which cannot be computed yet.")


def llama3(lengths: Tensor, factor: float, low: float, high: float, trained: float) -> Tensor:
    """Llama 3.1's: long waves are stretched by the factor, short ones not; waves in between are interpolated."""
    turns = trained / (2 * torch.pi * lengths)  # of a wave within the length of its first training
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - kept) / factor + kept)


def most(name: str, config: dict[str, Any], least: int) -> int:
    """Tokens of context, so that a canvas fits beside them: the smaller of the trained length and the sliding window.
    Raises WeightsError where that is less than `least`."""
    sliding = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    bounds = [bound for bound in (config.get("max_position_embeddings"), sliding) if isinstance(bound, int)]
    limit = min(bounds, default=2048) - MAX_ROWS
    if limit < least:
        raise WeightsError(f"{name} sees {limit + MAX_ROWS:,} tokens at once; {least + MAX_ROWS:,} are needed.")
    return limit


def chosen(device: str) -> str:
    """The device, if it is there. Raises WeightsError."""
    available = torch.cuda.is_available()
    if device.startswith("cuda") and not available:
        raise WeightsError("There is no CUDA device that this torch can use; try `--device cpu`.")
    return ("cuda" if available else "cpu") if device == "auto" else device


def fitting(name: str, shape: Config, context: int, device: str, least: int, dtype: torch.dtype | None) -> int:
    """How many contexts can be kept. Raises DoesNotFit."""
    in_bytes = device == "cpu" and (cpu.chosen() != "torch" or int8.available())
    itemsize = dtype.itemsize if dtype is not None else 1 if in_bytes else 2
    parts = sum(math.prod(shape.shape(matrix)) for matrix in MATRICES)
    size = itemsize * (shape.num_layers * parts + 2 * shape.vocab_size * shape.hidden_size)
    layers = [Kept(shape.num_kv_heads, shape.head_dim)] * shape.num_layers
    kept, room = (dtype or attended()).itemsize, memory.free(device)
    return memory.fit(name, size, layers, shape.vocab_size, context, kept, device, CONTEXTS, room, least)
