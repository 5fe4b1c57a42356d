"""The family of a checkpoint: one table over its config.json; the first row that fits wins."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caesura.model_store.reading import UnusableModel, fields, quoted

DRAFTER = "is a drafter of another model and cannot be used by itself; name that model, and this folder as --draft"
INDEL = "chooses experts by the block and inserts and deletes tokens, as LLaDA2.2 does, which is not supported yet"
IMAGES = "reads and draws images, which is not supported"
BLOCKS = "is denoised block by block, which is not supported yet"
RANDOM = "was trained on random tokens as noise, in a way that is not supported yet"
CONTINUOUS = "denoises embeddings, not tokens, which is not supported"
CAUSAL = "denoises under a causal mask, which is not supported yet"
OTHER = "is of another class than the models of its type that are supported, and may compute something else"


@dataclass(frozen=True)
class Family:
    """A row of the table. It fits a config.json that has the `model_type`, the `architecture` if the row names one,
    every key of `keys`, none of them false, and, if `masked`, a tokenizer with a mask token; the folder's name contains
    `name`, for families that no file tells apart. `module`, in this folder, loads the checkpoint, unless config.json
    names another class than `only`; it is refused with the words of `refused`, if there are any. A module next to them
    pairs a drafter with its model."""

    model_type: str  # lower case, with underscores; empty where config.json names none
    module: str = ""
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


LEFT_TO_RIGHT = {  # types of autoregressive models, and the beginning of their class
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "starcoder2": "Starcoder2",
}
FAMILIES = (
    Family("block_llama", "block_llama"),
    Family("diffusion_gemma", "diffusion_gemma"),
    # Two families use the type `llada`, and two use `Dream`.
    Family("llada", refused=IMAGES, architecture="LLaDAForMultiModalGeneration"),  # Lumina-DiMOO
    Family("llada", "full.llada_moe", keys=("num_experts",)),
    Family("llada", "full.llada"),
    Family("dream", "blocks.dream_reasoner", keys=("block_size",)),
    Family("dream", "full.dream"),
    Family("lladamoe", "full.llada_moe"),
    Family("rnd1", "full.rnd1"),
    *(Family(f"a2d_{trunk}", "blocks.a2d", name="bd3lm") for trunk in ("llama", "qwen2", "qwen3")),
    *(Family(f"a2d_{trunk}", "full.a2d") for trunk in ("llama", "qwen2", "qwen3")),
    Family("coda", "full.coda"),
    Family("qwen3", "drafters.dflash", refused=DRAFTER, architecture="DFlashDraftModel"),
    Family("qwen3", "drafters.dflash", refused=DRAFTER, keys=("dflash_config",)),
    Family("llama", "blocks.stable_diffcoder", architecture="StableDiffcoderForCausalLM"),
    Family("qwen2", "full.open_dcoder", masked=True),
    *(Family(trunk, "causal", only=f"{kind}ForCausalLM") for trunk, kind in LEFT_TO_RIGHT.items()),
    *(Family("llada2_moe", refused=INDEL, keys=(key,)) for key in ("expert_capacity", "delete_token_id")),
    Family("llada2_moe", refused=IMAGES, keys=("image_token_offset",)),
    *(Family(kind, "blocks.llada2") for kind in ("llada2_moe", "llada21_moe")),
    Family("sdar", refused=CAUSAL, keys=("use_regular_causal",)),  # I-DLM, which has SDAR's type and class
    Family("sdar", refused=CAUSAL, name="i-dlm"),
    *(Family(kind, "blocks.sdar") for kind in ("sdar", "sdar_moe")),
    Family("fast_dllm_qwen", "blocks.fast_dllm"),
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


def module_of(folder: Path, config: Mapping[str, Any]) -> str:
    """The name of the module, in this folder, that loads a checkpoint: a folder, or a GGUF file whose metadata are
    spelled as a config.json. Raises UnusableModel."""
    found = family_of(folder, config)
    if found is None and not config.get("model_type"):
        raise UnknownFamily(f"The config.json of {folder.name} names no model_type, so its family is unknown.")
    if found is None:
        raise UnknownFamily(f"Models of type {quoted(config['model_type'])} are not supported yet.")
    said = first(config.get("architectures"))
    if found.only and said and said.lower() != found.only.lower():
        raise UnknownFamily(f"The model {folder.name}, a {quoted(said)}, {OTHER}.")
    if found.refused:
        raise UnknownFamily(f"The model {folder.name} {found.refused}.")
    return found.module


def family_of(folder: Path, config: Mapping[str, Any]) -> Family | None:
    return next((family for family in FAMILIES if family.fits(folder, config)), None)


def is_drafter(folder: Path, config: Mapping[str, Any]) -> bool:
    """True for a DFlash checkpoint, which only drafts for the model it was trained for."""
    found = family_of(folder, config)
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
