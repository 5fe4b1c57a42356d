"""Which family a folder is taken for, and the sentence where it is none that can be filled with."""

import json
from pathlib import Path
from typing import Any

import pytest

from caesura.engine import models
from caesura.engine.model import ModelError
from caesura.engine.models.families import (
    A2D,
    A2D_BLOCKS,
    DREAM_REASONER,
    FAMILIES,
    FAST_DLLM,
    LLADA,
    LLADA2,
    LLADA_MOE,
    SDAR,
    STABLE_DIFFCODER,
    Traits,
    UnknownFamily,
    family,
)

MASK = {"mask_token": {"content": "[MASK]", "special": True}}
KNOWN: dict[str, tuple[dict[str, Any], dict[str, Any], str | Traits]] = {
    "coder": ({"model_type": "block_llama"}, {}, "llama.stored"),
    "DiffusionGemma": ({"model_type": "diffusion_gemma"}, {}, "diffusion_gemma.model"),
    "MDLM": ({"model_type": "mdlm", "hidden_dim": 768}, {}, "dit.mdlm"),
    "BD3-LM": ({"model_type": "bd3lm", "block_size": 4}, {}, "dit.bd3lm"),
    "SEDD": ({"graph": {"type": "absorb"}, "noise": {}, "tokens": 50257, "ngpus": 8}, {}, "dit.sedd"),
    "Dream-Reasoner": ({"model_type": "Dream", "block_size": 32}, {}, DREAM_REASONER),
    "SDAR": ({"model_type": "sdar"}, {}, SDAR),
    "SDAR-MoE": ({"model_type": "sdar_moe"}, {}, SDAR),
    "LLaDA2.1": ({"model_type": "llada2_moe", "n_group": 8}, {}, LLADA2),
    "Fast-dLLM v2": ({"model_type": "Fast_dLLM_Qwen"}, {}, FAST_DLLM),
    "Stable-DiffCoder": (
        {"model_type": "llama", "architectures": ["StableDiffcoderForCausalLM"]},
        {"mask_token": "[MASK]"},
        STABLE_DIFFCODER,
    ),
    "Qwen2.5-Coder": ({"model_type": "qwen2"}, {"mask_token": None}, "causal"),
    "LLaDA-MoE": ({"model_type": "llada", "num_experts": 64}, {}, LLADA_MOE),
    "LLaDA": ({"model_type": "llada", "d_model": 4096}, {}, LLADA),
    "I-DLM's code with SDAR's masks": ({"model_type": "sdar", "use_regular_causal": False}, {}, SDAR),
    "Qwen3": ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, {}, "causal"),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "LLaDA2.2": ({"model_type": "llada2_moe", "expert_capacity": 48}, "experts by the block and inserts and deletes"),
    "LLaDA2-Uni": ({"model_type": "llada2_moe", "image_token_offset": 157184}, "images"),
    "Nemotron": ({"model_type": "nemotron_labs_diffusion"}, "block by block"),
    "DFlash": ({"model_type": "qwen3", "dflash_config": {}}, "is a drafter"),
    "DFlash by its class": ({"model_type": "qwen3", "architectures": ["DFlashDraftModel"]}, "is a drafter"),
    "I-DLM under another name": (
        {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "use_regular_causal": True},
        "under a causal mask",
    ),
    "I-DLM before training": (
        {"model_type": "sdar", "block_size": 3},
        "blocks of 3 rows, which no model of its family has",
    ),
    "Lumina-DiMOO": ({"model_type": "llada", "architectures": ["LLaDAForMultiModalGeneration"]}, "images"),
    "SDLM": ({"model_type": "qwen2", "architectures": ["SDLMQwen2ForCausalLM"]}, "of another class"),
    "a reward model": ({"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}, "another class"),
    "EAGLE": ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}, "of another class"),
    "GIDD": ({"model_type": "gidd"}, "random tokens as noise"),
    "Duo": ({"model_type": "duo"}, "random tokens as noise"),
    "Plaid": ({"model_type": "plaid"}, "embeddings, not tokens"),
    "another MDLM": ({"model_type": "mdlm", "backbone_config": {}}, "'mdlm' are not supported"),
    "a vision model": ({"model_type": "qwen2_vl"}, "'qwen2_vl' are not supported"),
    "no type": ({"graph": {}}, "names no model_type"),
}


@pytest.mark.parametrize(("config", "tokens", "told"), KNOWN.values(), ids=KNOWN)
def test_a_folder_is_of_the_family_that_its_files_tell(
    tmp_path: Path, config: dict[str, Any], tokens: dict[str, Any], told: str | Traits
) -> None:
    """By its traits, or else by the module that loads it."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    found = family(tmp_path, config)
    assert (found.traits or found.module) == told


def test_a_name_tells_families_apart_that_no_file_does(tmp_path: Path) -> None:
    for name, traits in (("Qwen3-0.6B-diffusion-bd3lm-v0.1", A2D_BLOCKS), ("Qwen3-0.6B-diffusion-mdlm", A2D)):
        assert family(tmp_path / name, {"model_type": "a2d-qwen3"}).traits is traits
    with pytest.raises(UnknownFamily, match="under a causal mask"):
        family(tmp_path / "I-DLM-8B", {"model_type": "sdar"})


@pytest.mark.parametrize(("config", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_filled_with_is_refused_in_a_sentence(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=sentence) as found:
        models.load(str(tmp_path), "meta")
    assert str(found.value).endswith(".")


def test_each_row_is_loaded_by_a_module_or_refused() -> None:
    pytest.importorskip("torch")  # in which some of them compute
    for row in FAMILIES:
        assert row.module or row.refused, row
        if row.module and not row.refused:
            assert callable(row.loader("load")), row
        assert (row.traits is not None) == (row.module in ("full", "blocks")), row
