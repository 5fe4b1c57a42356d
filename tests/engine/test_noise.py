"""What an open slot holds."""

import numpy as np
import pytest
import torch

from caesura.engine.noise import Schedule, Uniform


def test_uniform_noise_is_each_token_of_the_vocabulary() -> None:
    at = (np.arange(15) + 0.5) / 15
    assert Uniform(5).drawn(at).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    ends = np.array([2.0**-33, 1 - 2.0**-33])
    assert Uniform(262_144).drawn(ends).tolist() == [0, 262_143]
    assert Uniform(5).drawn(at[:0]).tolist() == []


@pytest.mark.parametrize(("t_min", "t_max"), [(0.4, 0.8), (0.1, 0.7), (0.0, 1.0), (1 / 3, 2 / 3)])
def test_a_temperature_is_rounded_as_in_the_reference(t_min: float, t_max: float) -> None:
    """DiffusionGemma's, which computes with float32 tensors of torch."""
    schedule = Schedule(t_min=t_min, t_max=t_max)
    for of in range(1, 257):
        left = torch.arange(of, 0, -1, dtype=torch.int32)
        expected = t_min + (t_max - t_min) * (left / of)
        found = [schedule.temperature(step, of) for step in range(of)]
        assert {one.dtype for one in found} == {np.dtype(np.float32)}
        assert [float(one) for one in found] == expected.tolist()
