"""The control tokens by which code models were shown files and the gaps in them."""

from caesura.engine.tokens.tokenizer import Tokenizer

SEPARATORS = ("<|file_sep|>", "<file_sep>")  # between two files of one repository, as code models were trained
# Before the prefix, before the suffix, before the middle: Qwen; StarCoder and its kin.
FIM = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
)


def fim_tokens(tokenizer: Tokenizer) -> list[int]:
    """Ids of the first row of FIM whose three tokens the tokenizer has; empty if there is none."""
    rows = ([tokenizer.find(token) for token in row] for row in FIM)
    return next(([i for i in row if i is not None] for row in rows if None not in row), [])
