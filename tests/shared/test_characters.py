"""Text from elsewhere on a terminal, in a log and in a proposal."""

import re
import subprocess
import sys
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.characters import PRINTABLE, shown, visible
from caesura.server.infill.choose import proposals
from caesura.server.infill.site import at_cursor

UNSEEN = [  # the ends of each range of Default_Ignorable_Code_Point, and others that show nothing
    *"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180f\u200b\u200f\u202a\u202e\u2060\u206f\u3164\ufe00\ufe0f\ufeff",
    *"\uffa0\ufff0\ufff8\U0001bca0\U0001bca3\U0001d173\U0001d17a\U000e0000\U000e0041\U000e0100\U000e01ef\U000e0fff\u2800",
    *"\x00\x07\x1b\x7f\x85\x9b\u2028\u2029\ufffb\uffff",
]
ENGLAND, MAN_IN_CODE = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "👨🏽\u200d💻"
PERSIAN, HINDI = "می\u200cخواهم", "क्\u200dष"


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


@pytest.mark.parametrize("character", UNSEEN, ids=ascii)
def test_nothing_unseen_is_a_name_or_proposed_after_a_letter(character: str) -> None:
    assert not re.match(PRINTABLE, f"vim{character}")
    assert re.match(PRINTABLE, shown(f"vim{character}"))
    assert visible(f"a{character}b", "text", "") == "ab"


@pytest.mark.parametrize(
    "text",
    [
        "❤\ufe0f",
        "✔\ufe0e",
        "1\ufe0f\u20e3",
        MAN_IN_CODE,
        "❤\ufe0f\u200d🔥",
        "🏴\u200d☠\ufe0f",
        ENGLAND,
        "☎\ufe0f: © 2026",
    ],
    ids=ascii,
)
def test_emoji_are_proposed_whole_and_only_grow_while_they_stream(text: str) -> None:
    assert visible(text, "", "") == text
    starts = [visible(text[:end], "", "") for end in range(len(text) + 1)]
    assert all(after.startswith(before) for before, after in pairwise(starts))
    assert visible(text[1:], text[:1], "") == text[1:]


@pytest.mark.parametrize(
    ("file", "text", "seen"),
    [
        # what the file's own script needs
        (PERSIAN, PERSIAN, PERSIAN),
        ("", PERSIAN, PERSIAN.replace("\u200c", "")),
        (HINDI, HINDI, HINDI),
        ("葛\U000e0100", "葛\U000e0100城", "葛\U000e0100城"),
        ("Donau\u00addampf", "Dampf\u00adschiff", "Dampf\u00adschiff"),
        ("⠓\u2800⠊", "⠊\u2800\u2800⠓", "⠊\u2800\u2800⠓"),
        ("\u3164", "\u3164", "\u3164"),
        ("\f", "a\f\tb\r\n", "a\f\tb\r\n"),
        # and nothing that spells hidden text
        ("\ufe0f\ufe01\U000e0100", "a\ufe0f\ufe01\U000e0100b", "ab"),
        ("\ufe0f\ufe01", "❤\ufe0f\ufe01\ufe0f\ufe01", "❤\ufe0f"),
        (PERSIAN, "user\u200cname", "username"),
        (PERSIAN, "ی\u200c\u200c\u200cخ", "ی\u200cخ"),
        (MAN_IN_CODE, "is\u200d_admin", "is_admin"),
        (ENGLAND, f"{ENGLAND}\U000e0067\U000e0065", ENGLAND),
        ("🏴", "🏴\U000e0041\U000e0042\U000e007f", "🏴"),
        ("\ufeffimport os", "x\ufeff = 1", "x = 1"),
        ("1\ufe0f\u20e3", "x = 1\ufe0f2\ufe0f", "x = 12"),
    ],
    ids=ascii,
)
def test_a_file_keeps_what_its_script_needs_and_nothing_spells_hidden_text(file: str, text: str, seen: str) -> None:
    assert visible(text, f"{file}\n", "") == visible(text, "", f"\n{file}") == seen


@given(
    st.text("1a❤👨💻🏴क\u200c\u200d\ufe0f\ufe01\u20e3\U000e0067\U000e0062\U000e007f\ufeff\u00ad", max_size=12),
    st.booleans(),
)
def test_what_is_shown_of_a_growing_text_never_shrinks(text: str, own: bool) -> None:
    starts = [visible(text[:end], text if own else "", "") for end in range(len(text) + 1)]
    assert all(after.startswith(before) for before, after in pairwise(starts))


@pytest.mark.long
@settings(max_examples=20_000, deadline=None)
@given(st.text("a1❤🏴ی" + "".join(UNSEEN), max_size=20), st.text("ی" + "".join(UNSEEN), max_size=4))
def test_hostile_text_for_minutes(text: str, file: str) -> None:
    starts = [visible(text[:end], file, "") for end in range(len(text) + 1)]
    assert all(after.startswith(before) for before, after in pairwise(starts))
    needed = {*file, *"\u200d\ufe0e\ufe0f\u20e3"}  # the file's own, and what emoji are written with
    assert {c for c in starts[-1] if c in UNSEEN} <= needed
    assert not {*"\ufeff\U000e0000\U000e0041\U000e0fff"} & {*starts[-1]}
    assert re.match(PRINTABLE, shown(text))


def test_the_command_line_proposes_no_structured_text_with_unseen_characters() -> None:
    hidden, clean = (wire.Fill(text, confidence=0.9) for text in ('"x\U000e0041"', '"z"'))
    done = wire.Done(
        **{"job": "j", "seq": 0, "holes": (hidden,), "alternatives": ((clean,),), "steps": 1, "stop": "complete"},
        **{"tokens": wire.Tokens(), "timings": wire.Timings()},
    )
    assert [text for text, _ in proposals(at_cursor('{"a": }', 6, "json"), done)] == ['"z"']
