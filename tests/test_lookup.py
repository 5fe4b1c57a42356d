"""How a line goes on elsewhere: in the buffer, and in its neighbours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.engine.lookup import lookup, names


def test_lookup_finds_the_rest_of_the_line() -> None:
    buffer = "total = count(left) + 1\nother\ntotal = count("
    assert lookup(buffer, ")\n") == ["left) + 1"]
    assert lookup("x = total.co", "\ny = total.count(3)\n") == ["unt(3)"]


def test_the_longest_match_comes_first() -> None:
    before = "self.a = foo(1)\nself.b = foo(2)\nmine.b = foo(3)\nself.b = foo("
    assert lookup(before, "\n")[0] == "2)"


@pytest.mark.parametrize("before", ["", "x", "ab", "\n\n    ", "unique text"])
def test_lookup_finds_nothing_where_nothing_repeats(before: str) -> None:
    assert lookup(before, "\n", ["def other():\n    pass\n"]) == []


@settings(max_examples=100, deadline=None)
@given(
    st.text(st.sampled_from("ab(\n\r\0 "), max_size=40),
    st.text(st.sampled_from("ab(\n\0"), max_size=20),
    st.lists(st.text(st.sampled_from("ab(\n\0"), max_size=20), max_size=2),
)
def test_a_lookup_is_the_rest_of_one_line_of_what_was_given(before: str, after: str, neighbours: list[str]) -> None:
    for rest in lookup(before, after, neighbours):
        assert rest.strip()
        assert not {"\n", "\r", "\0"} & set(rest)
        assert any(rest in text for text in (before, after, *neighbours))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("b = foo.bar(1)\nc = foo.b", "\n", ["ar(1)"]),
        ("def f():\n    return 1\n\ndef g():\n    ", "\n", ["return 1"]),  # behind indentation: the line before counts
        ("x = aab\ny = xaab\nz = xaa", "\n", ["b"]),
        ("print(a)\npri", "\nprint(bb)\n", ["nt(bb)", "nt(a)"]),  # text after the cursor too; the longer match first
        ("", "x", []),
        ("   ", "x = 1", []),
        ("abc", "", []),
    ],
)
def test_the_lookup_finds_what_followed_the_same_text_elsewhere(before: str, after: str, found: list[str]) -> None:
    assert lookup(before, after) == found


def test_the_neighbours_best_comes_behind_the_buffers_own() -> None:
    neighbours = ["def parse(text, strict):\n", "value = parse(line, strict=False)\nreparse(it)\n"]
    assert lookup("value = parse(", ")\n", neighbours) == ["line, strict=False)"]
    assert lookup("x = parse(a)\nvalue = parse(", ")\n", neighbours) == ["a)", "line, strict=False)"]


def test_what_buffer_and_neighbour_share_is_proposed_once() -> None:
    assert lookup("a = foo(1)\nb = foo(", "\n", ["c = foo(1)\n"]) == ["1)"]


def test_names_of_earlier_holes_come_latest_first_and_once() -> None:
    assert names([]) == names(["1 + 2"]) == []
    assert names(["total", "left(x1)\n    total, größe"]) == ["größe", "total", "x1", "left"]
    assert len(names([" ".join(f"n{i}" for i in range(100))])) <= 8
