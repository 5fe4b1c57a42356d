"""The families of checkpoints: one table over config.json; the first row that fits wins. A row names the kind of
visibility that loads it (causal.py, full.py, blocks.py), or a module of its own, and the traits of its training.
"""

import importlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from caesura.engine.models.llama.names import HUB, Names
from caesura.engine.weights.stored import WeightsError
from caesura.model_store import extras
from caesura.model_store.reading import UnusableModel, fields, quoted, short

DRAFTER = "is a drafter of another model and cannot be used by itself; name that model, and this folder as --draft"
INDEL = "chooses experts by the block and inserts and deletes tokens, as LLaDA2.2 does, which is not supported yet"
IMAGES = "reads and draws images, which is not supported"
BLOCKS = "is denoised block by block, which is not supported yet"
RANDOM = "was trained on random tokens as noise, in a way that is not supported yet"
CONTINUOUS = "denoises embeddings, not tokens, which is not supported"
CAUSAL = "denoises under a causal mask, which is not supported yet"
OTHER = "is of another class than the models of its type that are supported, and may compute something else"


@dataclass(frozen=True)
class Traits:
    """How a family of masked models was trained, and how its files spell it. `shift` is as in `ModelSpec`. A text
    that `opens` starts with the tokenizer's bos token; one that `closes` ends with its eos token. If the tokenizer has
    the token `expand`, slots expand where the model predicts it and go where it predicts the eos token. `names` are the
    tensor names. `keys` map a key of the hub's Llama config to the family's own. `flags` are settings of config.json
    with the only supported value. `given` are settings that the family's code fixes, whatever config.json says. `mask`
    is the mask token and `block_size` the rows of a block if the files name none; the published checkpoints have one of
    `block_sizes`."""

    shift: int
    opens: bool = False
    closes: bool = False
    expand: str = ""
    names: Names = HUB
    keys: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, object] = field(default_factory=dict)
    mask: str = ""
    block_size: int = 1
    block_sizes: Container[int] = range(2, 129)

    def spelled(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        """config.json with the keys of the hub's Llama. Raises WeightsError if a flag has an unsupported value."""
        for flag, value in self.flags.items():
            if config.get(flag, value) != value:
                found = f"{name} has {flag} {short(config[flag])}"
                raise WeightsError(f"{found}; only {value} is supported.")
        said = {theirs: config[own] for theirs, own in self.keys.items() if config.get(own) is not None}
        return {**config, **said, **self.given}


@dataclass(frozen=True)
class Family:
    """A row of the table. It fits a config.json that has the `model_type`, the `architecture` if the row names one,
    every key of `keys`, none of them false, and, if `masked`, a tokenizer with a mask token; the folder's name contains
    `name`, for families that no file tells apart. `module`, in this folder, loads the checkpoint by its `traits`,
    unless config.json names another class than `only`; it is refused with the words of `refused`, if there are any. A
    module next to them pairs a drafter with its model."""

    model_type: str  # lower case, with underscores; empty where config.json names none
    module: str = ""
    traits: Traits | None = None  # of the modules full and blocks
    architecture: str = ""
    keys: tuple[str, ...] = ()
    masked: bool = False
    name: str = ""  # lower case
    only: str = ""
    refused: str = ""

    def fits(self, folder: Path, config: Mapping[str, Any]) -> bool:
        return (
            self.model_type == lowered(config.get("model_type"))
            and self.architecture in ("", first(config.get("architectures")))
            and all(config.get(key, False) is not False for key in self.keys)
            and self.name in folder.name.lower()
            and (not self.masked or masks(folder, config))
        )

    def loads(self) -> ModuleType:
        """The module that loads it. Raises NoTorch."""
        with extras.pytorch_for(extras.family(self.model_type)):
            return importlib.import_module(f"{__package__}.{self.module}")

    def loader(self, name: str) -> Any:
        """The function `name` of that module, which loads such a checkpoint: `load` or `load_gguf`."""
        found = getattr(self.loads(), name)
        return found if self.traits is None else partial(found, self.traits)


LEFT_TO_RIGHT = {  # types of autoregressive models, and the beginning of their class
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "starcoder2": "Starcoder2",
}

# Of full visibility

# LLaDA 8B, LLaDA 1.5 and iLLaDA (Nie et al. 2025): the layers of Llama under other names.
LLADA = Traits(
    shift=0,
    opens=True,
    closes=True,
    names=Names(
        {  # the name ff_out has two meanings: the head, and the down projection of a layer
            "embed": [["model.transformer.wte.weight"]],
            "norm": [["model.transformer.ln_f.weight"]],
            "head": [["model.transformer.ff_out.weight"]],
        },
        "model.transformer.blocks.{}.",
        {
            "attn_norm": [["attn_norm.weight"]],
            "qkv": [[f"{part}_proj.weight" for part in "qkv"]],
            "qkv_bias": [[f"{part}_proj.bias" for part in "qkv"]],
            "out": [["attn_out.weight"]],
            "mlp_norm": [["ff_norm.weight"]],
            "gate_up": [["ff_proj.weight", "up_proj.weight"]],
            "down": [["ff_out.weight"]],
        },
    ),
    keys={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "mlp_hidden_size",
        "max_position_embeddings": "max_sequence_length",
        "hidden_act": "activation_type",
        "tie_word_embeddings": "weight_tying",
    },
    flags={  # every published checkpoint has them
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rope": True,
        "alibi": False,
        "attention_layer_norm": False,
        "input_emb_norm": False,
        "scale_logits": False,
    },
)
# LLaDA-MoE 7B-A1B (Zhu et al. 2025): the layers of OLMoE with norms for each head. Its code never renormalises the
# weights of the experts, and an expert bias would be part of them.
LLADA_MOE = Traits(
    shift=0,
    closes=True,
    keys={"intermediate_size": "dense_intermediate_size", "moe_intermediate_size": "expert_intermediate_size"},
    flags={"clip_qkv": None},
    given={"norm_topk_prob": False, "routed_scaling_factor": 1, "bias_weighs": True},
)
# Dream 7B, Dream-Coder and DiffuCoder (Ye et al. 2025): the layers of Qwen2.5, with the shift of the weights they
# started from. DreamOn (Wu et al. 2026) adds the expand token, and its eos token deletes a slot.
DREAM = Traits(shift=1, opens=True, closes=True, expand="<|expand|>")
# RND1 30B-A3B (Radical Numerics, 2025): the layers of Qwen3-MoE. Its authors infill without bos and eos tokens.
RND1 = Traits(shift=1, given={"norm_topk_prob": True})
# Tiny-A2D (dllm): Llama, Qwen2 and Qwen3 converted from autoregressive to diffusion models.
A2D = Traits(shift=0)
# CoDA 1.7B (Salesforce, 2025): the layers of Qwen3.
CODA = Traits(shift=1)
# Open-dCoder 0.5B (Open-dLLM, 2025): the layers of Qwen2.5-Coder, with a mask token in the tokenizer. Its authors
# evaluated infilling without bos and eos tokens.
OPEN_DCODER = Traits(shift=1)

# Of blocks. Our `threshold` accepts from .9 on in the whole block.

# Dream-Reasoner (Dream's authors, 2026): Dream's files, without its shift.
DREAM_REASONER = Traits(shift=0)
# Tiny-A2D as trained by bd3lm; only the name of the checkpoint says so. Their loop is our `top_k`.
A2D_BLOCKS = Traits(shift=0, block_size=32)
# Stable-DiffCoder 8B (ByteDance Seed, 2026): Seed-Coder's files, which are Llama's. Their loop accepts from .95 on and,
# without a threshold, as `top_k` does.
STABLE_DIFFCODER = Traits(shift=0, opens=True, block_size=4)
# LLaDA2.0 and 2.1 (Ant Group, 2025 and 2026), mini 16B-A1.4B and flash 100B-A6B, and DMax: the layers of Ling. Their
# code scores experts by a sigmoid, whatever config.json says. The loop of 2.0 accepts above .95, and that of 2.1 also
# edits what it has accepted.
LLADA2 = Traits(
    shift=0,
    flags={"norm_head": False, "use_qk_norm": True},
    given={"score_function": "sigmoid", "norm_topk_prob": True},
    block_size=32,
)
# SDAR 1.7B to 8B and 30B-A3B (Cheng et al. 2025) and TraDo (Wang et al. 2025): the layers of Qwen3, or of Qwen3-MoE.
# Their `low_confidence_dynamic` accepts above .85; our `top_k` is their `low_confidence_static`. I-DLM (Yu et al. 2026)
# has SDAR's type and class, but causal masks, a shift and blocks of 1 to 3 rows.
SDAR = Traits(shift=0, block_size=4, block_sizes=(4, 8, 16, 32, 64))
# Fast-dLLM v2 1.5B and 7B (Wu et al. 2025): Qwen2.5's layers and shift. The last row of a block predicts the first
# token of the next block. Their loop accepts above .9 in 8 slots at a time.
FAST_DLLM = Traits(shift=1, block_size=32, mask="|<MASK>|")

FAMILIES = (
    Family("block_llama", "llama.stored"),
    Family("diffusion_gemma", "diffusion_gemma.model"),
    # Two families use the type `llada`, and two use `Dream`.
    Family("llada", refused=IMAGES, architecture="LLaDAForMultiModalGeneration"),  # Lumina-DiMOO
    Family("llada", "full", LLADA_MOE, keys=("num_experts",)),
    Family("llada", "full", LLADA),
    Family("dream", "blocks", DREAM_REASONER, keys=("block_size",)),
    Family("dream", "full", DREAM),
    Family("lladamoe", "full", LLADA_MOE),
    Family("rnd1", "full", RND1),
    *(Family(f"a2d_{trunk}", "blocks", A2D_BLOCKS, name="bd3lm") for trunk in ("llama", "qwen2", "qwen3")),
    *(Family(f"a2d_{trunk}", "full", A2D) for trunk in ("llama", "qwen2", "qwen3")),
    Family("coda", "full", CODA),
    Family("qwen3", "drafters.dflash", refused=DRAFTER, architecture="DFlashDraftModel"),
    Family("qwen3", "drafters.dflash", refused=DRAFTER, keys=("dflash_config",)),
    Family("llama", "blocks", STABLE_DIFFCODER, architecture="StableDiffcoderForCausalLM"),
    Family("qwen2", "full", OPEN_DCODER, masked=True),
    *(Family(trunk, "causal", only=f"{kind}ForCausalLM") for trunk, kind in LEFT_TO_RIGHT.items()),
    *(Family("llada2_moe", refused=INDEL, keys=(key,)) for key in ("expert_capacity", "delete_token_id")),
    Family("llada2_moe", refused=IMAGES, keys=("image_token_offset",)),
    *(Family(kind, "blocks", LLADA2) for kind in ("llada2_moe", "llada21_moe")),
    Family("sdar", refused=CAUSAL, keys=("use_regular_causal",)),  # I-DLM
    Family("sdar", refused=CAUSAL, name="i-dlm"),
    *(Family(kind, "blocks", SDAR) for kind in ("sdar", "sdar_moe")),
    Family("fast_dllm_qwen", "blocks", FAST_DLLM),
    Family("nemotron_labs_diffusion", refused=BLOCKS),
    Family("mdlm", "dit.mdlm", keys=("hidden_dim",)),
    Family("bd3lm", "dit.bd3lm"),
    Family("", "dit.sedd", keys=("graph", "noise", "tokens")),
    *(Family(kind, refused=RANDOM) for kind in ("gidd", "dit", "duo", "udlm")),
    Family("plaid", refused=CONTINUOUS),
    Family("wedlm", refused=CAUSAL),
)


class UnknownFamily(UnusableModel):
    """The family is unknown or not supported."""


def family(folder: Path, config: Mapping[str, Any]) -> Family:
    """The row of a checkpoint that can be loaded: of a folder, or of a GGUF file whose metadata are spelled as a
    config.json. Raises UnusableModel."""
    found = row_of(folder, config)
    if found is None and not config.get("model_type"):
        raise UnknownFamily(f"The config.json of {folder.name} names no model_type, so its family is unknown.")
    if found is None:
        raise UnknownFamily(f"Models of type {quoted(config['model_type'])} are not supported yet.")
    said = first(config.get("architectures"))
    if found.only and said and said.lower() != found.only.lower():
        raise UnknownFamily(f"The model {folder.name}, a {quoted(said)}, {OTHER}.")
    if found.refused:
        raise UnknownFamily(f"The model {folder.name} {found.refused}.")
    return found


def row_of(folder: Path, config: Mapping[str, Any]) -> Family | None:
    return next((family for family in FAMILIES if family.fits(folder, config)), None)


def is_drafter(folder: Path, config: Mapping[str, Any]) -> bool:
    """True for a DFlash checkpoint, which only drafts for the model it was trained for."""
    found = row_of(folder, config)
    return found is not None and found.refused == DRAFTER


def masks(folder: Path, config: Mapping[str, Any]) -> bool:
    """True if the metadata of a GGUF file, or the tokenizer of a folder, name a mask token."""
    return config.get("mask_token_id") is not None if folder.is_file() else bool(named(folder).get("mask_token"))


def named(folder: Path) -> dict[str, str]:
    """The special tokens that tokenizer_config.json names, by role (`bos_token`, `mask_token` and so on); empty without
    such a file. Raises UnusableModel."""
    path = folder / "tokenizer_config.json"
    said = fields(path) if path.exists() else {}
    tokens = {part: token.get("content") if isinstance(token, dict) else token for part, token in said.items()}
    return {part: token for part, token in tokens.items() if isinstance(token, str) and part.endswith("_token")}


def lowered(model_type: object) -> str:
    return str(model_type or "").lower().replace("-", "_")


def first(architectures: object) -> str:
    return str(architectures[0]) if isinstance(architectures, list) and architectures else ""
