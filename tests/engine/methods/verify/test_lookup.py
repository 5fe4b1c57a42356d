"""What stands elsewhere where the hole stands here: in the buffer, and in its neighbours."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.engine.methods.verify.lookup import Repeats, between, identifiers, lookup


def test_lookup_finds_what_stood_between_the_same_texts() -> None:
    buffer = "total = count(left) + 1\nother\ntotal = count("
    assert lookup(buffer, ") + 1\n") == ["left"]
    assert lookup(buffer, "\n") == ["left) + 1"]
    assert lookup(buffer, "]\n") == []
    assert lookup('{"type": "car", "a": 1}\n{"type": ', ', "b": 2}\n') == ['"car"']
    assert lookup("x = total.co", "\ny = total.count(3)\n") == ["unt(3)"]


def test_nothing_is_found_in_front_of_what_is_not_known() -> None:
    assert lookup("zf(a, b)\nzf(", "\0)\n") == lookup("zf(a, b)\nzf(", " \0)\n") == []
    assert lookup("zf(a, b)\nzf(", ", \0)\n") == ["a"]


def test_what_agrees_most_on_both_sides_comes_first_and_of_equals_the_nearest() -> None:
    before = "self.a = foo(1)\nself.b = foo(2)\nmine.b = foo(3)\nself.b = foo("
    assert lookup(before, "\n")[0] == "2)"
    assert lookup("x = f(1)\nx = f(2)\nx = f(3)\nx = f(", ")\n") == ["3", "2"]
    assert lookup("x = f(1)\ndone()\nx = f(2)\nx = f(", ")\ndone()\n") == ["1", "2"]


@pytest.mark.parametrize("before", ["", "x", "ab", "\n\n    ", "unique text"])
def test_lookup_finds_nothing_where_nothing_repeats(before: str) -> None:
    assert lookup(before, "\n", ["def other():\n    pass\n"]) == []


@settings(max_examples=100, deadline=None)
@given(
    st.text(st.sampled_from("ab(\n\r\0 "), max_size=40),
    st.text(st.sampled_from("ab(\n\0"), max_size=20),
    st.lists(st.text(st.sampled_from("ab(\n\0"), max_size=20), max_size=2),
)
def test_a_lookup_is_of_one_line_of_what_was_given(before: str, after: str, neighbours: list[str]) -> None:
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
        ("a = 1; print(a)\npri", "\nx\nprint(bb)\n", ["nt(bb)", "nt(a)"]),  # text after the cursor too
        ("", "x", []),
        ("   ", "x = 1", []),
        ("abc", "", []),
    ],
)
def test_the_lookup_finds_what_followed_the_same_text_elsewhere(before: str, after: str, found: list[str]) -> None:
    assert lookup(before, after) == found


def test_the_neighbours_best_comes_behind_the_buffers_own() -> None:
    neighbours = ["def parse(text, strict):\n", "value = parse(line, strict=False)\nreparse(it)\n"]
    assert lookup("value = parse(", ")\n", neighbours) == ["line, strict=False"]
    assert lookup("x = parse(a)\nvalue = parse(", ")\n", neighbours) == ["a", "line, strict=False"]


@pytest.mark.parametrize("above", ["pad\n", "pad\n" * 40])
def test_of_equals_the_neighbours_first_and_the_buffers_nearest_comes_first(above: str) -> None:
    assert lookup(above + "z f(", ")", ["\nz f(aa)\n" + "\n" * 20 + "z f(bb)\n"]) == ["aa"]
    assert lookup("z f(0)\n" * 2500 + "z f(9)\n" * 2 + "z f(", ")\n")[0] == "9"


def test_a_line_without_end_is_not_taken_for_the_rest_of_one() -> None:
    long = "x = [" + "0, " * 200 + "]\n"
    assert lookup(long + "x = [", "\n") == []
    assert lookup(long + "x = [", ", 0]\n") == ["0"]


@pytest.mark.parametrize("text", ["x" * 8000, "0, " * 2700, '{"a": 1, "b": [2, 3]}, ' * 350, "A" * 8000 + '"'])
def test_a_buffer_of_one_line_costs_little(text: str) -> None:
    """By count, not by time: the places, and what is read of each."""
    places, read = 0, 0

    class Counted(str):
        def find(self, *given: Any) -> int:
            nonlocal places, read
            places, read = places + 1, read + given[2] - given[1]
            return super().find(*given)

    key, sides = text[5997:6000], (text[5952:6000], text[6000:6048])
    between(*sides, key, Counted(text), 6000)
    assert 0 < places <= 500 * 7
    assert read <= places * 250


def test_what_buffer_and_neighbour_share_is_proposed_once() -> None:
    assert lookup("a = foo(1)\nb = foo(", "\n", ["c = foo(1)\n"]) == ["1)"]


def test_names_of_earlier_holes_come_latest_first_and_once() -> None:
    assert identifiers([]) == identifiers(["1 + 2"]) == []
    assert identifiers(["total", "left(x1)\n    total, größe"]) == ["größe", "total", "x1", "left"]
    assert len(identifiers([" ".join(f"n{i}" for i in range(100))])) <= 8


@pytest.mark.parametrize(
    ("ids", "path", "found"),
    [
        ([1, 2, 3, 4, 5], [9, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 1, 2, 4], [1, 2], [4]),  # of equals the latest
        ([7, 1, 2, 3, 8, 1, 2, 4], [7, 1, 2], [3, 8, 1, 2, 4]),  # who agrees longer
        ([9, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2], [1, 2]),
        ([1, 2, 3], [2], []),
        ([1, 2, 3], [5, 2], []),
        ([], [1, 2], []),
    ],
)
def test_what_follows_the_same_tokens_elsewhere(ids: list[int], path: list[int], found: list[int]) -> None:
    assert list(Repeats(ids).after(path)) == found
