"""What a streaming editor draws of a canvas on its way: text that grows, and does not flicker."""

from typing import Any

import pytest

from caesura.server.ghost.canvas import Draft
from caesura.server.lsp.streaming import Stream

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
    values: list[dict[str, Any]] = []
    now = 5.0
    stream = Stream(values.append, 0, lambda eat: eat, "utf-32", lambda: now)
    stream.draft(FIRST)
    now += after_s
    stream.draft(later)
    assert values[-1]["items"][0]["insertText"] == drawn
