"""Dream-Reasoner (Dream's authors, 2026): Dream's files in blocks, without its shift."""

from functools import partial

from caesura.engine.models import blocks
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.full import Traits

load = partial(blocks.load, Traits(shift=0, opens=False, closes=False))
