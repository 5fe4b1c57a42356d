"""Stable-DiffCoder 8B (ByteDance Seed, 2026): Seed-Coder's files, which are Llama's, without a shift, in blocks of 4.
Our `threshold` accepts from .9 on; their loop accepts from .95 on and, without a threshold, as `top_k` does.
"""

from functools import partial

from caesura.engine.models import blocks
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.full import Traits

load = partial(blocks.load, Traits(shift=0, opens=True, closes=False, block_size=4))
