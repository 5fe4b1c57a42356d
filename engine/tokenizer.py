"""`tokenizer.json` behind the few calls the engine needs: text to ids, ids to bytes, and the vocabulary as bytes."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

MAX_FILE = 32 << 20  # bytes; a hostile tokenizer file is refused before it is parsed


class TokenizerError(Exception):
    """The tokenizer file cannot be used; one sentence for the user."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, reversed (Radford et al. 2019, `bytes_to_unicode`)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(b): b for b in printable}
    hidden = (b for b in range(256) if b not in set(printable))
    alphabet.update({chr(256 + n): b for n, b in enumerate(hidden)})
    return alphabet


class Tokenizer:
    """Byte-level BPE. Ids are ints; every id has a byte string, empty for special tokens."""

    def __init__(self, path: Path) -> None:
        try:
            if path.stat().st_size > MAX_FILE:
                raise TokenizerError(f"{path.name} is larger than {MAX_FILE >> 20} MiB and was not loaded.")
            self._inner = tokenizers.Tokenizer.from_file(str(path))
        except BaseException as error:  # the library raises PanicException, which is no Exception
            if isinstance(error, KeyboardInterrupt | TokenizerError):
                raise
            reason = " ".join(str(error).split())[:160]
            raise TokenizerError(f"{path.name} is missing or damaged: {reason}") from error
        self._inner.encode_special_tokens = True  # text of the buffer never becomes a special token
        self.size = self._inner.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def special(self, token: str) -> int:
        """The id of a special token. Raises TokenizerError when the file lacks it."""
        number = self._inner.token_to_id(token)
        if number is None:
            raise TokenizerError(f"The tokenizer has no token {token}.")
        return int(number)

    @cached_property
    def pieces(self) -> list[bytes]:
        """id -> bytes; special tokens are empty."""
        alphabet = _byte_alphabet()
        special = {i for i, t in self._inner.get_added_tokens_decoder().items() if t.special}
        return [
            b"" if i in special else bytes(alphabet[c] for c in self._inner.id_to_token(i) or "")
            for i in range(self.size)
        ]

    def bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.pieces[i] for i in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; an incomplete character at the end is left out."""
        return self.bytes(ids).decode("utf-8", errors="ignore")
