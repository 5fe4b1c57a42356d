"""Autoregressive models made diffusion ones by dllm (Tiny-A2D): Llama, Qwen2 and Qwen3 without their shift. Those that
were trained block by block (bd3lm) have the same type; their files do not tell.
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import canonical as canonical

load = partial(full.load, full.Traits(shift=0, opens=False, closes=False))
