"""Patterns of JSON Schema as automata, against Python's `re` where the two agree, and against ECMA-262 where not."""

import re
import time
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from caesura.automata.dfa import ANY, TooLarge, Unsupported, literals
from caesura.automata.regex import matching

from ..support.walks import walks

texts = st.text(st.sampled_from("ab1_é- \n"), max_size=7)
atoms = st.sampled_from(
    ["a", "b", "1", "é", "-", ".", "[ab]", "[^a]", "[a-z0-9]", "[^-é]", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"]
) | st.sampled_from([r"[\d-]", r"[^\w\n]", r"\x61", r"\u00e9", r"\n", r"[\b_]", "^", "$"])


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}", "*?", "+?", "??", "{0,2}?", "{0}"])
    group = inner.map(lambda part: f"(?:{part})")
    return (
        st.lists(inner, min_size=1, max_size=4).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map("|".join).map(lambda part: f"({part})")
        | st.tuples(group, repeats).map("".join)
        | st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda parts: f"{parts[0]}{parts[1]})")
    )


patterns = st.recursive(atoms, _wider, max_leaves=8)


@given(patterns, st.lists(texts, min_size=1, max_size=6), st.randoms())
@settings(max_examples=200, deadline=None)
def test_what_is_found_is_what_python_finds(pattern: str, samples: list[str], random: Random) -> None:
    try:
        found, whole = matching(pattern), matching(pattern, whole=True)
    except Unsupported:
        assume(False)
    python = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    for text in [*samples, *walks(found, random, 3, most=8), *walks(whole, random, 3, most=8)]:
        if any(c in text for c in "\r\u2028\u2029"):
            continue  # which Python's dot matches
        if any(ord(c) > 0x7F and re.match(r"\s", c) for c in text) or "\ufeff" in text:
            continue  # which only ECMA-262 counts as spaces
        if any(c in text for c in "\x1c\x1d\x1e\x1f"):
            continue  # which only Python counts as spaces
        assert found.accepts(text) == bool(python.search(text)), (pattern, text)
        assert whole.accepts(text) == bool(python.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\S+$", ["é", "x\x1cy"], ["a b", "\ufeff", "\u3000", "\xa0"]),
        (r"^.$", ["é", "\x85", "😀"], ["\r", "\n", "\u2028", "", "ab"]),
        (r"^\w$", ["a", "_"], ["é", "٣"]),
        (r"^\d$", ["7"], ["٣"]),
        (r"^\p{L}+$", ["aéß語"], ["a1", "", "😀"]),
        (r"^\p{Lu}\p{Lowercase_Letter}*$", ["Élan", "A"], ["élan", "AB"]),
        (r"^[\p{Nd}\p{General_Category=Sc}]+$", ["٣€$"], ["a"]),
        (r"^\P{L}$", ["1", "😀"], ["é"]),
        (r"^[^\P{L}a-z]$", ["É"], ["a", "1"]),
        (r"^\p{digit}+$", ["٣7"], ["x"]),
        (r"^\p{LC}\p{ASCII}\p{Any}$", ["aa😀"], ["語aa"]),
        (r"^\u{1F600}\ud83d\ude01$", ["😀😁"], ["😀"]),
        (r"^[\u{1F600}-\u{1F64F}]$", ["😀"], ["😀😀", "a"]),
        (r"^\cJ\0\x41\u0042\$$", ["\n\0AB$"], ["AB"]),
        (r"^\/\-\@\[\]\.\{\}$", ["/-@[].{}"], [""]),
        (r"^a{,3}{x}]$", ["a{,3}{x}]"], ["aaa"]),
        (r"(a)(?<year>b)", ["xaby"], ["ba"]),
        (r"^[]$", [], ["", "a"]),
        (r"^[^]$", ["\n", "é"], ["", "ab"]),
        (r"^[a-]$", ["a", "-"], ["b"]),
        (r"a|b$|^$", ["xay", "xb", ""], ["bx"]),
        (r"x^", [], ["x", "x^"]),
        (r"(^|,)a(,|$)", ["a", "b,a", "a,b"], ["ba", "ab"]),
        (r"^(?!foo$)[a-z]+$", ["fo", "food"], ["foo", ""]),
        (r"^(?=.*\d)(?=.*[A-Z]).{4,}$", ["aB3x", "3Bxx"], ["aB3", "abc3"]),
        (r"foo(?!bar)", ["foo", "foobarfoo"], ["foobar", "fo"]),
        (r"^(?!.*--)[a-z-]+$", ["a-b"], ["a--b"]),
        (r"(?!^)a", ["ba"], ["a", "ab"]),
    ],
)
def test_the_rules_of_ecma_hold(pattern: str, good: list[str], bad: list[str]) -> None:
    dfa = matching(pattern)
    assert [text for text in good if not dfa.accepts(text)] == []
    assert [text for text in bad if dfa.accepts(text)] == []


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (r"(a)\1", "At character 5 of the pattern, there is a back reference, which is not supported."),
        (r"\k<a>", "back reference"),
        (r"(?<=a)b", "lookbehind"),
        (r"(?<!a)b", "lookbehind"),
        (r"\bword", "word boundary"),
        (r"(?:(?!ab).)*", "lookahead inside an unbounded repetition"),
        (r"\p{Script=Greek}", "property Script=Greek"),
        (r"\p{Nonsense}", "property Nonsense"),
        ("(?i)a", "kind of group"),
        ("(a", "not closed"),
        ("a)", "not opened"),
        ("[a", "too early"),
        ("a\\", "too early"),
        ("*a", "nothing to repeat"),
        ("a**", "repeated"),
        ("a{2}{3}", "repeated"),
        ("^*", "start or end"),
        ("a{3,2}", "out of order"),
        ("[z-a]", "out of order"),
        (r"[\d-z]", "class of characters"),
        (r"\Z", r"no escape \\Z"),
        (r"\x4", "hex digits"),
        (r"\u{110000}", "too large"),
        (r"\u{+41}", "hex digits"),
        ("(" * 500, "nest deeper"),
        ("(?<1>a)", "no proper name"),
    ],
)
def test_what_is_not_supported_is_said_in_one_sentence(pattern: str, says: str) -> None:
    with pytest.raises(Unsupported, match=says) as caught:
        matching(pattern)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "pattern",
    ["a{1000000}", "((){4000}){4000}", "(a|b)*a(a|b){20}", "(?:(?=a)b){99}", r"^\p{L}{1,500}$", "(a{99}){99}"],
)
def test_an_enormous_pattern_is_refused_soon(pattern: str) -> None:
    start = time.thread_time()
    with pytest.raises(TooLarge):
        matching(pattern)
    assert time.thread_time() - start < 5


def test_a_pattern_that_all_texts_contain_costs_nothing() -> None:
    assert matching("") == matching("a*") == matching("a|") == matching("[a-z]{0,100}") == ANY


def test_the_same_pattern_in_other_words_is_the_same_automaton() -> None:
    assert matching("^(?:ab|ac)$") == matching("^a[bc]$") == matching("a[b-c]", whole=True) == literals(["ab", "ac"])


def test_a_host_name_is_ready_between_two_keystrokes() -> None:
    matching.clear()
    start = time.thread_time()
    matching(r"^[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*$")
    assert time.thread_time() - start < 1  # 10 ms
