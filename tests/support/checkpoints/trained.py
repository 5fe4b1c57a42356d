"""Code for tests, a tokenizer that is trained on it, and files of weights. Needs no PyTorch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<file_sep>"]
VOCABULARY = 400

FUNCTION = '''\
def {name}_{other}({name}, {other}=None):
    """Return the {name} of {other}, or `None`."""
    if not {name} and self._{other} is None:
        return f'{{{name}}}: {{{other}}}'
    for _, value in enumerate({name}.{other}(__file__)):
        print(value, "\\n", end="")
    self._{name} = [{other}[0], {other}[-1]]
    return {{"{name}": {name} + 1, "{other}": {other} != 20}}

'''
CLASS = """\
class {name}:
\t__slots__ = ("_{other}",)
\tasync def {other}(self, *args, **kwargs) -> {name} | None:
\t\ttry:
\t\t\tawait self._{other}(*args)
\t\texcept ValueError as error:
\t\t\traise {name}(error) from error\r
\f
"""
NAMES = [
    *("count", "total", "item", "key", "index", "line", "text", "row", "left", "right"),
    *("path", "file", "node", "tree", "state", "job", "peer", "cache", "model", "step"),
]
CODE = "".join(
    FUNCTION.format(name=a, other=b) + CLASS.format(name=a.title(), other=b)
    for a, b in zip(NAMES, NAMES[7:] + NAMES[:7], strict=True)
)


def train_tokenizer(path: Path, expression: str = "", more: Sequence[str] = ()) -> Path:
    """Byte-level BPE with GPT-2's pre-tokens and single digits, as the shipped one, or split by an expression; with
    `more` special tokens."""
    splits = [pre_tokenizers.Split(tokenizers.Regex(expression), "isolated")] if expression else []
    digits = [] if expression else [pre_tokenizers.Digits(individual_digits=True)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not expression)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, *digits, byte_level])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIALS, *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([CODE], trainer)
    assert inner.get_vocab_size() == VOCABULARY
    inner.save(str(path))
    return path


def save(tensors: Mapping[str, NDArray[np.float32]], path: Path) -> None:
    """Write a safetensors file."""
    about, at = dict[str, object](), 0
    for name, values in tensors.items():
        about[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": (at, at + values.nbytes)}
        at += values.nbytes
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(map(bytes, tensors.values())))
