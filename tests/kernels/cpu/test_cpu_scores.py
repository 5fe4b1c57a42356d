"""The best tokens of rows of logits and their sums, in C and in numpy."""

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray

from caesura.kernels.cpu import scores, variants

WIDTHS = 1, 5, 16, 63, 64, 65, 200, 1040, 5003


def rows_of(width: int, count: int = 9) -> NDArray[np.float32]:
    """Logits with many equal ones, with -inf, and a row with NaN."""
    draw = np.random.default_rng(width)
    x = (draw.standard_normal((count, width)) * 6 + 9).astype(np.float32)
    x[1] = np.round(x[1])
    x[2] = draw.choice([-np.inf, -0.0, 0.0, 2.5], width)
    x[3, width // 2 :] = -np.inf
    x[4, draw.integers(width)] = np.nan
    x[5, :] = -np.inf
    x[6] *= 30  # all but a few are too unlikely to count
    return x


def sets_of(width: int, count: int = 9) -> list[NDArray[np.uint8] | None]:
    """No set, all tokens, none, one, and some in runs and alone."""
    draw = np.random.default_rng(width + 1)
    has = draw.random((count, width)) < draw.choice([0.01, 0.5, 0.99], (count, 1))
    has[1], has[2], has[3] = True, False, np.arange(width) == width // 3
    has[6, width // 4 : width // 2] = True
    sets: list[NDArray[np.uint8] | None] = [np.packbits(one, bitorder="little") for one in has]
    sets[0] = None
    return sets


@pytest.fixture(params=list(variants()))
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(scores, "chosen", lambda: request.param)
    return str(request.param)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_best_tokens_are_those_of_a_stable_sort(width: int, limited: bool) -> None:
    x, sets = rows_of(width), sets_of(width) if limited else None
    for count in (1, 2, 8, 70):
        for found, expected in zip(scores.best(x, count, sets), scores.best_reference(x, count, sets), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("variant")
def test_what_c_would_read_outside_its_arrays_is_refused() -> None:
    x, sets = rows_of(200), sets_of(200)
    top = x.max(1)
    for ask in (
        lambda: scores.best(x, 1, sets[:-1]),
        lambda: scores.weighed(x, top, sets[:-1]),
        lambda: scores.weighed(x, top[:-1]),
        lambda: scores.weighed(x, top.astype(np.float64)),
    ):
        with pytest.raises(AssertionError):
            ask()


@pytest.mark.usefixtures("variant")
def test_of_no_best_tokens_c_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares with the last of those it holds."""
    monkeypatch.setattr(scores, "library", None)
    x = rows_of(200)
    for found, expected in zip(scores.best(x, 0), scores.best_reference(x, 0), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("variant")
def test_a_column_of_tops_lives_as_long_as_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may take memory that was freed before it."""
    x, seen = rows_of(200), list[float]()

    class Library:
        def caesura_weigh(self, variant: int, asked: object, top: int, sums: int) -> None:
            others = [np.full(len(x), 9, np.float32) for _ in range(100)]
            seen.extend(np.ctypeslib.as_array((ctypes.c_float * len(x)).from_address(top)))
            assert others

    monkeypatch.setattr(scores, "library", Library)
    scores.weighed(x, np.arange(2 * len(x), dtype=np.float32).reshape(-1, 2)[:, 1])
    assert seen == [2 * row + 1 for row in range(len(x))]


def test_the_reference_is_a_stable_sort() -> None:
    x = np.array([[1, 3, np.nan, 3, -np.inf, np.nan, -0.0, 0.0]], np.float32)
    sets = [np.packbits([1, 0, 0, 1, 1, 1, 1, 1], bitorder="little")]
    assert scores.best_reference(x, 8)[1].tolist() == [[2, 5, 1, 3, 0, 6, 7, 4]]
    assert scores.best_reference(x, 3)[1].tolist() == [[2, 5, 1]]
    values, ids = scores.best_reference(x, 8, sets)
    assert ids.tolist() == [[5, 3, 0, 6, 7, 4, -1, -1]]
    assert values[0, 5:].tolist() == [-np.inf] * 3


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("width", [*WIDTHS, 37_888])
def test_sums_are_those_of_float64(width: int, limited: bool) -> None:
    x, sets = rows_of(width), sets_of(width) if limited else None
    top = scores.best(x, 1, sets)[0][:, 0]
    found, expected = scores.weighed(x, top, sets), scores.weighed_reference(x, top, sets)
    np.testing.assert_array_equal(np.isnan(found[:, 0]), ~np.isfinite(top))
    np.testing.assert_allclose(found[:, 0], expected[:, 0], rtol=5e-7)
    np.testing.assert_allclose(found[:, 1], expected[:, 1], rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("width", [37, 5003])
def test_a_row_alone_has_the_numbers_of_the_row_in_a_batch(width: int) -> None:
    x, sets = np.concatenate([rows_of(width)] * 5), sets_of(width) * 5
    values, ids = scores.best(x, 3, sets)
    sums = scores.weighed(x, values[:, 0].copy(), sets)
    for row in range(len(x)):
        alone, own = scores.best(x[row : row + 1], 3, sets[row : row + 1])
        assert alone.tobytes() == values[row].tobytes()
        assert own.tobytes() == ids[row].tobytes()
        assert scores.weighed(x[row : row + 1], alone[:, 0], sets[row : row + 1]).tobytes() == sums[row].tobytes()


def test_variants_that_fuse_products_have_equal_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for name in variants():
        monkeypatch.setattr(scores, "chosen", lambda name=name: name)
        x = rows_of(5003)
        if name != "portable":
            found.add(scores.weighed(x, scores.best(x, 1)[0][:, 0]).tobytes())
    assert len(found) <= 1
