"""Rows in e4m3: how they are rounded, the kernels that emit them, and the products that multiply them.

Without a GPU the launches run in Triton's interpreter, whose own conversions are not to the nearest.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import gelu

from caesura.engine import models
from caesura.engine.model import Run
from caesura.engine.models.convert import convert
from caesura.engine.models.diffusion_gemma.files import rounding
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.kernels import attention, experts, fp8, gated, norms, rotary
from caesura.kernels.linear import Linear, Rows8

from ...support.checkpoints import gemma

interpreter = pytest.importorskip("triton.runtime.interpreter")

HERE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6
UNLIKE = 0.0 if HERE == "cpu" else 0.01  # of codes: a GPU's division is off in the last bit
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


@pytest.fixture(autouse=True)
def to_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions from float32 round to the nearest, as a GPU's, and products of bfloat16 are right."""
    plain, tl = interpreter._convert_float, interpreter.tl
    types = {tl.bfloat16: (torch.bfloat16, torch.uint16), tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8)}

    def convert(data: np.ndarray, source: object, target: object, mode: object) -> np.ndarray:
        if source != tl.float32 or target not in types:
            return plain(data, source, target, mode)  # type: ignore[no-any-return]
        dtype, bits = types[target]
        return torch.from_numpy(data.view(np.float32).copy()).to(dtype).view(bits).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    multiply = builder.create_dot

    def dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        if a.dtype == tl.bfloat16:
            a, b = (handle(plain(x.data, tl.bfloat16, tl.float32, None).view(np.float32), tl.float32) for x in (a, b))
        return multiply(self, a, b, *others)

    monkeypatch.setattr(builder, "create_dot", dot)


def rows(count: int, width: int, seed: int = 0) -> Tensor:
    """Rows of very different size, the last one of zeros."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    x *= torch.logspace(-2, 2, count)[:, None]
    x[-1] = 0
    return x.to(HERE, torch.bfloat16)


def vectors(width: int, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(width)
    return [torch.rand(width, generator=generator).to(HERE) + 0.5 for _ in range(count)]


def values(x: Rows8) -> Tensor:
    return x.codes.double() * x.scale


def same(found: object, plain: object) -> None:
    """`found` is `plain`, rounded."""
    assert isinstance(found, Rows8)
    assert isinstance(plain, Tensor)
    right = fp8.reference_quantised(plain)
    assert (found.codes.float() != right.codes.float()).float().mean() <= UNLIKE
    torch.testing.assert_close(found.scale, right.scale, atol=0, rtol=UNLIKE)


def matrix(width: int, columns: int, *, kind: type[fp8.Fp8Linear] = fp8.Fp8Dynamic, seed: int = 0) -> fp8.Fp8Linear:
    weight = torch.randn(width, columns, generator=torch.Generator().manual_seed(seed)) * columns**-0.5
    return kind(*fp8.quantize(weight * torch.logspace(-1, 0.5, width)[:, None])).to(HERE)


@pytest.mark.parametrize(("count", "width"), [(1, 5), (3, 16), (5, 123), (2, 1100)])
def test_a_row_is_rounded_by_its_own_largest_value(count: int, width: int) -> None:
    x = rows(count, width)
    found = fp8.launch_quantised(x)
    same(found, x)
    error = (values(found) - x.double()).abs()
    assert (error <= torch.maximum(x.double().abs() / 16, found.scale / 1024) * 1.0001).all()
    assert (found.codes[:-1].float().abs().amax(1) == fp8.LARGEST).all()


def test_the_views_of_a_layer_come_rounded_where_a_product_wants_them_so() -> None:
    x, other, third = (rows(5, 123, seed) for seed in range(3))
    norm, scale, mode = vectors(123, 4), vectors(123, 1)[0].bfloat16(), torch.arange(5, device=HERE) % 2

    def both(call: Callable[..., tuple[object, ...]], *given: object, plain: object, rounds: object) -> None:
        for one, right in zip(call(*given, rounds), call(*given, plain), strict=True):
            same(one, right) if isinstance(one, Rows8) else torch.testing.assert_close(one, right, atol=0, rtol=UNLIKE)

    for call in (norms.launch_add_signals, norms.reference_add_signals):
        both(call, x, other, norm[0], mode, EPS, plain=False, rounds=True)
    for call in (norms.launch_add_attention, norms.reference_add_attention):
        for rounds in ((True, True), (True, False), (False, True)):
            both(call, x, other, norm[:3], scale, EPS, plain=(False, False), rounds=rounds)
    for call in (norms.launch_add_experts, norms.reference_add_experts):
        both(call, x, other, third, norm, scale[:2], mode, EPS, None, plain=False, rounds=True)


def test_the_inner_rows_of_a_gated_mlp_come_rounded() -> None:
    x, gate_up = fp8.quantised(rows(5, 48)), matrix(2 * 530, 48)
    same(gated.launch(x, gate_up, True), gated.launch(x, gate_up))
    plain, found = gated.reference(x, gate_up), gated.launch(x, gate_up)
    torch.testing.assert_close(found, plain, atol=1e-2, rtol=2e-2)
    same(gated.reference(x, gate_up, True), plain)


on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]
ATTENDED = [(5, 4, 2, 16, 20), (5, 4, 2, 24, 400)]  # rows, heads, key heads, width, columns: one split, and several
ATTENDED_THERE = [(count, 16, *kv) for count in (1, 32, 256) for kv in ((8, 256, 1200), (2, 512, 2300))]


@pytest.mark.parametrize("shape", [*ATTENDED, *(pytest.param(shape, marks=on_gpu) for shape in ATTENDED_THERE)])
def test_the_rows_of_the_attention_come_rounded(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Again with the same counters."""
    count, heads, groups, width, columns = shape
    q = rows(count, heads * width).view(count, heads, width)
    keys, values = rows(2 * groups * columns, width).view(2, groups, columns, width)
    spans = [[row, columns // 2, columns // 2 + row, columns] for row in range(count)]
    given = q, keys, values, 1 << 62, torch.tensor(spans, dtype=torch.int32, device=HERE), None
    plain = attention.launch(*given[:3], None, *given[3:])
    same(attention.rounded_attention(*given), attention.attention(*given[:3], None, *given[3:]))
    monkeypatch.setattr(attention, "fused", lambda *_, **__: True)
    for _ in range(2):
        same(attention.rounded_attention(*given), plain)


@pytest.mark.parametrize("way", [fp8.reference_product, fp8.product])
@pytest.mark.parametrize(("count", "width", "columns"), [(1, 16, 16), (5, 48, 96), (40, 80, 320)])
def test_a_product_multiplies_codes_by_codes(
    way: Callable[[Rows8, fp8.Fp8Linear], Tensor], count: int, width: int, columns: int
) -> None:
    x, weight = fp8.quantised(rows(count, columns)), matrix(width, columns)
    found, right = way(x, weight), values(x) @ weight.dense(torch.float64).T
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), right, atol=1e-4, rtol=5e-3)


def test_a_matrix_that_rounds_takes_rows_of_both_kinds() -> None:
    x, weight = rows(6, 32).view(2, 3, 32), matrix(20, 32)
    found = weight(x)
    assert found.shape == (2, 3, 20)
    assert torch.equal(found.flatten(0, 1), weight(fp8.quantised(x.flatten(0, 1))))
    assert not torch.equal(found, fp8.Fp8Linear(weight.codes, weight.scale)(x))


def stack(count: int, width: int, columns: int, kind: type[fp8.Fp8Linear] = fp8.Fp8Dynamic) -> fp8.Fp8Linear:
    matrices = [matrix(width, columns, seed=seed) for seed in range(count)]
    return kind(*(torch.stack(parts) for parts in zip(*(one.tensors for one in matrices), strict=True)))


def routed(count: int, experts: int, top_k: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.rand(count, experts, generator=generator).topk(top_k, -1).indices.to(HERE)


def wanted(x: Tensor, chosen: Tensor, gate_up: Linear, down: Linear) -> Tensor:
    """By the definition, in float64 but for the roundings."""
    out = torch.zeros(*chosen.shape, x.shape[1], dtype=torch.float64, device=HERE)

    def rounded(row: Tensor, stack: Linear) -> Tensor:
        return values(fp8.reference_quantised(row[None]))[0] if stack.rounds else row.double()

    for row, slot in torch.cartesian_prod(*map(torch.arange, chosen.shape)).tolist():
        into, back = (each[chosen[row, slot]].dense(torch.float64) for each in (gate_up, down))  # type: ignore[call-overload]
        gate, up = (into @ rounded(x[row], gate_up)).chunk(2)
        out[row, slot] = back @ rounded((gelu(gate, approximate="tanh") * up).bfloat16(), down)
    return out


@pytest.mark.parametrize("shape", [(1, 5, 1, 16, 16), (5, 7, 3, 80, 200), (17, 3, 2, 176, 80), (70, 2, 2, 32, 48)])
def test_experts_multiply_codes_by_codes(shape: tuple[int, ...]) -> None:
    """A width of several tiles among them. Where a value lies between two codes it may become either; the reference has
    rounded gate and up before."""
    count, number, top_k, hidden, width = shape
    x, chosen = rows(count, hidden), routed(count, number, top_k)
    both = stack(number, 2 * width, hidden), stack(number, hidden, width)
    right = wanted(x, chosen, *both)
    for given in (x, fp8.quantised(x)):
        for path, most, mean in ((experts.launch_pairs, 0.02, 0.005), (experts.reference_pairs, 0.08, 0.03)):
            found = path(given, chosen, *both)
            assert (found.shape, found.dtype) == ((count, top_k, hidden), torch.bfloat16)
            error = (found.double() - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-9)
            assert error.max() < most
            assert error.mean() < mean


def test_a_pair_gets_the_same_in_any_order_and_company() -> None:
    """More pairs than a block has."""
    x, chosen, both = fp8.quantised(rows(110, 32)), routed(110, 3, 2), (stack(3, 128, 32), stack(3, 32, 64))
    found, listed = experts.launch_pairs(x, chosen, *both), experts.list_pairs(chosen, 3)
    assert listed.counts.max() > 64
    turned = listed.members.clone()
    for members, count in zip(turned, listed.counts.tolist(), strict=True):
        members[:count] = members[:count].flip(0)
    assert torch.equal(experts.launch_pairs(x, chosen, *both, experts.Lists(listed.counts, turned)), found)
    few = slice(40, 47)
    assert torch.equal(experts.launch_pairs(x[few], chosen[few], *both), found[few])


def tiny(folder: Path) -> DiffusionGemma:
    """The tiny checkpoint in bfloat16, its layers in FP8."""
    gemma.published(folder / "floats")
    for path in (folder / "floats").glob("*.safetensors"):
        save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    convert(folder / "floats", folder / "fp8", "fp8", lambda done, total: None)
    model = models.load(str(folder / "fp8"), "cpu")
    assert isinstance(model, DiffusionGemma)
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_step_through_the_kernels_is_a_step_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text, canvas = tiny(tmp_path), list(range(100, 130)), list(range(200, 216))

    def step() -> Tensor:
        kv, at = model.cache().lease([]), range(len(text), len(text) + len(canvas))
        model.prefill(text[:-7], kv)
        first = model.denoise([Run(kv, canvas, at, fresh=text[-7:])]).logits
        second = model.denoise([Run(kv, canvas, at, conditioning=model.condition(first))]).logits
        return torch.cat((first, second)).float()

    as_they_come = step()
    model.weights = rounding(model.weights)
    plain = step()
    launched = set[str]()
    modules = (attention, experts, fp8, gated, norms, rotary)
    for module in modules:
        monkeypatch.setattr(module, "fused", lambda *_, name=module.__name__, **__: launched.add(name) or True)
    found = step()
    assert len(launched) == len(modules)
    off, moved = ((each - plain).abs().mean(-1).median() for each in (found, as_they_come))
    assert off < 0.6 * moved < 0.2 * plain.std()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("count", [1, 16, 32, 256, 600])
def test_the_real_shapes_and_in_a_graph(count: int) -> None:
    torch.manual_seed(0)

    def made(*shape: int) -> fp8.Fp8Dynamic:
        codes = torch.randn(shape, device=HERE, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
        return fp8.Fp8Dynamic(codes, torch.full((*shape[:-1], 1), shape[-1] ** -0.5, device=HERE))

    x, chosen = torch.randn(count, 2816, device=HERE, dtype=torch.bfloat16), routed(count, 128, 8)
    both, matrices = (made(128, 1408, 2816), made(128, 2816, 704)), [made(8192, 2816), made(4224, 2816)]

    def step() -> list[Tensor]:
        rows = fp8.quantised(x)
        return [experts.pairs(rows, chosen, None, *both), *(matrix(rows) for matrix in matrices)]

    found = step()
    right = fp8.reference_quantised(x)
    plain = experts.reference_pairs(right, chosen, *both)
    assert (found[0] - plain).norm(dim=-1).lt(0.08 * plain.norm(dim=-1)).all()
    for one, matrix in zip(found[1:], matrices, strict=True):
        torch.testing.assert_close(one, fp8.reference_product(right, matrix), atol=5e-2, rtol=2e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = step()
    graph.replay()
    assert all(map(torch.equal, again, found))
