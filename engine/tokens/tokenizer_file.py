"""The parts of a `tokenizer.json` that BPE needs, with limits on their sizes, and nothing else of the format.

The library never gets an untrusted file, only the parts that passed here, written again: a normalizer that expands its
text aborts the process; an endless regular expression or a pre-tokenizer of width 0 raises a non-Exception.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from caesura.model_store.reading import MAX_LARGE, decoded, read, short

VOCAB, MERGES, ADDED, CONFIG = "vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json"
LIKE_QWEN = ("Qwen2Tokenizer", "DreamTokenizer")  # classes that split text as Qwen2 does
GPT2 = "GPT2Tokenizer"
MAX_TOKENS = 1 << 20  # Gemma's has 262,144
MAX_ADDED = 1 << 16  # Gemma's has 6,242
MAX_CONTENT = 256  # code points of an added token

TokenId = Annotated[int, Meta(ge=0, lt=MAX_TOKENS)]


QWEN = (  # the regular expression of Qwen2, Qwen2.5 and Qwen3; Llama-3's takes up to three digits together
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LING = (  # that of Ling's and LLaDA's
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


class Space(msgspec.Struct, frozen=True):
    text: Literal[" "] = msgspec.field(name="String")


class SplitPattern(msgspec.Struct, frozen=True, omit_defaults=True):
    """A space, or one of three regular expressions that take linear time; any other could hang."""

    text: Literal[" "] | None = msgspec.field(name="String", default=None)
    expression: str | None = msgspec.field(name="Regex", default=None)

    def __post_init__(self) -> None:
        if (self.text is None) == (self.expression is None) or self.expression not in (None, QWEN, LLAMA3, LING):
            raise ValueError("an unknown pattern")


class Replace(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """SentencePiece's; every other normalizer changes the text."""

    pattern: Space
    content: Literal["▁"]


class NFC(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Named in Qwen's files, accepted and dropped: the text around a hole must stay the same byte by byte, and the
    model reads a decomposed letter just as well."""


class ByteLevel(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    add_prefix_space: bool
    trim_offsets: bool = True
    use_regex: bool = True


class Digits(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    individual_digits: bool


class Split(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    pattern: SplitPattern
    behavior: str
    invert: bool


class Sequence(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    pretokenizers: Annotated[tuple[ByteLevel | Digits | Split, ...], Meta(max_length=8)]


class Added(msgspec.Struct, frozen=True):
    id: TokenId
    content: Annotated[str, Meta(min_length=1, max_length=MAX_CONTENT)]
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class Decoder(msgspec.Struct, frozen=True):
    """Only its name is used, to select the kind of BPE."""

    type: str
    decoders: tuple["Decoder", ...] = ()

    @property
    def steps(self) -> list[str]:
        return [step.type for step in self.decoders or (self,)]


class BPE(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """No dropout, which would make tokens random, no marks at the ends of words, and one token an id."""

    vocab: dict[str, TokenId]
    merges: tuple[str | tuple[str, str], ...]
    unk_token: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False
    dropout: None = None
    continuing_subword_prefix: Literal["", None] = None
    end_of_word_suffix: Literal["", None] = None

    def __post_init__(self) -> None:
        if len(set(self.vocab.values())) < len(self.vocab):
            raise ValueError("two tokens have one id")


class File(msgspec.Struct, frozen=True):
    model: BPE
    added_tokens: Annotated[tuple[Added, ...], Meta(max_length=MAX_ADDED)] = ()
    normalizer: Replace | NFC | None = None
    pre_tokenizer: ByteLevel | Digits | Split | Sequence | None = None
    decoder: Decoder | None = None
    version: Literal["1.0"] = "1.0"


def parsed(raw: bytes) -> File:
    """Raises ValueError, or RecursionError for endless nesting."""
    return msgspec.json.decode(raw, type=File)


class AddedText(msgspec.Struct, frozen=True):
    content: Annotated[str, Meta(min_length=1, max_length=MAX_CONTENT)]
    special: bool = True


class TokenizerConfig(msgspec.Struct, frozen=True):
    """What is read of a tokenizer_config.json."""

    tokenizer_class: str = ""
    added_tokens_decoder: Annotated[dict[TokenId, AddedText], Meta(max_length=MAX_ADDED)] = {}


def of_parts(folder: Path, usual: str = "") -> File:
    """Read a tokenizer that is published in parts, as Dream's is; its class says how it splits text, or the `usual` one
    if the folder names none. Raises UnusableModel or ValueError."""
    vocabulary = decoded(folder / VOCAB, dict[str, TokenId], MAX_LARGE)
    said = not usual or (folder / CONFIG).exists()
    config = decoded(folder / CONFIG, TokenizerConfig) if said else TokenizerConfig()
    kind = (config.tokenizer_class or usual).removesuffix("Fast")
    if kind not in (*LIKE_QWEN, GPT2):
        raise ValueError(f"how a {short(kind)} splits text is not known")
    added = dict(config.added_tokens_decoder)
    if (folder / ADDED).exists():
        more = decoded(folder / ADDED, dict[str, TokenId])
        added = {number: AddedText(content) for content, number in more.items()} | added
    vocabulary |= {token.content: number for number, token in added.items()}  # not numbered by the library
    lines = read(folder / MERGES, MAX_LARGE).decode().split("\n")
    split = Split(SplitPattern(expression=QWEN), "Isolated", invert=False)
    byte_level = ByteLevel(add_prefix_space=False, use_regex=kind == GPT2)
    return File(
        BPE(vocabulary, tuple(line for line in lines if line and not line.startswith("#version"))),
        tuple(
            Added(number, token.content, False, False, False, False, token.special)
            for number, token in sorted(added.items())
        ),
        pre_tokenizer=byte_level if kind == GPT2 else Sequence((split, byte_level)),
        decoder=Decoder("ByteLevel"),
    )


def written(file: File) -> str:
    """The file for the library, without a decoder."""
    normalizer = file.normalizer if isinstance(file.normalizer, Replace) else None
    return msgspec.json.encode(msgspec.structs.replace(file, decoder=None, normalizer=normalizer)).decode()
