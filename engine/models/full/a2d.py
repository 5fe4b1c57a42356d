"""Tiny-A2D (dllm): Llama, Qwen2 and Qwen3 converted from autoregressive to diffusion models, without a shift.
Checkpoints trained block by block have the same type; their names contain bd3lm (blocks/a2d.py).
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical

load = partial(full.load, full.Traits(shift=0, opens=False, closes=False))
