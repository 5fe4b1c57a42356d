"""Norms, residual sums and the router of a DiffusionGemma layer: the kernels find what PyTorch finds, rounded alike."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

pytest.importorskip("triton")

from caesura.kernels.jit import counters
from caesura.kernels.norms import (
    add_attention,
    add_experts,
    add_norm,
    launch_add_attention,
    launch_add_experts,
    launch_add_norm,
    launch_add_signals,
    launch_enter,
    launch_route,
    reference_add_attention,
    reference_add_experts,
    reference_add_norm,
    reference_add_signals,
    reference_enter,
    reference_route,
    route,
)

from ..support.checkpoints.few import few
from ..support.programs import run_backwards

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where there is no GPU, Triton interprets

EPS = 1e-6
TOLERANCES = [(torch.float32, 1e-6, 1e-6), (torch.float16, 2e-3, 2e-3)]
ROWS = [(1, 1), (5, 123), (3, 16), (17, 130), (2, 1100)]  # rows, D
# rows, D, experts, top_k
ROUTES = [
    (1, 16, 4, 1),
    (5, 123, 7, 3),
    (17, 33, 130, 8),  # three tiles of experts
    (65, 40, 16, 5),  # two blocks of rows
    (3, 1100, 20, 20),  # nine pieces of D; every expert is taken
]


def rows_of(rows: int, width: int, dtype: torch.dtype, count: int) -> list[Tensor]:
    """Rows of x and its branches, each row of another size."""
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    size = torch.logspace(-2, 1, rows)[:, None]
    return [(torch.randn(rows, width, generator=generator) * size).to(DEVICE, dtype) for _ in range(count)]


def vectors(width: int, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(width)
    return [torch.rand(width, generator=generator).to(DEVICE) * 2 for _ in range(count)]


def check(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], atol: float, rtol: float) -> None:
    """In few bits nearly all values are the very same: what is rounded once more or once less is not."""
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one, right, atol=atol, rtol=rtol)
        if one.dtype in (torch.float16, torch.bfloat16) and one.numel() > 100:
            assert (one != right).float().mean() < 0.02


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few(("rows", "width"), ROWS, 1)
def test_a_residual_sum_in_float32_and_its_norm_in_few_bits(
    rows: int, width: int, dtype: torch.dtype, atol: float, rtol: float, parts: int
) -> None:
    """Of a product in one piece or in parts that add up."""
    x, *pieces = rows_of(rows, width, torch.float32, 1 + parts)
    given = x, torch.stack(pieces) if parts > 1 else pieces[0].to(dtype), *vectors(width, 1), EPS, dtype
    check(launch_add_norm(*given), reference_add_norm(*given), atol, rtol)
    assert [part.dtype for part in add_norm(*given)] == [torch.float32, dtype]


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few(("rows", "width"), ROWS, 1)
def test_after_attention_the_sum_and_its_three_views(
    rows: int, width: int, dtype: torch.dtype, atol: float, rtol: float
) -> None:
    x, attention = rows_of(rows, width, dtype, 2)
    *norms, scale = vectors(width, 4)
    given = x, attention, norms, scale.to(dtype), EPS
    check(launch_add_attention(*given), reference_add_attention(*given), atol, rtol)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few(("rows", "width"), ROWS, 1)
def test_after_the_experts_the_sum_by_its_scalar_and_the_next_view(
    rows: int, width: int, dtype: torch.dtype, atol: float, rtol: float
) -> None:
    x, mlp, moe = rows_of(rows, width, dtype, 3)
    scalar, mode = torch.tensor([0.07, 0.9]).to(DEVICE, dtype), torch.arange(rows, device=DEVICE) % 2
    given = x, mlp, moe, vectors(width, 4), scalar, mode, EPS
    check(launch_add_experts(*given), reference_add_experts(*given), atol, rtol)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few(("rows", "width"), ROWS, 1)
def test_a_row_enters_by_its_token_and_by_what_was_predicted_for_it(
    rows: int, width: int, dtype: torch.dtype, atol: float, rtol: float
) -> None:
    embed, soft, signals = rows_of(rows, width, dtype, 3)
    ids, (norm, following) = torch.arange(rows, device=DEVICE).flip(0), vectors(width, 2)
    source = torch.where(ids < 3, ids, 0)  # some are copies of the first
    given = ids, embed, 3.7, soft, source, norm, EPS
    check(launch_enter(*given), reference_enter(*given), atol, rtol)
    check(
        launch_add_signals(embed, signals, following, ids % 2, EPS),
        reference_add_signals(embed, signals, following, ids % 2, EPS),
        atol,
        rtol,
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
def test_branches_may_come_in_parts_that_add_up(parts: int, dtype: torch.dtype, atol: float, rtol: float) -> None:
    """And the experts' rows before they are weighted."""
    rows, width, top_k = 5, 123, 3
    x, *summed = rows_of(rows, width, dtype, 1 + parts)
    branch = torch.stack(summed).to(dtype if parts == 1 else torch.float32)
    whole, (moe, *_) = branch.sum(0).to(dtype), rows_of(rows * top_k, width, dtype, 1)
    *norms, scale = vectors(width, 5)
    first = norms[:3], scale.to(dtype), EPS
    check(launch_add_attention(x, branch, *first), reference_add_attention(x, whole, *first), atol, rtol)
    check(reference_add_attention(x, branch, *first), reference_add_attention(x, whole, *first), 0, 0)
    generator = torch.Generator().manual_seed(0)
    pairs, weights = moe.view(rows, top_k, width), torch.rand(rows, top_k, generator=generator).to(DEVICE)
    both = (pairs.double() * weights.double()[..., None]).sum(1).to(dtype)
    last = norms, torch.tensor([0.07, 0.9]).to(DEVICE, dtype), torch.zeros(rows, dtype=torch.int64, device=DEVICE), EPS
    expected = reference_add_experts(x, whole, both, *last)
    for path in (launch_add_experts, reference_add_experts):
        check(path(x, branch, pairs, *last, weights), expected, atol, rtol)


def test_rows_of_nothing_stay_nothing() -> None:
    nothing, norms = torch.zeros(2, 40, device=DEVICE), vectors(40, 4)
    mode = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    found = launch_add_attention(nothing, nothing, norms[:3], norms[3], EPS)
    found += launch_add_experts(nothing, nothing, nothing, norms, norms[0], mode, EPS)
    assert all(torch.equal(one, nothing) for one in found)


def router_of(rows: int, width: int, experts: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The router's view of x, its matrix and the experts' scales."""
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    x = torch.randn(rows, width, generator=generator)
    matrix = torch.randn(experts, width, generator=generator) * 2 * width**-0.5
    scale = torch.rand(experts, generator=generator) + 0.5
    return x.to(DEVICE, dtype), matrix.to(DEVICE, dtype), scale.to(DEVICE, dtype)


@few(("rows", "width", "experts", "top_k"), ROUTES, 2)
def test_the_router_takes_the_experts_that_pytorch_takes(rows: int, width: int, experts: int, top_k: int) -> None:
    given = router_of(rows, width, experts, torch.float32)
    (weights, chosen, lists), (expected, numbers, _) = launch_route(*given, top_k), reference_route(*given, top_k)
    assert torch.equal(chosen, numbers)
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=2e-6)
    assert lists is not None
    for expert, (count, members) in enumerate(zip(*lists, strict=True)):
        assert members[:count].sort().values.tolist() == (chosen.flatten() == expert).nonzero()[:, 0].tolist()


def check_route(x: Tensor, matrix: Tensor, scale: Tensor, top_k: int, launch: object, close: float) -> None:
    """In few bits a logit may be rounded otherwise, and another expert of nearly the same probability be taken."""
    assert callable(launch)
    weights, chosen, _ = launch(x, matrix, scale, top_k)
    p = linear(x, matrix).softmax(-1, dtype=torch.float32)
    best = p.topk(top_k).values
    torch.testing.assert_close(p.gather(1, chosen), best, atol=0, rtol=close)
    assert all(len(set(row)) == top_k for row in chosen.tolist())
    torch.testing.assert_close(weights / scale[chosen], best / best.sum(-1, keepdim=True), atol=0, rtol=close)


@few(("rows", "width", "experts", "top_k"), ROUTES, 2)
def test_the_router_in_few_bits_takes_the_most_probable(rows: int, width: int, experts: int, top_k: int) -> None:
    check_route(*router_of(rows, width, experts, torch.float16), top_k, launch_route, 8e-3)


def test_of_equal_experts_the_lowest_number_comes_first() -> None:
    x, matrix, scale = router_of(5, 40, 6, torch.float32)
    x, matrix = ((64 * t).round() / 64 for t in (x, matrix))  # sums are exact, in whatever order a CPU adds
    twice = matrix.repeat(2, 1)  # expert 6 is as good as expert 0
    _, chosen, _ = launch_route(x, twice, torch.cat((scale, scale)), 4)
    best = linear(x, matrix).topk(2).indices
    assert torch.equal(chosen, torch.stack((best[:, 0], best[:, 0] + 6, best[:, 1], best[:, 1] + 6), 1))
    weights, chosen, _ = launch_route(x, torch.zeros_like(matrix), scale, 3)
    assert torch.equal(chosen, torch.arange(3, device=DEVICE).expand(5, 3))
    torch.testing.assert_close(weights, (scale[:3] / 3).expand(5, 3))


def test_logits_that_are_equal_when_rounded_are_equal() -> None:
    """Experts that only more bits than the dtype has could tell apart."""
    x = torch.tensor([[1024.0, 0.25]], device=DEVICE, dtype=torch.float16)
    matrix = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0], [0.5, 0.0]], device=DEVICE, dtype=torch.float16)
    weights, chosen, _ = launch_route(x, matrix, torch.ones_like(matrix[:, 0]), 3)
    assert chosen.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3))


@pytest.mark.parametrize("sign", [1, -1])
def test_experts_without_any_probability_are_experts(sign: int) -> None:
    """Five experts fill up a block of eight; of those that are not there none is taken, nor counted."""
    x, matrix, scale = router_of(3, 40, 5, torch.float32)
    weights, chosen, _ = launch_route(x.abs() * sign * 1e4, matrix.abs(), scale, 5)
    assert torch.equal(chosen.sort().values, torch.arange(5, device=DEVICE).expand(3, 5))
    torch.testing.assert_close((weights / scale[chosen]).sum(-1), torch.ones(3, device=DEVICE))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_row_is_routed_as_if_it_were_alone() -> None:
    x, matrix, scale = router_of(5, 123, 7, torch.float32)
    alone = launch_route(x[3:4], matrix, scale, 2)
    x = torch.cat((x, x.repeat(20, 1)))
    x[:3] = x[4:] = torch.nan
    weights, chosen, _ = launch_route(x, matrix, scale, 2)
    assert torch.equal(weights[3:4], alone[0])
    assert torch.equal(chosen[3:4], alone[1])


def test_rows_are_routed_alike_whichever_program_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a launch finds what the one before has left."""
    given = router_of(37, 300, 40, torch.float32)
    weights, chosen, lists = launch_route(*given, 3)
    run_backwards(monkeypatch)
    again = launch_route(*given, 3)
    assert torch.equal(again.weights, weights)
    assert torch.equal(again.chosen, chosen)
    assert lists is not None
    assert again.lists is not None
    assert torch.equal(again.lists.counts, lists.counts)
    assert not counters(weights.device).any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("rows", [1, 16, 48, 256, 512])
def test_on_a_gpu_at_the_real_shapes(rows: int) -> None:
    width, dtype = 2816, torch.bfloat16
    x, attention, moe = rows_of(rows, width, dtype, 3)
    norms = vectors(width, 4)
    mode = torch.arange(rows, device=DEVICE) % 2
    first = x, attention, norms[:3], norms[3].to(dtype), EPS
    check(add_attention(*first), reference_add_attention(*first), 2e-2, 2e-2)
    last = x, attention, moe, norms, torch.tensor([0.07, 0.9]).to(DEVICE, dtype), mode, EPS
    check(add_experts(*last), reference_add_experts(*last), 2e-2, 2e-2)
    given = router_of(rows, width, 128, dtype)
    check_route(*given, 8, route, 6e-2)
    weights, chosen, _ = route(*given, 8)
    for again in (route(*given, 8), route(given[0][-1:], *given[1:], 8)):  # once more, and one row alone
        assert torch.equal(again.weights, weights[-len(again.weights) :])
        assert torch.equal(again.chosen, chosen[-len(again.chosen) :])
