"""Tokenizers as they are published without a tokenizer.json, and ways to split text."""

import json
from pathlib import Path

import pytest

from caesura.engine.tokens import tokenizer
from caesura.engine.tokens.tokenizer import TokenizerError
from caesura.engine.tokens.tokenizer_file import LING, QWEN
from caesura.model_store.reading import UnusableModel

from ...support.checkpoints.tiny import CODE, train_tokenizer

MASK = "<|mask|>"


def in_parts(folder: Path, of: Path, kind: str = "DreamTokenizer") -> Path:
    """As Dream's: without a tokenizer.json."""
    file = json.loads(of.read_text())
    folder.mkdir()
    added = {token["content"]: token["id"] for token in file["added_tokens"]}
    vocabulary = {token: number for token, number in file["model"]["vocab"].items() if token not in added}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    merges = (" ".join(merge) for merge in file["model"]["merges"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "added_tokens.json").write_text(json.dumps(added))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    return folder


def test_a_tokenizer_in_parts_reads_as_the_whole_one(tmp_path: Path) -> None:
    whole = train_tokenizer(tmp_path / "tokenizer.json", QWEN, [MASK])
    parts = tokenizer.load(in_parts(tmp_path / "parts", whole))
    text = CODE + "12345 don't \n\n  x\tβ" + MASK
    assert parts.encode(text) == tokenizer.load(tmp_path).encode(text)
    assert parts.pieces == tokenizer.load(tmp_path).pieces
    assert parts.find(MASK) == tokenizer.load(tmp_path).find(MASK)


def test_a_family_may_say_how_a_tokenizer_in_parts_splits_text(tmp_path: Path) -> None:
    whole = train_tokenizer(tmp_path / "tokenizer.json")
    parts = in_parts(tmp_path / "parts", whole)
    (parts / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
    found = tokenizer.load(parts, usual="GPT2Tokenizer")
    (parts / "tokenizer_config.json").unlink()
    again = tokenizer.load(parts, usual="GPT2Tokenizer")
    text = "don't  go\n\n12"
    starts = [0, 3, 5, 6, 9, 10, 11]  # as GPT-2 splits it, which keeps digits together
    assert (found.pretokens(text), again.pretokens(text)) == (starts, starts)
    with pytest.raises(UnusableModel, match=r"tokenizer_config\.json is missing"):
        tokenizer.load(parts)


def test_a_tokenizer_in_parts_that_splits_text_otherwise_is_refused(tmp_path: Path) -> None:
    whole = train_tokenizer(tmp_path / "tokenizer.json", QWEN)
    with pytest.raises(TokenizerError, match="how a BertTokenizer splits text is not known"):
        tokenizer.load(in_parts(tmp_path / "parts", whole, "BertTokenizer"))
    (tmp_path / "parts" / "vocab.json").write_text("{")
    with pytest.raises(UnusableModel, match=r"vocab\.json is damaged"):
        tokenizer.load(tmp_path / "parts")


def test_a_tokenizer_in_parts_has_one_token_an_id(tmp_path: Path) -> None:
    parts = in_parts(tmp_path / "parts", train_tokenizer(tmp_path / "tokenizer.json", QWEN))
    vocabulary = json.loads((parts / "vocab.json").read_text())
    first, second = list(vocabulary)[-2:]
    (parts / "vocab.json").write_text(json.dumps(vocabulary | {first: vocabulary[second]}))
    with pytest.raises(TokenizerError, match="two tokens have one id"):
        tokenizer.load(parts)


def test_lladas_way_to_split_text_is_read(tmp_path: Path) -> None:
    train_tokenizer(tmp_path / "tokenizer.json", LING)
    text = "def f(x):\n\n    return don't 123 \t\r\n" + " " * 40
    found = tokenizer.load(tmp_path)
    assert found.decode(found.encode(text)) == text
