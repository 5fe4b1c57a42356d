"""Tiny-A2D (dllm) as trained by bd3lm: Llama, Qwen2 and Qwen3 converted from autoregressive models, without a shift, in
blocks of 32. Only the name of the checkpoint says so; their loop is our `top_k`.
"""

from functools import partial

from caesura.engine.models import blocks
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.full import Traits

load = partial(blocks.load, Traits(shift=0, opens=False, closes=False, block_size=32))
