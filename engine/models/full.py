"""Families of full visibility: prefix, slots and suffix lie on one canvas and all rows see each other. There is no
context, so every step computes all rows. A trunk of `llama/` computes it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from caesura.engine.model import MAX_ROWS, LoadChoice, Model, ModelSpec
from caesura.engine.models.devices import chosen
from caesura.engine.models.families import Traits, named
from caesura.engine.models.llama.config import Config, chunk_of
from caesura.engine.models.llama.names import HUB, Published
from caesura.engine.models.llama.published import ROUNDED as ROUNDED
from caesura.engine.models.llama.published import built
from caesura.engine.models.llama.published import canonical as canonical
from caesura.engine.noise import Absorbing
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.tokenizer import load as load_tokenizer
from caesura.engine.tokens.turns import turns_of
from caesura.engine.weights.sources import Source
from caesura.engine.weights.stored import WeightsError
from caesura.model_store import title

if TYPE_CHECKING:
    from caesura.engine.weights.gguf.file import GGUF

CONTEXT = {"cpu": 256, "cuda": 2048}  # default tokens around a hole, by device
LEAST = 64  # fewest tokens around a hole that a user may ask for
ROWS = 8192  # most rows of a step on a GPU, all canvases together
WORK = 1 << 39  # multiplications of a step on a CPU: one or two seconds of one core
RADIUS = 64  # default rows next to a slot that every step computes
GGUF_ROLES = {"padding": "pad"}  # words of GGUF that are others on the hub
ENDS = ("eos_token", "pad_token")


def load(traits: Traits, folder: Path, config: dict[str, Any], choice: LoadChoice) -> Model:
    """Load a published checkpoint. Raises WeightsError or TokenizerError."""
    return published(traits, folder, config, choice, CONTEXT, partial(spec, radius_of(choice)))


def load_gguf(traits: Traits, file: "GGUF", choice: LoadChoice) -> Model:
    """Load a GGUF file, in which names are the hub's. It says whether logits are shifted, or else the family does.
    Raises WeightsError or TokenizerError."""
    plain = replace(traits, names=HUB, shift=int(file.config.get("shift_logits", traits.shift)))
    tokens = {f"{GGUF_ROLES.get(role, role)}_token": token for role, token in file.roles.items()}
    config, choice = {**file.config, **traits.given}, replace(choice, device=chosen(choice.device))
    name, described = title(file.path), partial(spec, radius_of(choice))
    return trunk(plain, name, config, tokens, file.tokenizer(), file.tensors, choice, CONTEXT, described)


def radius_of(choice: LoadChoice) -> int:
    """The `radius` of `ModelSpec`."""
    return 0 if choice.exact else RADIUS if choice.radius is None else choice.radius


class MaskedFiles(NamedTuple):
    """What the files of a masked model say: its family's traits, a config with the keys of the hub's Llama, the special
    tokens by role, and the mask token."""

    traits: Traits
    config: Mapping[str, Any]
    tokens: Mapping[str, str]
    tokenizer: Tokenizer
    mask: int


def spec(radius: int, files: MaskedFiles, shape: Config, device: str, context: int, rows: int) -> ModelSpec:
    """The spec of a model with so much context, and so many rows of a step, on a device."""
    traits, config, tokens, tokenizer, mask = files
    find = tokenizer.find
    first = find(tokens.get("bos_token", "")) if traits.opens else None
    last = find(tokens.get("eos_token", "")) if traits.closes else None
    seen = ModelSpec(
        Absorbing(mask),
        Absorbing.method,
        max_context=context,
        chunk=chunk_of(device),
        tail=context,
        head=context,
        rows=rows,
        shift=traits.shift,
        visibility="full",
        radius=radius,
        start=() if first is None else (first,),
        finish=() if last is None else (last,),
        ends=ends(config, tokens, tokenizer),
        prompt="inline",
    )
    if last is not None and (expand := find(traits.expand)) is not None:
        return replace(seen, lengths="expand", expand_id=expand, null_id=last, ends=frozenset())
    return seen


def published(
    traits: Traits,
    folder: Path,
    config: dict[str, Any],
    choice: LoadChoice,
    usual: Mapping[str, int],
    described: Callable[..., ModelSpec],
) -> Model:
    """The trunk of a checkpoint with absorbing noise, one layer at a time, and `usual` tokens of text by device. Raises
    WeightsError or TokenizerError."""
    config, choice = traits.spelled(folder.name, config), replace(choice, device=chosen(choice.device))
    tensors = Published(folder)
    return trunk(traits, folder.name, config, named(folder), load_tokenizer(folder), tensors, choice, usual, described)


def trunk(
    traits: Traits,
    name: str,
    config: dict[str, Any],
    tokens: Mapping[str, str],
    tokenizer: Tokenizer,
    tensors: Source,
    choice: LoadChoice,
    usual: Mapping[str, int],
    described: Callable[..., ModelSpec],
) -> Model:
    """The trunk of tensors, from a config with the keys of the hub's Llama; `tokens` are the special ones by role, and
    `described` makes the spec."""
    mask = mask_of(name, config, {"mask_token": traits.mask, **tokens}, tokenizer)
    tokenizer.reserve(mask)
    return built(
        name,
        config,
        tokenizer,
        tensors,
        choice,
        partial(described, MaskedFiles(traits, config, tokens, tokenizer, mask)),
        usual=usual.get(choice.device, usual["cuda"]),
        least=LEAST,
        tokens=mask + 1,  # some tokenizers lack the mask token
        names=traits.names,
        steps=steps,
    )


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
