"""What caches keep has a bound in bytes."""

import pytest

from caesura.recent import Recent


def sizes(room: int) -> Recent[str, bytearray]:
    return Recent(room, lambda key, value: len(key) + len(value))


@pytest.mark.parametrize("size", [1, 9, 40])
def test_those_used_last_are_kept_within_the_room(size: int) -> None:
    kept, values = sizes(100), [bytearray(size) for _ in range(200)]
    kept.put("first", values[0])
    for number, value in enumerate(values):
        kept.put(f"{number:03}", value)
        assert kept.nbytes <= 100
        assert kept.get(f"{number:03}") is value
        assert kept.get("first") is values[0]
    assert len(kept) == (100 - 5 - size) // (3 + size) + 1
    kept.clear()
    assert (len(kept), kept.nbytes) == (0, 0)


def test_values_that_grow_make_others_go_and_go_themselves_where_they_fit_no_longer() -> None:
    kept, grows = sizes(100), bytearray(10)
    kept.put("a", bytearray(40))
    kept.put("b", grows)
    grows.extend(bytes(60))
    kept.put("c", bytearray(20))
    assert kept.get("a") is None
    assert kept.get("b") is grows
    assert kept.nbytes <= 100
    grows.extend(bytes(60))
    assert kept.get("b") is None
    assert kept.get("c") is not None


def test_what_does_not_fit_alone_costs_no_other_its_place() -> None:
    kept = sizes(100)
    kept.put("a", bytearray(40))
    kept.put("b", bytearray(200))
    assert kept.get("b") is None
    assert kept.get("a") is not None
    kept.drop("a")
    kept.drop("a")
    assert kept.nbytes == 0
