"""What an open slot holds."""

import torch

from caesura.engine.noise import Uniform


def test_uniform_noise_is_each_token_of_the_vocabulary() -> None:
    at = (torch.arange(15, dtype=torch.float64) + 0.5) / 15
    assert Uniform(5).drawn(at).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    ends = torch.tensor([2.0**-33, 1 - 2.0**-33], dtype=torch.float64)
    assert Uniform(262_144).drawn(ends).tolist() == [0, 262_143]
    assert Uniform(5).drawn(at[:0]).tolist() == []
