"""What a user can have filled in YAML and TOML: one value, of the type its siblings have."""

import datetime
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from caesura.automata.regex import matching
from caesura.server.structured.offer import NoOffer, Offer
from caesura.server.structured.scalars import offers
from caesura.wire import Pattern

from ..support.commonmark import edited, fills, walker

LOAD: dict[str, Callable[[str], Any]] = {"yaml": yaml.safe_load, "toml": tomllib.loads}


def place(source: str) -> tuple[str, int, int]:
    start, end = source.index("¦"), source.rindex("¦")
    return source.replace("¦", ""), start, max(start, end - 1)


def offered(source: str, language: str) -> Offer:
    [offer] = offers(*place(source), language=language)
    return offer


def pattern(offer: Offer) -> str:
    [hole] = offer.holes
    assert isinstance(hole.grammar, Pattern)
    return hole.grammar.regex


def takes(source: str, language: str, good: list[str], bad: list[str]) -> None:
    offer, text = offered(source, language), place(source)[0]
    regex = pattern(offer)
    compiled = matching(regex, whole=True)
    assert [word for word in good if not (re.fullmatch(regex, word) and compiled.accepts(word))] == []
    assert [word for word in bad if re.fullmatch(regex, word) or compiled.accepts(word)] == []
    assert [word for word in good if offer.check(edited(text, offer, [word])) is not None] == []


# YAML


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ("a: ¦\n", ["word", "two w", '"x: #"', "1", "-0.5", "true", "a:b", "C#"], ["", "- a", "a: b", "a #b", "*x"]),
        ("a: 1\nb: 22\nc: ¦\n", ["3", "-4"], ["x", "0.5", "010", '"1"', "true"]),
        ("a: 1\nb: 2.5\nc: ¦\n", ["3", "0.5"], ["x", ".5"]),
        ("a: yes\nb: no\nc: ¦\n", ["yes", "no"], ["true", "maybe"]),
        ("a: true\nb: false\nc: ¦\n", ["true", "false"], ["yes", "1"]),
        ("- {id: 1}\n- {id: ¦}\n", ["7"], ["x", "7}"]),
        ("- id: x\n  n: 1\n- id: ¦\n  n: 2\n", ["y z"], ["yes", "No", "null", "1", '"y"', "a: b", "a # b", " a", "a "]),
        ("- id: 'x'\n- id: ¦\n", ["'it''s'"], ["x", "''", "'a'b'"]),
        ('a: "x"\nb: "y"\nc: ¦\n', ['"a: b # c"', '"\\""'], ["x", '"', '"a"b"', '"\\q"']),
        ("a:\n- 1\n- ¦\n", ["2"], ["x", "- 2"]),
        ("a: [x, ¦]\n", ["w"], ["y", "w, z", "w]", "1", "a: b", "a:b"]),
        ("a:\n  t: [x, y]\nb:\n  t: ¦\n", ["[]", "[z]", "[z, w]"], ["z", "[1]", "[z,w]", "[z", "[true]"]),
        ("a: 1\nb: ¦[x]¦\nc: 'y'\n", ["[]", "[z, w]"], ["3", "true", "[1]"]),
        ("a: 2024-02-29\nb: 2025-01-01\nc: ¦\n", ["2026-12-31"], ["2026-02-30", "today"]),
        ("a: x\nb: y\nc: ¦!!int 7¦\n", ["8"], ["z", "0.5"]),
        ("a: x\nb: y\nc: !!bool ¦\n", ["true"], ["z"]),
        ("a: &x 1\nb: 2\nc: ¦\n", ["3"], ["z"]),
        ("a: ¦&x [1, 2]¦\n", ["[3]"], ["3", "[z]"]),
    ],
)  # fmt: skip
def test_a_yaml_value_has_the_type_of_its_siblings(source: str, good: list[str], bad: list[str]) -> None:
    takes(source, "yaml", good, bad)


@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("a:¦\nb: 1\n", "a: x\nb: 1\n"),
        ("a: ¦  \nb: 1\n", "a: x\nb: 1\n"),
        ("a: ¦# why\n", "a: x # why\n"),
        ("a: ¦ # why\n", "a: x # why\n"),
        ("a: ¦old¦ # why\r\nb: 1\r\n", "a: x # why\r\nb: 1\r\n"),
        ("a:\n  - b:\n      c: ¦\n", "a:\n  - b:\n      c: x\n"),
        ("- ¦\n", "- x\n"),
        ("a: ¦&é old¦\nb: *é\n", "a: &é x\nb: *é\n"),
        ("a: &é ¦old¦\n", "a: &é x\n"),
        ("a: ¦&b !!str old¦ # why\n", "a: &b !!str x # why\n"),
        ("[&b ¦old¦, y]\n", "[&b x, y]\n"),
        ("- &b ¦\n", "- &b x\n"),
    ],
)
def test_all_but_the_value_stays_as_it_is(source: str, new: str) -> None:
    text, _, _ = place(source)
    offer = offered(source, "yaml")
    assert edited(text, offer, ["x"]) == new
    assert offer.check(new) is None
    assert offer.level == "parses"


@pytest.mark.parametrize(
    "source",
    [
        "¦",
        "a: |\n  b: ¦\n",
        "# a: ¦\n",
        'a: "x¦"\n',
        "a: x¦\n",
        "a: ¦\n  b: 1\n",
        "a: ¦\n- b\n",
        "¦a¦: b\n",
        "a: ¦b: c¦\n",
        "a: ¦b ¦\n",
        "a: ¦b¦c\n",
        "a: &x b\nc: ¦*x¦\n",
        "a: ¦|\n  b¦\n",
        "a: b\n¦\n",
    ],
)
def test_where_no_single_value_is_meant_there_is_one_sentence(source: str) -> None:
    with pytest.raises(NoOffer, match="after a key"):
        offers(*place(source), language="yaml")


# TOML


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ("a = ¦\n", ['"x"', "1", "-2.5", "true"], ["", "x", "01", "1.", '"', "nan", '"\n"']),
        ("a = 1\nb = 2\nc = ¦\n", ["3"], ['"3"', "03", "+-3"]),
        ("a = 'x'\nb = 'y'\nc = ¦\n", ["'z\\'"], ["''", "'z''"]),
        ('[[p]]\nn = "x"\nv = 1\n[[p]]\nn = ¦\nv = 2\n', ['"y \\" z"'], ["1", '"\\q"', "'y'"]),
        ("a = 2024-02-29\nb = 2025-01-01\nc = ¦\n", ["2026-12-31"], ["2026-02-30", "2026-1-1"]),
        ("a = 07:32:00\nb = 00:00:00\nc = ¦\n", ["23:59:59"], ["24:00:00"]),
        ("[a]\nt = 1979-05-27T07:32:00Z\n[b]\nt = ¦\n", ["2026-12-31T00:00:00+01:00"], ["2026-12-31"]),
        ("[a]\nt = [1, 2]\n[b]\nt = ¦\n", ["[]", "[3]", "[3, 4]"], ['["x"]', "[3,]", "3"]),
        ('[a]\nt = ["x"]\n[b]\nt = ¦\n', ['["y", "z"]'], ["[1]", '["y" "z"]']),
        ("a = ¦{x = 1}¦\n", ["{ x = 2 }"], ["1", '{ x = "y" }', "{ y = 1 }"]),
        ('a = { x = 1 }\nb = ¦{ v = "1", f = ["g"] }¦\n', ['{ v = "2", f = [] }'], ['"2"', '{ v = "2", f = "g" }']),
        ('[d.a]\nt = { p = "x", o = true }\n[d.b]\nt = ¦', ['{ p = "y", o = false }'], ['{ p = "y" }', '"y"']),
        ("a = [1, ¦]\n", ["2"], ["2]", '"x"']),
    ],
)
def test_a_toml_value_has_the_type_of_its_siblings(source: str, good: list[str], bad: list[str]) -> None:
    takes(source, "toml", good, bad)
    assert offered(source, "toml").level == "valid"


@pytest.mark.parametrize(
    "source", ["¦", "# a = ¦\n", 'a = """\nb = ¦\n"""\n', "a = 1¦\n", "[¦]\n", "a = ¦1\n", "¦a¦ = 1\n"]
)
def test_where_no_toml_value_is_missing_there_is_one_sentence(source: str) -> None:
    with pytest.raises(NoOffer, match="after a key"):
        offers(*place(source), language="toml")


def test_a_table_in_a_table_is_not_edited() -> None:
    with pytest.raises(NoOffer, match="fill the selection instead"):
        offers(*place("a = ¦{x = {y = 1}}¦\n"), language="toml")


def test_a_document_that_is_not_toml_is_named_as_such() -> None:
    with pytest.raises(NoOffer, match=r"not valid TOML: .*\. Correct it first\."):
        offers(*place("a = 1\na = ¦\n"), language="toml")


def test_the_title_names_the_key() -> None:
    assert offered('"a b" = ¦', "toml").title == 'Fill the value of "a b"'
    assert offered("- ¦\n", "yaml").title == "Fill the element"


# Guarantees


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("yaml", "x: 1\ny:\n  a: ¦\nz: [1]\n"),
        ("yaml", "- id: b\n- id: ¦\n- id: c # d\n"),
        ("yaml", "a:\n  t: [x, y]\nb:\n  t: ¦\nc: 1\n"),
        ("yaml", "a: {b: ¦, c: 1}\n"),
        ("toml", "[a]\nb = ¦\n[c]\nd = 1\n"),
        ("toml", 'a = ["x", ¦] # e\n'),
        ("toml", '[d.a]\nt = { p = "x", o = 1.5 }\n[d.b]\nt = ¦'),
    ],
)
def test_whatever_a_grammar_takes_is_one_value_of_its_kind(language: str, source: str) -> None:
    text, _, _ = place(source)
    offer, walk = offered(source, language), walker(3)
    plain = LOAD[language](edited(text, offer, ["99"]))
    for size in (1, 3, 8, 20) * 4:
        drawn = fills(offer, walk, size)
        new = edited(text, offer, drawn)
        assert offer.check(new) is None, drawn
        assert differences(plain, LOAD[language](new)) == 1, drawn


@pytest.mark.parametrize(
    "word", ["yes", "Off", "NULL", "~", "1e3", "0x1f", "1_000", "12:30", ".inf", "2024-01-01", "=", "<<", "n"]
)
def test_a_plain_string_never_means_something_else(word: str) -> None:
    offer = offered("- a: x y\n- a: ¦\n", "yaml")
    assert not re.fullmatch(pattern(offer), word)


def test_a_check_refuses_what_a_grammar_would_not_take() -> None:
    text, _, _ = place("a: ¦\nb: 1\n")
    offer = offered("a: ¦\nb: 1\n", "yaml")
    for word in ("x: y", "\n  k: v", "[", "x\nc: 2", "&y x"):
        assert offer.check(edited(text, offer, [word])) is not None
    text, _, _ = place("a = ¦\nb = 1\n")
    offer = offered("a = ¦\nb = 1\n", "toml")
    for word in ("x", "1\nc = 2", "1\nb = 2", '"', "2026-02-31"):
        assert offer.check(edited(text, offer, [word])) is not None


def differences(a: Any, b: Any) -> int:
    """How many values differ between two documents of the same shape."""
    if isinstance(a, dict) and isinstance(b, dict):
        assert list(a) == list(b)
        return sum(differences(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return sum(differences(*pair) for pair in zip(a, b, strict=True))
    assert not isinstance(b, datetime.date)
    return int(type(a) is not type(b) or a != b)


def test_a_number_without_an_end_and_one_that_is_none_stop_no_edit() -> None:
    text = "x = nan\nb = "
    [first, *_] = offers(text, len(text), len(text), language="toml")
    assert first.check(text + "1") is None
    assert first.check("x = 1\nb = 1") is not None
    long = f"a = {'9' * 5000}\nb = "
    with pytest.raises(NoOffer, match="not valid TOML"):
        offers(long, len(long), len(long), language="toml")
