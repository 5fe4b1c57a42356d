"""BD3-LM (Arriola et al. 2025): MDLM's network in blocks of 4, 8 or 16 rows, trained on OpenWebText."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from caesura.engine.model import LoadChoice, ModelSpec
from caesura.engine.models import dit
from caesura.engine.models.blocks import PINS
from caesura.engine.models.dit import mdlm
from caesura.engine.noise import Absorbing
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import short

SCALARS = ("sampling_eps_min", "sampling_eps_max")  # bounds of the noise in training
FLAGS = {"adaln": True, "cross_attn": True, "causal": False, "time_conditioning": False}  # the only supported values
MOST = 128  # rows of a block


def canonical(name: str) -> str | None:
    """A stored name -> the trunk's, or None for what is left out on purpose."""
    return None if name in SCALARS else mdlm.canonical(name)


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> dit.Dit:
    """Load a checkpoint. Raises WeightsError or TokenizerError."""
    size = config.get("block_size")
    if type(size) is not int or not 1 < size <= MOST:
        raise WeightsError(f"{folder.name} has blocks of {short(size)} rows; only 2 to {MOST} are supported.")
    for flag, value in FLAGS.items():
        if config.get(flag, value) != value:
            raise WeightsError(f"{folder.name} has {flag} {short(config[flag])}; only {value} is supported.")
    return dit.load(folder, mdlm.shape(config), choice, canonical, partial(spec, size), timed=False)


def spec(size: int, shape: dit.Config, tokenizer: Tokenizer, device: str, context: int, radius: int) -> ModelSpec:
    """Blocks of `size` rows. Every sequence of its training began with an end."""
    made = dit.spec(shape, tokenizer, device, context, radius)
    return replace(
        made,
        noise=Absorbing(shape.vocabulary - 1, "blocks"),
        method="blocks",
        chunk=made.chunk - made.chunk % size,
        tail=0,
        head=max(PINS, size - 1),
        visibility="blocks",
        block_size=size,
        radius=0,
        start=tuple(made.ends),
        prompt="plain",
    )
