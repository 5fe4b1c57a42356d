"""Read published models of the Llama kind: sizes, tensors by name, rotary scaling, and how much fits in memory.

Families differ in names and flags; here their tensors get the names of our stored form, which a trunk computes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from caesura.engine.cache import FEW
from caesura.engine.model import MAX_ROWS, LoadChoice, Model, ModelSpec
from caesura.engine.models.devices import chosen
from caesura.engine.models.llama.config import Config, Mixture
from caesura.engine.models.llama.memory import FloatType, Keeping, fitting, needed, of_weights
from caesura.engine.models.llama.names import HUB, Names, Renamed
from caesura.engine.models.llama.names import canonical as canonical
from caesura.engine.models.llama.native import F64, NativeLlama, computes, frequencies, torch_use
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import forms
from caesura.engine.weights.hub import AGAIN
from caesura.engine.weights.sources import Source, Valueless
from caesura.engine.weights.stored import WeightsError
from caesura.engine.weights.tiles import Packing, Unread
from caesura.kernels import cpu
from caesura.model_store import extras
from caesura.model_store.reading import quoted, reason, short

ACTIVATIONS = {"starcoder2": "gelu_pytorch_tanh"}  # by model_type; all others use gated SiLU
FLOATS: dict[str, FloatType] = {"cuda": "bf16", "meta": "f32"}  # floats of matrices, by device; a CPU uses 8 bits
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
Described = Callable[[Config, str, int, int], ModelSpec]  # of sizes, a device, tokens of context and rows of a step
ROUNDED = forms.Rounded(
    (
        r"\.(self_attn|mlp)\..*_(proj|fc)\.weight$",
        r"\.shared_expert\.\w+_proj\.weight$",
        r"\.blocks\.\d+\.(\w+_proj|attn_out|ff_out)\.weight$",
        r"\.attention\.(query_key_value|dense)\.weight$",
    ),
    (r"(embed_tokens|word_embeddings|lm_head)\.weight$", r"\.transformer\.(wte|ff_out)\.weight$"),
)


def built(
    name: str,
    config: dict[str, Any],
    tokenizer: Tokenizer,
    tensors: Source,
    choice: LoadChoice,
    spec: Described,
    *,
    usual: int,
    least: int,
    tokens: int = 0,
    names: Names = HUB,
    steps: Callable[[Config, int, str], Sequence[int]] | None = None,
) -> Model:
    """The trunk of a model whose `config` has the keys of the hub's Llama. `spec` is asked once memory has been
    counted. `usual` is the default context in tokens and `least` the smallest that a user may choose. `tokens` is the
    smallest vocabulary, for a tokenizer that lacks some ids. If all of the text lies on the canvas, `steps` are the
    rows that a step can have with so much context on a device, most first. Raises WeightsError."""
    shape, limit = read(name, config, max(tokens, tokenizer.size)), most(name, config, least)
    if choice.context is not None and not least <= choice.context <= limit:
        raise WeightsError(f"{name} takes {least:,} to {limit:,} tokens of context, not {choice.context:,}.")
    context, device = choice.context or min(usual, limit), chosen(choice.device)
    tied = bool(config.get("tie_word_embeddings"))
    base = Renamed(
        tensors,
        shape.num_layers,
        shape.vocab_size,
        tied=tied,
        names=names,
        mixture=shape.mixture,
        progress=choice.progress,
    )
    keeping = keeping_of(name, device, choice, base.form("layers.0.qkv"))
    # What a drafter reads, torch computes: its vocabulary may be larger than the tokenizer's.
    host = device == "meta" or (device == "cpu" and not keeping.floats)
    if not (ours := host and not choice.tokens and computes(shape)):
        with extras.pytorch_for(torch_use(name)):  # before memory is counted, which asks it what it can do
            from caesura.engine.models.llama.trunk import DTYPES, BlockLlama
    possible = steps(shape, context, device) if steps is not None else [MAX_ROWS]
    contexts, rows = FEW, possible[0]
    if device != "meta":
        size = of_weights(shape, keeping, base.form, tied=tied, sparse=base.sparse)
        whole = steps is not None
        count = partial(fitting, name, shape, size, context, possible, keeping, least, whole=whole)
        contexts, rows = count()
        if choice.beside is not None:
            choice.beside(needed(shape, size, context, possible[-1], keeping, whole=whole))
            contexts, rows = count()
    if not shape.gated and "norm_bias" not in base:
        raise WeightsError(f"{name} lacks the biases of its layer norms; {AGAIN}.")
    described, stretch = spec(shape, device, context, rows), stretched(name, config, shape)
    if ours:
        tiles = Packing(base, keeping.quantise or "q8") if device == "cpu" else Unread(base)
        return cast(Model, NativeLlama(name, shape, tokenizer, described, tiles, None, contexts, stretch))
    weights, dtype = base if device != "meta" else Valueless(base), DTYPES[keeping.floats]
    given = name, shape, tokenizer, described, weights, None, device, dtype, contexts, stretch, keeping.quantise
    return cast(Model, BlockLlama(*given))


def keeping_of(name: str, device: str, choice: LoadChoice, stored: str) -> Keeping:
    """How matrices are kept: as they are `stored`, or as the user wishes. Raises WeightsError for a form that the
    device cannot compute with."""
    floats: FloatType = "f32" if choice.exact else FLOATS.get(device[:4], "")
    able = forms.ON_GPU if floats else forms.ON_CPU
    if choice.exact or device == "meta":
        return Keeping(device, floats)
    if choice.quantise is None:
        return Keeping(device, floats, stored if floats and stored in able else "")
    form = forms.OF[choice.quantise]
    if form == "k4" and device == "cpu" and cpu.chosen() == "torch":
        raise WeightsError(f"{name} needs the C kernels for int4 on a CPU; install the program with a C compiler.")
    if form not in able:
        words = " or ".join(word for word, its in forms.OF.items() if its in able)
        raise WeightsError(f"{name} cannot be computed in {choice.quantise} on {device}; choose {words}.")
    return Keeping(device, floats, form)


def read(name: str, config: dict[str, Any], tokens: int) -> Config:
    """The sizes in a hub config.json. Raises WeightsError for an activation or a quantisation that is not supported."""
    family = short(config.get("model_type"))
    wanted = ACTIVATIONS.get(family, "silu")
    found = config.get("hidden_act", wanted)
    if found != wanted:
        raise WeightsError(f"{name} is a {family} with the activation {short(found)}; only {wanted} is supported.")
    if not forms.readable(config):
        raise WeightsError(
            f"{name} is quantised in a format that is not supported; take its GGUF file or the original weights."
        )
    heads = config.get("num_attention_heads")
    sizes = Config.read(
        {
            "vocab_size": tokens,
            "hidden_size": config.get("hidden_size"),
            "num_layers": config.get("num_hidden_layers"),
            "num_heads": heads,
            "num_kv_heads": config.get("num_key_value_heads", heads),
            "intermediate_size": config.get("intermediate_size", config.get("moe_intermediate_size")),
            "rope_theta": rope(config).get("rope_theta", config.get("rope_theta", 10_000.0)),
            "rms_norm_eps": config.get("rms_norm_eps", config.get("norm_epsilon")),
            "head_dim": config.get("head_dim"),
            "gated": wanted == "silu",
            "rotary": rope(config).get("partial_rotary_factor", config.get("partial_rotary_factor")),
        }
    )
    return replace(sizes, mixture=mixture(name, config))


def mixture(name: str, config: dict[str, Any]) -> Mixture | None:
    """How the rows choose experts, from a config with the keys of Qwen3-MoE and DeepSeek-V3, and with `bias_weighs` as
    `Mixture.weighs`; None for a dense model. Raises WeightsError."""
    count = config.get("num_experts", config.get("num_local_experts"))  # the second is Transformers 5's
    if count is None:
        return None
    score = config.get("score_function") or "softmax"
    if score not in ("softmax", "sigmoid"):
        raise WeightsError(f"{name} scores its experts by {short(score)}; only softmax and sigmoid are supported.")
    try:
        width, shared = int(config["moe_intermediate_size"]), int(config.get("num_shared_experts") or 0)
        found = Mixture(
            count=int(count),
            top=int(config["num_experts_per_tok"]),
            width=width,
            shared=int(config.get("shared_expert_intermediate_size") or width * shared),
            sigmoid=score == "sigmoid",
            renormalised=bool(config.get("norm_topk_prob")),
            scale=float(config.get("routed_scaling_factor") or 1),
            groups=int(config.get("n_group") or 1),
            best_groups=int(config.get("topk_group") or 1),
            weighs=bool(config.get("bias_weighs")),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise WeightsError(f"The config of {name} is damaged: its experts lack {reason(error)}.") from error
    found.check(name)
    return found


def rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings of a config, in either spelling."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, dict) else {}


def stretched(name: str, config: dict[str, Any], shape: Config) -> F64 | None:
    """The factor [turning / 2] by which the config divides each rotary frequency; None if it does not."""
    scaling = rope(config)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return np.full(shape.turning // 2, np.float32(float(scaling["factor"])), np.float64)
        if kind == "llama3":
            return llama3(frequencies(shape.turning, shape.rope_theta), *(float(scaling[key]) for key in LLAMA3))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"The config of {name} is damaged: its rotary scaling lacks {reason(error)}.") from error
    raise WeightsError(f"{name} scales its rotary positions by {quoted(kind)}, which is not supported yet.")


def llama3(frequencies: F64, factor: float, low: float, high: float, trained: float) -> F64:
    """Rotary scaling of Llama 3.1: long waves are stretched by `factor`, short ones are kept, and those in between are
    interpolated."""
    turns = trained * frequencies / (2 * math.pi)  # turns of a wave within the length of the first training
    kept = ((turns - low) / (high - low)).clip(0, 1)
    stretch: F64 = 1 / ((1 - kept) / factor + kept)
    return stretch


def most(name: str, config: dict[str, Any], least: int) -> int:
    """Most tokens of context: the smaller of the trained length and the sliding window, less the rows of a canvas.
    Raises WeightsError if that is less than `least`."""
    sliding = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    bounds = [bound for bound in (config.get("max_position_embeddings"), sliding) if isinstance(bound, int)]
    limit = min(bounds, default=2048) - MAX_ROWS
    if limit < least:
        raise WeightsError(f"{name} sees {limit + MAX_ROWS:,} tokens at once; {least + MAX_ROWS:,} are needed.")
    return limit
