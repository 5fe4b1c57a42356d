"""The contract that every file in engine/samplers keeps, and what each one does on scores made by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from caesura.engine import samplers
from caesura.engine.draws import Draws
from caesura.engine.samplers import (
    CanvasSampler,
    Reading,
    Scores,
    Selecting,
    entropy_bound,
    factor,
    statistics,
    threshold,
    top_k,
)

NAMES = samplers.names()
OF_SCORES = [name for name in NAMES if isinstance(samplers.begin(name), Selecting)]


def scores_of(probs: Tensor) -> Scores:
    """Distributions [canvases, slots, vocabulary] -> their statistics."""
    top = probs.topk(2)
    entropy = -(probs * probs.clamp_min(1e-30).log()).sum(-1)
    return Scores(top.indices[..., 0], top.values[..., 0], top.values[..., 0] - top.values[..., 1], entropy)


def made(prob: list[float], entropy: list[float] | None = None) -> Scores:
    """One canvas by hand."""
    p = torch.tensor([prob])
    return Scores(torch.zeros_like(p, dtype=torch.int64), p, p / 2, torch.tensor([entropy]) if entropy else 1 - p)


def opened(*slots: int, of: int) -> Tensor:
    return torch.tensor([[i in slots for i in range(of)]])


@pytest.mark.parametrize("name", OF_SCORES)
@settings(max_examples=40, deadline=None)
@given(
    canvases=st.integers(1, 4),
    slots=st.integers(1, 20),
    sharp=st.sampled_from([0.0, 1.0, 8.0, 60.0]),
    seed=st.integers(0, 2**31),
    step=st.integers(0, 60),
)
def test_a_function_of_the_scores(name: str, canvases: int, slots: int, sharp: float, seed: int, step: int) -> None:
    select, of = samplers.load(name), 48
    generator = torch.Generator().manual_seed(seed)
    scores = scores_of((torch.randn(canvases, slots, 9, generator=generator) * sharp).softmax(-1))
    still = torch.rand(canvases, slots, generator=generator) < torch.rand(canvases, 1, generator=generator)
    given_scores, given_open = Scores(*(t.clone() for t in scores)), still.clone()

    accepted = select(scores, still, step, of)

    assert accepted.shape == still.shape
    assert accepted.dtype == torch.bool
    assert not (accepted & ~still).any(), "accepted a slot that is not open"
    assert (accepted.any(-1) == still.any(-1)).all(), "accepted nothing although a slot is open"
    assert torch.equal(select(scores, still, step, of), accepted), "not deterministic"
    for i in range(canvases):
        own = select(Scores(*(t[i : i + 1] for t in scores)), still[i : i + 1], step, of)
        assert torch.equal(own[0], accepted[i]), "a canvas gets something else in a batch"
    assert all(torch.equal(a, b) for a, b in zip(scores, given_scores, strict=True))
    assert torch.equal(still, given_open)


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("columns", [9, 300, samplers.BLOCK**2 + 77])
def test_of_equal_numbers_the_first_is_the_highest(columns: int, in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setattr(samplers, "library", lambda: None)
    draw = torch.Generator().manual_seed(columns)
    for values in ([-torch.inf, -1.5, -0.0, 0.0, 2.0], [0.0], [*torch.randn(columns, generator=draw).tolist()]):
        rows = torch.tensor(values)[torch.randint(len(values), (40, columns), generator=draw)]
        rows[3, 4:] = rows[4, :-2] = -torch.inf
        for count in (1, 2, 8):
            expected = rows.sort(descending=True, stable=True)
            found, places = samplers.highest(rows, count)
            assert torch.equal(places, expected.indices[:, :count])
            assert torch.equal(found, expected.values[:, :count])
    rows[7, 5] = torch.nan
    assert samplers.highest(rows, 2)[1][7, 0] == 5


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
    one, other = samplers.begin(name), samplers.begin(name)
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.rand(slots, generator=generator)
    token, fixed = torch.where(kinds < 0.3, 5, -1), kinds < 0.1
    for step in range(first, 4 * of + 60):
        logits = torch.randn(slots, 9, generator=generator) * sharp
        seen = reading(logits, token, fixed, torch.rand(slots, generator=generator), step, of, one)
        decision = one(seen)
        again = other(seen._replace(logits=logits.clone(), draws=Draws(0, step)))
        assert torch.equal(again.accept, decision.accept), "not deterministic"
        assert torch.equal(again.mask, decision.mask), "not deterministic"
        assert not (decision.accept & ~(seen.open | seen.held)).any(), "changed a slot that is neither open nor held"
        assert not (decision.mask & ~seen.held).any(), "masked a slot that is not held"
        assert (decision.accept & seen.open).any() == seen.open.any(), "accepted nothing although a slot is open"
        assert one.revises or not (decision.mask | (decision.accept & ~seen.open)).any()
        fixed = fixed | decision.mask  # as a canvas has it: no token is taken back twice
        changed = decision.mask | decision.accept
        token = torch.where(decision.accept, seen.scores.token, torch.where(decision.mask, -1, token))
        if not (token < 0).any() and not (decision.again and changed.any()):
            break
    else:
        pytest.fail("the canvas does not come to an end")


def reading(
    logits: Tensor, token: Tensor, fixed: Tensor, check: Tensor, step: int, of: int, sampler: CanvasSampler
) -> Reading:
    scores = Scores(*(values[0] for values in statistics(logits)))
    held = (token >= 0) & ~fixed if sampler.revises else torch.zeros_like(fixed)
    told = check if sampler.checks and held.any() else None
    return Reading(range(len(token)), scores, logits, token < 0, held, token, told, step, of, Draws(0, step))


def test_a_file_is_the_registry() -> None:
    assert {"threshold", "top_k", "entropy_bound"} <= set(NAMES)
    with pytest.raises(ValueError, match=r"no sampler named 'nope'.*threshold"):
        samplers.load("nope")
    for name in ("__init__", "_scheduled", "../search", ""):
        with pytest.raises(ValueError, match="no sampler"):
            samplers.begin(name)


def test_a_sampler_with_state_is_refused_where_a_function_is_needed() -> None:
    assert set(OF_SCORES) < set(NAMES)
    for name in set(NAMES) - set(OF_SCORES):
        with pytest.raises(ValueError, match=rf"{name}.* canvases of absorbing noise"):
            samplers.load(name)


def test_threshold_takes_all_sure_slots_or_the_surest() -> None:
    scores = made([0.95, 0.2, 0.91, 0.5])
    assert threshold.select(scores, opened(0, 1, 2, 3, of=4), 0, 8).tolist() == [[True, False, True, False]]
    assert threshold.select(scores, opened(1, 3, of=4), 0, 8).tolist() == [[False, False, False, True]]


def test_top_k_takes_an_equal_share_so_that_the_steps_suffice() -> None:
    scores = made([0.1, 0.9, 0.3, 0.8, 0.2])
    assert top_k.select(scores, opened(0, 1, 2, 3, 4, of=5), 0, 3).tolist() == [[False, True, False, True, False]]
    assert top_k.select(scores, opened(0, 2, 4, of=5), 1, 3).tolist() == [[False, False, True, False, True]]
    still = opened(*range(5), of=5)
    for step in range(3):
        still = still & ~top_k.select(scores, still, step, 3)
    assert not still.any()


def test_entropy_bound_takes_slots_while_the_entropy_before_them_is_small() -> None:
    scores = made([0.9] * 4, [0.06, 2.0, 0.03, 0.2])
    still = opened(0, 1, 2, 3, of=4)  # in order 0.03, 0.06, 0.2, 2.0: before the last one there is more than 0.1
    assert entropy_bound.select(scores, still, 0, 8).tolist() == [[True, False, True, True]]
    assert entropy_bound.select(scores, opened(1, of=4), 0, 8).tolist() == [[False, True, False, False]]


def test_factor_takes_slots_that_are_surer_the_more_there_are() -> None:
    scores = made([0.67, 0.74, 0.9, 0.95])  # second to fourth have to reach 2/3, 3/4 and 4/5
    assert factor.select(scores, opened(0, 1, 2, 3, of=4), 0, 8).tolist() == [[False, False, True, True]]
    assert factor.select(scores, opened(0, 1, 2, of=4), 0, 8).tolist() == [[False, True, True, False]]
    assert factor.select(scores, opened(0, of=4), 0, 8).tolist() == [[True, False, False, False]]


def shares(name: str, slots: int, of: int) -> list[int]:
    """How many slots each forward accepts where the rest stays open."""
    sampler, token, found = samplers.begin(name), torch.full((slots,), -1), list[int]()
    while (token < 0).any():
        free = torch.zeros(slots, dtype=torch.bool)
        decision = sampler(reading(torch.eye(slots, 40), token, ~free, free.float(), len(found), of, sampler))
        token = torch.where(decision.accept, 1, token)
        found.append(int(decision.accept.sum()))
    return found


def test_schedules_are_the_published_ones_without_steps_that_accept_nothing() -> None:
    assert shares("entropy", 8, 8) == [1, 1, 1, 1, 1, 1, 2]  # Dream: 0, 1, 1, 1, 1, 1, 1, 2, by rounding in float32
    assert shares("entropy", 8, 4) == [1, 2, 2, 3]
    assert shares("margin", 8, 4) == shares("maskgit", 8, 4) == [1, 2, 2, 3]
    assert shares("linear_entropy", 10, 4) == [3, 2, 3, 2]  # RND1: 7, 5, 2 and 0 stay open
    assert shares("top_k", 10, 4) == [3, 3, 2, 2]  # LLaDA
