"""CoDA 1.7B (Salesforce, 2025): the layers of Qwen3, with a shift."""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical

load = partial(full.load, full.Traits(shift=1, opens=False, closes=False))
