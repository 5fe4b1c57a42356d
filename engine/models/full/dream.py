"""Dream 7B, Dream-Coder and DiffuCoder (Ye et al. 2025): the layers of Qwen2.5, with the shift of the weights they
started from. DreamOn (Wu et al. 2026) adds the expand token, and its eos token deletes a slot.
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical

TRAITS = full.Traits(shift=1, opens=True, closes=True, expand="<|expand|>")
load, load_gguf = partial(full.load, TRAITS), partial(full.load_gguf, TRAITS)
