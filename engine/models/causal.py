"""Published autoregressive models of the Llama kind (Llama, Qwen2, Qwen3, StarCoder2), from a hub folder of safetensors
or a GGUF file. They have no canvas: drafts are repetitions in the buffer, and the model verifies them.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caesura.engine.model import MAX_ROWS, LoadChoice, Model, ModelSpec
from caesura.engine.models.llama.config import Config, chunk_of
from caesura.engine.models.llama.names import Published
from caesura.engine.models.llama.published import ROUNDED as ROUNDED
from caesura.engine.models.llama.published import built
from caesura.engine.models.llama.published import canonical as canonical
from caesura.engine.tokens.fim import FIM, SEPARATORS, fim_tokens
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.sources import Source
from caesura.model_store import title

if TYPE_CHECKING:
    from caesura.engine.weights.gguf.file import GGUF

CONTEXT = 768  # default tokens of context
LEAST = 512  # fewest tokens of context that a user may ask for
# Tokens that end a text or begin another one.
ENDS = (
    *("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<EOT>", "<｜end▁of▁sentence｜>"),
    *("<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<repo_name>", "<filename>", *SEPARATORS),
    *(token for tokens in FIM for token in tokens),
)
START = "<|begin_of_text|>"  # Llama 3 always saw this token first in training


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> Model:
    """Load a published checkpoint, one layer at a time. Raises WeightsError or TokenizerError."""
    return of(folder.name, config, Tokenizer(folder / "tokenizer.json"), Published(folder), choice)


def load_gguf(file: "GGUF", choice: LoadChoice) -> Model:
    """Load a GGUF file. Raises WeightsError or TokenizerError."""
    tokenizer = file.tokenizer()
    ends = [tokenizer.find(name) for role, name in file.roles.items() if role in ("eos", "eot", "eom")]
    return of(title(file.path), {**file.config, "eos_token_id": ends}, tokenizer, file.tensors, choice)


def of(name: str, config: dict[str, Any], tokenizer: Tokenizer, tensors: Source, choice: LoadChoice) -> Model:
    """A model of tensors under the hub's names. Raises WeightsError."""
    described = partial(spec, config, tokenizer)
    return built(name, config, tokenizer, tensors, choice, described, usual=CONTEXT, least=LEAST, tokens=choice.tokens)


def spec(
    config: Mapping[str, Any], tokenizer: Tokenizer, shape: Config, device: str, context: int, rows: int = MAX_ROWS
) -> ModelSpec:
    """From config.json, or metadata that are spelled as it, and the control tokens of the tokenizer: those that lay out
    a gap and those that end a text."""
    find, said = tokenizer.find, config.get("eos_token_id")
    known = [number for token in ENDS if (number := find(token)) is not None]
    ends = [number for number in (said if isinstance(said, list) else [said]) if type(number) is int]
    separators = [number for token in SEPARATORS if (number := find(token)) is not None]
    start = find(START)
    return ModelSpec(
        noise=None,
        method="verify",
        max_context=context,
        chunk=chunk_of(device),
        tail=shape.tail,
        head=shape.head,
        rows=rows,
        shift=1,
        start=() if start is None else (start,),
        separator=tuple(separators[:1]),
        ends=frozenset(known) | {number for number in ends if 0 <= number < shape.vocab_size},
        prompt="suffix_first" if separators else "fim" if fim_tokens(tokenizer) else "plain",
    )
