"""Families of full visibility: prefix, slots and suffix lie on one canvas and all rows see each other. There is no
context, so every step computes all rows. Each family has a file with the traits its checkpoints were trained with;
the trunk is `BlockLlama`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from caesura.engine.canvas.canvas import MAX_ROWS
from caesura.engine.canvas.turns import turns_of
from caesura.engine.models import LoadChoice
from caesura.engine.models._families import named
from caesura.engine.models._llama_config import Config
from caesura.engine.models._llama_files import HUB, Names, Published, built, chosen
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.noise import Absorbing
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.tokenizer import load as load_tokenizer
from caesura.engine.weights.stored import WeightsError
from caesura.model_store import title
from caesura.model_store.reading import short

if TYPE_CHECKING:
    from caesura.engine.weights.gguf_file import GGUF

CONTEXT = {"cpu": 256, "cuda": 2048}  # default tokens around a hole, by device
LEAST = 64  # fewest tokens around a hole that a user may ask for
ROWS = 8192  # most rows of a step on a GPU, all canvases together
WORK = 1 << 39  # multiplications of a step on a CPU: one or two seconds of one core
RADIUS = 64  # default rows next to a slot that every step computes
GGUF_ROLES = {"padding": "pad"}  # words of GGUF that are others on the hub
ENDS = ("eos_token", "pad_token")


@dataclass(frozen=True)
class Traits:
    """How a family was trained, and how its files spell it. `shift` is as in `Model`. A text that `opens` starts with
    the tokenizer's bos token; one that `closes` ends with its eos token. If the tokenizer has the token `expand`, slots
    expand where the model predicts it and go where it predicts the eos token. `names` are the tensor names. `keys` map
    a key of the hub's Llama config to the family's own. `flags` are settings of config.json with the only supported
    value. `given` are settings that the family's code fixes, whatever config.json says. `mask` is the mask token and
    `block_size` the rows of a block if the files name none."""

    shift: int
    opens: bool
    closes: bool
    expand: str = ""
    names: Names = HUB
    keys: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    given: Mapping[str, object] = field(default_factory=dict)
    mask: str = ""
    block_size: int = 1

    def spelled(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        """config.json with the keys of the hub's Llama. Raises WeightsError if a flag has an unsupported value."""
        for flag, value in self.flags.items():
            if config.get(flag, value) != value:
                found = f"{name} has {flag} {short(config[flag])}"
                raise WeightsError(f"{found}; only {value} is supported.")
        said = {theirs: config[own] for theirs, own in self.keys.items() if config.get(own) is not None}
        return {**config, **said, **self.given}


def load(traits: Traits, folder: Path, config: dict[str, Any], choice: LoadChoice) -> BlockLlama:
    """Load a published checkpoint. Raises WeightsError or TokenizerError."""
    return seen_by_all(published(traits, folder, config, choice, CONTEXT), choice)


def load_gguf(traits: Traits, file: "GGUF", choice: LoadChoice) -> BlockLlama:
    """Load a GGUF file, in which names are the hub's. It says whether logits are shifted, or else the family does.
    Raises WeightsError or TokenizerError."""
    plain = replace(traits, names=HUB, shift=int(file.config.get("shift_logits", traits.shift)))
    tokens = {f"{GGUF_ROLES.get(role, role)}_token": token for role, token in file.roles.items()}
    config, choice = {**file.config, **traits.given}, replace(choice, device=chosen(choice.device))
    name = title(file.path)
    return seen_by_all(trunk(plain, name, config, tokens, file.tokenizer(), file.tensors, choice, CONTEXT), choice)


def seen_by_all(model: BlockLlama, choice: LoadChoice) -> BlockLlama:
    """Set what full visibility means: no context, all text on the canvas."""
    model.visibility, model.method, model.prompt = "full", Absorbing.method, "inline"
    model.tail = model.head = model.max_context
    model.radius = 0 if choice.exact else RADIUS if choice.radius is None else choice.radius
    return model


def published(
    traits: Traits, folder: Path, config: dict[str, Any], choice: LoadChoice, usual: Mapping[str, int]
) -> BlockLlama:
    """The trunk of a checkpoint with absorbing noise, one layer at a time, and `usual` tokens of text by device. Raises
    WeightsError or TokenizerError."""
    config, device = traits.spelled(folder.name, config), chosen(choice.device)
    tensors, choice = Published(folder, device), replace(choice, device=device)
    return trunk(traits, folder.name, config, named(folder), load_tokenizer(folder), tensors, choice, usual)


def trunk(
    traits: Traits,
    name: str,
    config: dict[str, Any],
    tokens: Mapping[str, str],
    tokenizer: Tokenizer,
    tensors: Mapping[str, Tensor],
    choice: LoadChoice,
    usual: Mapping[str, int],
) -> BlockLlama:
    """The trunk of tensors, from a config with the keys of the hub's Llama; `tokens` are the special ones by role."""
    mask = mask_of(name, config, {"mask_token": traits.mask, **tokens}, tokenizer)
    tokenizer.reserve(mask)
    model = built(
        name,
        config,
        tokenizer,
        tensors,
        choice,
        usual=usual.get(choice.device, usual["cuda"]),
        least=LEAST,
        tokens=mask + 1,  # some tokenizers lack the mask token
        names=traits.names,
        steps=steps,
    )
    model.noise, model.shift, model.lengths = Absorbing(mask), traits.shift, "race"
    model.ends = ends(config, tokens, tokenizer)
    find = tokenizer.find
    model.start = [first] if traits.opens and (first := find(tokens.get("bos_token", ""))) is not None else []
    model.finish = [last] if traits.closes and (last := find(tokens.get("eos_token", ""))) is not None else []
    if model.finish and (expand := find(traits.expand)) is not None:
        model.lengths, model.expand_id = "expand", expand
        model.null_id, model.ends = model.finish[0], frozenset()
    return model


def mask_of(name: str, config: Mapping[str, Any], tokens: Mapping[str, str], tokenizer: Tokenizer) -> int:
    """The id of the mask token, from config.json, else from the tokenizer. Raises WeightsError."""
    said = config.get("mask_token_id")
    found = said if said is not None else tokenizer.find(tokens.get("mask_token", ""))
    if type(found) is not int or not 0 <= found < 1 << 20:
        raise WeightsError(f"{name} names no valid mask token; add mask_token_id to its config.json or its metadata.")
    return found


def ends(config: Mapping[str, Any], tokens: Mapping[str, str], tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end a text, or an answer in a chat."""
    said, chat = config.get("eos_token_id"), turns_of(tokenizer)
    known = [*(said if isinstance(said, list) else [said]), *(tokenizer.find(tokens.get(part, "")) for part in ENDS)]
    known += [tokenizer.find(chat.end)] if chat else []
    return frozenset(token for token in known if type(token) is int and 0 <= token < tokenizer.size)


def steps(shape: Config, context: int, device: str) -> Sequence[int]:
    """The rows that a step can have, all canvases together, most first; a race over lengths runs as many canvases as
    fit. One canvas always has room."""
    least = context + MAX_ROWS
    if device != "cpu":
        return [*(rows for rows in (ROWS, ROWS // 2) if rows > least), least]
    products = shape.num_layers * shape.size(0 if shape.mixture is None else shape.mixture.top)
    return [max(least, min(ROWS, WORK // products))]
