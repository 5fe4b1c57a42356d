"""A GGUF file (llama.cpp's format) in the words of the hub: its configuration, its tensors, and its tokenizer."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from caesura.engine.tokens.tokenizer import Tokenizer, TokenizerError
from caesura.engine.tokens.tokenizer_file import LING, LLAMA3, QWEN, File
from caesura.engine.weights import mapped
from caesura.engine.weights.gguf import reader
from caesura.engine.weights.gguf.reader import NAMED
from caesura.engine.weights.mapped import Array, Entry
from caesura.engine.weights.sources import RowReader, Source
from caesura.engine.weights.stored import WeightsError
from caesura.kernels.cpu import F32, library, repack
from caesura.kernels.cpu.repack import RowBlocks
from caesura.model_store.reading import quoted, reason

MAX_SIZE = 1 << 24  # largest number in a configuration
MAX_EXPERTS = 1 << 12  # of a layer
CHUNK = 1 << 18  # values restored at once by the library, which a cache holds

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
GEMMA = "diffusion-gemma"  # the architecture of gemma.py
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
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)  # types of tokens
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

    `config` has the form of the hub's config.json; `tensors` have the hub's names and order of rows.
    """

    architectures: Sequence[str] = tuple(LAYERS)

    def __init__(self, path: Path, parts: Sequence[reader.Reader] = ()) -> None:
        self.path = path
        self._parts = parts or reader.parts(path)
        self._architecture = self._supported()
        stored = {tensor.name: tensor for part in self._parts for tensor in part.tensors}
        if len(stored) != sum(len(part.tensors) for part in self._parts):
            raise WeightsError(f"{path} has the same tensor in two parts; download it again.")
        factors = stored.pop(FACTORS, None)
        self.layers = self._size("block_count")
        names = dict[str, Entry]()
        for name, tensor in stored.items():
            names |= self._hub(name, tensor)
        self._complete(names)
        self.config = self._config(names, factors)
        self.tensors = Tensors(path, names, self._interleaved())

    def __repr__(self) -> str:
        return f"<GGUF {self.path.name}: {self._architecture}, {len(self.tensors)} tensors>"

    @property
    def format(self) -> str:
        """The types of its tensors, the most frequent first."""
        counts = Counter(tensor.dtype for part in self._parts for tensor in part.tensors)
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
        return reader.value(self.path, self._parts[0], key, default)

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

    def _hub(self, name: str, tensor: Entry) -> dict[str, Entry]:
        """A tensor by the hub's name; a stack of experts, each by its own."""
        match = NAME.fullmatch(name)
        layer, part, kind = match.groups() if match else (None, "", "")
        known = (OUTSIDE if layer is None else LAYERS[self._architecture]).get(part)
        if known is None or (layer is not None and int(layer) >= self.layers):
            raise self._without_place(name)
        name = f"{known}.{kind}" if layer is None else f"model.layers.{int(layer)}.{known}.{kind}"
        return self._named(name, tensor, stack=part in EXPERTS)

    def _without_place(self, name: str) -> WeightsError:
        return WeightsError(
            f"{self.path} has a tensor {quoted(name)}, which has no place in a model of {self._architecture}; it is of"
            " a kind that cannot be read yet."
        )

    def _named(self, name: str, tensor: Entry, *, stack: bool) -> dict[str, Entry]:
        """A tensor by its name; the matrices of a stack by names in which the expert's number replaces {}."""
        if not stack:
            return {name: tensor}
        count, *shape = tensor.shape
        if len(shape) != 2 or not 0 < count <= MAX_EXPERTS:
            raise WeightsError(f"{self.path}: {name} is no stack of experts; download the file again.")
        size = tensor.nbytes // count
        matrices = (
            replace(tensor, shape=tuple(shape), begin=tensor.begin + i * size, nbytes=size) for i in range(count)
        )
        return {name.format(i): matrix for i, matrix in enumerate(matrices)}

    def _complete(self, names: Mapping[str, Entry]) -> None:
        """Raises WeightsError unless every matrix and norm is there with a type that can be restored."""
        missing = next((name for name in self._needed() if name not in names), None)
        if missing is not None:
            raise WeightsError(f"{self.path} has no tensor {missing}; download it again.")
        for kind in {tensor.dtype: None for tensor in names.values()}:
            try:
                restored(kind, np.zeros((1, NAMED[kind].nbytes), np.uint8), NAMED[kind].columns)
            except Exception as error:
                raise WeightsError(
                    f"{self.path} has tensors of the type {kind}, which cannot be read; use a file in another"
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

    def _config(self, names: Mapping[str, Entry], factors: Entry | None) -> dict[str, Any]:
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

    def _factors(self, stored: Entry) -> NDArray[np.float64]:
        """Factors of rotations."""
        try:
            return floats(stored).ravel().astype(np.float64)
        except Exception as error:
            raise reader.damaged(self.path, error) from error

    def _scaling(self) -> dict[str, Any]:
        kind = self._value(f"{self._architecture}.rope.scaling.type", "none")
        if kind == "none":
            return {}
        original = f"{self._architecture}.rope.scaling.original_context_length"
        known = {"original_max_position_embeddings": self._value(original)} if self._value(original) else {}
        return {"rope_type": kind, "factor": self._real("rope.scaling.factor"), **known}

    def _llama3(self, stored: Entry, config: Mapping[str, Any]) -> dict[str, Any]:
        """Llama 3's scaling, of which GGUF stores only the factor of each rotation."""
        factors = self._factors(stored)
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
        kinds = kinds if isinstance(kinds, list) else [NORMAL] * len(tokens)
        if len(kinds) != len(tokens):
            raise self._bad_vocabulary(f"{len(tokens)} tokens, {len(kinds)} types")
        used = [i for i, kind in enumerate(kinds) if kind != UNUSED]
        vocabulary = {tokens[i]: i for i in used}
        if len(vocabulary) != len(used):
            raise self._bad_vocabulary("two ids have one token")
        control = {i for i in used if kinds[i] in (CONTROL, UNKNOWN)}
        control |= {vocabulary.get(name, -1) for name in self.roles.values()}
        added = (i for i in used if i in control or kinds[i] == USER_DEFINED)
        return vocabulary, [added_token(tokens[i], i, special=i in control) for i in added]

    def _bad_vocabulary(self, reason: str) -> TokenizerError:
        return TokenizerError(f"The vocabulary of {self.path.name} is damaged ({reason}); download it again.")


def added_token(token: str, number: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, "special": special, **flags}


class Tensors(Source):
    """Tensors by name, each mapped from its file as long as an array of it is held. `heads` are the heads in the rows
    of the projections whose halves llama.cpp interleaves."""

    def __init__(self, path: Path, stored: Mapping[str, Entry], heads: Mapping[str, int]) -> None:
        super().__init__(stored)
        self._path, self._stored, self._heads = path, stored, heads

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored[name].shape

    def kind(self, name: str) -> str:
        """The type of a tensor in the file, such as Q4_K."""
        return self._stored[name].dtype

    def floats(self, name: str) -> F32:
        try:
            return self._ordered(name, floats(self._stored[name]))
        except Exception as error:
            raise self._damaged(name, error) from error

    def form(self, name: str) -> str:
        stored = self._stored[name]
        return repack.KEPT.get(stored.dtype, "") if len(stored.shape) == 2 else ""

    def blocks(self, name: str) -> Sequence[RowBlocks]:
        stored = self._stored[name]
        if len(stored.shape) != 2 or not stored.nbytes:
            return ()
        if stored.dtype not in repack.KINDS:
            return [repack.plain(self.floats(name))]
        try:
            return [RowBlocks(stored.dtype, self._ordered(name, rows(stored)), stored.shape[1])]
        except Exception as error:
            raise self._damaged(name, error) from error

    def table(self, name: str) -> RowReader:
        """A row that is no number stays one: only a pass that reads it fails."""
        stored = self._stored[name]
        try:
            whole = rows(stored)
        except Exception as error:
            raise self._damaged(name, error) from error
        return lambda ids: values(stored.dtype, whole[ids], stored.shape[-1])[0]

    def _ordered(self, name: str, rows: Array) -> Array:
        heads = self._heads.get(name.split(".")[-2])
        return rows if heads is None else unpermuted(rows, heads)

    def _damaged(self, name: str, error: Exception) -> WeightsError:
        return WeightsError(f"{self._path}: {name} is damaged ({reason(error)}); download it again.")


def rows(stored: Entry) -> Array:
    """The bytes of a tensor, uint8 [rows, bytes of a row]. Raises Damaged or UnusableModel."""
    kind = NAMED[stored.dtype]
    return mapped.raw(stored).reshape(-1, stored.shape[-1] // kind.columns * kind.nbytes)


def floats(stored: Entry) -> F32:
    """A tensor in float32. Raises ValueError, Damaged or UnusableModel."""
    return restored(stored.dtype, rows(stored), stored.shape[-1]).reshape(stored.shape)


def restored(kind: str, blocks: Array, columns: int) -> F32:
    """RowReader of blocks, uint8 [rows, bytes of a row] -> float32 [rows, columns]. Raises ValueError."""
    found, good = values(kind, blocks, columns)
    if not good:
        raise ValueError("a weight is infinite or no number")
    return found


def values(kind: str, blocks: Array, columns: int) -> tuple[F32, bool]:
    """As `restored`, and whether all are numbers."""
    if kind in repack.KINDS and library() is not None:
        return repack.values(RowBlocks(kind, blocks, columns))
    return by_gguf(kind, blocks, columns)


def by_gguf(kind: str, blocks: Array, columns: int) -> tuple[F32, bool]:
    """The same by the library of llama.cpp's makers, for types that our own C lacks. Some rows at a time, as one long
    row: its own 16 rows a call are twice as slow and take twice the memory of the whole."""
    import gguf  # takes a tenth of a second

    out, good = np.empty((len(blocks), columns), np.float32), True
    some = max(1, CHUNK // columns)
    for at in range(0, len(out), some):
        with np.errstate(all="ignore"):
            found = gguf.dequantize(blocks[at : at + some].reshape(1, -1), gguf.GGMLQuantizationType[kind])
        good = good and bool(np.isfinite(found).all())
        out[at : at + some] = found.reshape(-1, columns)
    return out, good


def unpermuted(rows: Array, heads: int) -> Array:
    """RowReader of rotated heads as the hub orders them: the first half of each, then the second."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
