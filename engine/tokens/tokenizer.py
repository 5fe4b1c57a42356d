"""`tokenizer.json` with the few calls the engine needs: text to ids, ids to bytes, and the vocabulary as bytes.

The decoder named in the file selects one of two kinds of BPE: byte-level with GPT-2's alphabet (Radford et al. 2019),
or SentencePiece's (Kudo and Richardson 2018) as Gemma has it: `▁` is a space, and text without a token of its own is
spelled in tokens `<0x00>` to `<0xFF>`. A file that does not reproduce the text it reads is refused.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from caesura.engine.tokens import tokenizer_file
from caesura.engine.tokens.tokenizer_file import VOCAB, File
from caesura.model_store.reading import MAX_LARGE, UnusableModel, quoted, read, reason, short

SPACE = "▁"  # SentencePiece's stand-in
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_CONTROL = re.compile(r"<\|.+>|<.+\|>|<\[.+\]>|</?role>")  # marks turns and the like, whether or not its file says so
_PROBE = "a  b \t\r\n\n\0 É e\u0301 \u212b ﬁ 中🐍\u200d \u2581 '" + "".join(  # what normalizers fold, and all letters
    map(chr, (*range(32, 0x800), *range(0x800, 0xD800, 0x800)))
)


class TokenizerError(UnusableModel):
    """The tokenizer files are missing, damaged or not supported."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, reversed (Radford et al. 2019, `bytes_to_unicode`)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(b): b for b in printable}
    hidden = (b for b in range(256) if b not in set(printable))
    alphabet.update({chr(256 + n): b for n, b in enumerate(hidden)})
    return alphabet


# Maps each stand-in to the character that Latin-1 encodes as its byte, and all other bytes to one it cannot encode.
_ALPHABET = dict.fromkeys(range(256), "\uffff") | {ord(c): chr(b) for c, b in _byte_alphabet().items()}


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:  # an added token is its own text
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if token.startswith("<0x") and (byte := _BYTE.fullmatch(token)):
        return bytes.fromhex(byte[1])
    return token.replace(SPACE, " ").encode()


def load(folder: Path, usual: str = "") -> "Tokenizer":
    """Of a model folder: its tokenizer.json, or where there is none its vocab.json and merges.txt, of the `usual` class
    if the folder names none. Raises TokenizerError."""
    if (folder / "tokenizer.json").exists() or not (folder / VOCAB).exists():
        return Tokenizer(folder / "tokenizer.json")
    try:
        file = tokenizer_file.of_parts(folder, usual)
    except ValueError as error:
        raise TokenizerError(f"The tokenizer files of {folder.name} are damaged: {reason(error)}.") from error
    return Tokenizer(file, folder.name)


class Tokenizer:
    """Ids are ints; every id has a byte string, empty for control tokens. Text never becomes a control token."""

    def __init__(self, source: Path | File, name: str = "") -> None:
        """From a `tokenizer.json`, or from another kind of file, which errors call by its `name`. Raises
        TokenizerError."""
        name = name or getattr(source, "name", "")
        try:
            file = source if isinstance(source, File) else tokenizer_file.parsed(read(source, MAX_LARGE))
            self._inner = tokenizers.Tokenizer.from_str(tokenizer_file.written(file))
        except BaseException as error:  # the library's PanicException is not an Exception
            if isinstance(error, KeyboardInterrupt | UnusableModel):
                raise
            raise TokenizerError(f"{name} is damaged or of a kind that cannot be read: {reason(error)}.") from error
        self._inner.encode_special_tokens = True  # a special token in a text is plain text and strips no blanks
        for token in file.added_tokens:
            if self.find(token.content) != token.id:  # the library may have given it another id
                raise TokenizerError(f"{name} is damaged: {quoted(token.content)} cannot have the id {token.id}.")
        self._control = {t.id: t.content for t in file.added_tokens if t.special or _CONTROL.fullmatch(t.content)}
        ids = (*file.model.vocab.values(), *(token.id for token in file.added_tokens))
        self.size: int = 1 + max(ids, default=-1)
        self._spelling: dict[int, list[int]] = {}  # letters of control tokens found in a text
        self._mark: list[int] = []  # the bytes of SPACE itself, if it has to be spelled
        self._piece = self._kind(name, file)
        self._split = self._inner.pre_tokenizer
        self.sentencepiece = bool(self._mark)  # its merges cross pre-tokens
        probe = " ".join(["a", *(t.content for t in file.added_tokens), _PROBE])
        if b"".join(map(self._bytes_of, self.encode(probe))) != probe.encode():
            raise TokenizerError(f"{name} changes the text that it reads, and files with it; it was not loaded.")

    def __repr__(self) -> str:
        return f"<Tokenizer of {self.size} tokens, {len(self._control)} for control>"

    def _kind(self, name: str, file: File) -> Callable[[str], bytes]:
        """The function from a token to bytes, by the file's decoder."""
        steps = file.decoder.steps if file.decoder else ["none"]
        if steps == ["ByteLevel"]:
            return _byte_level
        if steps == ["Replace", "ByteFallback", "Fuse"] and file.model.byte_fallback:
            spelled = [self.special(f"<0x{byte:02X}>") for byte in range(256)]
            self._mark = [spelled[byte] for byte in SPACE.encode()]
            return _sentencepiece
        raise TokenizerError(
            f"{name} is neither byte-level BPE nor SentencePiece's BPE with bytes (its decoder:"
            f" {short(', '.join(steps))}); other kinds cannot be read."
        )

    def encode(self, text: str) -> list[int]:
        parts = text.split(SPACE) if self._mark else [text]
        ids = self._encode(parts[0])
        for part in parts[1:]:
            ids += self._mark + self._encode(part)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self._mark and any(SPACE in text for text in texts):
            return [self.encode(text) for text in texts]
        return [self._spelled(e.ids) for e in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _encode(self, text: str) -> list[int]:
        return self._spelled(self._inner.encode(text, add_special_tokens=False).ids) if text else []

    def _spelled(self, ids: list[int]) -> list[int]:
        """`ids` of a text, with control tokens spelled in letters; they arise from merges, or if the file does not call
        them special."""
        if self._control.keys().isdisjoint(ids):
            return ids
        return [i for number in ids for i in self._letters(number)]

    def _letters(self, number: int) -> list[int]:
        if number not in self._control:
            return [number]
        if number not in self._spelling:
            letters = (self._inner.encode(c, add_special_tokens=False).ids for c in self._control[number])
            self._spelling[number] = [i for ids in letters for i in ids]
        return self._spelling[number]

    def pretokens(self, text: str) -> list[int]:
        """The start of each pre-token of a text, in code points; no token crosses into the next one."""
        if self._split is None:
            return [0] if text else []
        return [start for _, (start, _) in self._split.pre_tokenize_str(text)]

    def find(self, token: str) -> int | None:
        """The id of a token by its name in the file, if there is one."""
        try:
            number: int | None = self._inner.token_to_id(token)
        except UnicodeEncodeError:  # a lone surrogate
            return None
        return number

    def reserve(self, number: int) -> None:
        """No text becomes this token, and it is none, whatever the file says. To be called before any is read."""
        token = self._inner.id_to_token(number)
        if token is not None:
            self._control[number] = token

    def special(self, token: str) -> int:
        """The id of a special token. Raises TokenizerError when the file lacks it."""
        number = self.find(token)
        if number is None:
            raise TokenizerError(f"The tokenizer has no token {short(token)}.")
        return number

    @cached_property
    def pieces(self) -> list[bytes]:
        """id -> bytes; control tokens are empty."""
        return [self._bytes_of(i) for i in range(self.size)]

    def _bytes_of(self, number: int) -> bytes:
        return b"" if number in self._control else self._piece(self._inner.id_to_token(number) or "")

    def bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.pieces[i] for i in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; an incomplete character at the end is left out."""
        return self.bytes(ids).decode("utf-8", errors="ignore")
