"""Linear layers of stored precisions: what the format promises of a value, and that every way to use them agrees."""

import pytest
import torch
from torch import Tensor

from caesura.kernels import fp8, linear, nvfp4
from caesura.kernels.linear import Dense, Linear

SHAPES = [(1, 16), (3, 32), (33, 80), (130, 176)]
STACK = (4, 24, 48)
KINDS = ("dense", "fp8", "nvfp4")
MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def matrix(*shape: int, seed: int = 0) -> Tensor:
    """Rows of very different size, with a row and a group of zeros."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(*shape, generator=generator) * torch.logspace(-2, 1, shape[-2])[:, None]
    weight[..., 0, :16] = 0
    weight[..., -1, :] = 0
    return weight


def packed(weight: Tensor, kind: str) -> Linear:
    if kind == "dense":
        return Dense(weight)
    return fp8.Fp8Linear(*fp8.quantize(weight)) if kind == "fp8" else nvfp4.Nvfp4Linear(*nvfp4.quantize(weight))


@pytest.mark.parametrize("shape", SHAPES)
def test_fp8_is_within_its_rounding(shape: tuple[int, int]) -> None:
    weight = matrix(*shape)
    codes, scale = fp8.quantize(weight)
    error = (fp8.Fp8Linear(codes, scale).dense(torch.float32) - weight).abs()
    assert (error <= torch.maximum(weight.abs() / 16, scale / 1024) * 1.0001).all()
    assert (codes.float().abs().amax(1) <= 448).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_nvfp4_is_within_its_rounding(shape: tuple[int, int]) -> None:
    weight = matrix(*shape)
    codes, scale, factor = nvfp4.quantize(weight)
    error = (nvfp4.Nvfp4Linear(codes, scale, factor).dense(torch.float32) - weight).abs().unflatten(-1, (-1, 16))
    unit = weight.abs().unflatten(-1, (-1, 16)).amax(-1) / 6
    bound = unit * 17 / 16 + 6 * factor / 1024
    assert (error <= bound[..., None] * 1.0001).all()


def test_every_value_of_a_format_comes_back_exactly() -> None:
    finite = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    finite = finite[finite.isfinite()]
    assert torch.equal(fp8.Fp8Linear(*fp8.quantize(finite[None] * 0.25)).dense(torch.float32), finite[None] * 0.25)
    units = torch.tensor([2.0**-6, 1.0, 2.5, 448.0]) * 0.5  # e4m3 scales times a factor
    exact = units[:, None] * torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)])
    assert torch.equal(nvfp4.Nvfp4Linear(*nvfp4.quantize(exact)).dense(torch.float32), exact)


def test_the_even_column_is_in_the_low_nibble() -> None:
    codes = torch.tensor([[0x21, 0xF7, 0, 0, 0, 0, 0, 0]], dtype=torch.uint8)
    one = torch.ones(1, 1, dtype=torch.float8_e4m3fn)
    assert nvfp4.Nvfp4Linear(codes, one, torch.full((1, 1), 2.0)).dense(torch.float32)[0, :4].tolist() == [
        1,
        2,
        12,
        -12,
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_call_multiplies_by_the_dense_values(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    layer = packed(matrix(33, 80), kind)
    x = torch.randn(2, 5, 80, generator=torch.Generator().manual_seed(1)).to(dtype)
    out, expected = layer(x), x.float() @ layer.dense(torch.float32).T
    assert out.dtype == dtype
    size = expected.abs().amax((0, 1)) + 1e-9
    torch.testing.assert_close(out.float() / size, expected / size, atol=tolerance, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_of_a_stack_is_a_view(kind: str) -> None:
    stack = packed(matrix(*STACK), kind)
    assert stack.shape == STACK
    one = stack[2]
    assert one.shape == STACK[1:]
    assert torch.equal(one.dense(torch.float32), stack.dense(torch.float32)[2])
    storages = [tensor.untyped_storage().data_ptr() for tensor in stack.tensors]
    assert [tensor.untyped_storage().data_ptr() for tensor in one.tensors] == storages


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_experts_are_what_they_were(kind: str) -> None:
    experts = [[packed(matrix(n, 48, seed=10 * e + n), kind) for n in (8, 16)] for e in range(3)]
    stack = linear.stack(iter(experts), 3, "cpu")
    assert stack.shape == (3, 24, 48)
    for found, parts in zip(range(3), experts, strict=True):
        expected = torch.cat([part.dense(torch.float32) for part in parts])
        assert torch.equal(stack[found].dense(torch.float32), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_joined_matrices_keep_their_precision_and_their_rows(kind: str) -> None:
    parts = [packed(matrix(height, 32, seed=height), kind) for height in (3, 5)]
    whole = linear.joined(parts, torch.float32)
    assert type(whole) is type(parts[0])
    assert torch.equal(whole.dense(torch.float32), torch.cat([part.dense(torch.float32) for part in parts]))
    assert all(tensor.is_contiguous() for tensor in whole.tensors)


def test_matrices_of_several_precisions_are_joined_as_floats() -> None:
    parts = [packed(matrix(3, 32), kind) for kind in KINDS]
    whole = linear.joined(parts, torch.float32)
    assert isinstance(whole, Dense)
    assert torch.equal(whole.weight, torch.cat([part.dense(torch.float32) for part in parts]))


def test_bytes_are_those_of_the_docstrings() -> None:
    weight = torch.ones(128, 256)
    dense = Dense(weight.bfloat16()).nbytes
    assert dense == 2 * 128 * 256
    assert packed(weight, "fp8").nbytes == dense // 2 + 4 * 128
    assert packed(weight, "nvfp4").nbytes == dense // 4 + 128 * 256 // 16 + 4 * 128
    assert packed(weight, "fp8").to("meta").nbytes == dense // 2 + 4 * 128
    assert repr(packed(weight, "nvfp4")) == "caesura.kernels.nvfp4.Nvfp4Linear[128, 256]"
