"""Text to ids and back, for both kinds of vocabulary, and files that are not what they should be."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from caesura.engine.canvas.healing import heal
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.tokens import tokenizer as tokenizer_module
from caesura.engine.tokens.tokenizer import MAX_LARGE, Tokenizer, TokenizerError
from caesura.model_store import SMALL, locate
from caesura.model_store.reading import UnusableModel

from ...support.checkpoints import gemma

Change = Callable[[dict[str, Any]], dict[str, Any]]  # of a file -> sections that take the place of its own

TEXTS = [
    *("", "x", " x", "  \n  x", "def f(a):\n\treturn a  # ünï\r\n", "😀🐍\f\x0b", "\u2028 \u00a0", "a" * 500),
    *("\0\0 \0", "e\u0301 \u0301\u0301", "👩\u200d💻", "\u212b ﬁ İ", "▁", " ▁▁ a▁", "<0x0A><0x41>", "Ġa Ċ"),
    *(
        "<bos>",
        "<|turn>user\n<turn|>",
        "a<|tool_response><table><eos>b",
        "<|channel>thought\n<channel|>",
        "<|turn",
        "a  <unk>  b",
    ),
]
ANY_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from(" ▁\t\r\n\0<|>\u0301🐍"), st.sampled_from("aé_(")
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(gemma.tokenizer(tmp_path_factory.mktemp("gemma") / "tokenizer.json"))


@pytest.fixture(params=["byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tiny: NativeLlama, sentencepiece: Tokenizer) -> Tokenizer:
    return tiny.tokenizer if request.param == "byte-level" else sentencepiece


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.bytes(ids) == text.encode()
    assert tokenizer.encode_batch([text, "other"]) == [ids, tokenizer.encode("other")]


def test_the_shipped_tokenizer_keeps_text_too() -> None:
    tokenizer = Tokenizer(locate(SMALL) / "tokenizer.json")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=80, deadline=None)
@given(text=ANY_TEXT)
def test_any_text_survives(tiny: NativeLlama, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (tiny.tokenizer, sentencepiece):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_is_read_in_words_not_letters(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("def count(total):\n    return total\n")
    assert len(ids) <= 20
    assert b" total" in [sentencepiece.pieces[i] for i in sentencepiece.encode("return total")]


@pytest.mark.parametrize("special", ["<file_sep>", "<|endoftext|>"])
def test_text_never_becomes_a_special_token(tiny: NativeLlama, special: str) -> None:
    never_becomes(tiny.tokenizer, special)


@pytest.mark.parametrize("special", gemma.CONTROL)
def test_text_never_becomes_a_control_token_of_gemma(sentencepiece: Tokenizer, special: str) -> None:
    never_becomes(sentencepiece, special)


def test_text_never_becomes_a_control_token_that_merges_lead_to(tmp_path: Path) -> None:
    path = gemma.tokenizer(tmp_path / "tokenizer.json")
    gemma.tokenizer(path, model=gemma.leading_to("<turn|>", json.loads(path.read_text())))
    never_becomes(Tokenizer(path), "<turn|>")


def never_becomes(tokenizer: Tokenizer, special: str) -> None:
    number = tokenizer.special(special)
    assert number not in tokenizer.encode(f"a{special}b")
    assert number not in tokenizer.encode_batch([f"{special}{special}"])[0]
    assert tokenizer.decode(tokenizer.encode(special)) == special
    assert tokenizer.pieces[number] == b""


def test_every_id_has_bytes_and_every_byte_an_id(tiny: NativeLlama) -> None:
    pieces = tiny.tokenizer.pieces
    assert len(pieces) == tiny.tokenizer.size == len(set(pieces)) + 1  # two specials are empty
    assert {bytes([b]) for b in range(256)} <= set(pieces)


def test_a_piece_of_gemma_is_what_its_token_stands_for(sentencepiece: Tokenizer) -> None:
    pieces = sentencepiece.pieces
    assert len(pieces) == sentencepiece.size
    assert [pieces[sentencepiece.special(token)] for token in gemma.BYTES] == [bytes([b]) for b in range(256)]
    assert pieces[sentencepiece.special("▁total")] == b" total"
    assert pieces[sentencepiece.special(gemma.PLAIN)] == b"<table>"
    assert sum(not piece for piece in pieces) == len(gemma.CONTROL)
    assert sentencepiece.special(gemma.PLAIN) in sentencepiece.encode("a<table>b")  # it is text: the model knows it


def test_an_incomplete_character_at_the_end_is_left_out(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a😀")[:-1]) == "a"


def test_a_missing_special_token_is_named_and_an_optional_one_is_none(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="<fim>"):
        tokenizer.special("<fim>")
    assert tokenizer.find("<fim>") is None
    assert tokenizer.find("a") == tokenizer.special("a")


# Files


def test_a_file_that_cuts_or_pads_what_it_reads_is_read_whole(tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    path = gemma.tokenizer(tmp_path / "tokenizer.json", truncation=cut, padding={**pad, "pad_to_multiple_of": None})
    tokenizer = Tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("one two three four five")) == "one two three four five"
    assert tokenizer.special("<pad>") not in tokenizer.encode("one")


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}}, "cannot be read: .*'Sequence'"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, REPLACE]}},
            "cannot be read: .*'Sequence'",
        ),
        ({"normalizer": {"type": "Lowercase"}}, "cannot be read: .*'Lowercase'"),
        ({"normalizer": None, "pre_tokenizer": {**SPLIT, "behavior": "Removed"}}, "changes the text"),
        ({"normalizer": None}, ""),  # spaces are bytes then
        ({"decoder": None}, r"neither byte-level BPE nor .* \(its decoder: none\)"),
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, r"\(its decoder: WordPiece\)"),
        (
            {"decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
            "changes the text",
        ),
    ],
)
def test_a_tokenizer_that_would_change_text_or_is_of_another_kind_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = gemma.tokenizer(tmp_path / "tokenizer.json", **changes)
    if not reason:
        assert Tokenizer(path).decode(Tokenizer(path).encode(" a  b")) == " a  b"
        return
    with pytest.raises(TokenizerError, match=reason) as refused:
        Tokenizer(path)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is .*damaged"):
        Tokenizer(path)


def test_a_file_without_a_token_for_every_byte_is_refused(tmp_path: Path) -> None:
    path = gemma.tokenizer(tmp_path / "tokenizer.json")
    path.write_text(path.read_text().replace('"<0xFE>"', '"<0xfe>"'))
    with pytest.raises(TokenizerError, match="no token <0xFE>"):
        Tokenizer(path)


def model(**changes: Any) -> Change:
    return lambda file: {"model": {**file["model"], **changes}}


def added(**changes: Any) -> Change:
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return lambda file: {"added_tokens": [*file["added_tokens"], {"id": 592, "content": "<new>", **token, **changes}]}


HOSTILE: dict[str, Change] = {  # before they were refused, the first four ended the process
    "a text ten thousand million times as long": lambda _: {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 10,
        }
    },
    "a mark at the start of words": model(continuing_subword_prefix="##"),
    "an id for which no memory is enough": lambda file: model(vocab={**file["model"]["vocab"], "z~": 2**32 - 1})(file),
    "pieces of no length": lambda _: {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "an expression that takes for ever": lambda _: {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "(a|aa)+$"}}},
    "a normalizer with an expression": lambda _: {"normalizer": {**REPLACE, "pattern": {"Regex": "(a+)+$"}}},
    "a huge normalizer": lambda _: {"normalizer": {**REPLACE, "content": "▁" * 2**20}},
    "a huge mark at the end of words": model(end_of_word_suffix="a" * 2**20),
    "other tokens each time": model(dropout=0.5),
    "an added token of a megabyte": added(content="a" * 2**20),
    "an added token without text": added(content=""),
    "an added token far away": added(id=700),
    "an added token in the place of another": added(id=300),
    "two tokens with one id": lambda file: model(vocab={**file["model"]["vocab"], "z~": 300})(file),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(tmp_path: Path, case: str) -> None:
    path = gemma.tokenizer(tmp_path / "tokenizer.json")
    file = json.loads(path.read_text())
    path.write_text(json.dumps({**file, **HOSTILE[case](file)}))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is .*damaged.*\.$"):
        Tokenizer(path)


def test_a_panic_of_the_library_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As the library raises it."""

    class Panicky:
        @staticmethod
        def from_str(text: str) -> None:
            raise PanicException("called `Option::unwrap()` on a `None` value")

    path = gemma.tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.setattr(tokenizer_module.tokenizers, "Tokenizer", Panicky)
    with pytest.raises(BaseException, match="damaged or of a kind") as refused:
        Tokenizer(path)
    assert refused.type is TokenizerError


def test_a_new_token_behind_the_others_is_none_of_that(tmp_path: Path) -> None:
    path = gemma.tokenizer(tmp_path / "tokenizer.json")
    file = json.loads(path.read_text())
    path.write_text(json.dumps({**file, **added()(file)}))
    assert Tokenizer(path).special("<new>") == 592


def test_a_letter_that_has_no_token_is_noticed(tmp_path: Path, tiny_folder: Path) -> None:
    file = json.loads((tiny_folder / "tokenizer.json").read_text())
    assert not any("~" in part for merge in file["model"]["merges"] for part in merge)
    file["model"]["vocab"]["~~"] = file["model"]["vocab"].pop("~")
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(TokenizerError, match="changes the text"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(MAX_LARGE + 1)
    with pytest.raises(UnusableModel, match="larger"):
        Tokenizer(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Of Gemma's kind."""
    return Tokenizer(gemma.tokenizer(tmp_path_factory.mktemp("gemma") / "tokenizer.json"))


PIECES = [
    "    ",
    " ",
    "\n",
    "\t",
    "return",
    "def ",
    "self.",
    "count",
    "_row",
    "(",
    ")",
    ", ",
    "'",
    "x1",
    "漢字",
    "==",
    "é",
    "42",
]


@settings(max_examples=300, deadline=None)
@example(prefix="     count", following="")  # four blanks are a token, and the fifth joins the word
@example(prefix="    return", following="")
@given(
    prefix=st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    following=st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
)
def test_what_is_kept_of_a_prefix_has_the_same_tokens_whatever_follows(
    runs: Tokenizer, prefix: str, following: str
) -> None:
    assume(not re.search(r"\w{25}|[^\w\s]{13}", prefix))  # of a longer run only the end is healed
    stable, forced = heal(runs, prefix)
    assert stable + forced == prefix
    kept = runs.encode(stable)
    assert runs.encode(prefix + following)[: len(kept)] == kept


@pytest.mark.parametrize(
    "comment",
    [
        "считает сумму всех чисел",
        "größer als die höchste Zahl",
        "計算所有數字的總和",
        "合計を計算する関数",
        "모든 숫자의 합계를 계산",
        "tính tổng của tất cả các số",
        "يحسب مجموع الأرقام",
        "המספר הגדול ביותר",
    ],
)
def test_a_comment_in_another_alphabet_takes_about_a_token_a_letter_at_most(comment: str) -> None:
    """Byte by byte it would take two or three a letter, and the base has hardly seen that."""
    assert len(Tokenizer(locate("coder") / "tokenizer.json").encode(comment)) <= len(comment) * 1.2
