"""SEDD small and medium (Lou et al. 2024, score entropy) of the absorbing graph, 170M and 424M weights, trained on
OpenWebText. Its network predicts the logarithm of the score ratio p(y) / p(mask) of a masked row at noise level sigma;
times exp(sigma) - 1 that is the probability of y. The network's estimates need not add up to 1.
"""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from caesura.engine.model import LoadChoice, ModelSpec
from caesura.engine.models import dit
from caesura.engine.noise import Absorbing
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import short

SIZES = {  # the trunk's word -> that of the part `model` of config.json
    "hidden": "hidden_size",
    "cond": "cond_dim",
    "layers": "n_blocks",
    "heads": "n_heads",
    "length": "length",
}
BUFFER = "rotary_emb.inv_freq"  # computed anew


def canonical(name: str) -> str | None:
    """A stored name, or None for what is left out on purpose."""
    return None if name == BUFFER else name


def probabilities(head: Tensor, sigma: float, *, scaled: bool) -> Tensor:
    """The head's rows [n, vocabulary] -> logarithms of the probabilities of masked rows. The ratios of a `scaled` head
    lack a divisor: (exp(sigma) - 1) times all tokens but the mask."""
    return head - math.log(head.shape[-1] - 1) if scaled else head + math.log(math.expm1(sigma))


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> dit.Dit:
    """Load a checkpoint. Raises WeightsError or TokenizerError."""
    name, said, graph = folder.name, config.get("model"), config.get("graph")
    if not isinstance(said, dict) or not isinstance(graph, dict) or type(config.get("tokens")) is not int:
        raise WeightsError(f"The config.json of {name} is damaged: model, graph or tokens is missing.")
    if graph.get("type") != "absorb":
        found = short(graph.get("type"))
        raise WeightsError(f"{name} was trained on the graph {found}; only absorb is supported.")
    if not any(folder.glob("*.safetensors")) and (folder / "pytorch_model.bin").is_file():
        raise WeightsError(f"The weights of {name} are a pickle, which could run code; save them as safetensors.")
    sizes = {own: said.get(theirs) for own, theirs in SIZES.items()} | {"vocabulary": config["tokens"] + 1}
    output = partial(probabilities, scaled=bool(said.get("scale_by_sigma")))
    return dit.load(folder, dit.Config.read(sizes), choice, canonical, spec, timed=True, output=output)


def spec(shape: dit.Config, tokenizer: Tokenizer, device: str, context: int, radius: int) -> ModelSpec:
    """Its estimates are ratios."""
    made = dit.spec(shape, tokenizer, device, context, radius)
    return replace(made, noise=Absorbing(shape.vocabulary - 1, ratios=True))
