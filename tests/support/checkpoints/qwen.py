"""A Qwen2 checkpoint as it is published, made small by code. Transformers has no part in it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from caesura.engine.models import _llama_files, load
from caesura.engine.models.block_llama import BlockLlama

from .tiny import VOCABULARY, train_tokenizer

D, MLP, LAYERS, HEADS, KEY_HEADS = 64, 96, 2, 4, 2
CONFIG = {
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": D,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, D), "model.norm.weight": (D,)}
    widths = {"q": D, "k": D // HEADS * KEY_HEADS, "v": D // HEADS * KEY_HEADS}
    for number in range(LAYERS):
        at = f"model.layers.{number}"
        found |= {f"{at}.self_attn.{part}_proj.weight": (width, D) for part, width in {**widths, "o": D}.items()}
        found |= {f"{at}.self_attn.{part}_proj.bias": (width,) for part, width in widths.items()}
        found |= {f"{at}.mlp.{part}_proj.weight": (MLP, D) for part in ("gate", "up")}
        found |= {f"{at}.mlp.down_proj.weight": (D, MLP)}
        found |= {f"{at}.{place}_layernorm.weight": (D,) for place in ("input", "post_attention")}
    return found


def published(folder: Path) -> Path:
    """Random weights, biases and norms that count."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(shape, generator=draw) * 0.1 for name, shape in shapes().items()}
    tensors = {name: values + ("norm" in name) for name, values in noise.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    train_tokenizer(folder / "tokenizer.json")
    return folder


def floats(folder: Path, device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> BlockLlama:
    """The checkpoint on a device with matrices of that type, which on a CPU nobody has."""
    monkeypatch.setitem(_llama_files.FLOAT, device, dtype)
    model = load(str(published(folder)), device)
    assert isinstance(model, BlockLlama)
    return model
