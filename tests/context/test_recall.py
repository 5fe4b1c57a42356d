"""The passage of a document that the model sees besides its context: what was written far away after the same text."""

import pytest

from caesura.server.context.recall import Passage, recall

CASE = "def test_of_the_door():\n    door = Door(height=2, width=1)\n    assert door.opens(by=hand)\n    door.shut()\n"
APART = "".join(f"number_{number} = {number}\n" for number in range(300))
CURSOR = "¦"


def passage(text: str, kept: Passage | None = None) -> Passage | None:
    at = text.index(CURSOR)
    return recall(text.replace(CURSOR, ""), at, at, "python", kept)


@pytest.mark.parametrize(
    "text",
    [
        f"{CASE}{APART}def test_of_the_door():\n    door = Door(¦\n",
        f"def test_of_the_door():\n    door = Door(¦\n{APART}{CASE}",
    ],
    ids=["above", "below"],
)
def test_what_follows_the_same_text_far_away_is_shown(text: str) -> None:
    found = passage(text)
    assert found
    assert "    assert door.opens(by=hand)" in found.neighbour.text
    assert found.neighbour.name == "# ..."


@pytest.mark.parametrize(
    "text",
    [
        f"{CASE}{CASE}def test_of_the_door():\n    door = Door(¦\n",  # the model sees it anyway
        f"{CASE}{APART}{CASE}def test_of_the_door():\n    door = Door(¦\n",
        f"{CASE}{APART}door = Door(¦\n",  # too little agrees
        f"a\n{' ' * 40}\n{APART}{' ' * 40}¦\n",
        "¦",
    ],
)
def test_nothing_is_shown_of_what_is_in_view_or_hardly_alike(text: str) -> None:
    assert passage(text) is None


def test_a_passage_stays_until_its_lines_are_used_up() -> None:
    begun = f"{CASE}{APART}def test_of_the_door():\n    door = Door("
    first = passage(begun + "¦")
    assert first
    assert passage(begun + "height=2, width=1)\n    ¦", first) is first
    assert passage(begun + "name=¦", first) is first, "the user writes something new"
    assert passage(begun + "height=2, width=1)\n" + "new = 1\n" * 40 + "¦", first) is None


def test_a_passage_that_was_deleted_is_gone() -> None:
    first = passage(f"{CASE}{APART}def test_of_the_door():\n    door = Door(¦")
    assert passage(f"{APART}def test_of_the_door():\n    door = Door(¦", first) is None


def test_secrets_in_a_passage_are_covered() -> None:
    secret = "hunter2-Xy9-correct-horse"
    begun = "def test_of_the_login_page():\n    user = 'anna'\n    "
    found = passage(f"{begun}password = '{secret}'\n    login()\n{APART}{begun}¦")
    assert found
    assert "login()" in found.neighbour.text
    assert secret not in found.neighbour.text


def test_lines_of_windows_are_shown_as_any_other() -> None:
    found = passage(f"{CASE}{APART}def test_of_the_door():\n    door = Door(¦".replace("\n", "\r\n"))
    assert found
    assert "\r" not in found.neighbour.text
