"""LLaDA2.0 and 2.1 (Ant Group, 2025 and 2026), mini 16B-A1.4B and flash 100B-A6B, and DMax: the layers of Ling without
a shift, in blocks of 32. Their code scores experts by a sigmoid, whatever config.json says. Our `threshold` accepts
from .9 on; the loop of 2.0 accepts above .95, and that of 2.1 also edits what it has accepted.
"""

from functools import partial

from caesura.engine.models import blocks
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.full import Traits

FLAGS = {"norm_head": False, "use_qk_norm": True}
GIVEN = {"score_function": "sigmoid", "norm_topk_prob": True}

load = partial(blocks.load, Traits(shift=0, opens=False, closes=False, flags=FLAGS, given=GIVEN, block_size=32))
