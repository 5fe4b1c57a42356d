"""The C library against PyTorch, at shapes that do not divide, in every variant that this machine runs."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from caesura.engine.models.llama import c_layers
from caesura.engine.models.llama import layer as llama_layer
from caesura.engine.models.llama.layer import (
    AdaptedMatrix,
    Attention,
    Mlp,
    Norm,
    PlacedRows,
    Shape,
    Weights,
    normalized,
)
from caesura.engine.weights import forms, stored
from caesura.engine.weights.sources import CodedParts
from caesura.kernels import cpu
from caesura.kernels.cpu import layers as native
from caesura.kernels.int8 import product

from ..audit.calls import unheard

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "kernels" / "cpu").rglob("*.c"))
VARIANTS = list(cpu.variants())
SHAPES = [(1, 1, 32), (1, 64, 64), (2, 3, 96), (7, 33, 64), (16, 130, 96), (40, 257, 192), (19, 16, 1120)]

pytestmark = pytest.mark.skipif(not VARIANTS, reason="kernels/cpu was not built")


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed + sum(size)))


def rows_of(m: int, k: int) -> Tensor:
    """Of very different size."""
    return random(m, k) * torch.logspace(-3, 3, m)[:, None]


def packed(*parts: tuple[str, CodedParts]) -> cpu.Packed:
    return cpu.Packed(*(cpu.Matrix(form, *arrays) for form, arrays in parts))


def coded(form: str, weight: Tensor) -> CodedParts:
    return forms.quantised(form, weight.numpy())


def restored(form: str, parts: CodedParts) -> Tensor:
    return torch.from_numpy(stored.restored(form, *parts))


def reference(x: Tensor, form: str, parts: CodedParts) -> Tensor:
    """[M, K] x a stored matrix, with the activations rounded as the library does."""
    row = x.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    return ((x * (127 / row)).round() @ restored(form, parts).T) * (row / 127)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", stored.FORMS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_product_is_that_of_the_restored_weights(
    m: int, n: int, k: int, form: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for float32's rounding; a number between two codes may get either: two in a thousand of the largest."""
    monkeypatch.setenv("CAESURA_CPU", variant)
    x, parts = rows_of(m, k), coded(form, random(n, k, seed=1))
    out, expected = product(x, packed((form, parts))), reference(x, form, parts)
    assert out.shape == (m, n)
    size = expected.abs().amax(1, keepdim=True) + 1e-9
    torch.testing.assert_close(out / size, expected / size, atol=2e-3, rtol=0)


@pytest.mark.parametrize("form", stored.FORMS)
def test_a_row_is_the_same_among_any_others_and_on_any_x86_cpu_with_avx2(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, parts = rows_of(41, 96), coded(form, random(70, 96))
    found = []
    for variant in (name for name in VARIANTS if name != "portable"):
        monkeypatch.setenv("CAESURA_CPU", variant)
        held = packed((form, parts))
        found += [
            product(x, held),
            torch.cat([product(row[None], held) for row in x]),
            product(x.flip(0), held).flip(0),
        ]
    assert all(torch.equal(out, found[0]) for out in found)


def test_matrices_below_one_another_are_one() -> None:
    x = rows_of(5, 64)
    below = [
        ("q4", coded("q4", random(33, 64))),
        ("q8", coded("q8", random(8, 64))),
        ("k4", coded("k4", random(2, 64))),
    ]
    together = product(x, packed(*below))
    assert torch.equal(together, torch.cat([product(x, packed(part)) for part in below], 1))


@pytest.mark.parametrize("size", [1, 63, 64, 4096, 1 << 22])
def test_tiles_begin_at_a_multiple_of_64_bytes(size: int) -> None:
    found = cpu.aligned(size)
    assert found.nbytes == size
    assert cpu.address(found) % cpu.ALIGNED == 0
    assert not found.any()


def test_zero_rows_and_zero_weights_give_zero() -> None:
    for form in stored.FORMS:
        held = packed((form, coded(form, random(9, 64))))
        assert torch.equal(product(torch.zeros(2, 64), held), torch.zeros(2, 9))
        nothing = packed((form, coded(form, torch.zeros(9, 64))))
        assert product(torch.ones(1, 64), nothing).abs().max() < 1e-3
        assert product(torch.empty(0, 64), held).shape == (0, 9)


def test_what_is_no_number_stays_none() -> None:
    """So that the canary sees it."""
    held = packed(("q8", coded("q8", random(9, 64))))
    for bad in (float("nan"), float("inf")):
        assert not product(torch.full((1, 64), bad), held).isfinite().any()


@pytest.mark.parametrize("part", range(4))
def test_parts_that_do_not_fit_together_are_refused(part: int) -> None:
    parts = list(coded("k4", random(4, 64)))
    for wrong in (parts[part][:-1], parts[part][:, :-1], parts[part].astype(np.float32)):
        with pytest.raises(ValueError, match="do not fit"):
            cpu.Matrix("k4", *parts[:part], wrong, *parts[part + 1 :])


# ---- layers

HIDDEN, HEADS, GROUPS, WIDTH, INNER, RANK = 64, 6, 2, 32, 96, 8
ROWS, CONTEXT = 21, 19


def weights_of(*, kind: str, canvas: bool, hidden: int = HIDDEN, inner: int = INNER) -> Weights:
    """A layer of Llama's kind, Qwen3's (norms of heads) or StarCoder2's (layer norms, no gate, biases)."""
    bias = kind == "starcoder2"

    def adapted(size: int, columns: int) -> AdaptedMatrix:
        parts = [("k4", coded("k4", random(size, columns) / columns**0.5))]
        if canvas:
            parts.append(("q8", coded("q8", random(RANK, columns) / columns**0.5)))
        up = restored("q8", coded("q8", torch.nn.functional.pad(random(size, RANK) / 4, (0, 24))))[:, :RANK].T
        return AdaptedMatrix(packed(*parts), up, size, random(size) / 8 if bias else None)

    def norm(size: int) -> Norm:
        return Norm(1 + random(size) / 8, random(size) / 8 if bias else None)

    of_heads = (norm(WIDTH), norm(WIDTH)) if kind == "qwen3" else None
    qkv, out = adapted((HEADS + 2 * GROUPS) * WIDTH, hidden), adapted(hidden, HEADS * WIDTH)
    gate_up, down = adapted(inner if bias else 2 * inner, hidden), adapted(hidden, inner)
    return Weights(Attention(norm(hidden), qkv, of_heads, out), Mlp(norm(hidden), gate_up, down))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_norm_is_that_of_torch_and_of_each_row_alone(
    bias: bool, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAESURA_CPU", variant)
    x, norm = rows_of(9, 896), Norm(1 + random(896) / 8, random(896, seed=1) / 8 if bias else None)
    found = c_layers.normalized(x, norm, 1e-6)
    torch.testing.assert_close(found, normalized(x, norm, 1e-6), atol=1e-5, rtol=1e-5)
    assert torch.equal(found, torch.cat([c_layers.normalized(row[None], norm, 1e-6) for row in x]))


def masks() -> dict[str, Tensor | None]:
    tree = torch.eye(ROWS, dtype=torch.bool)
    for row in range(1, ROWS):
        tree[row] |= tree[row // 2]
    canvas = torch.ones(ROWS, ROWS + 7, dtype=torch.bool)
    canvas[:, :7] = False  # rows of a tree, which it does not see
    return {"context": torch.ones(ROWS, ROWS, dtype=torch.bool).tril(), "tree": tree, "canvas": None, "beside": canvas}


def spans(dtype: torch.dtype, mask: Tensor | None) -> list[PlacedRows]:
    """All rows behind a context."""
    keys, values = (random(GROUPS, 256, WIDTH, seed=n).to(dtype).transpose(1, 2).contiguous() for n in (1, 2))
    buffers = [(keys.transpose(1, 2), values.transpose(1, 2).contiguous())]
    return [PlacedRows(0, ROWS, CONTEXT, buffers, mask)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("kind", "canvas", "mask", "wanted"),
    [
        ("llama", False, "context", None),
        ("llama", True, "canvas", [-1, 0, 3]),
        ("llama", True, "beside", [4]),
        ("qwen3", False, "tree", range(ROWS)),
        ("starcoder2", False, "context", []),
        ("starcoder2", False, "tree", None),
    ],
)
def test_a_layer_is_that_of_torch(
    kind: str, canvas: bool, mask: str, wanted: list[int] | None, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products are the same ones; keys and values are bfloat16 here and float32 there, whose rounding may move a
    number to the next code of 8 bits: two per cent."""
    monkeypatch.setenv("CAESURA_CPU", variant)
    of, shape = weights_of(kind=kind, canvas=canvas), Shape(HEADS, GROUPS, WIDTH, 1e-5, kind != "starcoder2")
    x, angles = random(ROWS, HIDDEN), random(ROWS, 1, WIDTH // 2).repeat(1, 1, 2)
    found, expected = (
        path.through(x.clone(), angles.cos(), angles.sin(), placed, wanted, [])[0]
        for path, placed in (
            (c_layers.Layers([of], shape, canvas), spans(torch.bfloat16, masks()[mask])),
            (llama_layer.Layers([of], shape, canvas, scripted=False), spans(torch.float32, masks()[mask])),
        )
    )
    assert found.shape == expected.shape == (ROWS if wanted is None else len(wanted), HIDDEN)
    assert (found - expected).norm() <= 0.02 * expected.norm()


def test_layers_are_the_same_to_the_last_bit_on_any_x86_cpu_with_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also their sums with what was there before, and however many rows go through them together."""
    x, angles, found = random(ROWS, HIDDEN), random(ROWS, 1, WIDTH // 2).repeat(1, 1, 2), list[Tensor]()
    for variant in (name for name in VARIANTS if name != "portable"):
        monkeypatch.setenv("CAESURA_CPU", variant)
        shape = Shape(HEADS, GROUPS, WIDTH, 1e-5, True)
        path = c_layers.Layers([weights_of(kind="llama", canvas=True)], shape, True)
        (span,) = spans(torch.bfloat16, masks()["context"])
        found.append(path.through(x.clone(), angles.cos(), angles.sin(), [span])[0])
        alone = list[Tensor]()
        for row in range(ROWS):
            own = PlacedRows(0, 1, CONTEXT + row, span.buffers, None)
            at = slice(row, row + 1)
            alone.append(path.through(x[at].clone(), angles[at].cos(), angles[at].sin(), [own])[0])
        found.append(torch.cat(alone))
    assert all(torch.equal(out, found[0]) for out in found)


def test_a_matrix_in_several_forms_is_its_parts_below_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the parts have one form, so that the whole has the same codes."""
    x, angles, found = random(ROWS, HIDDEN), random(ROWS, 1, WIDTH // 2).repeat(1, 1, 2), list[Tensor]()

    def split(of: AdaptedMatrix, canvas: bool) -> native.Projection:
        parts = coded("k4", random(of.size, of.packed.columns) / of.packed.columns**0.5)
        rows = (slice(33), slice(33, 40), slice(40, None))
        return native.Projection(packed(*(("k4", tuple(part[some] for part in parts)) for some in rows)))

    for linear in (c_layers.linear, split):
        monkeypatch.setattr(c_layers, "linear", linear)
        path = c_layers.Layers([weights_of(kind="llama", canvas=False)], Shape(HEADS, GROUPS, WIDTH, 1e-5, True), False)
        placed = spans(torch.bfloat16, masks()["context"])
        found.append(path.through(x.clone(), angles.cos(), angles.sin(), placed)[0])
    assert torch.equal(*found)


# ---- threads


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets how many share the work of a call."""
    yield cpu.library().caesura_threads
    cpu.library().caesura_threads(min(cpu.THREADS, cpu.cores()))


def test_results_are_the_same_to_the_last_bit_for_any_number_of_threads(threads: Callable[[int], None]) -> None:
    """More of them than there are cores, too."""
    rows, hidden, found = 160, 512, list[Tensor]()
    of = weights_of(kind="starcoder2", canvas=True, hidden=hidden, inner=1024)
    path = c_layers.Layers([of, of], Shape(HEADS, GROUPS, WIDTH, 1e-5, False), True)
    held, x = packed(("k4", coded("k4", random(3000, hidden)))), random(rows, hidden)
    angles = random(rows, WIDTH // 2).repeat(1, 2)
    for count in (1, 2, 3, 4) * 3:
        threads(count)
        buffers = [torch.zeros(GROUPS, WIDTH, 256, dtype=torch.bfloat16).transpose(1, 2)]
        buffers.append(torch.zeros(GROUPS, 256, WIDTH, dtype=torch.bfloat16))
        span = PlacedRows(0, rows, 0, [(buffers[0], buffers[1])] * 2, torch.ones(rows, rows, dtype=torch.bool).tril())
        through, _ = path.through(x.clone(), angles.cos(), angles.sin(), [span], [-1, 5, 80])
        found.append(
            torch.cat((through.flatten(), product(x, held).flatten(), *(b.flatten().float() for b in buffers)))
        )
    assert all(torch.equal(out, found[0]) for out in found)


def test_calls_of_several_threads_at_once_get_their_own_results(threads: Callable[[int], None]) -> None:
    """One of them has help, the others go without."""
    held, rows = packed(("q4", coded("q4", random(3000, 512)))), [random(24, 512, seed=n) for n in range(4)]
    threads(1)
    expected = [product(x, held) for x in rows]
    threads(4)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            assert all(map(torch.equal, pool.map(partial(product, packed=held), rows), expected))


def test_nothing_spins_after_a_call(threads: Callable[[int], None]) -> None:
    held = packed(("k4", coded("k4", random(3000, 512))))
    threads(4)
    product(random(64, 512), held)
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.05


# ---- the library itself


def compiled(out: Path, *command: str) -> Path:
    """tests/kernels/cpu_shapes.c with the library's files."""
    files = [str(ROOT / "tests" / "kernels" / "cpu_shapes.c"), *map(str, SOURCES)]
    flags = [f"-I{ROOT / 'kernels' / 'cpu'}", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    subprocess.run([*command, *flags, "-o", str(out), *files, "-lm", "-lpthread"], check=True)
    return out


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_random_shapes_touch_no_memory_but_their_own(tmp_path: Path) -> None:
    sanitized = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = compiled(tmp_path / "shapes", "gcc", *sanitized)
    for seed in range(4):
        run = [str(program), "100", str(seed)]
        done = subprocess.run(run, capture_output=True, text=True, env=unheard() | {"ASAN_OPTIONS": "detect_leaks=0"})
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        assert done.stdout.split() == VARIANTS


def test_a_library_that_is_older_than_its_sources_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a `git pull` without a new installation: its structures may be other ones."""
    assert cpu.library().caesura_sources().decode() == cpu.sources()
    monkeypatch.setattr(cpu, "sources", lambda: "changed")
    assert cpu.library.__wrapped__() is None
    assert "install Caesura again" in caplog.text


def test_a_container_with_two_cores_of_many_has_two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    monkeypatch.setattr(cpu, "QUOTA", tmp_path / "cpu.max")
    for quota, expected in (("200000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", 16), ("", 16)):
        cpu.QUOTA.write_text(quota)
        assert cpu.cores() == expected


def test_without_a_compiler_the_package_is_built_without_the_library(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("caesura", "server", "engine", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("_library*", "__pycache__"))
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(build, cwd=tmp_path, env=os.environ | {"CC": "no-such-compiler"}, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list((tmp_path / "kernels" / "cpu").glob("_library*"))
