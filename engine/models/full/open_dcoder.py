"""Open-dCoder 0.5B (Open-dLLM, 2025): Qwen2.5-Coder's files, and a mask token in the tokenizer. It was evaluated on
gaps without a first and a last token.
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import canonical as canonical

load = partial(full.load, full.Traits(shift=1, opens=False, closes=False))
