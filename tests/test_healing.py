"""Token healing with the pre-tokens of several tokenizers: what is kept of a prefix has the same tokens whatever
follows."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caesura.engine.healing import HEALED, heal
from caesura.engine.tokenizer import Tokenizer
from caesura.engine.tokenizer_file import LLAMA3, QWEN
from caesura.models import SMALL, locate

from . import tiny

KINDS = ("shipped", "qwen", "llama-3")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("healing")
    paths = {name: tiny.train_tokenizer(folder / name, split) for name, split in (("qwen", QWEN), ("llama-3", LLAMA3))}
    paths["shipped"] = locate(SMALL) / "tokenizer.json"
    return {name: Tokenizer(path) for name, path in paths.items()}


# What pre-tokenizers tell apart: letters, contractions, signs, numbers, blanks, line breaks, marks.
ATOMS = (
    *("x", "foo", "self", "É", "ß", "日本", "ſ", "L", "v", "s", "ve"),
    *("_", ".", "(", ")", "->", "):\n", "#", '"', "'", ",", "'s", "'r", "'Ll", "' "),
    *("0", "17", "2048", "²", "½", "٣", " ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", "\f", "\v", "\u00a0", "\u2028"),
    *("😀", "👩‍💻", "\u0301", "\u200d", "\x00", "\x1c", "\x85", "\ufeff"),
)
code = st.one_of(st.lists(st.sampled_from(ATOMS), max_size=10).map("".join), st.text(max_size=12))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400, deadline=None)
@given(prefix=code, following=code)
@example("it'", "re")  # a contraction is a piece
@example("a'l", "l")
@example("a  \tx", "")  # of several blanks the last is a piece by what follows it
@example("if a:\n    ", "\n")  # Qwen joins a line of blanks
@example("x = 204", "8")  # Llama-3 joins three digits
@example("a)", "\n")
def test_what_is_kept_has_the_same_tokens_whatever_follows(
    tokenizers: dict[str, Tokenizer], kind: str, prefix: str, following: str
) -> None:
    tokenizer = tokenizers[kind]
    stable, forced = heal(tokenizer, prefix)
    assert stable + forced == prefix
    assert len(forced) <= HEALED
    if len(forced) < HEALED:  # else nothing in reach is safe
        assert tokenizer.encode(stable) + tokenizer.encode(forced + following) == tokenizer.encode(prefix + following)


@pytest.mark.parametrize(
    ("prefix", "forced"),
    [
        ("def f(count):\n    retu", {"shipped": " retu", "qwen": " retu", "llama-3": " retu"}),
        ("self.item", {"shipped": "item", "qwen": ".item", "llama-3": ".item"}),
        ('f("d', {"shipped": "d", "qwen": "d", "llama-3": "d"}),
        ("x = 2048", {"shipped": "8", "qwen": "8", "llama-3": "8"}),
        ("x = 204", {"shipped": "4", "qwen": "4", "llama-3": "204"}),
        ("if a:\n", {"shipped": "\n", "qwen": ":\n", "llama-3": ":\n"}),
        ("if a:\n    ", {"shipped": "\n    ", "qwen": "    ", "llama-3": "    "}),
        ("a = b\n    ", {"shipped": "\n    ", "qwen": "\n    ", "llama-3": "\n    "}),
        ("don't", {"shipped": "'t", "qwen": "'t", "llama-3": "'t"}),
        ("", {"shipped": "", "qwen": "", "llama-3": ""}),
        ("=" * 60, {"shipped": "=" * HEALED, "qwen": "=" * HEALED, "llama-3": "=" * HEALED}),
    ],
)
def test_no_more_is_forced_than_the_pre_tokens_ask(
    tokenizers: dict[str, Tokenizer], prefix: str, forced: dict[str, str]
) -> None:
    assert {kind: heal(tokenizers[kind], prefix)[1] for kind in KINDS} == forced


def test_a_folder_may_hold_the_file_of_qwen(tmp_path: Path) -> None:
    """Its text survives: the normalizer that the file names would compose letters."""
    path = tiny.train_tokenizer(tmp_path / "tokenizer.json", QWEN)
    path.write_text(path.read_text().replace('"normalizer": null', '"normalizer": {"type": "NFC"}'))
    assert '"NFC"' in path.read_text()
    tokenizer = Tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("e\u0301 \u212b\n")) == "e\u0301 \u212b\n"
