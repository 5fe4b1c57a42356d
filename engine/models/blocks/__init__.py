"""Families of blocks: a row sees its own block and the blocks before it. Blocks begin at the multiples of their size,
the prompt included. Whole blocks of the prompt are context; the canvas begins with the rest of it and is a chain of
blocks (methods/blocks.py). A block sees the suffix only as far as it lies in it, so the prompt shows the suffix too.
Each family has a file with the traits its checkpoints were trained with; the trunk is `BlockLlama`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caesura.engine.models import LoadChoice
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.models.causal import prompted
from caesura.engine.models.full import Traits, published
from caesura.engine.noise import Absorbing
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import short

CONTEXT = {"cpu": 768, "cuda": 2048}  # default tokens of context, by device
SIZES = ("block_size", "bd_size")  # keys of config.json
MOST = 128  # rows of a block
PINS = 4  # fewest rows of the suffix on a canvas; their likelihood shows how well the length of a hole fits


def load(traits: Traits, folder: Path, config: dict[str, Any], choice: LoadChoice) -> BlockLlama:
    """Load a published checkpoint. Raises WeightsError or TokenizerError."""
    size = size_of(traits, folder.name, config)
    model = published(traits, folder, config, choice, CONTEXT)
    start, ends = model.start, model.ends
    prompted(model, config)
    model.start, model.ends = start or model.start, ends | model.ends
    assert isinstance(model.noise, Absorbing)
    model.noise = Absorbing(model.noise.mask_id, "blocks")
    model.visibility, model.block_size, model.method = "blocks", size, model.noise.method
    model.tail, model.head = model.shift, max(PINS, size - 1)
    model.chunk -= model.chunk % size
    return model


def size_of(traits: Traits, name: str, config: Mapping[str, Any]) -> int:
    """Rows of a block, from config.json, else from a name that ends like `-b32`. Raises WeightsError."""
    named = re.search(r"-b(\d{1,9})$", name)
    usual = int(named[1]) if named else traits.block_size
    found = next((config[key] for key in SIZES if config.get(key) is not None), usual)
    if type(found) is not int or not 1 < found <= MOST:
        raise WeightsError(f"{name} has blocks of {short(found)} rows; only 2 to {MOST} are supported.")
    return found
