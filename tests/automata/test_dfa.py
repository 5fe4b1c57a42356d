"""Automata over texts, against Python's own sets, lengths and JSON reader."""

import json
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.automata.dfa import (
    ANY,
    MAX_STATES,
    Dfa,
    TooLarge,
    both,
    characters,
    either,
    escaped,
    lengths,
    literals,
    without,
)
from caesura.automata.regex import matching

from ..support.walks import walks

texts = st.text(st.sampled_from('ab1 é€😀"\\/\n\x00\x1f\x7f'), max_size=8)
PATTERNS = ["a*b", "^[^a]{0,3}$", "^(?:a|é)+$", '^["\\\\\\n]*$', r"^[^b-ż]", "^$", "[]", "", "^.{2,}$"]
patterns = st.sampled_from(PATTERNS)


def test_only_the_given_texts_are_accepted() -> None:
    words = ["", "a", "ab", "é", "😀", "b" * 50]
    dfa = literals([*words, "\ud800"])
    assert all(map(dfa.accepts, words))
    assert not any(map(dfa.accepts, ["b", "abc", "\ud800", "e", "b" * 49]))
    assert literals([]).empty


def test_any_text_is_valid_utf8_and_nothing_else() -> None:
    for raw in (b"", "aé€😀\x00\U0010ffff".encode()):
        assert ANY.accepts(raw)
    for raw in (b"\xff", b"\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80"):
        assert not ANY.accepts(raw)


@given(st.lists(st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 0x3000)), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_a_range_holds_its_characters_and_no_others(starts: list[tuple[int, int]], data: st.DataObject) -> None:
    ranges = tuple((a, min(a + width, 0x10FFFF)) for a, width in starts)
    dfa = characters(ranges)
    ends = [code for a, b in ranges for code in (a - 1, a, b, b + 1) if 0 <= code <= 0x10FFFF]
    for code in [*ends, data.draw(st.integers(0, 0x10FFFF))]:
        inside = any(a <= code <= b for a, b in ranges) and not 0xD800 <= code < 0xE000
        assert dfa.accepts(chr(code)) == inside


@given(texts, st.integers(0, 5), st.none() | st.integers(0, 7))
@settings(deadline=None)
def test_lengths_are_counted_in_code_points(text: str, least: int, most: int | None) -> None:
    assert lengths(least, most).accepts(text) == (least <= len(text) and (most is None or len(text) <= most))


@given(patterns, patterns, texts, st.randoms())
@settings(max_examples=80, deadline=None)
def test_operations_are_those_of_sets(left: str, right: str, text: str, random: Random) -> None:
    a, b = matching(left), matching(right)
    for sample in [text, *walks(a, random, 3), *walks(b, random, 3)]:
        in_a, in_b = a.accepts(sample), b.accepts(sample)
        assert both(a, b).accepts(sample) == (in_a and in_b)
        assert either(a, b).accepts(sample) == (in_a or in_b)
        assert without(a, b).accepts(sample) == (in_a and not in_b)


@given(patterns, patterns)
@settings(max_examples=60, deadline=None)
def test_the_same_language_is_the_same_value(left: str, right: str) -> None:
    a, b = matching(left), matching(right)
    assert both(a, b) == both(b, a) == without(a, without(a, b))
    assert either(a, b) == without(ANY, both(without(ANY, a), without(ANY, b)))
    assert without(a, a).empty
    assert without(a, a) == literals([])


def test_every_state_can_still_reach_acceptance() -> None:
    dfa = both(matching("^(?:ab|cd|ax)$"), without(ANY, literals(["cd", "ax"])))
    assert dfa == literals(["ab"])
    assert len(dfa.rows) == 3


@given(patterns, st.randoms())
@settings(max_examples=60, deadline=None)
def test_an_escaped_text_reads_as_a_text_of_the_automaton(pattern: str, random: Random) -> None:
    dfa = matching(pattern)
    for written in walks(escaped(dfa), random, 5):
        assert dfa.accepts(json.loads(f'"{written}"'))


@given(patterns, texts, st.randoms())
@settings(max_examples=100, deadline=None)
def test_a_text_of_the_automaton_may_be_written_as_json_does(pattern: str, text: str, random: Random) -> None:
    dfa = matching(pattern)
    for sample in [text, *walks(dfa, random, 3)]:
        written = json.dumps(sample, ensure_ascii=False)[1:-1]
        assert escaped(dfa).accepts(written) == dfa.accepts(sample)


@given(st.randoms())
@settings(max_examples=60, deadline=None)
def test_any_string_of_json_is_accepted_however_it_is_written(random: Random) -> None:
    for written in walks(escaped(ANY), random, 5):
        assert json.loads(f'"{written}"').encode().decode() is not None
        assert escaped(ANY).accepts(json.dumps(json.loads(f'"{written}"'))[1:-1])


def test_what_ends_a_string_early_or_is_half_a_pair_is_refused() -> None:
    for written in ('"', "\\", "\n", "\\x", "\\u12", "\\ud83d", "\\ude00", "\\ud83dx", "\\ud83d\\n", "\\ud83d\\u0041"):
        assert not escaped(ANY).accepts(written)
    for written in ("\\/", "\\ud83d\\ude00", "\\uD83D\\uDE00", "\\u00e9", "/", "\\ud7ff", "\\uE000"):
        assert escaped(ANY).accepts(written)


def test_an_escape_counts_as_one_character() -> None:
    two = escaped(lengths(2, 2))
    assert two.accepts('\\n\\"')
    assert two.accepts("\\u0001\\u001F")
    assert not two.accepts("\\n")
    assert not two.accepts("\\u0041b")  # a letter has no escape of its own


def test_what_is_too_large_is_refused_soon() -> None:
    start = time.thread_time()
    with pytest.raises(TooLarge, match=f"{MAX_STATES:,} states"):
        lengths(0, 10_000)
    big = lengths(0, 300)
    with pytest.raises(TooLarge):
        both(big, matching("^[^a]*(a[^a]*a[^a]*)*$"))
    assert time.thread_time() - start < 10


def test_an_automaton_names_its_size_in_a_debugger() -> None:
    assert repr(Dfa(((),), frozenset())) == "<Dfa of 1 states>"
