"""Counted random numbers are the published ones, in C and in numpy."""

import numpy as np
import pytest

from caesura.kernels.cpu import philox

PI = 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((philox.WORD,) * 4, (philox.WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_the_answers_are_those_of_random123(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """Its file kat_vectors, philox4x32 of ten rounds."""
    assert philox.words(np.array([counter], np.uint64), key).tolist() == [list(expected)]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 4), (2, 63), (2, 64), (5, 333), (0, 7), (7, 0)])
def test_c_has_the_same_numbers(rows: int, columns: int) -> None:
    for given in ((0, 0, 0), (2**53 + 1, 3, 9), (2**64 - 1, philox.WORD, philox.WORD)):
        found = philox.uniform(*given, rows, columns, first=70_000)
        assert np.array_equal(found, philox.reference(*given, rows, columns, first=70_000))
        assert ((found > 0) & (found < 1)).all()


def test_a_number_depends_on_its_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = philox.uniform(7, 1, 2, 9, 11)
    assert len(np.unique(whole)) == whole.size
    assert np.array_equal(philox.uniform(7, 1, 2, 4, 5, first=3), whole[3:7, :5])
    for other in ((8, 1, 2), (7, 0, 2), (7, 1, 3)):
        assert not np.isin(whole, philox.uniform(*other, 9, 11)).any()
    monkeypatch.setattr(philox, "library", lambda: None)
    assert np.array_equal(philox.uniform(7, 1, 2, 9, 11), whole)
