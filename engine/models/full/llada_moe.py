"""LLaDA-MoE 7B-A1B (Zhu et al. 2025): the layers of OLMoE with norms for each head, without a shift. Its code never
renormalises the weights of the experts, and an expert bias would be part of them.
"""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import canonical as canonical

KEYS = {  # key of the hub's Llama and Qwen3-MoE configs -> key of LLaDA-MoE's config
    "intermediate_size": "dense_intermediate_size",
    "moe_intermediate_size": "expert_intermediate_size",
}
FLAGS = {"clip_qkv": None}
GIVEN = {"norm_topk_prob": False, "routed_scaling_factor": 1, "bias_weighs": True}

TRAITS = full.Traits(shift=0, opens=False, closes=True, keys=KEYS, flags=FLAGS, given=GIVEN)
load, load_gguf = partial(full.load, TRAITS), partial(full.load_gguf, TRAITS)
