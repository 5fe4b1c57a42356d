"""Checkpoints of the families of full visibility and of blocks, tiny and random, with the hub's tensor names, and what
computes the same in Transformers."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from caesura.engine.models.families import LLADA, LLADA_MOE

from .tiny import train_tokenizer

BOS, EOS, MASK, BARRED, EXPAND = "<|bos|>", "<|endoftext|>", "<|mask|>", "|<MASK>|", "<|expand|>"
SIZES: dict[str, Any] = {
    "vocab_size": 416,  # padded: the tokenizer has fewer
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "mlp_only_layers": [1],
    "head_dim": 16,
}
DREAM = {"model_type": "Dream", "architectures": ["DreamModel"], "mask_token_id": 3}
ALONE = {"num_key_value_heads": SIZES["num_attention_heads"]}
# By family: the type of the trunk in Transformers, what its sizes differ in, what config.json says besides.
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llada": ("llama", ALONE, {"model_type": "llada", "architectures": ["LLaDAModelLM"], "mask_token_id": 3}),
    "dream": ("qwen2", {}, DREAM),
    "dreamon": ("qwen2", {}, DREAM),
    "open_dcoder": ("qwen2", {"tie_word_embeddings": True}, {"model_type": "qwen2"}),
    "a2d_llama": ("llama", {}, {"model_type": "a2d-llama"}),
    "a2d_qwen2": ("qwen2", {}, {"model_type": "a2d-qwen2"}),
    "a2d_qwen3": ("qwen3", {"head_dim": 32}, {"model_type": "a2d-qwen3"}),
    "coda": ("qwen3", {"head_dim": 16}, {"model_type": "CoDA", "mask_token_id": 403}),  # which its tokenizer lacks
    "llada_moe": (
        "qwen3_moe",
        EXPERTS | {"norm_topk_prob": False},
        {"model_type": "llada", "norm_topk_prob": True, "moe_layer_freq": [1, 0, 1], "routed_scaling_factor": 3},
    ),
    "rnd1": (
        "qwen3_moe",
        EXPERTS | {"norm_topk_prob": True},
        {"model_type": "rnd1", "norm_topk_prob": False, "mask_token_id": 3, "rope_scaling": False},
    ),
}
KEYS = {"llada": LLADA.keys, "llada_moe": LLADA_MOE.keys}
BLOCKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sdar": ("qwen3", {"head_dim": 32}, {"model_type": "sdar", "block_size": 4, "mask_token_id": 3}),
    "sdar_moe": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True}, {"model_type": "sdar_moe", "mask_token_id": 3}),
    "stable_diffcoder": ("llama", {}, {"model_type": "llama", "architectures": ["StableDiffcoderForCausalLM"]}),
    "fast_dllm": ("qwen2", {"tie_word_embeddings": True}, {"model_type": "Fast_dLLM_Qwen", "bd_size": 32}),
    "dream_reasoner": ("qwen2", {}, {"model_type": "Dream", "block_size": 32, "mask_token_id": 403}),
    "a2d_bd3lm": ("qwen3", {"head_dim": 16}, {"model_type": "a2d-qwen3"}),
}
ALL = FAMILIES | BLOCKS
SIZE = {"sdar": 4, "sdar_moe": 4, "stable_diffcoder": 4, "fast_dllm": 32, "dream_reasoner": 32, "a2d_bd3lm": 32}
SHIFT = {"dream": 1, "dreamon": 1, "open_dcoder": 1, "coda": 1, "rnd1": 1, "fast_dllm": 1}
LLADA = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
    "model.layers": "model.transformer.blocks",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}


def oracle(family: str, seed: int = 0) -> Any:
    """The native model, every parameter random."""
    trunk, sizes, _ = ALL[family]
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(trunk, **SIZES | sizes, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        scale = 0.1 if parameter.ndim == 1 else 0.2
        parameter.data = torch.randn_like(parameter) * scale + ("norm.weight" in name)
    return model


def stretching(seed: int = 0) -> Any:
    """A random DreamOn that often expands and deletes slots: few other tokens are likely."""
    model = oracle("dreamon", seed)
    likely = torch.full((SIZES["vocab_size"], 1), 0.02)
    likely[range(40, 48)] = 1.0  # some letters
    likely[[0, 4]] = 1.5  # eos and expand
    model.lm_head.weight.data *= likely
    return model


def seen_by_all(model: Any, ids: list[int]) -> Tensor:
    """Its logits [rows, vocabulary] where every row sees every other."""
    return seen_in_blocks(model, ids, len(ids))


def seen_in_blocks(model: Any, ids: list[int], size: int) -> Tensor:
    """The same where every row sees its block and those before it."""
    block = torch.arange(len(ids)) // size
    mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(block[:, None] < block, -torch.inf)
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([ids]), attention_mask=mask).logits[0]
    return found


def published(folder: Path, family: str, model: Any = None) -> Path:
    """The folder as a hub has it."""
    folder.mkdir(parents=True, exist_ok=True)
    _, sizes, said = ALL[family]
    config, model = SIZES | sizes | said, model or oracle(family)
    tensors = apart({name: tensor.contiguous() for name, tensor in model.state_dict().items()})
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    if family == "llada":
        tensors = {renamed(name): tensor for name, tensor in tensors.items()}
    config |= {own: config.pop(hub) for hub, own in KEYS.get(family, {}).items() if hub in config}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    more = {"fast_dllm": [BARRED], "dreamon": [MASK, EXPAND]}.get(family, [MASK])
    train_tokenizer(folder / "tokenizer.json", more=[BOS, *more])
    tokens = {"bos_token": BOS, "eos_token": EOS, "mask_token": {"content": MASK}}
    if family == "fast_dllm":
        del tokens["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return folder


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts as the hub has them, a matrix each; Transformers stacks them."""
    found = dict[str, Tensor]()
    for name, tensor in tensors.items():
        if tensor.ndim < 3:
            found[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            stem, parts = name.rpartition(".")[0], ("gate", "up") if "gate_up" in name else ("down",)
            rows = zip(parts, matrix.chunk(len(parts)), strict=True)
            found |= {f"{stem}.{expert}.{part}_proj.weight": one.contiguous() for part, one in rows}
    return found


def renamed(name: str) -> str:
    for hub, own in LLADA.items():
        name = name.replace(hub, own)
    return name
