"""How many replicas a team gets, by how long its jobs wait."""

from caesura.cluster.scaling import CALM_S, calm_since, wanted


def test_jobs_that_wait_long_ask_for_a_replica_and_a_long_calm_gives_one_back() -> None:
    assert wanted([80.0, 40.0], 2, 0.0) == 3
    assert wanted([60.0, 10.0], 2, 0.0) == 2
    assert wanted([0.0, 0.0], 2, CALM_S) == 2
    assert wanted([0.0, 0.0], 2, CALM_S + 1) == 1
    assert wanted([], 1, 0.0) == 1


def test_a_calm_begins_when_nobody_waits_and_ends_when_one_does() -> None:
    assert calm_since([0.0], None, 5.0) == 5.0
    assert calm_since([0.0], 5.0, 9.0) == 5.0
    assert calm_since([0.0, 6.0], 5.0, 9.0) is None
