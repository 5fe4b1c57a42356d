"""Read published models of the Llama kind: sizes, tensors by name, rotary scaling, and how much fits in memory.

Families differ in names and flags; here their tensors get the names of our stored form, which `BlockLlama` computes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from caesura.engine.cache import FEW
from caesura.engine.canvas.canvas import MAX_ROWS
from caesura.engine.models import LoadChoice
from caesura.engine.models._experts import Mixture
from caesura.engine.models._llama_config import FEEDING, Config, frequencies
from caesura.engine.models._llama_memory import Keeping, fitting, needed, of_weights
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import forms
from caesura.engine.weights.checkpoint import AGAIN, FLOATS, headers, some, stored
from caesura.engine.weights.stored import WeightsError, damaged
from caesura.kernels import cpu
from caesura.model_store.reading import quoted, reason, short

ACTIVATIONS = {"starcoder2": "gelu_pytorch_tanh"}  # by model_type; all others use gated SiLU
FLOAT = {"cuda": torch.bfloat16, "meta": torch.float32}  # dtype of matrices, by device; a CPU uses int8
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
Spellings = dict[str, list[list[str]]]


class Names(NamedTuple):
    """Our tensor name -> spellings in a file; the first spelling that exists wins. A spelling is a list of tensors that
    are stacked by rows. Names in `layer` are appended to `at`, where the layer's number replaces {}."""

    outer: Spellings
    at: str
    layer: Spellings


OUTER: Spellings = {
    "embed": [["model.embed_tokens.weight"], ["model.word_embeddings.weight"]],
    "norm": [["model.norm.weight"]],
    "norm_bias": [["model.norm.bias"]],
    "head": [["lm_head.weight"]],
}
LAYER: Spellings = {
    "attn_norm": [["input_layernorm.weight"]],
    "attn_norm_bias": [["input_layernorm.bias"]],
    "qkv": [[f"self_attn.{part}_proj.weight" for part in "qkv"], ["attention.query_key_value.weight"]],
    "qkv_bias": [[f"self_attn.{part}_proj.bias" for part in "qkv"], ["attention.query_key_value.bias"]],
    "q_norm": [["self_attn.q_norm.weight"], ["attention.query_layernorm.weight"]],
    "k_norm": [["self_attn.k_norm.weight"], ["attention.key_layernorm.weight"]],
    "out": [["self_attn.o_proj.weight"], ["attention.dense.weight"]],
    "out_bias": [["self_attn.o_proj.bias"], ["attention.dense.bias"]],
    "mlp_norm": [["post_attention_layernorm.weight"]],
    "mlp_norm_bias": [["post_attention_layernorm.bias"]],
    "gate_up": [["mlp.gate_proj.weight", "mlp.up_proj.weight"], ["mlp.c_fc.weight"]],
    "gate_up_bias": [["mlp.gate_proj.bias", "mlp.up_proj.bias"], ["mlp.c_fc.bias"]],
    "down": [["mlp.down_proj.weight"], ["mlp.c_proj.weight"]],
    "down_bias": [["mlp.down_proj.bias"], ["mlp.c_proj.bias"]],
}
ROUTER: Spellings = {
    "router": [["mlp.gate.weight"]],
    "router_bias": [["mlp.gate.expert_bias"], ["mlp.expert_bias"]],
}
SHARED: Spellings = {
    "shared.gate_up": [
        ["mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"],
        ["shared_expert.gate_proj.weight", "shared_expert.up_proj.weight"],
    ],
    "shared.down": [["mlp.shared_experts.down_proj.weight"], ["shared_expert.down_proj.weight"]],
}
EXPERT: Spellings = {
    "gate_up": [["mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"]],
    "down": [["mlp.experts.{}.down_proj.weight"]],
}
HUB = Names(OUTER, "model.layers.{}.", LAYER)
ROUNDED = forms.Rounded(
    (
        r"\.(self_attn|mlp)\..*_(proj|fc)\.weight$",
        r"\.shared_expert\.\w+_proj\.weight$",
        r"\.blocks\.\d+\.(\w+_proj|attn_out|ff_out)\.weight$",
        r"\.attention\.(query_key_value|dense)\.weight$",
    ),
    (r"(embed_tokens|word_embeddings|lm_head)\.weight$", r"\.transformer\.(wte|ff_out)\.weight$"),
)
USELESS = (".rotary_emb.inv_freq", ".attn.masked_bias")  # buffers in old files that nothing reads


def canonical(name: str) -> str | None:
    """The stored name, or None for a tensor that is skipped on purpose."""
    return None if name.endswith(USELESS) else name


class Published(Mapping[str, Tensor]):
    """The tensors of a hub folder by name, each read as float32 on access. On the device "meta" they have shapes but no
    values."""

    def __init__(self, folder: Path, device: str) -> None:
        self._entries = forms.matrices([entry for entry in headers(folder) if canonical(entry.name)])
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        form, entries = self._entries[name]
        entry = entries[0]
        if not form and entry.dtype not in FLOATS:
            named = short(name)
            raise WeightsError(f"{entry.path}: {named} has the type {entry.dtype}, not a float type; {AGAIN}.")
        if self._device == "meta":
            return torch.empty(forms.stored_shape(form, entries), device="meta")
        if not form:
            return stored(entry).float()
        try:
            return forms.dense(form, forms.read(form, entries))
        except (RuntimeError, IndexError) as error:
            raise damaged(name, error) from error

    def form(self, name: str) -> str:
        """See `forms.Coded`."""
        return self._entries[name][0]

    def parts(self, name: str) -> tuple[str, forms.CodedParts]:
        """See `forms.Coded`."""
        form, entries = self._entries[name]
        return (form, forms.read(form, entries)) if form and self._device != "meta" else ("", ())

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Renamed(Mapping[str, Tensor]):
    """The tensors of a file under our names. Embedding and head are cut to the number of tokens, because files pad
    them. `progress` is called as in `LoadChoice`."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        layers: int,
        tokens: int,
        *,
        tied: bool,
        names: Names = HUB,
        mixture: Mixture | None = None,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self._tensors, self._tokens, self._progress, self._read = tensors, tokens, progress, set[str]()
        self._parts = dict[str, list[str]]()
        experts = 0 if mixture is None else mixture.count
        if layers > len(tensors) or experts > len(tensors):
            raise WeightsError(
                f"config.json names {layers} layers and {experts} experts; the files lack tensors for them."
            )
        self._find("", names.outer)
        for layer in range(layers):
            self._add(f"layers.{layer}.", names.at.format(layer), names.layer, mixture)
        self.sparse = [layer for layer in range(layers) if f"layers.{layer}.router" in self]  # layers with experts
        used = {part for parts in self._parts.values() for part in parts}
        left = [name for name in tensors if name not in used]
        if left:
            raise WeightsError(
                f"{len(left)} tensors have no place in this model: {some(sorted(left))}; this is another "
                "model, or a format that is not supported yet."
            )
        if tied:
            self._parts.pop("head", None)

    def _add(self, ours: str, theirs: str, layer: Spellings, mixture: Mixture | None) -> None:
        """Add a layer by its prefixes. One with a router has experts instead of an MLP."""
        if mixture is not None:
            self._find(ours, ROUTER, theirs)
        if mixture is None or f"{ours}router" not in self:
            self._find(ours, layer, theirs)
            return
        attention = {name: spellings for name, spellings in layer.items() if name not in FEEDING}
        self._find(ours, attention | (SHARED if mixture.shared else {}), theirs)
        for expert in range(mixture.count):
            self._find(f"{ours}experts.{expert}.", EXPERT, theirs, expert)

    def _find(self, ours: str, names: Spellings, theirs: str = "", expert: int = 0) -> None:
        """Add those of `names`, after the prefixes `ours` and `theirs`, that the file has."""
        for name, spellings in names.items():
            for parts in spellings:
                named = [theirs + part.format(expert) for part in parts]
                if all(part in self._tensors for part in named):
                    self._parts[ours + name] = named
                    break

    def __getitem__(self, name: str) -> Tensor:
        self._reads(name)
        parts = [self._tensors[part] for part in self._parts[name]]
        self._alike(name, parts)
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        if name not in ("embed", "head"):
            return whole
        self._enough(len(whole) if whole.ndim else 0)
        return whole[: self._tokens]

    def form(self, name: str) -> str:
        """See `forms.Coded`; none where the tensors below one another differ in it."""
        found = {forms.named(self._tensors, part) for part in self._parts.get(name, [])}
        return found.pop() if len(found) == 1 else ""

    def parts(self, name: str) -> tuple[str, forms.CodedParts]:
        """See `forms.Coded`. Raises WeightsError."""
        self._reads(name)
        found = [forms.of(self._tensors, part) for part in self._parts[name]]
        if len({form for form, _ in found}) == 1:
            for column in zip(*(parts for _, parts in found), strict=True):
                self._alike(name, column)
        form, parts = forms.stacked(found)
        if form and name in ("embed", "head"):
            self._enough(len(parts[0]))
            return form, tuple(part[: self._tokens] for part in parts)
        return form, parts

    def _alike(self, name: str, parts: Sequence[Tensor]) -> None:
        """Raises WeightsError if tensors cannot be put one below the other."""
        if len(parts) > 1 and (len({part.shape[1:] for part in parts}) > 1 or not all(part.ndim for part in parts)):
            raise WeightsError(f"{some(self._parts[name])} must have the same number of columns; {AGAIN}.")

    def _reads(self, name: str) -> None:
        self._progress(len(self._read) / len(self))  # those before it
        self._read.add(name)

    def _enough(self, rows: int) -> None:
        if rows < self._tokens:
            raise WeightsError(f"The model has {self._tokens} tokens, but weights for only {rows} of them; {AGAIN}.")

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
    steps: Callable[[Config, int, str], Sequence[int]] | None = None,
) -> BlockLlama:
    """The trunk of a model whose `config` has the keys of the hub's Llama. `usual` is the default context in tokens and
    `least` the smallest that a user may choose. `tokens` is the smallest vocabulary, for a tokenizer that lacks some
    ids. If all of the text lies on the canvas, `steps` are the rows that a step can have with so much context on a
    device, most first. Raises WeightsError."""
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
    stretch = stretched(name, config, shape)
    if device == "cpu":
        torch.set_num_threads(1)  # see `block_llama.load`
    model = BlockLlama(name, shape, tokenizer, base, None, device, keeping.dtype, contexts, stretch, keeping.quantise)
    model.max_context, model.rows = context, rows
    return model


def keeping_of(name: str, device: str, choice: LoadChoice, stored: str) -> Keeping:
    """How matrices are kept: as they are `stored`, or as the user wishes. Raises WeightsError for a form that the
    device cannot compute with."""
    dtype = torch.float32 if choice.exact else FLOAT.get(device[:4])
    able = forms.ON_CPU if dtype is None else forms.ON_GPU
    if choice.exact or device == "meta":
        return Keeping(device, dtype)
    if choice.quantise is None:
        return Keeping(device, dtype, stored if dtype is not None and stored in able else "")
    form = forms.OF[choice.quantise]
    if form == "k4" and device == "cpu" and cpu.chosen() == "torch":
        raise WeightsError(f"{name} needs the C kernels for int4 on a CPU; install the program with a C compiler.")
    if form not in able:
        words = " or ".join(word for word, its in forms.OF.items() if its in able)
        raise WeightsError(f"{name} cannot be computed in {choice.quantise} on {device}; choose {words}.")
    return Keeping(device, dtype, form)


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


def stretched(name: str, config: dict[str, Any], shape: Config) -> Tensor | None:
    """The factor [turning / 2] by which the config divides each rotary frequency; None if it does not."""
    scaling = rope(config)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return torch.full((shape.turning // 2,), float(scaling["factor"]))
        if kind == "llama3":
            return llama3(frequencies(shape), *(float(scaling[key]) for key in LLAMA3))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"The config of {name} is damaged: its rotary scaling lacks {reason(error)}.") from error
    raise WeightsError(f"{name} scales its rotary positions by {quoted(kind)}, which is not supported yet.")


def llama3(frequencies: Tensor, factor: float, low: float, high: float, trained: float) -> Tensor:
    """Rotary scaling of Llama 3.1: long waves are stretched by `factor`, short ones are kept, and those in between are
    interpolated."""
    turns = trained * frequencies / (2 * torch.pi)  # turns of a wave within the length of the first training
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - kept) / factor + kept)


def most(name: str, config: dict[str, Any], least: int) -> int:
    """Most tokens of context: the smaller of the trained length and the sliding window, less the rows of a canvas.
    Raises WeightsError if that is less than `least`."""
    sliding = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    bounds = [bound for bound in (config.get("max_position_embeddings"), sliding) if isinstance(bound, int)]
    limit = min(bounds, default=2048) - MAX_ROWS
    if limit < least:
        raise WeightsError(f"{name} sees {limit + MAX_ROWS:,} tokens at once; {least + MAX_ROWS:,} are needed.")
    return limit


def chosen(device: str) -> str:
    """The device to use, for a name or "auto". Raises WeightsError if there is no such device."""
    available = torch.cuda.is_available()
    if device.startswith("cuda") and not available:
        raise WeightsError("There is no CUDA device that this torch can use; try `--device cpu`.")
    return ("cuda" if available else "cpu") if device == "auto" else device
