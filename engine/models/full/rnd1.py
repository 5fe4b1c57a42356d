"""RND1 30B-A3B (Radical Numerics, 2025): the layers of Qwen3-MoE, with a shift. Its authors infill without bos and eos
tokens.
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical

TRAITS = full.Traits(shift=1, opens=False, closes=False, given={"norm_topk_prob": True})
load, load_gguf = partial(full.load, TRAITS), partial(full.load_gguf, TRAITS)
