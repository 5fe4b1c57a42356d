"""SDAR 1.7B to 8B and 30B-A3B (Cheng et al. 2025) and TraDo (Wang et al. 2025): the layers of Qwen3, or those of
Qwen3-MoE, without a shift, in blocks of 4 unless config.json or the name (`-b32`) says otherwise. Our `threshold`
accepts from .9 on; their `low_confidence_dynamic` accepts above .85. Our `top_k` is their `low_confidence_static`.
"""

from pathlib import Path
from typing import Any

from caesura.engine.models import LoadChoice, blocks
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.models.full import Traits
from caesura.engine.weights.stored import WeightsError

SIZES = (4, 8, 16, 32, 64)  # rows of a block of the published checkpoints
TRAITS = Traits(shift=0, opens=False, closes=False, block_size=4)


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> BlockLlama:
    """Load a published checkpoint. Raises WeightsError or TokenizerError, also for I-DLM (Yu et al. 2026), which has
    SDAR's type and class, but causal masks, a shift and blocks of 1 to 3 rows."""
    if (size := blocks.size_of(TRAITS, folder.name, config)) not in SIZES:
        raise WeightsError(
            f"{folder.name} has blocks of {size} rows, which SDAR never has; it is another model of SDAR's class, such"
            " as I-DLM, and is not supported."
        )
    return blocks.load(TRAITS, folder, config, choice)
