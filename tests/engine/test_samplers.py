"""The contract that every file in engine/samplers keeps, and what each one does on scores made by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from caesura.engine import samplers
from caesura.engine.samplers import Scores, entropy_bound, threshold, top_k

NAMES = samplers.names()


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


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(
    canvases=st.integers(1, 4),
    slots=st.integers(1, 20),
    sharp=st.sampled_from([0.0, 1.0, 8.0, 60.0]),
    seed=st.integers(0, 2**31),
    step=st.integers(0, 60),
)
def test_contract(name: str, canvases: int, slots: int, sharp: float, seed: int, step: int) -> None:
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


def test_a_file_is_the_registry() -> None:
    assert {"threshold", "top_k", "entropy_bound"} <= set(NAMES)
    with pytest.raises(ValueError, match=r"no sampler named 'nope'.*threshold"):
        samplers.load("nope")
    for name in ("__init__", "../search", ""):
        with pytest.raises(ValueError, match="no sampler"):
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
