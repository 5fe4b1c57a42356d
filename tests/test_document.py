"""Documents against an oracle that keeps a list of encoded lines and knows nothing of our indexes."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.server.document import Document, Encoding, InvertedRange

CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
PIECES = [
    "a",
    "\t",
    " ",
    "é",
    "漢",
    "😀",
    "👩\u200d🚀",
    "\n",
    "\r\n",
    "\r",
    "\x0c",
    "\x0b",
    "\x85",
    "\u2028",
    "\u2029",
    "",
]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
places = st.tuples(st.integers(0, 6), st.integers(0, 14))
edits = st.lists(st.tuples(places, places, texts), max_size=6)
encodings = st.sampled_from(["utf-8", "utf-16", "utf-32"])


def oracle_offset(text: str, place: tuple[int, int], encoding: Encoding) -> int:
    """The definition, slowly: split the lines, cut the encoded line at the unit, drop what was cut in two."""
    lines = re.split(r"(\r\n|\r|\n)", text)
    line, units = place
    if line >= len(lines[::2]):
        return len(text)
    codec, width = CODECS[encoding]
    head = lines[2 * line].encode(codec)[: units * width].decode(codec, "ignore")
    return len("".join(lines[: 2 * line])) + len(head)


def oracle_point(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset].encode()
    return before.count(b"\n"), len(before) - (before.rfind(b"\n") + 1)


@settings(max_examples=300, deadline=None)
@given(texts, edits, encodings)
def test_edits_equal_the_oracle(text: str, changes: list, encoding: Encoding) -> None:
    document = Document("file:///a", "python", 1, text, encoding)
    for one, other, new in changes:
        start, end = sorted((one, other))
        first, last = (oracle_offset(text, place, encoding) for place in (start, end))
        edit = document.edit(start, end, new)
        edited = text[:first] + new + text[last:]
        assert (edit.start, edit.end, edit.text) == (first, last, new)
        assert (edit.start_point, edit.old_end_point) == (oracle_point(text, first), oracle_point(text, last))
        assert edit.new_end_point == oracle_point(edited, first + len(new))
        sizes = [len(part.encode()) for part in (text[:first], text[:last], edited[: first + len(new)])]
        assert [edit.start_byte, edit.old_end_byte, edit.new_end_byte] == sizes
        text = edited
        assert document.text == text


@settings(max_examples=300, deadline=None)
@given(texts, edits, places, encodings)
def test_positions_and_offsets_are_inverse(text: str, changes: list, place: tuple, encoding: Encoding) -> None:
    document = Document("file:///a", "python", 1, text, encoding)
    for one, other, new in changes:
        document.edit(min(one, other), max(one, other), new)
    offset = document.offset(place)
    assert offset == oracle_offset(document.text, place, encoding)
    assert document.offset(document.position(offset)) == offset


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_past_the_end_of_a_line_is_its_end(encoding: Encoding) -> None:
    document = Document("file:///a", "python", 1, "ab😀\r\ncd", encoding)
    assert document.offset((0, 99)) == 3
    assert document.offset((1, 99)) == 7
    assert document.offset((9, 0)) == 7


def test_an_inverted_range_changes_nothing() -> None:
    document = Document("file:///a", "python", 1, "abcdef")
    with pytest.raises(InvertedRange):
        document.edit((0, 4), (0, 1), "Z")
    assert document.text == "abcdef"


def test_a_lone_surrogate_becomes_a_character_of_the_same_length() -> None:
    document = Document("file:///a", "python", 1, "a\ud83db")
    assert document.text == "a\ufffdb"
    assert document.offset((0, 2)) == 2
    document.text.encode()
