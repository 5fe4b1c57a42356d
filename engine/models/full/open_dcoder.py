"""Open-dCoder 0.5B (Open-dLLM, 2025): the layers of Qwen2.5-Coder, with a mask token in the tokenizer. Its authors
evaluated infilling without bos and eos tokens.
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical

TRAITS = full.Traits(shift=1, opens=False, closes=False)
load, load_gguf = partial(full.load, TRAITS), partial(full.load_gguf, TRAITS)
