"""Text from elsewhere on a terminal and in a log."""

import subprocess
import sys
import unicodedata

import pytest

from caesura.characters import shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Qwen/Qwen2.5-Coder-0.5B", "Qwen/Qwen2.5-Coder-0.5B"),
        ("mañana 日本語 🐍 C:\\models", "mañana 日本語 🐍 C:\\models"),
        ("vim\x1b]0;title\x07", "vim\\x1b]0;title\\x07"),
        ("vim\nready: FAKE on cpu", "vim\\nready: FAKE on cpu"),
        ("a\r\x85\u2028b", "a\\r\\x85\\u2028b"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("in\u200bvis\u3164ib\u2800le\ufe0f", "in\\u200bvis\\u3164ib\\u2800le\\ufe0f"),
        ("\udc80 of a file name", "\\udc80 of a file name"),
    ],
)
def test_only_what_a_person_can_see_is_shown(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_no_character_of_unicode_is_obeyed() -> None:
    seen = {shown(character) for character in map(chr, range(0x110000))}
    found = {unicodedata.category(character) for text in seen for character in text}
    assert found & {"Cc", "Cf", "Zl", "Zp", "Cs"} == set()


def test_a_long_text_is_cut_and_says_so() -> None:
    assert shown("name" * 1000, 10) == "namenamen…"
    assert len(shown("\x1b" * 100_000)) == 2000


def test_a_name_forges_no_line_of_a_log() -> None:
    told = r"""
import logging
from caesura import logs
logs.begin(logging.INFO, "%(message)s")
logging.getLogger("caesura").info("%s has gone silent", "vim\x1b[31m\nworker 1 started")
"""
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stderr
    assert said == "vim\\x1b[31m\\nworker 1 started has gone silent\n"
