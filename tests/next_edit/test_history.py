"""What is kept of the user's keystrokes: whole edits, each with its place."""

from caesura.server.next_edit.history import PastEdit
from tests.support.typist import Typist

LINES = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\ng = 7\n"


def test_the_keys_of_a_line_are_one_edit() -> None:
    user = Typist(LINES)
    user.replace("2", "22 + x")
    assert not user.history.edits  # the edit is still open
    user.history.pause()
    assert user.history.edits == (PastEdit(("b = 2",), ("b = 22 + x",), 1),)


def test_an_edit_ends_where_the_next_one_begins() -> None:
    user = Typist(LINES)
    user.replace("2", "20")
    user.replace("5", "50")
    assert user.history.edits == (PastEdit(("b = 2",), ("b = 20",), 1),)
    user.history.pause()
    assert user.history.edits[-1] == PastEdit(("e = 5",), ("e = 50",), 4)


def test_lines_typed_one_after_the_other_are_one_edit_with_the_line_above() -> None:
    user = Typist(LINES)
    user.replace("", "\nx = 0\ny = 0", after="b = 2")
    user.history.pause()
    assert user.history.edits == (PastEdit(("b = 2",), ("b = 2", "x = 0", "y = 0"), 1),)


def test_a_removed_line_keeps_the_line_above() -> None:
    user = Typist(LINES)
    user.paste(LINES.index("c"), LINES.index("d"), "")
    user.history.pause()
    assert user.history.edits == (PastEdit(("b = 2", "c = 3"), ("b = 2",), 1),)


def test_the_first_line_is_removed_next_to_the_line_below() -> None:
    user = Typist(LINES)
    user.paste(0, LINES.index("b"), "")
    user.history.pause()
    assert user.history.edits == (PastEdit(("a = 1", "b = 2"), ("b = 2",), 0),)


def test_later_edits_move_the_places_of_earlier_ones() -> None:
    user = Typist(LINES)
    user.replace("5", "50")
    user.replace("", "\nx = 0", after="a = 1")
    user.history.pause()
    assert [edit.at for edit in user.history.edits] == [5, 0]
    assert user.text.split("\n")[5] == "e = 50"


def test_an_edit_that_was_undone_is_gone() -> None:
    user = Typist(LINES)
    user.replace("5", "50")
    user.history.pause()
    user.replace("50", "5")
    user.history.pause()
    assert user.history.edits == ()


def test_an_undo_in_one_step_after_a_pause_leaves_nothing() -> None:
    user = Typist(LINES)
    user.paste(LINES.index("c"), LINES.index("e"), "z = 0\n")
    user.history.pause()
    at = user.text.index("z")
    user.paste(at, at + len("z = 0\n"), "c = 3\nd = 4\n")
    user.history.pause()
    assert user.text == LINES
    assert user.history.edits == ()


def test_a_name_that_is_finished_after_a_pause_is_one_edit() -> None:
    user = Typist(LINES)
    user.replace("5", "to")
    user.history.pause()
    user.replace("", "tal", after="to")
    user.history.pause()
    assert user.history.edits == (PastEdit(("e = 5",), ("e = total",), 4),)


def test_only_the_last_three_edits_are_seen() -> None:
    user = Typist(LINES)
    for old, new in (("1", "10"), ("3", "30"), ("5", "50"), ("7", "70")):
        user.replace(old, new)
    user.history.pause()
    assert [edit.old for edit in user.history.edits] == [("c = 3",), ("e = 5",), ("g = 7",)]


def test_line_breaks_of_windows_are_no_part_of_the_lines() -> None:
    user = Typist(LINES.replace("\n", "\r\n"))
    user.replace("", "\r\nx = 0", after="b = 2")
    user.history.pause()
    assert user.history.edits == (PastEdit(("b = 2",), ("b = 2", "x = 0"), 1),)


def test_signs_of_several_bytes_stay_whole() -> None:
    user = Typist('a = "ä😀"\nb = "ö"\n')
    user.replace("😀", "é😀")
    user.history.pause()
    assert user.history.edits == (PastEdit(('a = "ä😀"',), ('a = "äé😀"',), 0),)


def test_a_whole_file_that_is_formatted_is_no_edit_by_hand() -> None:
    user = Typist("x=1\n" * 200)
    user.paste(0, len(user.text), "x = 1\n" * 200)
    user.history.pause()
    assert user.history.edits == ()
