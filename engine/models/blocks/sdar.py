"""SDAR 1.7B to 8B and 30B-A3B (Cheng et al. 2025) and TraDo (Wang et al. 2025): the layers of Qwen3, or those of
Qwen3-MoE, without a shift, in blocks of 4 unless config.json or the name (`-b32`) says otherwise. Our `threshold`
accepts from .9 on; their `low_confidence_dynamic` accepts above .85. Our `top_k` is their `low_confidence_static`.
"""

from functools import partial

from caesura.engine.models import blocks
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.full import Traits

load = partial(blocks.load, Traits(shift=0, opens=False, closes=False, block_size=4))
