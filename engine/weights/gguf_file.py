"""A GGUF file (llama.cpp's format) in the words of the hub: its configuration, its tensors, and its tokenizer.

Import this only to read such a file: the library that it imports takes a tenth of a second.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import msgspec
import numpy as np
import torch
from gguf import TokenType
from torch import Tensor

from caesura.engine.tokens.tokenizer import Tokenizer, TokenizerError
from caesura.engine.tokens.tokenizer_file import LING, LLAMA3, QWEN, File
from caesura.engine.weights import gguf_forms, gguf_reader
from caesura.engine.weights.forms import CodedParts
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import quoted, reason

MAX_SIZE = 1 << 24  # largest number in a configuration
MAX_EXPERTS = 1 << 12  # of a layer
CHUNK = 1 << 18  # values restored at once, which a cache holds

_ATTENTION = {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"} | {"attn_output": "self_attn.o_proj"}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_GATED = {**_NORMS, **_ATTENTION, **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}}
_HEADS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
EXPERTS = {f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")}  # [experts, N, K]
_MIXED = {**_NORMS, **_ATTENTION, **_HEADS, "ffn_gate_inp": "mlp.gate", **EXPERTS}
LAYERS = {  # by architecture, the names of a layer's tensors in GGUF and on the hub
    "llama": _GATED,
    "qwen2": _GATED,
    "qwen3": {**_GATED, **_HEADS},
    "starcoder2": {**_NORMS, **_ATTENTION, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "llada": _GATED,
    "dream": _GATED,
    "llada-moe": _MIXED,
    "rnd1": _MIXED,
}
TYPES = {"llada-moe": "llada"}  # the hub's model_type, where it is another word
GEMMA = "diffusion-gemma"  # the architecture of gguf_gemma.py
INTERLEAVED = ("llama", "llada")  # architectures whose converter interleaves the halves of rotated heads
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FACTORS = "rope_freqs.weight"  # factors that slow Llama 3's rotations
NAME = re.compile(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)")


def _split(expression: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return [split, {**_LEVEL, "use_regex": False}]


_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = [{"type": "Digits", "individual_digits": True}, _LEVEL]
PRETOKENIZERS = {  # by tokenizer.ggml.pre, in the words of tokenizer.json
    "gpt-2": [_LEVEL],
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "qwen2": _split(QWEN),
    "deepseek-r1-qwen": _split(QWEN),
    "llama-bpe": _split(LLAMA3),
    **dict.fromkeys(("llada-moe", "bailingmoe", "bailingmoe2"), _split(LING)),
}
CONTROL = (TokenType.CONTROL, TokenType.UNKNOWN)
ROLES = (
    "bos",
    "eos",
    "eot",
    "eom",
    "mask",
    "padding",
    *(f"fim_{part}" for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
)


class GGUF:
    """A model in one file, or in parts of which any may be named. Raises WeightsError.

    `config` has the form of the hub's config.json; `tensors` are float32, with the hub's names and order of rows, each
    restored on access, or on "meta" without values. Files stay mapped as long as this object lives.
    """

    architectures: Sequence[str] = tuple(LAYERS)

    def __init__(self, path: Path, device: str = "cpu", parts: Sequence[gguf_reader.Reader] = ()) -> None:
        self.path = path
        self._parts = parts or gguf_reader.parts(path)
        self._architecture = self._supported()
        stored = {tensor.name: tensor for part in self._parts for tensor in part.tensors}
        if len(stored) != sum(len(part.tensors) for part in self._parts):
            raise WeightsError(f"{path} has the same tensor in two parts; download it again.")
        factors = stored.pop(FACTORS, None)
        self.layers = self._size("block_count")
        names = dict[str, Mapped]()
        for name, tensor in stored.items():
            names |= self._hub(name, tensor)
        self._complete(names)
        self.config = self._config(names, factors)
        self.tensors = Tensors(path, names, self._interleaved(), device)

    def __repr__(self) -> str:
        return f"<GGUF {self.path.name}: {self._architecture}, {len(self.tensors)} tensors>"

    @property
    def format(self) -> str:
        """The types of its tensors, the most frequent first."""
        counts = Counter(tensor.tensor_type.name for part in self._parts for tensor in part.tensors)
        return ", ".join(name for name, _ in counts.most_common())

    @property
    def roles(self) -> dict[str, str]:
        """Names of the tokens that have a part in prompts and ends, by that part: eos, eot, fim_pre and so on."""
        tokens = self._tokens
        ids = {role: self._value(f"tokenizer.ggml.{role}_token_id") for role in ROLES}
        return {role: tokens[i] for role, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}

    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError."""
        return Tokenizer(self._tokenizer_file(), self.path.name)

    def _supported(self) -> str:
        architecture, kind = self._value("general.architecture"), self._value("general.type", "model")
        names = [tensor.name for part in self._parts for tensor in part.tensors]
        if architecture == "clip" or kind == "mmproj" or any(n.startswith(("v.", "mm.", "a.")) for n in names):
            raise WeightsError(f"{self.path} is of a vision or audio model, which cannot be run; use a model of text.")
        if kind != "model":
            raise WeightsError(
                f"{self.path} holds no model but what GGUF calls {quoted(kind)}; use the model's own file."
            )
        if not isinstance(architecture, str) or architecture not in self.architectures:
            raise WeightsError(
                f"{self.path} holds a model of the architecture {quoted(architecture)}; supported are"
                f" {', '.join((*LAYERS, GEMMA))}."
            )
        return architecture

    def _value(self, key: str, default: Any = None) -> Any:
        return gguf_reader.value(self.path, self._parts[0], key, default)

    def _size(self, key: str, default: int | None = None) -> int:
        value = self._value(f"{self._architecture}.{key}", default)
        if type(value) is not int or not 0 < value <= MAX_SIZE:
            raise WeightsError(f"{self.path} gives no usable {key} ({quoted(value)}); download it again.")
        return value

    def _real(self, key: str, default: float | None = None) -> float:
        value = self._value(f"{self._architecture}.{key}", default)
        if not isinstance(value, float) or not 0 < value < math.inf:
            raise WeightsError(f"{self.path} gives no usable {key} ({quoted(value)}); download it again.")
        return value

    def _hub(self, name: str, tensor: gguf.ReaderTensor) -> "dict[str, Mapped]":
        """A tensor by the hub's name; a stack of experts, each by its own."""
        match = NAME.fullmatch(name)
        layer, part, kind = match.groups() if match else (None, "", "")
        known = (OUTSIDE if layer is None else LAYERS[self._architecture]).get(part)
        if known is None or (layer is not None and int(layer) >= self.layers):
            raise self._without_place(name)
        name = f"{known}.{kind}" if layer is None else f"model.layers.{int(layer)}.{known}.{kind}"
        return self._mapped(name, tensor, stack=part in EXPERTS)

    def _without_place(self, name: str) -> WeightsError:
        return WeightsError(
            f"{self.path} has a tensor {quoted(name)}, which has no place in a model of {self._architecture}; it is of"
            " a kind that cannot be read yet."
        )

    def _mapped(self, name: str, tensor: gguf.ReaderTensor, *, stack: bool) -> "dict[str, Mapped]":
        """A tensor by its name; the matrices of a stack by names in which the expert's number replaces {}."""
        shape = tuple(reversed(tensor.shape.tolist()))
        if not stack:
            return {name: Mapped(tensor.data, shape, tensor.tensor_type)}
        if len(shape) != 3 or shape[0] > MAX_EXPERTS:
            raise WeightsError(f"{self.path}: {name} is no stack of experts; download the file again.")
        return {name.format(i): Mapped(one, shape[1:], tensor.tensor_type) for i, one in enumerate(tensor.data)}

    def _complete(self, names: "Mapping[str, Mapped]") -> None:
        """Raises WeightsError unless every matrix and norm is there with a type that can be restored."""
        missing = next((name for name in self._needed() if name not in names), None)
        if missing is not None:
            raise WeightsError(f"{self.path} has no tensor {missing}; download it again.")
        for kind in {tensor.kind: None for tensor in names.values()}:
            try:
                gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
            except Exception as error:
                raise WeightsError(
                    f"{self.path} has tensors of the type {kind.name}, which cannot be read; use a file in another"
                    " quantisation, such as Q4_K_M or Q8_0."
                ) from error

    def _needed(self) -> Iterator[str]:
        yield from (f"{part}.weight" for part in ("model.embed_tokens", "model.norm"))
        of_layer = [part.format(0) for part in LAYERS[self._architecture].values()]
        yield from (f"model.layers.{layer}.{part}.weight" for layer in range(self.layers) for part in of_layer)

    def _interleaved(self) -> dict[str, int]:
        """The heads in the rows of the projections whose halves llama.cpp interleaves."""
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        return {name: self.config[key] for name, key in heads.items() if self._architecture in INTERLEAVED}

    def _config(self, names: "Mapping[str, Mapped]", factors: Any) -> dict[str, Any]:
        architecture = self._architecture
        starcoder = architecture == "starcoder2"
        hidden, heads = self._size("embedding_length"), self._size("attention.head_count")
        head = self._size("attention.key_length", hidden // heads)
        if self._size("rope.dimension_count", head) != head:
            raise WeightsError(f"{self.path} rotates only a part of each head, which cannot be run.")
        mixed = LAYERS[architecture] is _MIXED
        if self._value(f"{architecture}.expert_count", 0) and not mixed:
            raise WeightsError(f"{self.path} is a mixture of experts, which cannot be run; use a dense model.")
        epsilon = self._real(f"attention.layer_norm_{'' if starcoder else 'rms_'}epsilon")
        config = {
            "model_type": TYPES.get(architecture, architecture),
            "hidden_size": hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self._size("attention.head_count_kv", heads),
            "head_dim": head,
            "intermediate_size": self._size("feed_forward_length", 1 if mixed else None),
            "norm_epsilon" if starcoder else "rms_norm_eps": epsilon,
            "rope_theta": self._real("rope.freq_base", 10000.0),
            "max_position_embeddings": self._size("context_length"),
            "tie_word_embeddings": "lm_head.weight" not in names,
        }
        if mixed:
            config["num_experts"] = self._size("expert_count")
            config["num_experts_per_tok"] = self._size("expert_used_count")
            config["moe_intermediate_size"] = self._size("expert_feed_forward_length")
        mask, shift = self._value("tokenizer.ggml.mask_token_id"), self._value("diffusion.shift_logits")
        config |= {} if mask is None else {"mask_token_id": mask}
        config |= {} if shift is None else {"shift_logits": bool(shift)}
        scaling = self._scaling() if factors is None else self._llama3(factors, config)
        return {**config, "rope_scaling": scaling} if scaling else config

    def _scaling(self) -> dict[str, Any]:
        kind = self._value(f"{self._architecture}.rope.scaling.type", "none")
        if kind == "none":
            return {}
        original = f"{self._architecture}.rope.scaling.original_context_length"
        known = {"original_max_position_embeddings": self._value(original)} if self._value(original) else {}
        return {"rope_type": kind, "factor": self._real("rope.scaling.factor"), **known}

    def _llama3(self, stored: gguf.ReaderTensor, config: Mapping[str, Any]) -> dict[str, Any]:
        """Llama 3's scaling, of which GGUF stores only the factor of each rotation."""
        factors = np.asarray(stored.data, np.float64).ravel()
        scaling = {"rope_type": "llama3", "factor": round(float(factors[-1:].sum()), 3)}
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        turns = (
            8192 / (2 * math.pi) * config["rope_theta"] ** -(np.arange(0, config["head_dim"], 2) / config["head_dim"])
        )
        smooth = ((turns - 1) / 3).clip(0, 1)
        with np.errstate(all="ignore"):
            expected = 1 / ((1 - smooth) / scaling["factor"] + smooth)
        if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
            raise WeightsError(f"{self.path} scales its rotations in a way that is not Llama 3's and cannot be run.")
        return scaling

    @cached_property
    def _tokens(self) -> list[str]:
        tokens = self._value("tokenizer.ggml.tokens")
        return tokens if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens) else []

    def _tokenizer_file(self) -> File:
        """The content of a tokenizer.json."""
        model, before = self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.pre", "")
        name = self.path.name
        if model != "gpt2":
            raise TokenizerError(
                f"{name} has a vocabulary of the kind {quoted(model)}; only byte-level BPE can be read."
            )
        if not isinstance(before, str) or before not in PRETOKENIZERS:
            raise TokenizerError(
                f"{name} has the pre-tokenizer {quoted(before)}, which is not known; known are"
                f" {', '.join(PRETOKENIZERS)}."
            )
        merges = self._value("tokenizer.ggml.merges", [])
        vocabulary, added = self._vocabulary()
        bpe = {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": before == "llama-bpe"}
        raw = {
            "model": bpe,
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRETOKENIZERS[before]},
            "decoder": {"type": "ByteLevel"},
        }
        return self._checked(raw)

    def _checked(self, raw: dict[str, Any]) -> File:
        try:
            return msgspec.convert(raw, File)
        except msgspec.ValidationError as error:
            raise self._bad_vocabulary(reason(error)) from error

    def _vocabulary(self) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Ids by token, and the added tokens, without the unused ids that pad the embedding."""
        tokens, kinds = self._tokens, self._value("tokenizer.ggml.token_type")
        kinds = kinds if isinstance(kinds, list) else [TokenType.NORMAL] * len(tokens)
        if len(kinds) != len(tokens):
            raise self._bad_vocabulary(f"{len(tokens)} tokens, {len(kinds)} types")
        used = [i for i, kind in enumerate(kinds) if kind != TokenType.UNUSED]
        vocabulary = {tokens[i]: i for i in used}
        if len(vocabulary) != len(used):
            raise self._bad_vocabulary("two ids have one token")
        control = {i for i in used if kinds[i] in CONTROL} | {vocabulary.get(name, -1) for name in self.roles.values()}
        added = (i for i in used if i in control or kinds[i] == TokenType.USER_DEFINED)
        return vocabulary, [added_token(tokens[i], i, special=i in control) for i in added]

    def _bad_vocabulary(self, reason: str) -> TokenizerError:
        return TokenizerError(f"The vocabulary of {self.path.name} is damaged ({reason}); download it again.")


def added_token(token: str, number: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, "special": special, **flags}


class Mapped(NamedTuple):
    """A tensor as it lies in the file."""

    data: np.ndarray
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType


class Tensors(Mapping[str, Tensor]):
    """Tensors by name, each mapped from its file and restored to float32 on access. `heads` are the heads in the rows
    of the projections whose halves llama.cpp interleaves."""

    def __init__(self, path: Path, stored: Mapping[str, Mapped], heads: Mapping[str, int], device: str) -> None:
        self._path, self._stored, self._heads, self._device = path, stored, heads, device

    def __getitem__(self, name: str) -> Tensor:
        """Raises WeightsError if the stored parts do not fit together."""
        stored = self._stored[name]
        if self._device == "meta":
            return torch.empty(stored.shape, device="meta")
        try:
            return self._ordered(name, restored(stored))
        except Exception as error:
            raise self._damaged(name, error) from error

    def mapped(self, name: str) -> Mapped:
        """A tensor as it lies in the file."""
        return self._stored[name]

    def form(self, name: str) -> str:
        """See `forms.Coded`."""
        stored = self._stored[name]
        return gguf_forms.FORMS.get(stored.kind, "") if len(stored.shape) == 2 else ""

    def parts(self, name: str) -> tuple[str, CodedParts]:
        """See `forms.Coded`. Raises WeightsError."""
        form, stored = self.form(name), self._stored[name]
        if not form or self._device == "meta":
            return "", ()
        try:
            return form, tuple(self._ordered(name, part) for part in gguf_forms.coded(stored.data, stored.kind))
        except Exception as error:
            raise self._damaged(name, error) from error

    def _ordered(self, name: str, rows: Tensor) -> Tensor:
        heads = self._heads.get(name.split(".")[-2])
        return rows if heads is None else unpermuted(rows, heads)

    def _damaged(self, name: str, error: Exception) -> WeightsError:
        return WeightsError(f"{self._path}: {name} is damaged ({reason(error)}); download it again.")

    def __contains__(self, name: object) -> bool:
        return name in self._stored  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def opened(path: Path, device: str = "cpu") -> GGUF:
    """A model in the words of the hub, by its architecture. Raises WeightsError."""
    from caesura.engine.weights.gguf_gemma import GemmaGGUF  # which is made of this module

    parts = gguf_reader.parts(path)
    gemma = gguf_reader.value(path, parts[0], "general.architecture") == GEMMA
    return (GemmaGGUF if gemma else GGUF)(path, device, parts)


def restored(stored: Mapped) -> Tensor:
    """Restore to float32, some rows at a time as one long row: the library's own 16 rows a call are twice as slow and
    take twice the memory of the whole. Raises ValueError."""
    shape = stored.shape
    out = np.empty(shape, np.float32)
    source, target = stored.data.reshape(-1, stored.data.shape[-1]), out.reshape(-1, shape[-1])
    rows = max(1, CHUNK // shape[-1])
    for at in range(0, len(target), rows):
        with np.errstate(all="ignore"):
            values = gguf.dequantize(source[at : at + rows].reshape(1, -1), stored.kind)
        if not np.isfinite(values).all():
            raise ValueError("a weight is infinite or no number")
        target[at : at + rows] = values.reshape(-1, shape[-1])
    return torch.from_numpy(out)


def unpermuted(tensor: Tensor, heads: int) -> Tensor:
    """Mapped of rotated heads as the hub orders them: the first half of each, then the second."""
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
