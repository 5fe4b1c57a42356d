"""MDLM (Sahoo et al. 2024): a masked diffusion language model of 170M weights, trained on OpenWebText."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from caesura.engine.model import LoadChoice, ModelSpec
from caesura.engine.models import dit
from caesura.engine.tokens.tokenizer import Tokenizer

SIZES = {  # the trunk's word -> that of config.json
    "vocabulary": "vocab_size",
    "hidden": "hidden_dim",
    "cond": "cond_dim",
    "layers": "n_blocks",
    "heads": "n_heads",
    "length": "model_length",
}
BUFFER = "backbone.rotary_emb.inv_freq"  # computed anew


def canonical(name: str) -> str | None:
    """A stored name -> the trunk's, or None for what is left out on purpose."""
    return None if name == BUFFER else name.removeprefix("backbone.")


def shape(config: dict[str, Any]) -> dit.Config:
    """Raises WeightsError."""
    return dit.Config.read({own: config.get(theirs) for own, theirs in SIZES.items()})


def spec(sizes: dit.Config, tokenizer: Tokenizer, device: str, context: int, radius: int) -> ModelSpec:
    """Every sequence of its training lay between two ends."""
    made = dit.spec(sizes, tokenizer, device, context, radius)
    return replace(made, start=tuple(made.ends), finish=tuple(made.ends))


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> dit.Dit:
    """Load a checkpoint. Raises WeightsError or TokenizerError."""
    timed = bool(config.get("time_conditioning"))
    return dit.load(folder, shape(config), choice, canonical, spec, timed=timed)
