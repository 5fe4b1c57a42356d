"""Text to ids and back, and files that are not what they should be."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.engine.models import EMBEDDED
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.tokenizer import MAX_FILE, Tokenizer, TokenizerError

TEXTS = ["", "x", "def f(a):\n\treturn a  # ünï\r\n", "😀🐍\f\x0b", "\u2028 \u00a0", "a" * 500]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(tiny: BlockLlama, text: str) -> None:
    tokenizer = tiny.tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.bytes(ids) == text.encode()
    assert tokenizer.encode_batch([text, "other"]) == [ids, tokenizer.encode("other")]


def test_the_shipped_tokenizer_keeps_text_too() -> None:
    tokenizer = Tokenizer(EMBEDDED / "tokenizer.json")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives(tiny: BlockLlama, text: str) -> None:
    assert tiny.tokenizer.decode(tiny.tokenizer.encode(text)) == text


@pytest.mark.parametrize("special", ["<file_sep>", "<|endoftext|>"])
def test_text_never_becomes_a_special_token(tiny: BlockLlama, special: str) -> None:
    tokenizer = tiny.tokenizer
    number = tokenizer.special(special)
    assert number not in tokenizer.encode(f"a{special}b")
    assert tokenizer.decode(tokenizer.encode(special)) == special
    assert tokenizer.pieces[number] == b""


def test_every_id_has_bytes_and_every_byte_an_id(tiny: BlockLlama) -> None:
    pieces = tiny.tokenizer.pieces
    assert len(pieces) == tiny.tokenizer.size == len(set(pieces)) + 1  # two specials are empty
    assert {bytes([b]) for b in range(256)} <= set(pieces)


def test_an_incomplete_character_at_the_end_is_left_out(tiny: BlockLlama) -> None:
    tokenizer = tiny.tokenizer
    ids = tokenizer.encode("a😀")
    assert tokenizer.decode(ids[:-1]) == "a"


def test_a_missing_special_token_is_named(tiny: BlockLlama) -> None:
    with pytest.raises(TokenizerError, match="<fim>"):
        tiny.tokenizer.special("<fim>")


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is .*damaged"):
        Tokenizer(path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE + 1)
    with pytest.raises(TokenizerError, match="larger"):
        Tokenizer(path)
