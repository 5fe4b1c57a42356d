"""What a streaming editor draws of a canvas on its way: text that grows, and does not flicker."""

import pytest

from caesura.server.ghost.typed import Draft
from caesura.server.lsp.streaming import PartialResults

FIRST = Draft("raise Error", confidence=0.5)


@pytest.mark.parametrize(
    ("later", "after_s", "drawn"),
    [
        (Draft("raise Error()", confidence=0.1), 0.0, "raise Error()"),  # it goes on
        (Draft("return None", confidence=0.55), 0.1, "raise Error"),  # hardly likelier
        (Draft("return None", confidence=0.55), 0.4, "return None"),  # the first was there long enough
        (Draft("return None", confidence=0.9), 0.1, "return None"),  # much likelier
        (Draft("return None", locked=3, confidence=0.1), 0.1, "return None"),  # decided
        (Draft("raise", confidence=0.5), 0.1, "raise Error"),
    ],
)
def test_a_draft_gives_way_to_a_much_likelier_one_or_after_a_while(later: Draft, after_s: float, drawn: str) -> None:
    results = PartialResults(0, "utf-32")
    values = [results.draft(FIRST, 5.0), results.draft(later, 5.0 + after_s)]
    assert [value for value in values if value][-1]["items"][0]["insertText"] == drawn
