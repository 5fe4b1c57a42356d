"""BD3-LM (Arriola et al. 2025): MDLM's network in blocks of 4, 8 or 16 rows, trained on OpenWebText."""

from pathlib import Path
from typing import Any

from caesura.engine.models import LoadChoice, dit
from caesura.engine.models.blocks import PINS
from caesura.engine.models.dit import mdlm
from caesura.engine.noise import Absorbing
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
    model = dit.load(folder, mdlm.shape(config), choice, canonical, timed=False)
    model.noise = Absorbing(model.width - 1, "blocks")
    model.visibility, model.block_size, model.method, model.prompt = "blocks", size, "blocks", "plain"
    model.radius, model.tail, model.head = 0, 0, max(PINS, size - 1)
    model.chunk -= model.chunk % size
    model.start = sorted(model.ends)  # every sequence of its training began with it
    return model
