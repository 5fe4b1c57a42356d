"""A Qwen2 checkpoint as it is published, made small by code, without Transformers and PyTorch."""

import json
from pathlib import Path

import numpy as np

from .trained import VOCABULARY, save, train_tokenizer

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
    draw = np.random.default_rng(0)
    noise = {name: 0.1 * draw.standard_normal(shape) for name, shape in shapes().items()}
    tensors = {name: (values + ("norm" in name)).astype(np.float32) for name, values in noise.items()}
    save(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    train_tokenizer(folder / "tokenizer.json")
    return folder
