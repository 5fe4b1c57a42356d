"""Published autoregressive models of the Llama kind (Llama, Qwen2, Qwen3, StarCoder2), from a hub folder of safetensors
or a GGUF file. They have no canvas: drafts are repetitions in the buffer, and the model verifies them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from caesura.engine.canvas.prompts import FIM, SEPARATORS, fim_tokens
from caesura.engine.models import LoadChoice
from caesura.engine.models._llama_files import ROUNDED as ROUNDED
from caesura.engine.models._llama_files import Published, built
from caesura.engine.models._llama_files import canonical as canonical
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.model_store import title

if TYPE_CHECKING:
    from caesura.engine.weights.gguf_file import GGUF

CONTEXT = 768  # default tokens of context
LEAST = 512  # fewest tokens of context that a user may ask for
# Tokens that end a text or begin another one.
ENDS = (
    *("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<EOT>", "<｜end▁of▁sentence｜>"),
    *("<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<repo_name>", "<filename>", *SEPARATORS),
    *(token for tokens in FIM for token in tokens),
)
START = "<|begin_of_text|>"  # Llama 3 always saw this token first in training


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> BlockLlama:
    """Load a published checkpoint, one layer at a time. Raises WeightsError or TokenizerError."""
    tensors = Published(folder, choice.device)
    return of(folder.name, config, Tokenizer(folder / "tokenizer.json"), tensors, choice)


def load_gguf(file: "GGUF", choice: LoadChoice) -> BlockLlama:
    """Load a GGUF file. Raises WeightsError or TokenizerError."""
    tokenizer = file.tokenizer()
    ends = [tokenizer.find(name) for role, name in file.roles.items() if role in ("eos", "eot", "eom")]
    return of(title(file.path), {**file.config, "eos_token_id": ends}, tokenizer, file.tensors, choice)


def of(
    name: str, config: dict[str, Any], tokenizer: Tokenizer, tensors: Mapping[str, Tensor], choice: LoadChoice
) -> BlockLlama:
    """A model of tensors under the hub's names. Raises WeightsError."""
    return prompted(
        built(name, config, tokenizer, tensors, choice, usual=CONTEXT, least=LEAST, tokens=choice.tokens), config
    )


def prompted(model: BlockLlama, config: dict[str, Any]) -> BlockLlama:
    """The model with its control tokens set: those that lay out a gap and those that end a text."""
    find = model.tokenizer.find
    known = [number for token in ENDS if (number := find(token)) is not None]
    said = config.get("eos_token_id")
    ends = [number for number in (said if isinstance(said, list) else [said]) if type(number) is int]
    model.ends = frozenset(known) | {number for number in ends if 0 <= number < model.width}
    separators = [number for token in SEPARATORS if (number := find(token)) is not None]
    start = find(START)
    model.start = [] if start is None else [start]
    if separators:
        model.separator = separators[:1]
    else:
        model.prompt = "fim" if fim_tokens(model.tokenizer) else "plain"
    return model
