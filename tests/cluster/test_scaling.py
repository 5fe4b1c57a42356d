"""How many replicas a team gets, by how long its jobs wait."""

from caesura.cluster.scaling import wanted


def test_jobs_that_wait_ask_for_a_replica_and_one_is_spare_where_none_waits() -> None:
    assert wanted([80.0, 40.0], 2) == 3
    assert wanted([60.0, 10.0], 2) == 2
    assert wanted([0.0, 6.0], 2) == 2
    assert wanted([0.0, 4.0], 2) == 1
    assert wanted([], 2) == 2
