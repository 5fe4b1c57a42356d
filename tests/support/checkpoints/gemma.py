"""What is published of Gemma's kind, made small by code: a tokenizer (BPE with `▁` for a space, tokens for bytes and
turns) and a DiffusionGemma of random weights. Transformers has no part in it.
"""

import json
import re
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, normalizers, pre_tokenizers, trainers

from caesura.engine.weights.hub import INDEX

from .tiny import CODE

UNFLAGGED = "<|tool_response>"  # a control token that the file does not call special
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", UNFLAGGED]
PLAIN = "<table>"  # an added token that is text
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer(path: Path, **changes: Any) -> Path:
    """Write it to `path`, with sections of the file replaced by `changes`."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*CONTROL, *BYTES, PLAIN], show_progress=False)
    inner.train_from_iterator(re.findall(r" ?\w+|\s+|.", CODE), trainer)
    file = json.loads(inner.to_str())
    file["added_tokens"] = [
        {**token, "special": token["content"] not in (UNFLAGGED, PLAIN), "lstrip": token["content"] == "<unk>"}
        for token in file["added_tokens"]
        if token["content"] not in BYTES
    ]
    path.write_text(json.dumps({**file, **changes}))
    return path


def leading_to(token: str, file: dict[str, Any]) -> dict[str, Any]:
    """The model section of `file` with merges that spell `token`."""
    model = file["model"]
    vocabulary, merges = dict(model["vocab"]), []
    for end in range(1, len(token)):
        for part in (token[0], token[end], token[: end + 1]):
            vocabulary.setdefault(part, len(vocabulary))
        merges.append([token[:end], token[end]])
    return {**model, "vocab": vocabulary, "merges": merges}


# A checkpoint

D, LAYERS, HEADS, EXPERTS, MOE, VOCABULARY = 64, 3, 4, 4, 32, 640
MLP = 88  # has no whole groups of 16: NVFP4 leaves the matrix that is as wide dense
TEXT = {
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_global_key_value_heads": 1,
    "global_head_dim": 32,
    "vocab_size": VOCABULARY,
    "intermediate_size": MLP,
    "moe_intermediate_size": MOE,
    "num_experts": EXPERTS,
    "top_k_experts": 2,
    "sliding_window": 12,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
}
CONFIG = {"model_type": "diffusion_gemma", "canvas_length": 16, "text_config": TEXT}
NORMS = [f"{place}_layernorm" for place in ("input", "post_attention", "pre_feedforward", "post_feedforward")]
NORMS += ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"]


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the published layout, by its published name."""
    found: dict[str, tuple[int, ...]] = {
        "model.decoder.embed_tokens.weight": (VOCABULARY, D),
        "model.decoder.norm.weight": (D,),
        "model.decoder.self_conditioning.pre_norm.weight": (D,),
        "model.encoder.vision_tower.patch.weight": (8, 8),
    }
    found |= gated("model.decoder.self_conditioning")
    for number, kind in enumerate(TEXT["layer_types"]):  # type: ignore[arg-type, var-annotated]
        at, full = f"model.decoder.layers.{number}", kind == "full_attention"
        width, keys = (32, 1) if full else (16, 2)
        attention = {"q_proj": (HEADS * width, D), "k_proj": (keys * width, D), "o_proj": (D, HEADS * width)}
        attention |= {} if full else {"v_proj": (keys * width, D)}
        found |= {f"{at}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        found |= {f"{at}.self_attn.{name}_norm.weight": (width,) for name in "qk"}
        found |= {f"{at}.{name}.weight": (D,) for name in NORMS} | gated(f"{at}.mlp")
        found |= {f"{at}.router.proj.weight": (EXPERTS, D), f"{at}.router.scale": (D,)}
        found |= {f"{at}.router.per_expert_scale": (EXPERTS,), f"{at}.layer_scalar": (1,)}
        found |= {f"{at}.experts.gate_up_proj": (EXPERTS, 2 * MOE, D), f"{at}.experts.down_proj": (EXPERTS, D, MOE)}
        found[f"model.encoder.language_model.layers.{number}.layer_scalar"] = (1,)
    return found


def gated(at: str) -> dict[str, tuple[int, ...]]:
    wide = {f"{at}.{name}_proj.weight": (MLP, D) for name in ("gate", "up")}
    return {**wide, f"{at}.down_proj.weight": (D, MLP)}


def published(folder: Path) -> Path:
    """A published checkpoint of random weights in two shards."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes().items():
        noise = torch.randn(shape, generator=generator)
        gain = 0.6 if "embed" in name else 0.02  # as in oracle.py: self-conditioning blows nothing up
        tensors[name] = noise * gain if len(shape) > 1 else 1 + 0.2 * noise
    names = sorted(tensors)
    places = {name: f"model-0000{1 + (i > len(names) // 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generation = {"max_denoising_steps": 12, "eos_token_id": [1, CONTROL.index("<turn|>")]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    tokenizer(folder / "tokenizer.json")
    return folder
