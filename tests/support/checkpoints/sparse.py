"""Mixtures of experts that Transformers does not have: LLaDA2, and LLaDA-MoE with all that its code knows. Tiny random
checkpoints with the hub's tensor names, and the published equations in plain PyTorch."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from .masked import BOS, EOS, MASK
from .tiny import train_tokenizer

HIDDEN, HEADS, KEYS, WIDTH, LAYERS, EXPERTS, INNER = 64, 4, 2, 32, 3, 16, 32
SIZES: dict[str, Any] = {
    "vocab_size": 416,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "head_dim": WIDTH,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 6e5,
    "tie_word_embeddings": False,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 4,
}
LLADA2 = SIZES | {
    "model_type": "llada2_moe",
    "architectures": ["LLaDA2MoeModelLM"],
    "intermediate_size": 96,
    "moe_intermediate_size": INNER,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "partial_rotary_factor": 0.5,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "use_bias": False,
    "rope_scaling": None,
}
LLADA_MOE = SIZES | {
    "model_type": "llada",
    "architectures": ["LLaDAMoEModelLM"],
    "dense_intermediate_size": 96,
    "expert_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER,
    "moe_layer_freq": [0, 1, 1],
    "moe_router_enable_expert_bias": True,
    "partial_rotary_factor": 1,
    "qk_layernorm": True,
    "clip_qkv": None,
}
AS_LLADA_MOE = {
    "word_embeddings": "embed_tokens",
    "attention.query_layernorm": "self_attn.q_norm",
    "attention.key_layernorm": "self_attn.k_norm",
    "attention.dense": "self_attn.o_proj",
    "mlp.gate.expert_bias": "mlp.expert_bias",
    "mlp.shared_experts": "shared_expert",
}


def tensors() -> dict[str, Tensor]:
    """Random ones, by LLaDA2's names; the first layer is dense."""
    torch.manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape) * 0.2

    def mlp(at: str, inner: int) -> dict[str, Tensor]:
        found = {f"{at}.{part}_proj.weight": random(inner, HIDDEN) for part in ("gate", "up")}
        return found | {f"{at}.down_proj.weight": random(HIDDEN, inner)}

    made = {name: random(416, HIDDEN) for name in ("model.word_embeddings.weight", "lm_head.weight")}
    made["model.norm.weight"] = 1 + random(HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        made |= {f"{at}.{part}_layernorm.weight": 1 + random(HIDDEN) for part in ("input", "post_attention")}
        made |= {f"{at}.attention.{part}_layernorm.weight": 1 + random(WIDTH) for part in ("query", "key")}
        made[f"{at}.attention.query_key_value.weight"] = random((HEADS + 2 * KEYS) * WIDTH, HIDDEN)
        made[f"{at}.attention.dense.weight"] = random(HIDDEN, HEADS * WIDTH)
        if layer == 0:
            made |= mlp(f"{at}.mlp", 96)
            continue
        made |= mlp(f"{at}.mlp.shared_experts", INNER)
        made[f"{at}.mlp.gate.weight"], made[f"{at}.mlp.gate.expert_bias"] = random(EXPERTS, HIDDEN), random(EXPERTS)
        for expert in range(EXPERTS):
            made |= mlp(f"{at}.mlp.experts.{expert}", INNER)
    return made


def reference(t: dict[str, Tensor], config: dict[str, Any], ids: list[int], seen: Tensor | None = None) -> Tensor:
    """Logits [rows, vocabulary] of rows that see what the bool mask `seen` [rows, rows] says, or all."""

    def norm(x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], t[f"{name}.weight"], config["rms_norm_eps"])

    def mlp(x: Tensor, at: str) -> Tensor:
        return (silu(x @ t[f"{at}.gate_proj.weight"].T) * (x @ t[f"{at}.up_proj.weight"].T)) @ t[
            f"{at}.down_proj.weight"
        ].T

    part = int(WIDTH * config["partial_rotary_factor"])
    angles = torch.arange(len(ids))[:, None] / config["rope_theta"] ** (torch.arange(0, part, 2) / part)
    cos, sin = (torch.cat((f(angles), f(angles)), -1)[:, None] for f in (torch.cos, torch.sin))

    def turned(x: Tensor) -> Tensor:
        first, second, rest = x[..., : part // 2], x[..., part // 2 : part], x[..., part:]
        return torch.cat((x[..., :part] * cos + torch.cat((-second, first), -1) * sin, rest), -1)

    def attention(x: Tensor, at: str) -> Tensor:
        rows = (x @ t[f"{at}.query_key_value.weight"].T).unflatten(-1, (-1, WIDTH))
        q, k = turned(norm(rows[:, :HEADS], f"{at}.query_layernorm")), rows[:, HEADS:-KEYS]
        k, v = turned(norm(k, f"{at}.key_layernorm")), rows[:, -KEYS:]
        k, v = (one.repeat_interleave(HEADS // KEYS, 1) for one in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * WIDTH**-0.5
        scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1) @ t[f"{at}.dense.weight"].T

    def experts(x: Tensor, at: str) -> Tensor:
        logits, bias, best = x @ t[f"{at}.gate.weight"].T, t[f"{at}.gate.expert_bias"], config["num_experts_per_tok"]
        out = mlp(x, f"{at}.shared_experts")
        for row in range(len(x)):
            if config["model_type"] == "llada":
                weights, chosen = (logits[row].softmax(-1) + bias).topk(best)
            else:
                scores = logits[row].sigmoid()
                groups = (scores + bias).view(config["n_group"], -1)
                good = set(groups.topk(2).values.sum(-1).topk(config["topk_group"]).indices.tolist())
                order = (scores + bias).argsort(descending=True).tolist()
                chosen = torch.tensor([e for e in order if e // groups.shape[1] in good][:best])
                weights = scores[chosen] / scores[chosen].sum() * config["routed_scaling_factor"]
            for weight, expert in zip(weights, chosen.tolist(), strict=True):
                out[row] += weight * mlp(x[row], f"{at}.experts.{expert}")
        return out

    x = t["model.word_embeddings.weight"][torch.tensor(ids)]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        x = x + attention(norm(x, f"{at}.input_layernorm"), f"{at}.attention")
        rows = norm(x, f"{at}.post_attention_layernorm")
        x = x + (experts if layer else mlp)(rows, f"{at}.mlp")
    return norm(x, "model.norm") @ t["lm_head.weight"].T


def published(folder: Path, config: dict[str, Any]) -> Path:
    """The folder as a hub has it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = tensors()
    if config["model_type"] == "llada":
        made = {name: one.contiguous() for name, tensor in made.items() for name, one in as_llada_moe(name, tensor)}
    save_file(made, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    train_tokenizer(folder / "tokenizer.json", more=[BOS, MASK])
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": BOS, "eos_token": EOS, "mask_token": {"content": MASK}})
    )
    return folder


def as_llada_moe(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    for ours, theirs in AS_LLADA_MOE.items():
        name = name.replace(ours, theirs)
    if "query_key_value" not in name:
        return [(name, tensor)]
    parts = tensor.split([HEADS * WIDTH, KEYS * WIDTH, KEYS * WIDTH])
    return [
        (name.replace("attention.query_key_value", f"self_attn.{part}_proj"), one)
        for part, one in zip("qkv", parts, strict=True)
    ]
