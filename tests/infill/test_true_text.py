"""The author's text, cut from real files, comes out whole of everything that finishes and judges a fill.

The files and their licences lie in tests/data; `bench/true_text.py` chose them, and measures whole repositories.
"""

import json
from collections import Counter
from functools import cache

import pytest

from caesura.server.languages import grammar, language

from ..support.true_text import FILES, is_whole, places, shown

KEPT = [json.loads(line) for line in FILES.read_text("utf-8").splitlines()]
LANGUAGES = sorted({file["language"] for file in KEPT})
AT_LEAST = {"line": 0.98, "header": 0.98, "statement": 0.95, "body": 0.95}
FEW = 2  # places of a kind that a language with fewer may lose, but no more than one in eight


@cache
def counted(name: str) -> Counter[tuple[str, str]]:
    """The places of a language by kind, those that come out whole, and bodies that are holes of the kind "block"."""
    found, row = Counter[tuple[str, str]](), language(name)
    if grammar(row) is None:
        pytest.skip(f"the grammar of {name} is not installed")
    for file in KEPT:
        for place in places(file["text"], row) if file["language"] == name else ():
            result = shown(place, row)
            found[place.kind, "all"] += 1
            found[place.kind, "whole"] += is_whole(place, result)
            found[place.kind, "block"] += result.kind == "block"
    return found


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_authors_text_comes_out_whole(name: str) -> None:
    found = counted(name)
    assert found["line", "all"] > 30
    lost = {kind: found[kind, "all"] - found[kind, "whole"] for kind in AT_LEAST}
    count = {kind: found[kind, "all"] for kind in AT_LEAST}
    allowed = {kind: max(min(FEW, count[kind] // 8), int((1 - AT_LEAST[kind]) * count[kind])) for kind in AT_LEAST}
    assert {kind for kind in AT_LEAST if lost[kind] > allowed[kind]} == set()


@pytest.mark.parametrize("kind", AT_LEAST)
def test_hardly_a_text_is_lost_in_all_languages_together(kind: str) -> None:
    together = sum((counted(name) for name in LANGUAGES), Counter())
    assert together[kind, "whole"] >= AT_LEAST[kind] * together[kind, "all"]


def test_an_empty_body_is_a_block() -> None:
    together = sum((counted(name) for name in LANGUAGES), Counter())
    assert together["body", "block"] >= 0.9 * together["body", "all"]
