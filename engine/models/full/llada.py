"""LLaDA 8B, LLaDA 1.5 and iLLaDA (Nie et al. 2025): the layers of Llama under other names, without a shift."""

from functools import partial

from caesura.engine.models import full
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import Names
from caesura.engine.models._llama_files import canonical as canonical

NAMES = Names(
    {  # the name ff_out has two meanings: the head, and the down projection of a layer
        "embed": [["model.transformer.wte.weight"]],
        "norm": [["model.transformer.ln_f.weight"]],
        "head": [["model.transformer.ff_out.weight"]],
    },
    "model.transformer.blocks.{}.",
    {
        "attn_norm": [["attn_norm.weight"]],
        "qkv": [[f"{part}_proj.weight" for part in "qkv"]],
        "qkv_bias": [[f"{part}_proj.bias" for part in "qkv"]],
        "out": [["attn_out.weight"]],
        "mlp_norm": [["ff_norm.weight"]],
        "gate_up": [["ff_proj.weight", "up_proj.weight"]],
        "down": [["ff_out.weight"]],
    },
)
KEYS = {  # key of the hub's Llama config -> key of LLaDA's config
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "mlp_hidden_size",
    "max_position_embeddings": "max_sequence_length",
    "hidden_act": "activation_type",
    "tie_word_embeddings": "weight_tying",
}
FLAGS = {  # the only supported values; every published checkpoint has them
    "block_type": "llama",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
}


TRAITS = full.Traits(shift=0, opens=True, closes=True, names=NAMES, keys=KEYS, flags=FLAGS)
load, load_gguf = partial(full.load, TRAITS), partial(full.load_gguf, TRAITS)
