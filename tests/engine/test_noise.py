"""What an open slot holds."""

import torch

from caesura.engine.noise import Absorbing, Uniform


def test_absorbing_noise_is_the_mask() -> None:
    assert Absorbing(7).draw(3, torch.Generator()).tolist() == [7, 7, 7]


def test_uniform_noise_is_drawn_from_the_vocabulary_and_repeats_with_its_seed() -> None:
    one, other = (Uniform(5).draw(200, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, other)
    assert set(one.tolist()) == set(range(5))
    assert not torch.equal(one, Uniform(5).draw(200, torch.Generator().manual_seed(2)))


def test_no_slots_no_noise() -> None:
    assert Absorbing(7).draw(0, torch.Generator()).tolist() == Uniform(5).draw(0, torch.Generator()).tolist() == []
