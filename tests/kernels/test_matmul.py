"""Few rows times a matrix of FP8 or NVFP4 codes, and a gated MLP: what the dense values give, whatever the shape and
the splits.

Without a GPU the launches run in Triton's interpreter, which multiplies matrices of float32 and float16 as it should.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from caesura.kernels import fp8, gated, matmul, nvfp4
from caesura.kernels.gated import Act
from caesura.kernels.jit import counters
from caesura.kernels.linear import Dense, Linear

from ..support.checkpoints.few import few
from ..support.programs import run_backwards

pytest.importorskip("triton")

HERE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = [(torch.float32, 2e-6, 2e-5), (torch.float16, 2e-3, 2e-3)]  # and how near they come: atol, rtol
EVEN = [(1, 16, 16), (3, 80, 48), (17, 176, 320), (40, 64, 128), (70, 130, 272), (260, 17, 80)]  # rows, N, K
ODD = [(1, 1, 1), (2, 5, 17), (33, 131, 259), (5, 3, 1025)]  # NVFP4 has columns by the 16
CASES = [(shape, kind) for kind in ("fp8", "nvfp4") for shape in (EVEN + ODD if kind == "fp8" else EVEN)]


def packed(weight: Tensor, kind: str) -> fp8.Fp8Linear | nvfp4.Nvfp4Linear:
    return fp8.Fp8Linear(*fp8.quantize(weight)) if kind == "fp8" else nvfp4.Nvfp4Linear(*nvfp4.quantize(weight))


def matrix(width: int, columns: int, kind: str) -> Linear:
    """Rows of very different size, no two factors alike, and a row of zeros."""
    weight = torch.randn(width, columns, generator=torch.Generator().manual_seed(width)) * columns**-0.5
    weight *= torch.logspace(-1, 0.5, width)[:, None]
    weight[width // 2] = 0
    layer = packed(weight, kind)
    if isinstance(layer, nvfp4.Nvfp4Linear):
        layer = nvfp4.Nvfp4Linear(layer.codes, layer.scale, layer.factor * torch.linspace(0.5, 2, width)[:, None])
    return layer.to(HERE)


def given(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(HERE, dtype)


def wanted(x: Tensor, weight: Linear) -> Tensor:
    return x.double() @ weight.dense(torch.float64).T


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: str(p[0]).removeprefix("torch."))
@few(("shape", "kind"), CASES, 2, 7, 12)
def test_every_row_is_multiplied_by_the_dense_values(
    shape: tuple[int, int, int], kind: str, precision: tuple[torch.dtype, float, float]
) -> None:
    (rows, width, columns), (dtype, atol, rtol) = shape, precision
    weight, x = matrix(width, columns, kind), given(rows, columns, dtype=dtype)
    for found in (matmul.launch(x, weight), weight(x)):
        assert (found.shape, found.dtype) == ((rows, width), dtype)
        torch.testing.assert_close(found.double(), wanted(x, weight), atol=atol, rtol=rtol)


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
@few("processors", [1, 2, 3, 64], 2)
def test_however_often_it_is_split(processors: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine steps and a part of one: in one piece, in splits that do not divide them, and in one split a step."""
    monkeypatch.setattr(matmul, "capacity", lambda _: (processors, True))
    weight, x = matrix(48, 9 * 128 + 16, kind), given(4, 9 * 128 + 16)
    torch.testing.assert_close(matmul.launch(x, weight).double(), wanted(x, weight), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_rows_may_come_in_any_shape(kind: str) -> None:
    weight, x = matrix(24, 48, kind), given(2, 3, 96)[..., ::2]
    found = matmul.launch(x, weight)
    assert found.shape == (2, 3, 24)
    torch.testing.assert_close(found.double(), wanted(x, weight), atol=2e-6, rtol=2e-5)
    assert matmul.launch(x[:, :0], weight).shape == (2, 0, 24)


def test_a_row_gets_the_same_in_any_company() -> None:
    weight, x = matrix(40, 300, "fp8"), given(9, 300)
    turn = torch.randperm(9, generator=torch.Generator().manual_seed(0)).to(HERE)
    assert torch.equal(matmul.launch(x[turn], weight), matmul.launch(x, weight)[turn])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_every_code_of_a_format_comes_out_exactly(kind: str, dtype: torch.dtype) -> None:
    """Row k of x is answered with column k of the weights."""
    if kind == "fp8":
        codes = torch.arange(256).to(torch.uint8).view(16, 16)
        codes[7, 15], codes[15, 15] = 0, 128  # what would be NaN
        weight: Linear = fp8.Fp8Linear(codes.view(torch.float8_e4m3fn), torch.ones(16, 1))
    else:
        scale = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)  # neither negative nor NaN
        nibbles = torch.arange(16, dtype=torch.uint8)
        pairs = (nibbles[0::2] | nibbles[1::2] << 4).expand(127, 8).contiguous()
        weight = nvfp4.Nvfp4Linear(pairs, scale[:, None].contiguous(), torch.ones(127, 1))
    found = matmul.launch(torch.eye(16, dtype=dtype, device=HERE), weight.to(HERE))
    assert torch.equal(found.cpu().float(), weight.dense(torch.float32).T)


def test_a_call_takes_the_kernel_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def launch(x: Tensor, weight: Linear) -> Tensor:
        asked.append(x.numel() // 32)
        return weight.reference(x)  # type: ignore[attr-defined,no-any-return]

    def fused(_: Tensor, **which: Any) -> bool:
        assert which == {"fp8": True}
        return True

    monkeypatch.setattr(matmul, "launch", launch)
    monkeypatch.setattr(matmul, "fused", fused)
    for kind in ("fp8", "nvfp4"):
        weight = matrix(16, 32, kind)
        for shape in ((1, 32), (2, 256, 32), (513, 32)):
            weight(given(*shape))
    assert asked == [1, 512, 1, 512]


def activated(x: Tensor, weight: Linear, act: Act = "gelu") -> Tensor:
    gate, up = wanted(x, weight).chunk(2, -1)
    return (silu(gate) if act == "silu" else gelu(gate, approximate="tanh")) * up


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: str(p[0]).removeprefix("torch."))
@pytest.mark.parametrize("kind", ["dense", "fp8", "nvfp4"])
@pytest.mark.parametrize("processors", [1, 64])
def test_gate_and_up_are_one_product(
    processors: int,
    kind: str,
    precision: tuple[torch.dtype, float, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one split and in several, of a width that is no multiple of a block."""
    monkeypatch.setattr(matmul, "capacity", lambda _: (processors, True))
    monkeypatch.setattr(matmul, "fits", lambda _: True)
    (dtype, atol, rtol), columns = precision, 400
    weight, x = matrix(2 * 530, columns, "fp8" if kind == "dense" else kind), given(5, columns, dtype=dtype)
    weight = Dense(weight.dense(dtype)) if kind == "dense" else weight
    if kind != "dense":
        assert (len(matmul.parts(x, weight)) > 1) == (processors > 1)
    acts: tuple[Act, ...] = ("gelu", "silu")
    for act in acts:
        for found in (gated.launch(x, weight, act=act), gated.gated(x, weight, act=act)):
            assert (found.shape, found.dtype) == ((5, 530), dtype)
            torch.testing.assert_close(found.double(), activated(x, weight, act), atol=10 * atol, rtol=10 * rtol)


def test_inner_rows_are_alike_whichever_split_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a launch finds what the one before has left."""
    monkeypatch.setattr(matmul, "capacity", lambda _: (64, True))
    monkeypatch.setattr(matmul, "fits", lambda _: True)
    weight, x = matrix(2 * 70, 700, "fp8"), given(37, 700)
    found = gated.launch(x, weight)
    run_backwards(monkeypatch)
    assert torch.equal(gated.launch(x, weight), found)
    assert not counters(x.device).any()


def test_no_rows_have_no_inner_rows() -> None:
    assert gated.launch(given(0, 32), matrix(12, 32, "fp8")).shape == (0, 6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
@pytest.mark.parametrize("rows", [1, 16, 32, 64, 256, 512])
def test_the_real_shapes_in_bfloat16_and_in_a_graph(rows: int, kind: str) -> None:
    torch.manual_seed(0)
    for width, columns in ((8192, 2816), (9216, 2816), (2816, 4096), (2816, 8192), (4224, 2816), (2816, 2112)):
        weight = packed(torch.randn(width, columns) * columns**-0.5, kind).to("cuda")
        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        found = weight(x)
        torch.testing.assert_close(found.double(), wanted(x, weight), atol=2e-2, rtol=1e-2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = weight(x)
        graph.replay()
        assert torch.equal(again, found)
        if width == 4224:
            inner = gated.gated(x, weight)
            torch.testing.assert_close(inner.double(), activated(x, weight), atol=5e-2, rtol=3e-2)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                again = gated.gated(x, weight)
            for _ in range(20):
                graph.replay()
                assert torch.equal(again, inner)
