"""Token healing with the pre-tokens of several tokenizers: what is kept of a prefix has the same tokens whatever
follows."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caesura.engine.canvas.healing import HEALED, heal
from caesura.engine.tokens import tokenizer
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.tokenizer_file import LING, LLAMA3, QWEN
from caesura.model_store import PACKAGES, locate

from ...support.checkpoints import gemma, tiny
from ..tokens.test_parts import in_parts

KINDS = ("small", "coder", "llama-3", "in parts", "ling")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    paths = {name: locate(name) / "tokenizer.json" for name in PACKAGES}
    place = tmp_path_factory.mktemp("healing")
    paths["llama-3"] = tiny.train_tokenizer(place / "llama.json", LLAMA3)
    paths["ling"] = tiny.train_tokenizer(place / "ling.json", LING)
    paths["gemma"] = gemma.tokenizer(place / "gemma.json")
    parts = tokenizer.load(in_parts(place / "parts", tiny.train_tokenizer(place / "qwen.json", QWEN)))
    return {name: Tokenizer(path) for name, path in paths.items()} | {"in parts": parts}


# What pre-tokenizers tell apart: letters, contractions, signs, numbers, blanks, line breaks, marks.
ATOMS = (
    *("x", "foo", "self", "É", "ß", "日本", "ſ", "L", "v", "s", "ve"),
    *("_", ".", "(", ")", "->", "):\n", "#", '"', "'", ",", "'s", "'r", "'Ll", "' "),
    *("0", "17", "2048", "²", "½", "٣", " ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", "\f", "\v", "\u00a0", "\u2028"),
    *("😀", "👩‍💻", "\u0301", "\u200d", "\x00", "\x1c", "\x85", "\ufeff"),
)
code = st.one_of(st.lists(st.sampled_from(ATOMS), max_size=10).map("".join), st.text(max_size=12))
long = st.tuples(st.lists(st.sampled_from(ATOMS), min_size=30, max_size=60).map("".join), code).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400, deadline=None)
@given(prefix=code | long, following=code)
@example("it'", "re")  # a contraction is a piece
@example("a'l", "l")
@example("a  \tx", "")  # of several blanks the last is a piece by what follows it
@example("if a:\n    ", "\n")  # Qwen joins a line of blanks
@example("x = 204", "8")  # Llama-3 joins three digits
@example("a)", "\n")
def test_what_is_kept_has_the_same_tokens_whatever_follows(
    tokenizers: dict[str, Tokenizer], kind: str, prefix: str, following: str
) -> None:
    of = tokenizers[kind]
    stable, forced = heal(of, prefix)
    assert stable + forced == prefix
    assert len(forced) <= HEALED
    if len(forced) < HEALED:  # else nothing in reach is safe
        assert of.encode(stable) + of.encode(forced + following) == of.encode(prefix + following)


@pytest.mark.parametrize("kind", [*KINDS, "gemma"])
def test_code_that_is_cut_anywhere_keeps_its_tokens(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    """Of Gemma's too, which has no pre-tokens: no run of letters in it is long."""
    text = tiny.CODE[:400]
    whole = tokenizers[kind].encode(text)
    for cut in range(0, len(text), 3):
        stable, forced = heal(tokenizers[kind], text[:cut])
        assert stable + forced == text[:cut]
        kept = tokenizers[kind].encode(stable)
        assert whole[: len(kept)] == kept


@pytest.mark.parametrize(
    ("prefix", "forced"),
    [
        ("def f(count):\n    retu", {"small": " retu", "coder": " retu", "llama-3": " retu"}),
        ("self.item", {"small": "item", "coder": ".item", "llama-3": ".item"}),
        ('f("d', {"small": "d", "coder": "d", "llama-3": "d"}),
        ("x = 2048", {"small": "8", "coder": "8", "llama-3": "8"}),
        ("x = 204", {"small": "4", "coder": "4", "llama-3": "204"}),
        ("if a:\n", {"small": "\n", "coder": ":\n", "llama-3": ":\n"}),
        ("if a:\n    ", {"small": "\n    ", "coder": "    ", "llama-3": "    "}),
        ("a = b\n    ", {"small": "\n    ", "coder": "\n    ", "llama-3": "\n    "}),
        ("don't", {"small": "'t", "coder": "'t", "llama-3": "'t"}),
        ("", {"small": "", "coder": "", "llama-3": ""}),
        ("=" * 60, {"small": "=" * HEALED, "coder": "=" * HEALED, "llama-3": "=" * HEALED}),
    ],
)
def test_no_more_is_forced_than_the_pre_tokens_ask(
    tokenizers: dict[str, Tokenizer], prefix: str, forced: dict[str, str]
) -> None:
    assert {kind: heal(tokenizers[kind], prefix)[1] for kind in forced} == forced


def test_a_folder_may_hold_the_file_of_qwen(tmp_path: Path) -> None:
    """Its text survives: the normalizer that the file names would compose letters."""
    path = tiny.train_tokenizer(tmp_path / "tokenizer.json", QWEN)
    path.write_text(path.read_text().replace('"normalizer": null', '"normalizer": {"type": "NFC"}'))
    assert '"NFC"' in path.read_text()
    tokenizer = Tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("e\u0301 \u212b\n")) == "e\u0301 \u212b\n"
