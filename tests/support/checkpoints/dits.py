"""Checkpoints of small diffusion transformers, tiny and random, with the hub's tensor names, and what computes the same
from the equations."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu, linear, silu

from .tiny import VOCABULARY, train_tokenizer

HIDDEN, COND, BLOCKS, HEADS, LENGTH = 48, 24, 2, 3, 1024
MASK = VOCABULARY
# By family: what the names of its tensors begin with, and its config.json.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mdlm": (
        "backbone.",
        {
            "model_type": "mdlm",
            "architectures": ["MDLM"],
            "cond_dim": COND,
            "hidden_dim": HIDDEN,
            "model_length": LENGTH,
            "n_blocks": BLOCKS,
            "n_heads": HEADS,
            "time_conditioning": False,
            "vocab_size": MASK + 1,
        },
    ),
    "bd3lm": (
        "backbone.",
        {
            "model_type": "bd3lm",
            "architectures": ["BD3LM"],
            "attn_backend": "sdpa",
            "block_size": 4,
            "cond_dim": COND,
            "cross_attn": True,
            "hidden_dim": HIDDEN,
            "model_length": LENGTH,
            "n_blocks": BLOCKS,
            "n_heads": HEADS,
            "sampling_eps_max": 0.999,
            "sampling_eps_min": 0.001,
            "time_conditioning": False,
            "var_min": True,
            "vocab_size": MASK + 1,
        },
    ),
    "sedd": (
        "",
        {
            "ngpus": 8,
            "tokens": MASK,
            "graph": {"type": "absorb", "file": "data", "report_all": False},
            "noise": {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20},
            "model": {
                "name": "small",
                "type": "ddit",
                "hidden_size": HIDDEN,
                "cond_dim": COND,
                "length": LENGTH,
                "n_blocks": BLOCKS,
                "n_heads": HEADS,
                "scale_by_sigma": True,
                "dropout": 0.1,
            },
        },
    ),
}


def tensors() -> dict[str, Tensor]:
    """Every parameter of a model, random, by its published name."""
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (MASK + 1, HIDDEN),
        "sigma_map.mlp.0": (COND, 256),
        "sigma_map.mlp.2": (COND, COND),
        "output_layer.norm_final": (HIDDEN,),
        "output_layer.linear": (MASK + 1, HIDDEN),
        "output_layer.adaLN_modulation": (2 * HIDDEN, COND),
    }
    for block in range(BLOCKS):
        shapes |= {
            f"blocks.{block}.norm1": (HIDDEN,),
            f"blocks.{block}.attn_qkv": (3 * HIDDEN, HIDDEN),
            f"blocks.{block}.attn_out": (HIDDEN, HIDDEN),
            f"blocks.{block}.norm2": (HIDDEN,),
            f"blocks.{block}.mlp.0": (4 * HIDDEN, HIDDEN),
            f"blocks.{block}.mlp.2": (HIDDEN, 4 * HIDDEN),
            f"blocks.{block}.adaLN_modulation": (6 * HIDDEN, COND),
        }
    generator = torch.Generator().manual_seed(0)
    found = dict[str, Tensor]()
    for name, shape in shapes.items():
        matrix = torch.randn(shape, generator=generator) * (0.5 if len(shape) == 1 else 1.5 / math.sqrt(shape[-1]))
        if "embedding" in name:
            found[name] = matrix
            continue
        found[f"{name}.weight"] = matrix + 1 if "norm" in name else matrix
        if "norm" not in name and "attn" not in name:
            found[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.5
    return found


def oracle(w: Mapping[str, Tensor], ids: list[int], sigma: float, size: int = 0) -> Tensor:
    """The output layer [rows, vocabulary] of the equations of Peebles and Xie 2023 with rotary positions, where every
    row sees every other, or its block and those before it. Float64."""
    w = {name: tensor.double() for name, tensor in w.items()}

    def dense(name: str, x: Tensor) -> Tensor:
        return linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def normed(name: str, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        unit = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return unit * w[f"{name}.weight"] * (1 + scale) + shift

    def turned(x: Tensor) -> Tensor:
        """[rows, heads, width] by complex numbers: column i and column i + width / 2 are one of them."""
        half = x.shape[-1] // 2
        angles = torch.arange(len(ids))[:, None, None] * 10_000.0 ** (-torch.arange(half).double() / half)
        pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((pairs.real, pairs.imag), -1)

    waves = sigma * 10_000.0 ** (-torch.arange(128).double() / 128)
    c = silu(dense("sigma_map.mlp.2", silu(dense("sigma_map.mlp.0", torch.cat((waves.cos(), waves.sin()))))))
    x = w["vocab_embed.embedding"][torch.tensor(ids)]
    for block in range(BLOCKS):
        at = f"blocks.{block}."
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = dense(f"{at}adaLN_modulation", c).chunk(6)
        qkv = dense(f"{at}attn_qkv", normed(f"{at}norm1", x, shift, scale)).view(len(ids), 3, HEADS, -1)
        scores = torch.einsum("rhw,chw->hrc", turned(qkv[:, 0]), turned(qkv[:, 1])) / math.sqrt(HIDDEN // HEADS)
        if size:
            number = torch.arange(len(ids)) // size
            scores = scores.masked_fill(number[:, None] < number, -torch.inf)
        seen = torch.einsum("hrc,chw->rhw", scores.softmax(-1), qkv[:, 2]).flatten(1)
        x = x + gate * dense(f"{at}attn_out", seen)
        inner = gelu(dense(f"{at}mlp.0", normed(f"{at}norm2", x, mlp_shift, mlp_scale)), approximate="tanh")
        x = x + mlp_gate * dense(f"{at}mlp.2", inner)
    shift, scale = dense("output_layer.adaLN_modulation", c).chunk(2)
    return dense("output_layer.linear", normed("output_layer.norm_final", x, shift, scale))


def published(folder: Path, family: str, **changes: Any) -> Path:
    """The folder as a hub has it, and GPT-2's kind of tokenizer in it, with `changes` in its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix, config = FAMILIES[family]
    stored = {prefix + name: tensor for name, tensor in tensors().items()}
    if family == "bd3lm":
        stored |= {name: torch.tensor(config[name]) for name in ("sampling_eps_min", "sampling_eps_max")}
    stored[f"{prefix}rotary_emb.inv_freq"] = torch.zeros(HIDDEN // HEADS // 2)
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | changes))
    file = json.loads(train_tokenizer(folder / "whole.json").read_text())
    (folder / "whole.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(file["model"]["vocab"]))
    merges = (" ".join(merge) for merge in file["model"]["merges"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder
