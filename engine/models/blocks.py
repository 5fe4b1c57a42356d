"""Families of blocks: a row sees its own block and the blocks before it. Blocks begin at the multiples of their size,
the prompt included. Whole blocks of the prompt are context; the canvas begins with the rest of it and is a chain of
blocks (methods/blocks.py). A block sees the suffix only as far as it lies in it, so the prompt shows the suffix too.
A trunk of `llama/` computes it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from caesura.engine.model import LoadChoice, Model, ModelSpec
from caesura.engine.models import causal, full
from caesura.engine.models.families import Traits
from caesura.engine.models.full import MaskedFiles
from caesura.engine.models.llama.config import Config
from caesura.engine.models.llama.published import ROUNDED as ROUNDED
from caesura.engine.models.llama.published import canonical as canonical
from caesura.engine.noise import Absorbing
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import short

CONTEXT = {"cpu": 768, "cuda": 2048}  # default tokens of context, by device
SIZES = ("block_size", "bd_size")  # keys of config.json
MOST = 128  # rows of a block
PINS = 4  # fewest rows of the suffix on a canvas; their likelihood shows how well the length of a hole fits


def load(traits: Traits, folder: Path, config: dict[str, Any], choice: LoadChoice) -> Model:
    """Load a published checkpoint. Raises WeightsError or TokenizerError."""
    size = size_of(traits, folder.name, config)
    return full.published(traits, folder, config, choice, CONTEXT, partial(spec, size))


def spec(size: int, files: MaskedFiles, shape: Config, device: str, context: int, rows: int) -> ModelSpec:
    """The spec of a model with blocks of `size` rows: context is laid out as where a model reads left to right, and
    its canvas as where all rows see each other."""
    read = causal.spec(files.config, files.tokenizer, shape, device, context, rows)
    drawn = full.spec(0, files, shape, device, context, rows)
    noise = Absorbing(files.mask, "blocks")
    return replace(
        read,
        noise=noise,
        method=noise.method,
        chunk=read.chunk - read.chunk % size,
        tail=drawn.shift,
        head=max(PINS, size - 1),
        shift=drawn.shift,
        visibility="blocks",
        block_size=size,
        start=drawn.start or read.start,
        ends=drawn.ends | read.ends,
    )


def size_of(traits: Traits, name: str, config: Mapping[str, Any]) -> int:
    """Rows of a block, from config.json, else from a name that ends like `-b32`. Raises WeightsError."""
    named = re.search(r"-b(\d{1,9})$", name)
    usual = int(named[1]) if named else traits.block_size
    found = next((config[key] for key in SIZES if config.get(key) is not None), usual)
    if type(found) is not int or not 1 < found <= MOST:
        raise WeightsError(f"{name} has blocks of {short(found)} rows; only 2 to {MOST} are supported.")
    if found not in traits.block_sizes:
        raise WeightsError(
            f"{name} has blocks of {found} rows, which no model of its family has; it is another model of the same "
            "class and is not supported."
        )
    return found
