"""Transformers' DiffusionGemma as the oracle of ours: tiny random checkpoints as they are published, and every step of
a generation recorded.

Eager attention, eager experts and the dynamic cache, in float32: the other ways to run it round differently, and its
static cache is wrong behind the window. Nothing is downloaded.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import tokenizers
import torch
from tokenizers import decoders, normalizers, trainers
from torch import Tensor
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    DynamicCache,
)
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig
from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig
from transformers.utils import logging

from .tiny import CODE

logging.disable_progress_bar()

VOCABULARY, CANVAS, WINDOW = 512, 16, 12
STOPS = (1, 106)
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,  # five sliding, one full
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "sliding_window": WINDOW,
    "max_position_embeddings": 4096,
    "use_bidirectional_attention": "vision",
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 8,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}
NAMED = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>", 50: "<|tool_response>"} | {
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
}


@dataclass(frozen=True)
class Gains:
    """How strong random weights are. With the default, self-conditioning does not blow rounding up from step to step;
    a weak `branch` makes a model that believes its canvas, so that it comes to rest and stops."""

    weights: float = 0.02
    embedding: float = 0.3
    branch: float = 1.0  # what a layer adds to the residual


def build(
    folder: Path,
    *,
    gains: Gains | None = None,
    dtype: torch.dtype = torch.float32,
    shard: str = "1GB",
    text: dict[str, Any] | None = None,
    canvas: int = CANVAS,
    seed: int = 1,
) -> Path:
    """A checkpoint of random weights, with the names, files and config spelling of the published ones. Nothing that
    initialises to one stays one, so that a forgotten multiplication shows."""
    sizes = {**TEXT, **(text or {})}
    last = sizes["vocab_size"] - 1
    config = DiffusionGemmaConfig(
        text_config=DiffusionGemmaTextConfig(**sizes),
        vision_config=Gemma4VisionConfig(**VISION),
        canvas_length=canvas,
        image_token_id=last,
        boi_token_id=last - 1,
        eoi_token_id=last - 2,
    )
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    perturb(model, gains or Gains(), seed)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    stored = json.loads((folder / "config.json").read_text())
    stored["eos_token_id"] = list(STOPS)
    del stored["text_config"]["per_layer_config"]
    stored["text_config"] |= {
        "global_head_dim": sizes["global_head_dim"],
        "num_global_key_value_heads": sizes["num_global_key_value_heads"],
        "final_logit_softcapping": 30.0,
    }
    (folder / "config.json").write_text(json.dumps(stored))
    generation = {
        "max_new_tokens": canvas,
        "max_denoising_steps": 48,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "t_min": 0.4,
        "t_max": 0.8,
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "bos_token_id": 2,
        "eos_token_id": list(STOPS),
        "pad_token_id": 0,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))
    write_tokenizer(folder / "tokenizer.json", sizes["vocab_size"])
    return folder


@torch.no_grad()
def perturb(model: DiffusionGemmaForBlockDiffusion, gains: Gains, seed: int) -> None:
    """Normal weights; norms and scales around one; the layer scalars of the two modes differ."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * (gains.embedding if "embed_tokens" in name else gains.weights))
        elif "norm" in name or name.endswith(("router.scale", "per_expert_scale")):
            added = name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight"))
            parameter.copy_((1 + 0.3 * noise) * (gains.branch if added else 1.0))
    for at, (decoder, encoder) in enumerate(
        zip(model.model.decoder.layers, model.model.encoder.language_model.layers, strict=True)
    ):
        decoder.layer_scalar.fill_(0.55 + 0.05 * at)
        encoder.layer_scalar.fill_(0.60 + 0.04 * at)


def write_tokenizer(path: Path, size: int) -> None:
    """BPE as Gemma's: spaces as ▁, byte fallback, control tokens at their published ids; the rest is learnt."""
    spaces = normalizers.Replace(" ", "▁")
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.normalizer = spaces
    learner.train_from_iterator(CODE.split("\n"), trainers.BpeTrainer(vocab_size=140, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    control = [NAMED.get(id_, f"<unused{id_}>") for id_ in range(107)]
    pieces = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(learnt["vocab"], key=learnt["vocab"].get)]
    pieces += [f"<unused{id_}>" for id_ in range(len(pieces), size)]
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {piece: id_ for id_, piece in enumerate(pieces)},
            [(left, right) for left, right in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    inner.normalizer = spaces
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(control)
    assert inner.get_vocab_size() == size
    inner.save(str(path))


@dataclass(frozen=True)
class Step:
    """One denoise step as Transformers made it: what it was given, what it computed, what it decided."""

    context: list[int]
    canvas: list[int]
    conditioning: Tensor | None  # [canvas, vocabulary]: the step before's logits over its temperature
    remaining: int  # steps, this one included
    logits: Tensor  # [canvas, vocabulary], after the softcap
    entropy: Tensor  # [canvas] nats, at this step's temperature
    accepted: Tensor  # [canvas] bool
    best: Tensor  # [canvas] ids


class Oracle(DiffusionGemmaForBlockDiffusion):
    """Transformers' model, recording. `Oracle.load` makes one."""

    steps: list[Step]

    @classmethod
    def load(cls, folder: Path) -> "Oracle":
        oracle = cls.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
        )
        for part in (oracle.config, oracle.config.text_config):
            assert (part._attn_implementation, part._experts_implementation) == ("eager", "eager")
        oracle.steps = []
        return oracle.eval()

    def _denoising_step(self, **given: Any) -> Any:
        """Transformers' own step, with the forward's answer and the sampler's choice kept."""
        seen: list[Tensor] = []
        forward = given.pop("decoder_forward")

        def listen(**arguments: Any) -> Any:
            output = forward(**arguments)
            seen.append(output.logits)
            return output

        before, canvas = given["self_conditioning_logits"], given["current_canvas"]
        result = super()._denoising_step(decoder_forward=listen, **given)
        scaled = given["logits_processor"](None, seen[0], cur_step=torch.tensor(given["cur_step"], dtype=torch.int32))
        self.steps.append(
            Step(
                context=given["input_ids"][0].tolist(),
                canvas=canvas[0].tolist(),
                conditioning=None if before is None else before[0].clone(),
                remaining=given["cur_step"],
                logits=seen[0][0],
                entropy=torch.distributions.Categorical(logits=scaled[0]).entropy(),
                accepted=given["sampler"].accepted_token_mask[0].clone(),
                best=result[1][0],
            )
        )
        return result

    def write(self, prompt: Sequence[int], *, max_new: int, seed: int, schedule: Any, **more: Any) -> list[int]:
        """The new ids of `generate`; its steps are in `steps`."""
        torch.manual_seed(seed)
        self.steps = []
        output = self.generate(
            torch.tensor([list(prompt)]),
            max_new_tokens=max_new,
            max_denoising_steps=schedule.steps,
            sampler_config=EntropyBoundSamplerConfig(entropy_bound=schedule.entropy_bound),
            t_min=schedule.t_min,
            t_max=schedule.t_max,
            stability_threshold=schedule.stability,
            confidence_threshold=schedule.confidence,
            **more,
        )
        ids: list[int] = output.sequences[0, len(prompt) :].tolist()
        return ids

    @torch.no_grad()
    def encode(self, ids: Sequence[int], cache: DynamicCache | None = None) -> tuple[Tensor, DynamicCache]:
        """The last hidden states [ids, hidden] of the causal mode, and the cache with `ids` appended."""
        cache = cache if cache is not None else DynamicCache(config=self.config.get_text_config(decoder=True))
        start = cache.get_seq_length()
        positions = torch.arange(start, start + len(ids))[None]
        encoder = self.model.encoder
        masks = encoder.create_masks_for_generate(
            config=self.config,
            inputs_embeds=torch.empty(1, len(ids), 0),
            attention_mask=torch.ones(1, start + len(ids), dtype=torch.bool),
            past_key_values=cache,
            position_ids=positions,
        )
        output = encoder(
            input_ids=torch.tensor([list(ids)]), attention_mask=masks, past_key_values=cache, position_ids=positions
        )
        return output.last_hidden_state[0], output.past_key_values

    @torch.no_grad()
    def decode(self, canvas: Sequence[int], cache: DynamicCache, conditioning: Tensor | None = None) -> Tensor:
        """Logits [canvas, vocabulary] of a canvas behind the cache, which stays as it is."""
        start = cache.get_seq_length()
        output = self.forward(
            decoder_input_ids=torch.tensor([list(canvas)]),
            past_key_values=cache,
            self_conditioning_logits=None if conditioning is None else conditioning[None],
            decoder_position_ids=torch.arange(start, start + len(canvas))[None],
        )
        logits: Tensor = output.logits[0]
        return logits
