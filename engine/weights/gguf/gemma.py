"""DiffusionGemma in a GGUF file: llama.cpp's architecture `diffusion-gemma`, in the words of the hub.

Names and keys are those of llama.cpp's converter. It stores norms as they are and does not permute rotated heads; a
stack of experts has the gate's rows first, as on the hub. A layer of full attention has no values (they are its keys),
and how much of its heads is rotated is told by `rope_freqs`: 1 for a pair that is, a huge factor for one that is not.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caesura.engine.model import Quantise
from caesura.engine.tokens.tokenizer import TokenizerError
from caesura.engine.tokens.tokenizer_file import File
from caesura.engine.weights import forms, tensors
from caesura.engine.weights.forms import OF, Rounded
from caesura.engine.weights.gguf.file import GEMMA, GGUF, MAX_SIZE, added_token
from caesura.engine.weights.mapped import Entry
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import linear
from caesura.kernels.linear import Dense, Linear
from caesura.model_store.reading import quoted

OUTSIDE = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
    "self_cond_pre_norm.weight": "self_conditioning.pre_norm.weight",
    **{f"self_cond_{part}.weight": f"self_conditioning.{part}_proj.weight" for part in ("gate", "up", "down")},
}
EXPERTS = {
    "ffn_gate_up_exps.weight": "layers.{}.experts.{{}}.gate_up_proj.weight",
    "ffn_down_exps.weight": "layers.{}.experts.{{}}.down_proj.weight",
}
_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "post_ffw_norm": "post_feedforward_layernorm",
}
LAYER = {
    **{f"{part}.weight": f"layers.{{}}.{norm}.weight" for part, norm in _NORMS.items()},
    **{f"attn_{part}.weight": f"layers.{{}}.self_attn.{part}_proj.weight" for part in "qkv"},
    **{f"attn_{part}_norm.weight": f"layers.{{}}.self_attn.{part}_norm.weight" for part in "qk"},
    "attn_output.weight": "layers.{}.self_attn.o_proj.weight",
    **{f"ffn_{part}.weight": f"layers.{{}}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    "ffn_gate_inp.weight": "layers.{}.router.proj.weight",
    "ffn_gate_inp.scale": "layers.{}.router.scale",
    "ffn_down_exps.scale": "layers.{}.router.per_expert_scale",
    "layer_output_scale.weight": "layers.{}.layer_scalar",
    "enc_layer_output_scale.weight": "encoder.layers.{}.layer_scalar",
    **EXPERTS,
}
NAME = re.compile(r"(?:blk\.(\d{1,4})\.)?([a-z0-9_]+\.(?:weight|scale))")
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
NEVER = 1e20  # from here on a rotation's factor says that there is none; llama.cpp writes 1e30
SCHEDULE = {  # settings of generation_config.json, by the ends of their keys
    "max_denoising_steps": "max_steps",
    "t_min": "t_min",
    "t_max": "t_max",
    "stability_threshold": "stability_threshold",
    "confidence_threshold": "confidence_threshold",
}


class GemmaGGUF(GGUF):
    """`config` has the form of DiffusionGemma's config.json, with the schedule in it. Each matrix of a stack of experts
    has a name of its own."""

    architectures = (GEMMA,)

    def _hub(self, name: str, tensor: Entry) -> dict[str, Entry]:
        match = NAME.fullmatch(name)
        layer, part = match.groups() if match else (None, "")
        known = (OUTSIDE if layer is None else LAYER).get(part)
        if known is None or (layer is not None and int(layer) >= self.layers):
            raise self._without_place(name)
        return self._named(known if layer is None else known.format(int(layer)), tensor, stack=part in EXPERTS)

    def _needed(self) -> Iterator[str]:
        yield from (name for part, name in OUTSIDE.items() if part != "output.weight")
        yield from (
            LAYER["attn_norm.weight"].format(layer) for layer in range(self.layers)
        )  # the loader checks the rest

    def _interleaved(self) -> dict[str, int]:
        return {}

    def _config(self, names: Mapping[str, Entry], factors: Entry | None) -> dict[str, Any]:
        sliding, heads = self._each("attention.sliding_window_pattern"), self._each("attention.head_count_kv")
        width, full = self._head("_swa"), self._head("")
        for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
            if self._value(f"{GEMMA}.{key}", 0):
                raise WeightsError(f"{self.path} has {key}, which DiffusionGemma does not have; it is another model.")
        rope = {
            "sliding_attention": {"rope_type": "default", "rope_theta": self._real("rope.freq_base_swa")},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": self._real("rope.freq_base"),
                "partial_rotary_factor": self._rotated(factors, full),
            },
        }
        text = {
            "vocab_size": names["embed_tokens.weight"].shape[0],
            "hidden_size": self._size("embedding_length"),
            "intermediate_size": self._size("feed_forward_length"),
            "moe_intermediate_size": self._size("expert_feed_forward_length"),
            "num_experts": self._size("expert_count"),
            "top_k_experts": self._size("expert_used_count"),
            "num_hidden_layers": self.layers,
            "layer_types": ["sliding_attention" if one else "full_attention" for one in sliding],
            "num_attention_heads": self._size("attention.head_count"),
            "num_key_value_heads": heads[0],
            "head_dim": width,
            "per_layer_config": {
                str(layer): {"head_dim": width if slides else full, "num_key_value_heads": count}
                for layer, (slides, count) in enumerate(zip(sliding, heads, strict=True))
            },
            "sliding_window": self._size("attention.sliding_window"),
            "max_position_embeddings": self._size("context_length"),
            "rms_norm_eps": self._real("attention.layer_norm_rms_epsilon"),
            "final_logit_softcapping": self._real("final_logit_softcapping", 30.0),
            "rope_parameters": rope,
        }
        said = {name: self._value(f"diffusion.eb_{key}") for name, key in SCHEDULE.items()}
        sampler = {"entropy_bound": self._value("diffusion.eb_entropy_bound")}
        canvas = self._value("diffusion.canvas_length")
        if not isinstance(canvas, int):
            raise WeightsError(
                f"{self.path} gives no usable diffusion.canvas_length ({quoted(canvas)}); take another file."
            )
        return {
            "model_type": "diffusion_gemma",
            "canvas_length": canvas,
            "text_config": text,
            "sampler_config": sampler,
            **said,
        }

    def _each(self, key: str) -> list[int]:
        """A number of each layer; one for all where the file has one."""
        value = self._value(f"{GEMMA}.{key}")
        found = value if isinstance(value, list) else [value] * self.layers
        if len(found) != self.layers or not all(isinstance(n, int) and 0 <= n <= MAX_SIZE for n in found):
            raise WeightsError(f"{self.path} gives no usable {key} ({quoted(value)}); download it again.")
        return found

    def _head(self, kind: str) -> int:
        """The width of a head, whose values are as wide as its keys and all of which can be rotated."""
        width = self._size(f"attention.key_length{kind}")
        if {self._size(f"{key}{kind}", width) for key in ("attention.value_length", "rope.dimension_count")} != {width}:
            raise WeightsError(f"{self.path} has heads that are not DiffusionGemma's; it is another model.")
        return width

    def _rotated(self, factors: Entry | None, width: int) -> float:
        """The rotated part of a head of full attention."""
        found = np.empty(0) if factors is None else self._factors(factors)
        count = int((found == 1).sum())
        if len(found) != width // 2 or not (found[:count] == 1).all() or not (found[count:] > NEVER).all():
            raise WeightsError(f"{self.path} scales its rotations in a way that is not DiffusionGemma's.")
        return 2 * count / width

    def _tokenizer_file(self) -> File:
        model, merges = self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.merges", [])
        if model != "gemma4":
            raise TokenizerError(
                f"{self.path.name} has a vocabulary of the kind {quoted(model)}; DiffusionGemma's is 'gemma4'."
            )
        vocabulary, added = self._vocabulary()
        known = {token["content"] for token in added}
        # Added tokens that are text have the type of all others in a file; those that no merge makes are told by that.
        made = {str(merge).replace(" ", "", 1) for merge in (merges if isinstance(merges, list) else [])} | known
        apart = [token for token in vocabulary if len(token) > 1 and token not in made and not BYTE.fullmatch(token)]
        bpe = {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": "<unk>"}
        return self._checked(
            {
                "model": {**bpe, "fuse_unk": True, "byte_fallback": True},
                "added_tokens": added + [added_token(token, vocabulary[token], special=False) for token in apart],
                "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"String": " "},
                    "behavior": "MergedWithPrevious",
                    "invert": False,
                },
                "decoder": {
                    "type": "Sequence",
                    "decoders": [{"type": step} for step in ("Replace", "ByteFallback", "Fuse")],
                },
            }
        )


class Restored:
    """The tensors of a file as `Checkpoint` gives those of a folder, each restored when it is taken. What is `rounded`
    is then kept in the form that the user asked for; all else is of type `dtype`. Every method raises WeightsError."""

    def __init__(
        self, file: GGUF, rounded: Rounded, quantise: Quantise | None, device: str, *, exact: bool = False
    ) -> None:
        self._file, self._rounded, self._device = file, "|".join(rounded.matrices), device
        self._form = "" if quantise is None else OF[quantise]
        plain = file.tensors.kind("embed_tokens.weight") == "F32"
        self.dtype = torch.float32 if exact or plain else torch.bfloat16
        self._left = set(file.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in memory."""
        plain = "f32" if self.dtype == torch.float32 else "bf16"
        shapes = {name: self._file.tensors.shape(name) for name in self._file.tensors}
        return sum(
            forms.nbytes(self._form_of(name, shape) or plain, math.prod(shape[:-1]), shape[-1])
            for name, shape in shapes.items()
        )

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        self._has(name)
        found = self._file.tensors.shape(name)
        if found != shape:
            raise WeightsError(
                f"{self._file.path}: {name} has the shape {list(found)} instead of {list(shape)}; download it again."
            )
        self._left.remove(name)
        if self._device == "meta":
            return torch.empty(shape, device="meta", dtype=dtype or self.dtype)
        return tensors.of(self._file.tensors.floats(name)).to(self._device, dtype or self.dtype)

    def optional(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor | None:
        return self.tensor(name, shape, dtype) if name in self._left else None

    def linear(self, stem: str, shape: tuple[int, int], dtype: torch.dtype | None = None) -> Linear:
        form = self._form_of(f"{stem}.weight", shape)
        if not form or self._device == "meta":
            return Dense(self.tensor(f"{stem}.weight", shape, dtype))
        return tensors.linear(form, tensors.quantised(form, self.tensor(f"{stem}.weight", shape, torch.float32)))

    def experts(
        self,
        stem: str,
        joined: str,
        parts: Sequence[str],
        shape: tuple[int, int, int],
        dtype: torch.dtype | None = None,
    ) -> Linear:
        count, rows, columns = shape
        self._has(f"{stem}.{count - 1}.{joined}.weight")  # before the stack is allocated
        matrices = ([self.linear(f"{stem}.{e}.{joined}", (rows, columns), dtype)] for e in range(count))
        return linear.stack(matrices, count, self._device)

    def _has(self, name: str) -> None:
        if name not in self._left:
            raise WeightsError(f"{self._file.path} has no tensor {name}, which this model needs; download it again.")

    def finish(self) -> None:
        if self._left:
            raise WeightsError(
                f"{self._file.path} has {len(self._left)} tensors without a place in this model, such as"
                f" {min(self._left)}; it is another model."
            )

    def _form_of(self, name: str, shape: tuple[int, ...]) -> str:
        """The form that a tensor is kept in; none where it stays a float."""
        fitting = self._form and len(shape) > 1 and forms.fits(self._form, shape[-1])
        return self._form if fitting and re.search(self._rounded, name) else ""
