"""Head norms, rotary positions and the KV write: the kernel finds what plain products find, and writes nowhere else."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from caesura.kernels.norms import rms
from caesura.kernels.rotary import cos_sin, frequencies, launch, reference, rotary, turned

from ..support.checkpoints.few import few

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where there is no GPU, Triton interprets

EPS = 1e-6
TOLERANCES = [(torch.float32, 1e-5, 1e-5), (torch.float16, 4e-3, 2e-3)]
# rows, heads, key heads, width, theta, the part that turns, whether there is a v
SHAPES = [
    (1, 1, 1, 2, 1e4, 1.0, True),  # one pair
    (5, 3, 1, 24, 1e4, 1.0, True),
    (17, 6, 3, 40, 1e6, 0.25, False),  # heads and pairs that fill up no block
    (3, 5, 5, 246, 1e4, 0.5, True),  # more key heads than a block has
    (2, 16, 8, 256, 1e4, 1.0, True),  # a sliding layer's
    (2, 16, 2, 512, 1e6, 0.25, False),  # a full layer's
    (2, 3, 3, 34, 1e4, 0.0, False),  # no pair turns
]
Shape = tuple[int, int, int, int, float, float, bool]
Given = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor]


def inputs(shape: Shape, dtype: torch.dtype, start: int = 1000) -> Given:
    """q, k, v, both norms and the table; q, k and v as columns of one product, as one matrix for all three gives."""
    rows, heads, groups, width, theta, part, has_v = shape
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    sizes = [heads * width, groups * width, groups * width]
    q, k, v = (torch.randn(rows, sum(sizes), generator=generator) * 3).to(DEVICE, dtype).split(sizes, 1)
    norms = (torch.rand(2, width, generator=generator) + 0.5).to(DEVICE)
    positions = torch.arange(start, start + rows, device=DEVICE)
    return q, k, v if has_v else None, *norms, rotary(positions, width, theta, part, dtype)


def cache(shape: Shape, dtype: torch.dtype, room: int = 9) -> tuple[Tensor, Tensor]:
    """Buffers of nothing but NaN with more columns than rows."""
    rows, _, groups, width, *_ = shape
    keys, values = torch.full((2, groups, rows + room, width), torch.nan, device=DEVICE, dtype=dtype)
    return keys, values


def exact(shape: Shape, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [heads, rows, width], in float64: each pair a complex number that is multiplied by another."""
    q, k, v, q_norm, k_norm, (cos, sin) = given
    rows, _, _, width, *_ = shape
    turns = torch.ones(rows, width // 2, dtype=torch.complex128, device=cos.device)
    turns[:, : cos.shape[1]] = torch.complex(cos.double(), sin.double())

    def normed(x: Tensor) -> Tensor:
        x = x.reshape(rows, -1, width).transpose(0, 1).double()
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()

    def rotated(x: Tensor) -> Tensor:
        out = torch.complex(*x.chunk(2, -1)) * turns
        return torch.cat((out.real, out.imag), -1)

    return rotated(normed(q) * q_norm), rotated(normed(k) * k_norm), normed(k if v is None else v)


def assert_equal(found: Tensor, expected: Tensor, atol: float, rtol: float) -> None:
    torch.testing.assert_close(found.double(), expected.double(), atol=atol, rtol=rtol)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few("shape", SHAPES, 2)
def test_heads_are_normed_and_turned_and_kept_in_the_cache(
    shape: Shape, dtype: torch.dtype, atol: float, rtol: float
) -> None:
    rows, heads, _, width, *_ = shape
    given = inputs(shape, dtype)
    expected = exact(shape, given)
    for path in (reference, launch, turned):
        keys, values = cache(shape, dtype)
        q = path(*given, EPS, keys[:, 4 : 4 + rows], values[:, 4 : 4 + rows])
        assert q.shape == (rows, heads, width)
        assert q.dtype == dtype
        assert_equal(q.transpose(0, 1), expected[0], atol, rtol)
        for buffer, kept in zip((keys, values), expected[1:], strict=True):
            assert_equal(buffer[:, 4 : 4 + rows], kept, atol, rtol)
            assert buffer[:, :4].isnan().all()
            assert buffer[:, 4 + rows :].isnan().all()


@few("shape", SHAPES[2:6], 0)
def test_what_is_rounded_is_rounded_where_the_reference_rounds(shape: Shape) -> None:
    given = inputs(shape, torch.float16)
    ours, plain = (cache(shape, torch.float16, 0) for _ in range(2))
    found, expected = launch(*given, EPS, *ours), reference(*given, EPS, *plain)
    for one, other in zip((found, *ours), (expected, *plain), strict=True):
        assert (one == other).double().mean() > 0.995  # but where float32 sums in another order tip the balance


@pytest.mark.parametrize("parts", [1, 2, 3])
@few("shape", SHAPES[1:3], 0)
def test_products_may_come_in_parts_that_add_up(shape: Shape, parts: int) -> None:
    """As columns of one product; the sum is rounded before anything else."""
    q, k, v, *rest = inputs(shape, torch.float16)
    sizes = [len(x[0]) for x in (q, k, v) if x is not None]
    generator = torch.Generator().manual_seed(0)
    product = torch.randn(parts, len(q), sum(sizes), generator=generator).to(DEVICE)
    split = (product.half() if parts == 1 else product).split(sizes, 2)
    whole = product.sum(0).half().split(sizes, 1)
    given, alone = ((*three, *[None] * (3 - len(three)), *rest, EPS) for three in (split, whole))
    ours, plain = (cache(shape, torch.float16, 0) for _ in range(2))
    for path in (launch, reference):
        found, expected = path(*given, *ours), path(*alone, *plain)
        for one, other in zip((found, *ours), (expected, *plain), strict=True):
            assert (one == other).double().mean() > 0.995
            torch.testing.assert_close(one, other, atol=4e-3, rtol=2e-3)


def places_of(rows: int, at: int) -> Tensor:
    """The last row first."""
    return torch.arange(at, at + rows, dtype=torch.int32, device=DEVICE).flip(0)


@pytest.mark.parametrize("at", [0, 4, 9])
@few("shape", SHAPES[1:3], 1)
def test_the_device_may_choose_where_rows_are_kept(shape: Shape, at: int) -> None:
    given, rows = inputs(shape, torch.float32), shape[0]
    plain = cache(shape, torch.float32, 0)
    expected = reference(*given, EPS, *plain)
    for path in (launch, reference):
        ours = cache(shape, torch.float32)
        assert_equal(path(*given, EPS, *ours, places_of(rows, at)), expected, 1e-5, 1e-5)
        for one, other in zip(ours, plain, strict=True):
            assert_equal(one[:, at : at + rows].flip(1), other, 1e-5, 1e-5)
            assert one[:, :at].isnan().all()
            assert one[:, at + rows :].isnan().all()


def test_rows_that_find_no_room_are_not_kept() -> None:
    shape = SHAPES[1]
    given, (plain, values) = inputs(shape, torch.float32), cache(shape, torch.float32, 0)
    reference(*given, EPS, plain, values)
    for path in (launch, reference):
        whole, others = cache(shape, torch.float32)
        path(*given, EPS, whole[:, :3], others[:, :3], places_of(shape[0], 1).flip(0))
        assert_equal(whole[:, 1:3], plain[:, :2], 1e-5, 1e-5)
        for buffer in (whole, others):
            assert buffer[:, 0].isnan().all()
            assert buffer[:, 3:].isnan().all()


def test_rows_of_nothing_but_zeros_stay_zero() -> None:
    shape = SHAPES[1]
    q, k, v, q_norm, k_norm, turn = inputs(shape, torch.float32)
    assert v is not None
    keys, values = cache(shape, torch.float32, 0)
    assert not launch(q * 0, k * 0, v * 0, q_norm, k_norm, turn, EPS, keys, values).any()
    assert not keys.any()
    assert not values.any()


def test_a_far_position_turns_by_the_float32_angle() -> None:
    positions = torch.tensor([0, 1, 200_001, 262_143], device=DEVICE)
    for width, theta, part, pairs in ((256, 1e4, 1.0, 128), (512, 1e6, 0.25, 64)):
        cos, sin = rotary(positions, width, theta, part, torch.float32).double()
        assert cos.shape == (4, pairs)
        frequencies = torch.tensor([theta ** (-2 * i / width) for i in range(pairs)], dtype=torch.float64)
        angles = positions.double()[:, None] * frequencies.to(DEVICE)
        off = torch.atan2(sin, cos) - angles
        off -= (off / (2 * math.pi)).round() * 2 * math.pi
        # Of float32: two roundings in the frequency's power, one in its inverse, one in the angle.
        assert (off.abs() <= 4 * 2**-24 * angles + 1e-6).all()


def test_cosines_and_sines_are_rounded_once() -> None:
    """NumPy's float64 rounded, and of the float32 ones that published models have at most a bit away."""
    positions, device = torch.arange(0, 32_768, 3), torch.device("cpu")
    for width, theta in ((64, 1e6), (80, 1e5), (128, 1e4)):
        angles = positions[:, None] * frequencies(width, theta, width // 2, device)
        for found, exact, single in zip(cos_sin(angles), (np.cos, np.sin), (torch.cos, torch.sin), strict=True):
            assert (found.numpy() == exact(angles.numpy()).astype(np.float32)).all()
            assert (found - single(angles.float())).abs().max() <= 2**-24 * (angles.max() + 2)


@pytest.mark.parametrize("room", [2, 20])
@few("shape", SHAPES[1:3], 1)
def test_a_table_says_where_rows_are_kept(shape: Shape, room: int) -> None:
    """Buffers with more or fewer columns than those that are given, into which nothing is written, and which begin at
    another place of the text. What has no room is left out."""
    rows, at, start = shape[0], 5, 100
    given, ours, plain, other = inputs(shape, torch.float32), *(cache(shape, torch.float32, r) for r in (room, 20, 9))
    keys, values = ours = tuple(x.contiguous() for x in ours)
    table = torch.tensor([keys.data_ptr(), values.data_ptr(), rows + room, start], device=DEVICE)
    found = launch(*given, EPS, *other, places_of(rows, start + at).flip(0), table)
    assert_equal(found, reference(*given, EPS, *(x[:, at : at + rows] for x in plain)), 1e-5, 1e-5)
    for one, whole, untouched in zip(ours, plain, other, strict=True):
        torch.testing.assert_close(one, whole[:, : rows + room], atol=1e-5, rtol=1e-5, equal_nan=True)
        assert untouched.isnan().all()


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
def test_with_a_scale_only_norms_with_weights_are_taken_and_values_are_kept_as_they_come(
    dtype: torch.dtype, atol: float, rtol: float, normed: bool
) -> None:
    shape, scale = SHAPES[1], 0.3
    q, k, v, *norms, turn = inputs(shape, torch.float32)
    (q_norm, k_norm), (*_, width, _, _, _) = norms, shape
    own = (q.to(dtype), k.to(dtype), v.to(dtype))  # type: ignore[union-attr]
    if normed:
        expected = exact(shape, (*own, q_norm, k_norm, turn))[:2]
    else:  # rows whose root mean square is 1 are their own norm
        own = (*(rms(x.unflatten(1, (-1, width)), None, 0.0).flatten(1) for x in own[:2]), own[2])
        expected = exact(shape, (*own, *torch.ones(2, width, device=DEVICE), turn))[:2]
    for path in (reference, launch, turned):
        keys, values = cache(shape, dtype, 0)
        norms = [q_norm, k_norm] if normed else [None, None]  # type: ignore[list-item]
        found = path(*own, *norms, turn, EPS, keys, values, scale=scale)
        assert found.dtype == dtype
        assert_equal(found.transpose(0, 1), expected[0] * scale, atol, rtol)
        assert_equal(keys, expected[1], atol, rtol)
        assert torch.equal(values, own[2].unflatten(1, (-1, width)).transpose(0, 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("rows", [1, 16, 256, 512])
@pytest.mark.parametrize("layer", [(16, 8, 256, 1e4, 1.0, True), (16, 2, 512, 1e6, 0.25, False)])
def test_on_a_gpu_at_the_real_shapes(rows: int, layer: tuple[int, int, int, float, float, bool]) -> None:
    shape = rows, *layer
    given = inputs(shape, torch.bfloat16, 200_000)
    ours, plain = (cache(shape, torch.bfloat16) for _ in range(2))
    found = turned(*given, EPS, *(x[:, 4 : 4 + rows] for x in ours))
    expected = reference(*given, EPS, *(x[:, 4 : 4 + rows] for x in plain))
    for one, other in zip((found, *ours), (expected, *plain), strict=True):
        torch.testing.assert_close(one, other, atol=3e-2, rtol=1e-2, equal_nan=True)
        assert (one == other)[~other.isnan()].double().mean() > 0.99
