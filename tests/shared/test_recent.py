"""What caches keep has a bound in bytes."""

import pytest

from caesura.recent import ENTRY, Recent, remembered


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


def test_a_function_remembers_as_many_results_as_fit() -> None:
    asked = list[int]()

    @remembered(2 * ENTRY + 100, lambda made, *_, **__: len(made))
    def made(size: int, *, fill: bytes = b"x") -> bytes:
        asked.append(size)
        return fill * size

    for size in (10, 20, 10, 90, 20, 700, 700):
        assert made(size) == b"x" * size
    assert asked == [10, 20, 90, 20, 700, 700]  # 90 took the place of 20, and 700 has none
    assert made(90, fill=b"y") == b"y" * 90
    made.clear()
    made(20)
    assert asked[-2:] == [90, 20]
