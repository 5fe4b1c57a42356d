"""Where a hole ends, and when it is longer than its slots."""

from caesura.engine.length import broadcast, too_short


def test_open_slots_right_of_an_accepted_null_become_null_where_the_model_half_agrees() -> None:
    still, null = [True, False, True, True, False], [False, True, False, False, False]
    assert broadcast(still, null, [0.9, 1.0, 0.6, 0.4, 0.9]) == [2]


def test_without_a_null_nothing_ends() -> None:
    assert broadcast([True, True], [False, False], [0.9, 0.9]) == []
    assert broadcast([], [], []) == []


def test_a_canvas_that_does_not_end_grows_within_its_budget() -> None:
    assert too_short(0.0, 16, 32)
    assert not too_short(0.0, 16, 31)
    assert not too_short(0.9, 16, 256)
