"""The contract that every file in engine/samplers keeps, and what each one does on statistics made by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.engine import samplers
from caesura.engine.draws import Draws
from caesura.engine.samplers import CanvasSampler, Reading, Selecting, entropy_bound, factor, threshold, top_k
from caesura.engine.samplers._scheduled import LAST, by_time
from caesura.engine.scores import Bools, Floats, Ids, Statistics, told
from caesura.engine.scores.host import HostScores

NAMES = samplers.names()
OF_STATISTICS = [name for name in NAMES if isinstance(samplers.begin(name), Selecting)]


def statistics(logits: Floats) -> Statistics:
    """Of logits [slots, vocabulary]."""
    (found,) = told(HostScores(logits).statistics())
    assert isinstance(found, Statistics)
    return found


def made(prob: list[float], entropy: list[float] | None = None) -> Statistics:
    """One canvas by hand."""
    p = np.array(prob, np.float32)
    return Statistics(np.zeros(len(p), np.int32), p, p / 2, np.array(entropy, np.float32) if entropy else 1 - p)


def opened(*slots: int, of: int) -> Bools:
    return np.array([i in slots for i in range(of)])


@pytest.mark.parametrize("name", OF_STATISTICS)
@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 20),
    sharp=st.sampled_from([0.0, 1.0, 8.0, 60.0]),
    seed=st.integers(0, 2**31),
    step=st.integers(0, 60),
)
def test_a_function_of_the_statistics(name: str, slots: int, sharp: float, seed: int, step: int) -> None:
    select, of, draw = samplers.load(name), 48, np.random.default_rng(seed)
    seen = statistics(draw.standard_normal((slots, 9), np.float32) * np.float32(sharp))
    still = draw.random(slots) < draw.random()
    given_seen, given_open = Statistics(*(values.copy() for values in seen)), still.copy()

    accepted = select(seen, still, step, of)

    assert accepted.shape == still.shape
    assert accepted.dtype == np.bool_
    assert not (accepted & ~still).any(), "accepted a slot that is not open"
    assert accepted.any() == still.any(), "accepted nothing although a slot is open"
    assert np.array_equal(select(seen, still, step, of), accepted), "not deterministic"
    assert all(map(np.array_equal, seen, given_seen))
    assert np.array_equal(still, given_open)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(1, 20),
    sharp=st.sampled_from([0.0, 1.0, 8.0, 60.0]),
    seed=st.integers(0, 2**31),
    first=st.integers(0, 3),
    of=st.integers(1, 60),
)
def test_a_canvas_from_its_first_forward_to_its_last(
    name: str, slots: int, sharp: float, seed: int, first: int, of: int
) -> None:
    """Every forward says something else. Some slots are held from the start, as after a warm start, and some of those
    may not be taken back."""
    one, other, draw = samplers.begin(name), samplers.begin(name), np.random.default_rng(seed)
    kinds = draw.random(slots)
    token, fixed = np.where(kinds < 0.3, 5, -1).astype(np.int32), kinds < 0.1
    for step in range(first, 4 * of + 60):
        logits = draw.standard_normal((slots, 9), np.float32) * np.float32(sharp)
        seen = reading(logits, token, fixed, draw.random(slots, np.float32), step, of, one)
        decision = one(seen)
        again = other(seen._replace(scores=HostScores(logits.copy()), draws=Draws(0, step)))
        assert np.array_equal(again.accept, decision.accept), "not deterministic"
        assert np.array_equal(again.mask, decision.mask), "not deterministic"
        assert not (decision.accept & ~(seen.open | seen.held)).any(), "changed a slot that is neither open nor held"
        assert not (decision.mask & ~seen.held).any(), "masked a slot that is not held"
        assert (decision.accept & seen.open).any() == seen.open.any(), "accepted nothing although a slot is open"
        assert one.revises or not (decision.mask | (decision.accept & ~seen.open)).any()
        fixed = fixed | decision.mask  # as a canvas has it: no token is taken back twice
        changed = decision.mask | decision.accept
        kept = np.where(decision.mask, np.int32(-1), token)
        token = np.where(decision.accept, seen.statistics.token, kept)
        if not (token < 0).any() and not (decision.again and changed.any()):
            break
    else:
        pytest.fail("the canvas does not come to an end")


def reading(
    logits: Floats, token: Ids, fixed: Bools, check: Floats, step: int, of: int, sampler: CanvasSampler
) -> Reading:
    held = (token >= 0) & ~fixed if sampler.revises else np.zeros_like(fixed)
    shadows, slots = check if sampler.checks and held.any() else None, range(len(token))
    seen = statistics(logits)
    return Reading(slots, seen, HostScores(logits), token < 0, held, token, shadows, step, of, Draws(0, step))


def test_a_file_is_the_registry() -> None:
    assert {"threshold", "top_k", "entropy_bound"} <= set(NAMES)
    with pytest.raises(ValueError, match=r"no sampler named 'nope'.*threshold"):
        samplers.load("nope")
    for name in ("__init__", "_scheduled", "../search", ""):
        with pytest.raises(ValueError, match="no sampler"):
            samplers.begin(name)


def test_a_sampler_with_state_is_refused_where_a_function_is_needed() -> None:
    assert set(OF_STATISTICS) < set(NAMES)
    for name in set(NAMES) - set(OF_STATISTICS):
        with pytest.raises(ValueError, match=rf"{name}.* canvases of absorbing noise"):
            samplers.load(name)


def test_threshold_takes_all_sure_slots_or_the_surest() -> None:
    scores = made([0.95, 0.2, 0.91, 0.5])
    assert threshold.select(scores, opened(0, 1, 2, 3, of=4), 0, 8).tolist() == [True, False, True, False]
    assert threshold.select(scores, opened(1, 3, of=4), 0, 8).tolist() == [False, False, False, True]


def test_top_k_takes_an_equal_share_so_that_the_steps_suffice() -> None:
    scores = made([0.1, 0.9, 0.3, 0.8, 0.2])
    assert top_k.select(scores, opened(0, 1, 2, 3, 4, of=5), 0, 3).tolist() == [False, True, False, True, False]
    assert top_k.select(scores, opened(0, 2, 4, of=5), 1, 3).tolist() == [False, False, True, False, True]
    still = opened(*range(5), of=5)
    for step in range(3):
        still = still & ~top_k.select(scores, still, step, 3)
    assert not still.any()


def test_entropy_bound_takes_slots_while_the_entropy_before_them_is_small() -> None:
    scores = made([0.9] * 4, [0.06, 2.0, 0.03, 0.2])
    still = opened(0, 1, 2, 3, of=4)  # in order 0.03, 0.06, 0.2, 2.0: before the last one there is more than 0.1
    assert entropy_bound.select(scores, still, 0, 8).tolist() == [True, False, True, True]
    assert entropy_bound.select(scores, opened(1, of=4), 0, 8).tolist() == [False, True, False, False]


def test_factor_takes_slots_that_are_surer_the_more_there_are() -> None:
    scores = made([0.67, 0.74, 0.9, 0.95])  # second to fourth have to reach 2/3, 3/4 and 4/5
    assert factor.select(scores, opened(0, 1, 2, 3, of=4), 0, 8).tolist() == [False, False, True, True]
    assert factor.select(scores, opened(0, 1, 2, of=4), 0, 8).tolist() == [False, True, True, False]
    assert factor.select(scores, opened(0, of=4), 0, 8).tolist() == [True, False, False, False]


def shares(name: str, slots: int, of: int) -> list[int]:
    """How many slots each forward accepts where the rest stays open."""
    sampler, token, found = samplers.begin(name), np.full(slots, -1, np.int32), list[int]()
    while (token < 0).any():
        fixed, logits = np.ones(slots, np.bool_), np.eye(slots, 40, dtype=np.float32)
        decision = sampler(reading(logits, token, fixed, np.zeros(slots, np.float32), len(found), of, sampler))
        token = np.where(decision.accept, np.int32(1), token)
        found.append(int(decision.accept.sum()))
    return found


def test_schedules_are_the_published_ones_without_steps_that_accept_nothing() -> None:
    assert shares("entropy", 8, 8) == [1, 1, 1, 1, 1, 1, 2]  # Dream: 0, 1, 1, 1, 1, 1, 1, 2, by rounding in float32
    assert shares("entropy", 8, 4) == [1, 2, 2, 3]
    assert shares("margin", 8, 4) == shares("maskgit", 8, 4) == [1, 2, 2, 3]
    assert shares("linear_entropy", 10, 4) == [3, 2, 3, 2]  # RND1: 7, 5, 2 and 0 stay open
    assert shares("top_k", 10, 4) == [3, 3, 2, 2]  # LLaDA


@pytest.mark.parametrize("slots", [1, 5, 33, 128])
def test_the_schedule_by_time_is_that_of_pytorch(slots: int) -> None:
    """Most of its times differ from those of numpy in the last bit; no schedule does."""
    for of in range(1, 129):
        times, still = torch.linspace(1, LAST, of + 1), slots
        shares = (1 - times[1:] / times[:-1]).tolist()
        for step, share in enumerate(shares[:-1]):
            accepted = by_time(step, of, still, slots)
            assert accepted == int(np.float32(still) * np.float32(share))
            still -= accepted
