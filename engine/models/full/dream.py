"""Dream 7B, Dream-Coder and DiffuCoder (Ye et al. 2025): Qwen2.5's layers and, since they began as it, its shift.
DreamOn loads as one of them: it neither expands nor deletes a slot.
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import canonical as canonical

load = partial(full.load, full.Traits(shift=1, opens=True, closes=True))
