"""The files of a mini DiffusionGemma, as Transformers and the engine load them: written, and read back into the net."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mini_net import Net, Shape  # isort: skip  (beside this script)


def config(shape: Shape) -> dict[str, Any]:
    """config.json as the published checkpoints spell it. The vision part is as small as it can be: Transformers builds
    a tower from it, whether the checkpoint has one or not."""
    text = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense,
        "num_hidden_layers": len(shape.layers),
        "layer_types": [f"{kind}_attention" for kind in shape.layers],
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width,
        "global_head_dim": shape.full_width,
        "num_global_key_value_heads": shape.full_kv_heads,
        "num_experts": shape.experts,
        "top_k_experts": shape.top,
        "moe_intermediate_size": shape.expert,
        "sliding_window": shape.window,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": shape.softcap,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "use_bidirectional_attention": "vision",
        "tie_word_embeddings": True,
        "pad_token_id": shape.eos,
        "bos_token_id": None,
        "eos_token_id": shape.eos,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        },
    }
    vision = {
        "model_type": "gemma4_vision",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "patch_size": 2,
        "pooling_kernel_size": 1,
        "position_embedding_size": 4,
    }
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": shape.canvas,
        "tie_word_embeddings": True,
        "image_token_id": 1,
        "boi_token_id": 2,
        "eoi_token_id": 3,
        "eos_token_id": shape.eos,
        "pad_token_id": shape.eos,
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
    }


def generation_config(shape: Shape) -> dict[str, Any]:
    return {
        "max_new_tokens": shape.canvas,
        "max_denoising_steps": 48,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "t_min": 0.4,
        "t_max": 0.8,
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "eos_token_id": [shape.eos],
        "pad_token_id": shape.eos,
    }


def read(folder: Path, shape: Shape) -> Net:
    """The net of a checkpoint. Every token is a token of the task, so that the embedding's rows are those stored."""
    net, stored = Net(shape, list(range(shape.vocabulary))), load_file(folder / "model.safetensors")
    with torch.no_grad():
        net.task.copy_(stored["model.decoder.embed_tokens.weight"])
        for name, p in net.params.items():
            p.copy_(stored[name.replace("/", ".")])
        for mode, stem in (("decoder", "model.decoder"), ("encoder", "model.encoder.language_model")):
            for i in range(len(shape.layers)):
                net.scalars[mode][i] = stored[f"{stem}.layers.{i}.layer_scalar"][0]
    return net


def write(net: Net, tokenizer: Path, folder: Path) -> None:
    """The model's folder: config.json, generation_config.json, tokenizer.json, model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("config", config(net.shape)), ("generation_config", generation_config(net.shape))):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    shutil.copy(tokenizer, folder / "tokenizer.json")
    save_file(net.export(), folder / "model.safetensors", {"format": "pt"})
