"""Mixture of experts: what every expert gives its rows, weighted and summed, from weights of every stored precision.

Without a GPU the launches run in Triton's interpreter, which multiplies matrices of float32 and float16 as it should.
"""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from caesura.kernels import fp8, int8, nvfp4
from caesura.kernels.experts import Act, Lists, experts, launch, launch_pairs, list_pairs, most_blocks, pairs, reference
from caesura.kernels.linear import Dense, Linear

from ..support.checkpoints.few import few

pytest.importorskip("triton")

HERE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = [(torch.float32, 2e-6, 2e-5), (torch.float16, 3e-3, 3e-3)]  # and how near they come: atol, rtol
EVEN = [(1, 5, 1, 16, 16), (5, 7, 3, 80, 48), (17, 3, 2, 176, 80)]  # rows, experts, top_k, hidden, width
ODD = [(2, 3, 2, 17, 5), (5, 6, 4, 123, 17), (3, 4, 1, 5, 131)]  # NVFP4 has columns by the 16
CASES = [(shape, kind) for kind in ("dense", "fp8", "nvfp4") for shape in (EVEN if kind == "nvfp4" else EVEN + ODD)]


def packed(weight: Tensor, kind: str) -> Linear:
    if kind == "dense":
        return Dense(weight)
    return fp8.Fp8Linear(*fp8.quantize(weight)) if kind == "fp8" else nvfp4.Nvfp4Linear(*nvfp4.quantize(weight))


def stacks(
    count: int, hidden: int, width: int, kinds: tuple[str, str], dtype: torch.dtype = torch.float32
) -> tuple[Linear, Linear]:
    """Rows of very different size, one of zeros, and no two experts alike."""
    generator = torch.Generator().manual_seed(count)
    shapes = (count, 2 * width, hidden), (count, hidden, width)
    gate_up, down = (torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for shape in shapes)
    gate_up *= torch.logspace(-1, 0.5, 2 * width)[:, None]
    gate_up[..., 3, :] = 0
    down *= torch.linspace(0.5, 2, count)[:, None, None]
    return packed(gate_up.to(dtype), kinds[0]).to(HERE), packed(down.to(dtype), kinds[1]).to(HERE)


def routed(
    rows: int, count: int, top_k: int, hidden: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, hidden, generator=generator).to(dtype)
    weights, chosen = torch.randn(rows, count, generator=generator).softmax(-1).topk(top_k, -1)
    return x.to(HERE), weights.to(HERE), chosen.to(HERE)


def wanted(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Linear, down: Linear, act: Act = "gelu") -> Tensor:
    """In float64 and row by row, as the definition has it."""
    into, back = gate_up.dense(torch.float64), down.dense(torch.float64)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for row, slot in torch.cartesian_prod(*map(torch.arange, chosen.shape)).tolist():
        gate, up = (into[chosen[row, slot]] @ x[row].double()).chunk(2)
        inner = (silu(gate) if act == "silu" else gelu(gate, approximate="tanh")) * up
        out[row] += weights[row, slot] * (back[chosen[row, slot]] @ inner)
    return out


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: str(p[0]).removeprefix("torch."))
@few(("shape", "kind"), CASES, 1, 7, 13)
def test_every_row_gets_its_experts(
    shape: tuple[int, ...], kind: str, precision: tuple[torch.dtype, float, float]
) -> None:
    (rows, count, top_k, hidden, width), (dtype, atol, rtol) = shape, precision
    both = stacks(count, hidden, width, (kind, kind), dtype)
    given = routed(rows, count, top_k, hidden, dtype)
    right = wanted(*given, *both)
    for path in (reference, launch, experts):
        found = path(*given, *both)
        assert (found.shape, found.dtype) == ((rows, hidden), dtype)
        torch.testing.assert_close(found.double(), right, atol=atol, rtol=rtol)


def test_a_row_of_an_expert_may_be_asked_for_before_it_is_weighted() -> None:
    both, (x, _, chosen) = stacks(4, 48, 32, ("dense", "fp8")), routed(6, 4, 2, 48)
    alone, found = torch.ones(len(x), 1, device=HERE), pairs(x, chosen, None, *both)
    assert found.shape == (6, 2, 48)
    for slot in range(2):
        right = wanted(x, alone, chosen[:, slot : slot + 1], *both)
        torch.testing.assert_close(found[:, slot].double(), right, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(launch_pairs(x, chosen, *both), found, atol=2e-6, rtol=2e-5)


def test_the_order_of_a_list_changes_nothing() -> None:
    """More pairs than a block has, so that a pair comes into another one."""
    both, (x, _, chosen) = stacks(3, 32, 16, ("fp8", "dense")), routed(110, 3, 2, 32)
    listed = list_pairs(chosen, 3)
    assert listed.counts.max() > 64
    turned = listed.members.clone()
    for members, count in zip(turned, listed.counts.tolist(), strict=True):
        members[:count] = members[:count].flip(0)
    found = launch_pairs(x, chosen, *both, Lists(listed.counts, turned))
    torch.testing.assert_close(found, launch_pairs(x, chosen, *both), atol=2e-6, rtol=2e-5)


def test_experts_of_the_llama_kind_use_silu() -> None:
    both, given = stacks(4, 48, 32, ("dense", "dense")), routed(6, 4, 2, 48)
    right = wanted(*given, *both, "silu")
    assert (right - wanted(*given, *both)).abs().max() > 1e-3
    for path in (reference, launch, experts):
        torch.testing.assert_close(path(*given, *both, act="silu").double(), right, atol=2e-6, rtol=2e-5)


@pytest.mark.skipif(not int8.available(), reason="this torch has no packed int8 kernel")
def test_packed_experts_are_near_and_a_row_gets_the_same_in_any_company() -> None:
    both = [stack.to("cpu").dense(torch.float32) for stack in stacks(4, 48, 32, ("dense", "dense"))]
    given = [tensor.cpu() for tensor in routed(9, 4, 2, 48)]
    packed = [int8.PackedStack([int8.pack(matrix) for matrix in stack]) for stack in both]
    right = wanted(*given, *map(Dense, both), "silu")
    found = experts(*given, *packed, act="silu")
    assert (found - right).norm() < 0.03 * right.norm()
    alone = torch.cat([experts(*(tensor[row : row + 1] for tensor in given), *packed, act="silu") for row in range(9)])
    assert torch.equal(alone, found)


@pytest.mark.parametrize("kinds", [("nvfp4", "dense"), ("fp8", "nvfp4"), ("dense", "fp8")])
def test_the_two_stacks_may_be_of_two_precisions(kinds: tuple[str, str]) -> None:
    both, given = stacks(4, 48, 32, kinds), routed(6, 4, 2, 48)
    torch.testing.assert_close(launch(*given, *both).double(), wanted(*given, *both), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("kind", ["dense", "nvfp4"])
def test_one_expert_may_get_all_rows_and_others_none(kind: str) -> None:
    """More rows than a block has, so that a program goes through several."""
    both = stacks(12, 32, 16, (kind, kind))
    x, weights, chosen = routed(45, 12, 2, 32)
    chosen[:, 0], chosen[:, 1] = 11, 0
    found = launch(x, weights, chosen, *both)
    torch.testing.assert_close(found.double(), wanted(x, weights, chosen, *both), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("count", [0, 1, 5, 8])
@pytest.mark.parametrize(("experts", "block"), [(1, 4), (3, 1), (3, 2), (4, 4)])
def test_there_are_as_many_programs_as_lists_can_have_blocks(count: int, experts: int, block: int) -> None:
    lists = [sizes for sizes in product(range(count + 1), repeat=experts) if sum(sizes) == count]
    assert most_blocks(count, experts, block) == max(sum(-(-size // block) for size in sizes) for sizes in lists)


def test_many_rows_an_expert() -> None:
    """More pairs than are listed at once, and blocks of 64 rows."""
    both, given = stacks(8, 16, 16, ("fp8", "dense")), routed(260, 8, 8, 16)
    found = launch(*given, *both)
    torch.testing.assert_close(found, reference(*given, *both), atol=2e-6, rtol=2e-5)


def test_a_row_gets_the_same_in_any_company() -> None:
    both = stacks(4, 48, 32, ("dense", "fp8"))
    x, weights, chosen = routed(9, 4, 2, 48)
    whole = launch(x, weights, chosen, *both)
    turn = torch.randperm(9, generator=torch.Generator().manual_seed(0)).to(HERE)
    assert torch.equal(launch(x[turn], weights[turn], chosen[turn], *both), whole[turn])


def test_no_rows_give_no_rows() -> None:
    for path in (reference, launch):
        assert path(*routed(0, 3, 2, 32), *stacks(3, 32, 16, ("dense", "dense"))).shape == (0, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_every_code_of_a_format_comes_out_exactly(kind: str, dtype: torch.dtype) -> None:
    """gelu(16) is 16 and up gives a sixteenth: row r of x is answered with column r of down."""
    one = torch.ones(16, 1)
    scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)  # all that are neither negative nor NaN
    if kind == "fp8":
        codes = torch.arange(256).to(torch.uint8).view(16, 16)
        codes[7, 15], codes[15, 15] = 0, 128  # what would be NaN
        down: Linear = fp8.Fp8Linear(codes.view(torch.float8_e4m3fn)[None], one[None])
    else:
        codes = torch.arange(16, dtype=torch.uint8)
        codes = (codes[0::2] | codes[1::2] << 4).expand(127, 8).contiguous()
        down = nvfp4.Nvfp4Linear(codes[None], scales[None, :, None].contiguous(), torch.ones(1, 127, 1))
    hidden = down.shape[1]
    x = torch.zeros(16, hidden, dtype=dtype)
    x[:, :16] = torch.eye(16)
    gate_up = torch.zeros(1, 32, hidden)
    gate_up[0, :16], gate_up[0, 16:, :16] = 16, torch.eye(16) / 16
    chosen = torch.zeros(16, 1, dtype=torch.int64, device=HERE)
    found = launch(x.to(HERE), one.to(HERE), chosen, Dense(gate_up).to(HERE), down.to(HERE))
    assert torch.equal(found.cpu().float(), down.dense(torch.float32)[0].T)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("kind", ["dense", "fp8", "nvfp4"])
@pytest.mark.parametrize("rows", [16, 256, 600])
def test_the_real_shape_in_bfloat16_and_in_a_graph(rows: int, kind: str) -> None:
    """Blocks of 16, 32 and 64 rows. The graph is captured with one routing and replayed with another."""
    torch.manual_seed(0)
    gate_up = torch.randn(128, 2 * 704, 2816, device="cuda", dtype=torch.bfloat16) * 2816**-0.5
    down = torch.randn(128, 2816, 704, device="cuda", dtype=torch.bfloat16) * 704**-0.5
    both = packed(gate_up, kind), packed(down, kind)
    x, weights, chosen = routed(rows, 128, 8, 2816, torch.bfloat16)
    wanted = reference(x, weights, chosen, *both)
    torch.testing.assert_close(experts(x, weights, chosen, *both), wanted, atol=1e-2, rtol=2e-2)
    graph, other = torch.cuda.CUDAGraph(), chosen.roll(1, 0)
    with torch.cuda.graph(graph):
        found = experts(x, weights, other, *both)
    other.copy_(chosen)
    for _ in range(2):
        graph.replay()
        assert torch.equal(found, experts(x, weights, chosen, *both))
