"""Fast-dLLM v2 1.5B and 7B (Wu et al. 2025): Qwen2.5's layers and shift, in blocks of 32. The last row of a block
predicts the first token of the next block. Our `threshold` accepts from .9 on in the whole block; their loop accepts
above .9 in 8 slots at a time.
"""

from functools import partial

from caesura.engine.models import blocks
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.full import Traits

load = partial(blocks.load, Traits(shift=1, opens=False, closes=False, block_size=32, mask="|<MASK>|"))
