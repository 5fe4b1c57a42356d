"""The packed kernel against its reference in plain PyTorch, at shapes that do not divide."""

import pytest
import torch

from caesura.kernels import int8

SHAPES = [(1, 1, 1), (1, 64, 64), (2, 3, 5), (7, 33, 65), (17, 130, 96), (40, 257, 191)]
packed = pytest.mark.skipif(not int8.available(), reason="this torch has no packed int8 kernel")


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m * 1000 + n)
    x = torch.randn(m, k, generator=generator) * torch.logspace(-3, 3, m)[:, None]  # rows of very different size
    return x, torch.randn(n, k, generator=generator)


@packed
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_kernel_equals_reference(m: int, n: int, k: int) -> None:
    x, weight = operands(m, n, k)
    out, expected = int8.product(x, int8.pack(weight)), int8.reference(x, *int8.quantize(weight))
    assert out.shape == (m, n)
    assert out.dtype == torch.float32
    size = expected.abs().amax(1, keepdim=True) + 1e-9
    torch.testing.assert_close(out / size, expected / size, atol=1e-4, rtol=0)


@packed
def test_the_largest_codes_do_not_saturate() -> None:
    """On a CPU without VNNI they did, at every second product of a model: the notebook has what it cost."""
    weight = torch.ones(5, 96)
    weight[:, ::2] *= torch.tensor([1.0, 1e-9, -1.0, 0.3, 0.5])[:, None]
    for x in (torch.ones(3, 96), -torch.ones(3, 96), torch.ones(3, 96).index_fill(1, torch.arange(0, 96, 2), -1.0)):
        for matrix in (weight, -weight):
            expected = int8.reference(x, *int8.quantize(matrix))
            torch.testing.assert_close(int8.product(x, int8.pack(matrix)), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_codes_of_a_pair_of_columns_never_saturate(m: int, n: int, k: int) -> None:
    """On no CPU: those with VNNI would not show it."""
    for weight in (operands(m, n, k)[1], torch.ones(n, k), -torch.ones(n, k)):
        codes = torch.nn.functional.pad(int8.quantize(weight)[0].int(), (0, k % 2)).unflatten(1, (-1, 2))
        assert int(codes.clamp_min(0).sum(-1).max()) <= 128
        assert int(codes.clamp_max(0).sum(-1).min()) >= -128


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_quantised_is_close_to_exact(m: int, n: int, k: int) -> None:
    x, weight = operands(m, n, k)
    bound = 2.5 / 127 * x.abs().amax(1, keepdim=True) * weight.abs().amax(1) * k**0.5 + 1e-6
    assert ((int8.product(x, int8.pack(weight)) - x @ weight.T).abs() <= bound).all()


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_row_does_not_depend_on_the_others(m: int, n: int, k: int) -> None:
    x, weight = operands(m, n, k)
    held = int8.pack(weight)
    together = int8.product(x, held)
    for i in range(m):
        assert torch.equal(int8.product(x[i : i + 1], held)[0], together[i])
    assert torch.equal(int8.product(x.flip(0), held).flip(0), together)


def test_zero_rows_give_zero() -> None:
    _, weight = operands(2, 9, 40)
    out = int8.product(torch.zeros(2, 40), int8.pack(weight))
    assert torch.equal(out, torch.zeros(2, 9))
    assert torch.isfinite(int8.product(torch.ones(1, 40), int8.pack(torch.zeros(9, 40)))).all()
