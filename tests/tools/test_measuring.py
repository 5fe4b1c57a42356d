"""Measurements of gpu/, at sizes that a CPU can do: the numbers fit each other and the tensors, a run that was cut off
goes on, and the queue does what is worth most first within its time."""

import contextlib
import gzip
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from caesura.kernels.linear import Linear

ROOT = Path(__file__).parents[2]
FORMS = ("bf16", "fp8", "nvfp4")
SKIPPED = "skipped, there is no CUDA device here."


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    """The scripts import their neighbours."""
    added = [str(ROOT / name) for name in ("gpu", "bench")]
    sys.path[:0] = added
    yield
    for path in added:
        sys.path.remove(path)


@pytest.fixture(scope="module")
def stand_in(scripts: None) -> ModuleType:
    return import_module("stand_in")


@pytest.fixture(scope="module")
def counted(scripts: None) -> ModuleType:
    return import_module("counted")


@pytest.fixture(scope="module")
def measuring(scripts: None) -> ModuleType:
    return import_module("measuring")


def bare(**environment: object) -> dict[str, str]:
    """The environment of a machine that has not what only an editor needs."""
    own = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "tests" / "support" / "bare"), "OMP_NUM_THREADS": "1"}
    return os.environ | own | {k: str(v) for k, v in environment.items()}


def script(name: str, *arguments: object, expected: int = 0, checkout: Path = ROOT, **environment: object) -> str:
    env = bare(**environment)
    command = [str(checkout / "gpu" / name), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


# What is counted


def tensors(value: object) -> Iterator[Tensor]:
    """All that a model's weights hold, each as often as it is there."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Linear):
        yield from value.tensors
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_counted_are_those_of_the_tensors(stand_in: ModuleType, counted: ModuleType, form: str) -> None:
    """With so many rows that no expert is left out; `embed` and `head` are one tensor that is read twice."""
    model, rows, context = stand_in.model(stand_in.sizes(tiny=True), form, "cpu", 64), 200, 40
    parts = counted.work(model, rows, context)
    stored = {name: part.bytes for name, part in parts.items() if name not in ("attention", "sampler")}
    assert sum(stored.values()) == pytest.approx(sum(tensor.nbytes for tensor in tensors(model.weights)))
    kv = model.cache().lease([])
    model.prefill(list(range(context)), kv)
    kv.reserve(rows)
    low, high = (context - (model.config.sliding_window - 1), 0), context + rows
    seen = [kv.get(layer, low[not shape.sliding], high) for layer, shape in enumerate(model.config.shapes)]
    assert parts["attention"].bytes == sum(t.nbytes for pair in seen for t in pair)
    assert parts["sampler"].bytes == 2 * rows * model.width * 2


def test_few_rows_leave_experts_out(stand_in: ModuleType, counted: ModuleType) -> None:
    model = stand_in.model(stand_in.sizes(tiny=True), "fp8", "cpu", 64)
    one, all = (counted.work(model, rows, 8)["experts"].bytes for rows in (1, 200))
    assert one == pytest.approx(all * model.config.top_k_experts / model.config.num_experts)


def test_what_is_counted_on_tensors_is_what_the_published_sizes_say(
    stand_in: ModuleType, counted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 26B shape, without its memory. There the canvas's own keys count for nothing, and neither do norms."""
    monkeypatch.setattr(counted, "BANDWIDTH", 4.3e12)  # an H200's, on whatever card this runs
    config, rows, context = stand_in.sizes(tiny=False), 256, 8192
    model = stand_in.model(config, "bf16", "meta", context)
    ours, published = counted.work(model, rows, context), import_module("roofline")
    conditioner = ours.pop("conditioner")
    ours["dense"] = type(conditioner)(*map(sum, zip(ours["dense"], conditioner, strict=True)))
    theirs = published.work(config["text_config"], rows, context, 2)
    for name, part in theirs.items():
        assert ours[name].flops == pytest.approx(part.flops)
        if name not in ("sampler", "attention", "rest"):
            assert ours[name].bytes == pytest.approx(part.bytes), name
    assert 12 < counted.floor_ms(model, rows, 2048) < 14  # 13.3 in the specification, where logits are written


def test_codes_times_codes_have_a_lower_floor(stand_in: ModuleType, counted: ModuleType) -> None:
    """Where arithmetic is the bound, which few rows do not reach."""
    config = stand_in.sizes(tiny=False)
    codes, decoded = (stand_in.model(config, form, "meta", 4096) for form in ("fp8", stand_in.EXACT))
    assert counted.floor_ms(codes, 256, 2048) < 0.95 * counted.floor_ms(decoded, 256, 2048)
    assert counted.floor_ms(codes, 16, 2048) == pytest.approx(counted.floor_ms(decoded, 16, 2048))


def test_the_floors_of_the_page_are_those_that_are_counted(
    stand_in: ModuleType, counted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "BANDWIDTH", 4.3e12)
    page = (ROOT / "gpu" / "README.md").read_text().partition("Floors of DiffusionGemma's shape")[2]
    forms = {"bf16": "bf16", "FP8": "fp8", "FP8, activations as they come": stand_in.EXACT, "NVFP4": "nvfp4"}
    for name, form in forms.items():
        model = stand_in.model(stand_in.sizes(tiny=False), form, "meta", 40_000)
        found = [counted.floor_ms(model, rows, 2048) for rows in (16, 32, 44, 64, 128, 256)]
        found.append(counted.floor_ms(model, 256, 32_768))
        assert f"| {name} | {' | '.join(f'{ms:.1f}' for ms in found)} |" in page


def test_each_matrix_has_the_floor_of_its_own_precision(stand_in: ModuleType, counted: ModuleType) -> None:
    """Whatever the precision of the first one, and of all rows that are enough for arithmetic to be the bound."""
    config, rows = stand_in.sizes(tiny=True), 4096
    plain, codes = (stand_in.model(config, form, "cpu", 64) for form in ("bf16", "fp8"))
    layers, dense = codes.weights.layers, [layer.qkv for layer in plain.weights.layers]
    mixed = stand_in.model(config, "fp8", "cpu", 64)
    first = mixed.weights.layers[0]
    mixed.weights.layers[0] = first._replace(qkv=dense[0])

    def ms(model: Any, *parts: str) -> float:
        """By FLOP alone."""
        every = counted.matrices(model)
        given = [matrix for part in parts for matrix in every[part]]
        return sum(counted.flops(model, rows, m) / counted.peak(m) for m in given if isinstance(m, Linear)) * 1e3

    assert len(layers) > 1
    one = counted.flops(codes, rows, dense[0]) / (2 * counted.PEAK) * 1e3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted, "BANDWIDTH", float("inf"))
        assert counted.floor_ms(mixed, rows, 40) == pytest.approx(counted.floor_ms(codes, rows, 40) + one)
        halves = ms(codes, "experts", "projections", "dense")
        assert counted.floor_ms(plain, rows, 40) == pytest.approx(counted.floor_ms(codes, rows, 40) + halves)
    assert ms(codes, "conditioner") == ms(plain, "conditioner"), "always in bfloat16"


# What is measured


def measured(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    """gpu/gemma in this process, with its book in the folder."""
    options = "--tiny", "--device", "cpu", "--book", folder / "book", "--out", folder / "gemma.json"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gemma", *map(str, (*arguments, *options))])
        status = import_module("gemma").main()
    torch.set_num_threads(threads)
    lines: list[dict[str, Any]] = json.loads((folder / "gemma.json").read_text())["lines"]
    assert status == 0
    return lines


@pytest.fixture(scope="module")
def folder(scripts: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything was measured once."""
    folder = tmp_path_factory.mktemp("measured")
    measured(folder)
    return folder


@pytest.mark.slow
def test_the_model_is_timed_as_it_is_served(folder: Path) -> None:
    lines = json.loads((folder / "gemma.json").read_text())["lines"]
    assert not [line for line in lines if "failed" in line]
    assert {(line["measure"], line["form"]) for line in lines} == {
        *((measure, form) for measure in ("protocol", "infill", "race", "steps") for form in FORMS),
        ("steps", "transformers"),
    }
    for line in lines:
        assert 0 < line["p50_ms"] <= line["p95_ms"]
        if "of_floor" in line:
            assert line["of_floor"] == pytest.approx(line["floor_ms"] / line["p50_ms"], rel=1e-4)
        if line["measure"] == "protocol":
            canvas, denoising = 16, 4
            assert line["forwards"] == denoising + ("rides" not in line["way"])
            assert line["tokens_s"] == pytest.approx(canvas / (line["forwards"] * line["ms_a_forward"]) * 1e3, rel=1e-4)
            assert line["tokens_s_with_prompt"] < line["tokens_s"]
            assert line["replayed"] == (0 if line["way"] == "unrecorded" else denoising)
        elif line["measure"] == "infill":
            assert line["replayed"] == line["steps"], "also the first one, which reads the typed tokens"
        elif line["measure"] == "race":
            assert line["replayed"] % (2 * 12) == 0 < line["replayed"], "all lengths in both steps"
        elif line["form"] != "transformers":
            assert line["gb_s"] == pytest.approx(line["gb"] / line["p50_ms"] * 1e3, rel=1e-4)
            assert line["replayed"] >= 5


@pytest.mark.slow
def test_a_card_with_block_sizes_of_its_own_is_also_measured_without(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemma = import_module("gemma")
    monkeypatch.setattr(gemma.tuned, "has_table", lambda _: True)
    (tmp_path / "book").write_bytes((folder / "book").read_bytes())
    protocols = [line for line in measured(tmp_path, "fp8") if line["measure"] == "protocol"]
    assert [line["way"] for line in protocols] == [*gemma.WAYS, gemma.FORMULAS]
    assert (protocols[-1]["forwards"], protocols[-1]["replayed"]) == (5, 4)


def test_the_protocol_is_the_published_one(stand_in: ModuleType) -> None:
    gemma = import_module("gemma")
    plan, canvas = gemma.Plan(), stand_in.sizes(tiny=False)["canvas_length"]
    assert (plan.prompt, plan.canvases * canvas, plan.denoising + 1) == (1024, 1024, gemma.VLLM["forwards"])
    assert canvas / (17 * gemma.VLLM["ms_a_forward"]) * 1e3 == pytest.approx(gemma.VLLM["tokens_s"], rel=0.05)


@pytest.mark.slow
def test_a_run_without_time_says_what_is_not_measured(tmp_path: Path) -> None:
    said = script("gemma", "fp8", "--seconds", 0, expected=75, DEVICE="cpu", CAESURA_WORK=tmp_path).splitlines()
    wanted = json.loads(said[-1])["lines"]
    assert {line["failed"] for line in wanted} == {"not measured"}
    assert len([line for line in said[:-1] if line.endswith("not measured")]) == len(wanted), "in the tables too"


@pytest.mark.slow
def test_what_lacks_in_the_book_is_measured_and_nothing_else(folder: Path) -> None:
    known = (folder / "book").read_text().splitlines(keepends=True)
    (folder / "book").write_text("".join(known[:3] + known[4:]))
    found = measured(folder, "bf16")
    now = (folder / "book").read_text().splitlines(keepends=True)
    assert now[:-1] == known[:3] + known[4:]
    assert now[-1].partition('"p50_ms"')[0] == known[3].partition('"p50_ms"')[0]
    assert measured(folder, "bf16", "--seconds", 0) == found


KERNELS = {
    *("head", "mean embedding", "draw", "norms and router", "rotary 16", "rotary 32", "attention 16", "attention 32"),
    *("gate and up", "experts", *(f"linear {shape}" for shape in ("64 x 32", "64 x 64", "96 x 64"))),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--peers",)], ids=["references", "peers"])
def test_every_kernel_is_measured_next_to_pytorch_and_its_bound(tmp_path: Path, options: tuple[str, ...]) -> None:
    pytest.importorskip("triton")
    said = script("kernels", *options, DEVICE="cpu", CAESURA_WORK=tmp_path, OUT=tmp_path)
    document = json.loads(said.splitlines()[-1])
    assert json.loads((tmp_path / "kernels.json").read_text()) == document
    lines = document["lines"]
    assert {line["kernel"].split(",")[0] for line in lines} == KERNELS
    assert [line["form"] for line in lines if "experts" in line["kernel"]] == list(FORMS)
    assert all(line["ms"] > 0 for line in lines)
    linear, experts = ([line for line in lines if line["kernel"].startswith(name)] for name in ("linear", "experts"))
    if not options:
        assert all(line["pytorch_ms"] > 0 for line in lines)
        return
    assert not [line for line in lines if "pytorch_ms" in line], "references are slow"
    assert all(line["cublas_bf16_ms"] > 0 for line in linear)
    assert {line["form"] for line in linear if line.get("decoded_ms")} == {"fp8"}
    assert [line["form"] for line in experts if "scaled_grouped_mm_ms" in line] == ["fp8"]
    assert [line["form"] for line in experts if "grouped_mm_ms" in line] == ["bf16"]


@pytest.mark.slow
def test_the_card_is_probed(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    document = json.loads(script("probe", DEVICE="cpu", CAESURA_WORK=tmp_path, OUT=tmp_path).splitlines()[-1])
    found = {line["what"]: line for line in document["lines"]}
    assert not [line for line in document["lines"] if "failed" in line]
    assert {what.partition(",")[0] for what in found} == {"copy", "product", "launch", "read"}
    assert all(line.get("us", line.get("ms")) > 0 for line in found.values())


# Block sizes


@pytest.mark.slow
def test_a_tuning_that_is_cut_off_keeps_its_table_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    given = {"DEVICE": "cpu", "CAESURA_WORK": tmp_path}
    assert json.loads(script("tune", "--seconds", 0, expected=75, **given).splitlines()[-1])["lines"]
    lines = json.loads(script("tune", **given).splitlines()[-1])["lines"]
    kernels = Counter(line["kernel"] for line in lines)
    assert set(kernels) == set(import_module("caesura.kernels.tuned").FIELDS)
    assert (kernels["attention"], kernels["product"]) == (2, 2), "of both kinds of layers"
    assert not [line for line in lines if "failed" in line or line["wrong"]]
    (table,), book = (tmp_path / "tuned").iterdir(), tmp_path / "measured" / "tune.jsonl"
    assert table.name == "cpu.json"
    entries = [line["entry"] for line in lines if line["entry"]]
    assert json.loads(table.read_text())["entries"] == entries
    assert [entry["blocks"] for entry in entries] == [line["blocks"] for line in lines if line["entry"]]
    known = book.read_text().splitlines(keepends=True)
    book.write_text("".join([*known[:-1], known[-1][:20]]))
    table.unlink()
    script("tune", **given)
    assert book.read_text().splitlines(keepends=True)[:-1] == known[:-1]
    assert json.loads(table.read_text())["entries"][: len(entries) - 1] == entries[:-1]


def test_only_block_sizes_that_change_no_result_are_taken(scripts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula is slow; a candidate of 16 warps is faster than one of 2, and others compute something else."""
    pytest.importorskip("triton")
    tuning, tuned = import_module("tuning"), import_module("caesura.kernels.tuned")
    x = torch.randn(64)

    def launch() -> Tensor:
        found = tuned.blocks("experts up", (1,), 8, x) or {"num_warps": 0}
        time.sleep({0: 0.02, 2: 0.01}.get(found["num_warps"], 0.001))
        out = torch.empty(64)
        if found["num_warps"] != 8:  # which leaves what was in memory
            out.copy_(x * (1.1 if found["num_warps"] == 4 else 1))
        return out

    work = tuning.Work("experts up", (1,), 8, (x,), launch, x.normal_)
    sides = {"BLOCK_R": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_stages": 3}

    def tune(*warps: int) -> dict[str, Any]:
        tried = [sides | {"num_warps": of} for of in warps]
        monkeypatch.setattr(tuning, "candidates", lambda *_: tried)
        found: dict[str, Any] = tuning.tune(work, "cpu", tuning.TINY)
        return found

    found = tune(8, 4, 2, 16)
    assert (found["wrong"], found["entry"]["blocks"]["num_warps"]) == (2, 16)
    assert found["best_ms"] < 0.5 * found["formula_ms"]
    assert tune(4, 8)["entry"] is None


def compiling(code: str, tmp_path: Path) -> None:
    """Run in a process of its own, where kernels are compiled for an H100 or H200 and not interpreted."""
    pytest.importorskip("triton")
    code = f"import torch, compiled, compiling, tuning, triton\ncompiled.absent(90)\n{code}"
    folders = ("typings", "gpu", "bench", "tests/kernels")
    path = os.pathsep.join(str(ROOT / folder) for folder in folders)
    environment = {"PYTHONPATH": path, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("ms", "wins"), [(0.97, True), (0.99, False), (1.5, False)])
def test_two_percent_less_time_make_an_entry(
    scripts: None, monkeypatch: pytest.MonkeyPatch, ms: float, wins: bool
) -> None:
    pytest.importorskip("triton")
    tuning, tuned, x = import_module("tuning"), import_module("caesura.kernels.tuned"), torch.randn(64)
    own = {"BLOCK_R": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3}

    taken = list[float]()

    def launch() -> Tensor:
        taken.append(ms if tuned.blocks("experts up", (1,), 8, x) else 1.0)
        return x.clone()

    def clock(call: Callable[[], Tensor], *_: object) -> dict[str, float]:
        call()
        return {"p50_ms": taken[-1]}

    monkeypatch.setattr(tuning, "clock", clock)
    monkeypatch.setattr(tuning, "candidates", lambda *_: [own])
    work = tuning.Work("experts up", (1,), 8, (x,), launch, x.normal_)
    found = tuning.tune(work, "cpu", tuning.TINY)
    assert found["entry"] == (work.entry(own) if wins else None)


@pytest.mark.slow
def test_a_candidate_compiles_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    """It is kept if it spills nothing and leaves room for a second block; 256 bytes of 128 rows leave none."""
    compiling(
        """
work = compiling.works((256,))[0]
good = tuning.candidates(work, tuning.Plan())[0]
bad = good | {'BLOCK_R': 64, 'BLOCK_N': 128, 'BLOCK_K': 256}
assert [compiling.fits(work, blocks) for blocks in (good, bad)] == [True, False]
""",
        tmp_path,
    )


@pytest.mark.slow
def test_the_tuning_launches_no_kernel_that_was_not_compiled(tmp_path: Path) -> None:
    """`tune` as it is, with a clock that only calls. Two of the kernels are compiled."""
    compiling(
        """
needed = compiling.needed()

def clock(call, *_):
    call()
    return {'p50_ms': 1.0}

def poisoned(launch):
    launch()
    return torch.zeros(2)

tuning.clock, tuning.poisoned = clock, poisoned
with compiled.noted() as tuned:
    for work in compiling.works(tuning.Plan().rows):
        assert not tuning.tune(work, 'meta', tuning.Plan())['wrong']
assert len(tuned) > 600
assert not tuned.keys() - needed.keys()
for dtype in ('fp32', 'bf16'):  # of splits, and where there is one
    assert [key for name, key in tuned if name == '_multiply' and f"('*{dtype}', 'D'), ('i32', None), ('i32'" in key]

first = {name: launch for (name, _), launch in reversed(needed.items())}
compiling.LAUNCHES[:] = first['_gate'], first['_merge']
assert [compiling.compile(number) for number in range(2)] == [None, None]

def fails(self):
    raise triton.TritonError

compiled.Launch.compile = fails
assert compiling.compile(0) == '_gate', 'it is named, and the others go on'
""",
        tmp_path,
    )


@pytest.mark.slow
def test_the_passes_of_code_models_launch_no_kernel_that_the_tests_do_not_compile(tmp_path: Path) -> None:
    """With silu's gate among them."""
    compiling(
        """
with compiled.noted() as known:
    for rows in compiled.ROWS:
        compiled.every_kernel(rows)
with compiled.noted() as launched:
    compiling.passes("7B")
assert '_gate' in {name for name, _ in launched}
assert not launched.keys() - known.keys()
""",
        tmp_path,
    )


def test_the_candidates_are_for_these_kernels_and_another_card_or_triton_is_said(
    scripts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of the kernels: gpu/README.md says how they are made again."""
    pytest.importorskip("triton")
    tuning, card = import_module("tuning"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(tuning.tuned, "version", lambda: tuning.listed()["triton"])
    assert not [*tuning.stale(card)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (12, 0))
    monkeypatch.setattr(tuning.tuned, "version", lambda: "2.0")
    monkeypatch.setattr(tuning.tuned, "digest", lambda: "other")
    assert [reason.split()[1] for reason in tuning.stale(card)] == ["capability", "Triton", "other"]


def test_candidates_are_for_every_kernel_that_is_tuned(scripts: None) -> None:
    pytest.importorskip("triton")
    tuning, tuned, stand_in = (import_module(name) for name in ("tuning", "caesura.kernels.tuned", "stand_in"))
    config = import_module("caesura.engine.models.diffusion_gemma.model").Config.read(stand_in.sizes(tiny=False))
    for work in tuning.works(config, "meta", tuning.Plan(cache=1)):
        found = tuning.candidates(work, tuning.Plan())
        assert 10 < len(found) < 100, work
        with tuned.using([work.entry(blocks) for blocks in found]):
            pass  # a launcher may have all of them


@pytest.mark.slow
def test_the_shape_of_the_small_model_is_measured(tmp_path: Path) -> None:
    document = json.loads(script("bench", DEVICE="cpu", CAESURA_WORK=tmp_path, OUT=tmp_path).splitlines()[-1])
    assert json.loads((tmp_path / "bench.json").read_text()) == document
    assert [line["measure"] for line in document["lines"]] == ["small step", "training"]
    assert all(line["p50_ms"] > 0 for line in document["lines"])


@pytest.mark.slow
def test_code_models_are_measured_as_they_are_served(tmp_path: Path) -> None:
    document = json.loads(script("causal", DEVICE="cpu", CAESURA_WORK=tmp_path, OUT=tmp_path).splitlines()[-1])
    assert json.loads((tmp_path / "causal.json").read_text()) == document
    lines = document["lines"]
    assert not [line for line in lines if "failed" in line]
    assert {(line["measure"], line["shape"]) for line in lines} == {
        (f"causal {kind}", shape) for kind in ("prefill", "verify", "job") for shape in ("0.5B", "1.5B", "7B")
    }
    for line in lines:
        assert 0 < line["p50_ms"] <= line["p95_ms"]
        if line["measure"] == "causal prefill":
            assert line["tokens_s"] == pytest.approx(line["context"] / line["p50_ms"] * 1e3, rel=1e-4)
            assert line["of_floor"] == pytest.approx(line["floor_ms"] / line["p50_ms"], rel=1e-4)
        elif line["measure"] == "causal verify":
            assert not line["recorded"], "on a CPU"
            assert line["of_floor"] == pytest.approx(line["floor_ms"] / line["p50_ms"], rel=1e-4)
        else:
            assert line["ms_a_pass"] == pytest.approx(line["p50_ms"] / line["passes"], rel=1e-4)
            assert line["passes"] >= (24 if line["method"] == "left_to_right" else 2), "a pass for each token"


@pytest.mark.slow
def test_diffusion_models_are_measured_as_they_are_served(tmp_path: Path) -> None:
    document = json.loads(script("masked", DEVICE="cpu", CAESURA_WORK=tmp_path, OUT=tmp_path).splitlines()[-1])
    assert json.loads((tmp_path / "masked.json").read_text()) == document
    lines = document["lines"]
    assert not [line for line in lines if "failed" in line]
    assert {(line["measure"], line["shape"]) for line in lines} == {
        *((f"masked {kind}", f"7B{form}") for kind in ("step", "race", "job") for form in ("", "-nvfp4", "-fp8")),
        *((f"masked {kind}", "16B-A1.4B") for kind in ("step", "job")),
    }
    for line in lines:
        assert 0 < line["p50_ms"] <= line["p95_ms"]
        if line["measure"] == "masked job":
            assert line["ms_a_step"] == pytest.approx(line["p50_ms"] / line["steps"], rel=1e-4)
        else:
            assert line["of_floor"] == pytest.approx(line["floor_ms"] / line["p50_ms"], rel=1e-4)
    step, race = (next(line for line in lines if line["measure"] == f"masked {kind}") for kind in ("step", "race"))
    assert race["rows"] > 5 * step["rows"]


@pytest.mark.slow
def test_the_kernels_of_a_step_are_listed_next_to_its_time(tmp_path: Path) -> None:
    document = json.loads(script("profile", DEVICE="cpu", CAESURA_WORK=tmp_path, OUT=tmp_path).splitlines()[-1])
    assert json.loads((tmp_path / "profile.json").read_text()) == document
    lines = document["lines"]
    assert not [line for line in lines if "failed" in line]
    found = [(line["shape"], line.get("way")) for line in lines]
    assert found == [
        ("gemma", "served"),
        ("gemma", "unrecorded"),
        ("causal", "served"),
        ("causal", "unrecorded"),
        ("masked", None),
    ]
    for line in lines:
        assert line["of_wall"] == pytest.approx(line["device_ms"] / line["wall_ms"], rel=1e-4)
        assert line["device_ms"] <= line["profiled_ms"], "one thread, and no call is counted twice"
        spent = [kernel["ms"] for kernel in line["top"]]
        assert 15 <= len(spent) <= import_module("profiles").TOP
        assert spent == sorted(spent, reverse=True)
        assert sum(spent) <= line["device_ms"] * 1.001
    assert "aten::mm" in {kernel["kernel"] for kernel in lines[0]["top"]}


def test_kernels_of_a_trace_are_told_apart_by_their_grids_and_have_gaps(scripts: None, tmp_path: Path) -> None:
    profiles, path = import_module("profiles"), tmp_path / "trace.json.gz"
    ran = [  # us: two steps of three kernels and a copy
        *[("_up", [1, 11, 128], start, 40) for start in (0, 200)],
        *[("_multiply", [4, 8, 1], start, 10) for start in (45, 245)],
        *[("_multiply", [4, 64, 1], start, 20) for start in (50, 250)],  # overlaps the one before
        *[("Memcpy", None, start, 10) for start in (90, 290)],
    ]
    events: list[dict[str, Any]] = [
        {"cat": "kernel" if grid else "gpu_memcpy", "name": name, "ts": ts, "dur": dur, "args": {"grid": grid or []}}
        for name, grid, ts, dur in reversed(ran)
    ]
    events += [{"ph": "M", "name": "process_name"}, {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9}]
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    found = profiles.summed(profiles.traced(path), 2)
    assert found["kernels"] == 4
    assert found["device_ms"] == pytest.approx(0.08)
    assert found["gaps_ms"] == pytest.approx((5 + 20 + 100 + 5 + 20) / 2 / 1e3)
    assert [(kernel["kernel"], kernel["grid"], kernel["count"]) for kernel in found["top"]] == [
        ("_up", "1 11 128", 1),
        ("_multiply", "4 64 1", 1),
        ("Memcpy", "", 1),
        ("_multiply", "4 8 1", 1),
    ]
    assert [kernel["gap_ms"] for kernel in found["top"]] == [0.05, 0, 0.02, 0.005]


@pytest.mark.parametrize("shape", ["0.5B", "7B"])
def test_the_bytes_counted_of_a_code_model_are_those_of_its_tensors(scripts: None, shape: str) -> None:
    """An embedding that is not the head too is read one row for each row of the pass."""
    causal, rows, context = import_module("causal"), 5, 40
    model = causal.model(shape, "cpu", tiny=True)
    parts = causal.work(model, rows, context)
    stored = tensors([[weights for weights, _ in model._layers], model._head])
    matrices = sum(tensor.nbytes for tensor in stored if tensor.ndim == 2)
    assert parts["matrices"].bytes + parts["head"].bytes == matrices
    kv = model.cache().lease([])
    model.prefill(list(range(context + rows)), kv)
    seen = [kv.get(layer, 0, context + rows) for layer in range(model.config.num_layers)]
    assert parts["attention"].bytes == sum(t.nbytes for pair in seen for t in pair)


def test_the_shapes_of_code_models_are_the_published_ones(scripts: None) -> None:
    """By their numbers of parameters: 494 million, 1.54 and 7.62 billion."""
    causal = import_module("causal")
    for shape, published in (("0.5B", 494e6), ("1.5B", 1544e6), ("7B", 7616e6)):
        config = causal.sizes(shape, tiny=False)
        drawn = causal.Drawn(config, tied=shape != causal.UNTIED)
        assert sum(math.prod(drawn.shape(name)) for name in drawn) == pytest.approx(published, rel=0.001)


def test_the_shape_of_the_mixture_is_the_published_one(scripts: None) -> None:
    """16 billion parameters, of which a row takes 1.4 billion."""
    masked = import_module("masked")
    config = masked.sizes(tiny=False)
    shapes = masked.Mixed(config, config.mixture)._shapes
    counts = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
    experts = sum(count for name, count in counts.items() if "experts" in name)
    assert sum(counts.values()) == pytest.approx(16e9, rel=0.03)
    active = sum(counts.values()) - experts * (1 - config.mixture.top / config.mixture.count)
    assert active == pytest.approx(1.4e9, rel=0.1)


def test_the_bytes_counted_of_a_mixture_are_those_of_its_tensors(scripts: None) -> None:
    """A thousand rows touch every expert."""
    masked = import_module("masked")
    config = masked.sizes(tiny=True)
    shapes = masked.Mixed(config, config.mixture)._shapes
    matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1 and "router" not in name}
    parts = masked.work(masked.served(masked.MIXED, "cpu", tiny=True), 1000, 40, 5)
    counted = sum(parts[part].bytes for part in ("matrices", "experts", "head"))
    expected = sum(torch.Size(shape).numel() for name, shape in matrices.items() if name != "embed")
    assert counted == pytest.approx(2 * expected), "bfloat16"


@pytest.mark.parametrize(("device", "waits"), [("cuda", 1), ("cuda:0", 1), ("cpu", 0)])
def test_a_device_is_waited_for_by_any_of_its_names(
    measuring: ModuleType, monkeypatch: pytest.MonkeyPatch, device: str, waits: int
) -> None:
    waited = list[int]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    measuring.wait(device)
    assert len(waited) == waits


# The book


def test_a_failure_is_a_result_and_is_not_tried_again(measuring: ModuleType, tmp_path: Path) -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("out of registers\nat line 3")

    for expected in ("RuntimeError: out of registers", "RuntimeError: out of registers"):
        book, tried = measuring.Book(tmp_path / "book", "cpu", 60), []
        names = [{"measure": "a", "rows": 1}, {"measure": "a", "rows": 2}]
        assert book.plan(names) == (not (tmp_path / "book").exists())
        book.measure(names[0], fails)
        book.measure(names[1], lambda tried=tried: tried.append(1) or {"p50_ms": 1.0})
        assert [line.get("failed") for line in book.lines()] == [expected, None]
        fails = lambda: pytest.fail("it is known")  # noqa: E731
    assert not tried
    assert book.report(None) == 0


def test_a_line_that_was_cut_off_is_measured_again(measuring: ModuleType, tmp_path: Path) -> None:
    measuring.Book(tmp_path / "book", "cpu", 60).measure({"measure": "a"}, lambda: {"p50_ms": 1.0})
    with (tmp_path / "book").open("a") as file:
        file.write('{"measure": "b", "p50')
    book = measuring.Book(tmp_path / "book", "cpu", 60)
    assert not book.plan([{"measure": "a"}])
    assert book.plan([{"measure": "b"}])
    book.measure({"measure": "b"}, lambda: {"p50_ms": 2.0})
    again = measuring.Book(tmp_path / "book", "cpu", 60)
    assert not again.plan([{"measure": "a"}, {"measure": "b"}])


def test_what_another_machine_measured_is_measured_here(
    measuring: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measuring.Book(tmp_path / "book", "cpu", 60).measure({"measure": "a"}, lambda: {"p50_ms": 1.0})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert measuring.Book(tmp_path / "book", "cuda", 60).plan([{"measure": "a"}])


# The queue

ENTRIES = [
    *("probe", "compile", "profile gemma", "tune", "test -k kernels", "gemma fp8", "kernels --peers"),
    *("causal 7B", "profile causal masked", "gemma nvfp4", "masked", "gemma bf16", "test", "gemma transformers"),
    *("causal", "bench"),
]


DONE, AGAIN = "gpu/queue: done.", "gpu/queue: call it again."


class Machine:
    """The queue with scripts that only say they were called; `status` is what they return, by name."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.work, self.out = folder / "checkout", folder / "work", folder / "out"
        (self.checkout / "gpu").mkdir(parents=True)
        (self.work / "run").mkdir(parents=True)
        self.out.mkdir()
        for name in ("queue", "env", "page.py"):
            target = self.checkout / "gpu" / name
            target.write_bytes((ROOT / "gpu" / name).read_bytes())
            target.chmod(0o755)
        self.says(
            "probe compile profile tune test gemma causal masked kernels bench",
            'mkdir -p "$CAESURA_WORK/measured"; echo {} >>"$CAESURA_WORK/measured/a.jsonl"',
        )

    def says(self, names: str, more: str) -> None:
        for name in names.split():
            path = self.checkout / "gpu" / name
            path.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >>"$CAESURA_WORK/called"\n{more}\n')
            path.chmod(0o755)

    def call(self, expected: int = 0, **environment: object) -> tuple[str, list[str]]:
        """What was said last, and what was called, both without the seconds."""
        said = script(
            "queue",
            expected=expected,
            checkout=self.checkout,
            DEVICE="cpu",
            CAESURA_WORK=self.work,
            OUT=self.out,
            **environment,
        )
        calls = self.work / "called"
        made = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return said.splitlines()[-1].partition("] ")[2] if said else "", [
            line.partition(" --seconds")[0].strip() for line in made
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_gpu_the_scripts_say_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    scripts = (
        "queue",
        "probe",
        "tune",
        "test",
        "profile",
        "gemma",
        "causal",
        "masked",
        "compile",
        "kernels",
        "bench",
        "train",
        "shallow",
    )
    for name in scripts:
        assert script(name, CAESURA_WORK=tmp_path).endswith(f"{SKIPPED}\n")


def test_the_package_is_whole_where_it_is_not_installed() -> None:
    links = ROOT / "typings" / "caesura"
    folders = [ROOT / name for name in ("server", "engine", "kernels", "cluster")]
    parts = {path.resolve() for path in [*(ROOT / "caesura").iterdir(), *folders] if path.name != "__pycache__"}
    assert {path.resolve() for path in links.iterdir()} == parts


@pytest.mark.slow
def test_the_tests_for_a_gpu_need_no_more_than_its_machine_has(tmp_path: Path) -> None:
    alone = {"DEVICE": "cpu", "CAESURA_WORK": tmp_path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": 1}
    said = script("test", "--collect-only", **alone)
    assert "test_gpu.py::test_it_finds_what_the_cpu_finds" in said
    assert "test_training.py::test_a_step_on_cuda_is_the_step_on_the_cpu" in said


def test_only_tests_that_have_not_passed_run_again(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "gpu").mkdir(parents=True)
    for name in ("test", "env", "passed.py"):
        shutil.copy(ROOT / "gpu" / name, checkout / "gpu")
    (checkout / "tests").mkdir()
    (checkout / "tests" / "test_it.py").write_text(
        "import os, pytest\npytestmark = pytest.mark.gpu\n"
        "def test_early(): print('ran early')\n"
        "def test_early_too(): assert 'BREAKS' not in os.environ; print('ran early too')\n"
        "@pytest.mark.parametrize('of', ['two words'])\ndef test_late(of): print('ran late')\n"
    )
    alone = {"DEVICE": "cpu", "CAESURA_WORK": tmp_path / "work", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": 1}

    def ran(expected: int = 0, **more: object) -> list[str]:
        said = script("test", "-s", "--tb=no", checkout=checkout, expected=expected, **alone, **more)
        return re.findall(r"ran (.+)", said)

    assert ran(1, BREAKS=1) == ["early", "late"]
    assert ran() == ["early too"]
    assert ran() == []


def test_what_is_worth_most_comes_first_and_nothing_twice(machine: Machine) -> None:
    assert machine.call() == (DONE, ENTRIES)
    assert (machine.out / "measured.jsonl").read_text() == "{}\n" * len(ENTRIES)
    assert machine.call() == (DONE, [])


def test_every_entry_has_the_seconds_that_are_documented() -> None:
    queue, pages = ((ROOT / "gpu" / name).read_text() for name in ("queue", "README.md"))
    budgets = re.findall(r"run \$\{most:-(\d+)\} (.+)", queue)
    assert [name for _, name in budgets] == ENTRIES
    table = re.findall(r"^\| (?:`(.+?)` )?\| (\d+) \|", pages, re.M)
    assert [(seconds, name) for name, seconds in table if name] == budgets
    assert sum(int(seconds) for seconds, _ in budgets[: [name for name, _ in table].index("")]) == 480


def test_a_call_ends_within_its_time_and_the_next_one_goes_on(machine: Machine) -> None:
    machine.says("gemma", "exit 75")
    said, calls = machine.call()
    assert said == AGAIN
    unfinished = [name for name in ENTRIES if name.startswith("gemma")]
    assert calls == [*ENTRIES, *unfinished], "what had too little time gets what is left over"
    machine.says("gemma", "")
    assert machine.call(LIMIT=15) == (AGAIN, []), "nothing is begun in the last seconds"
    assert machine.call() == (DONE, unfinished)


def test_what_hangs_is_stopped(machine: Machine) -> None:
    machine.says("probe", "exec sleep 60")
    said, calls = machine.call(LIMIT=2, LEAST=1)
    assert (said, calls) == (AGAIN, ["probe"])


def test_what_fails_is_tried_twice_and_said(machine: Machine) -> None:
    machine.says("kernels", "exit 1")
    _, calls = machine.call(expected=1)
    assert calls == [*ENTRIES, "kernels --peers"]
    assert machine.call(expected=1)[1] == []


def trained(machine: Machine) -> None:
    (machine.work / "model").mkdir()
    (machine.work / "model" / "manifest.json").touch()
    machine.says("take", 'echo "gpu/take: load $1 of 2."; touch "$OUT/load$1"')


def test_training_comes_after_measuring_and_a_call_returns_with_its_result(machine: Machine) -> None:
    trained(machine)
    machine.says("train", "")
    assert machine.call() == (AGAIN, [*ENTRIES, "train"]), "it goes on beyond this call"
    machine.says("train", 'touch "$CAESURA_WORK/run/done"')
    assert machine.call() == (AGAIN, ["train", "take 1"])
    assert machine.call() == (AGAIN, ["train", "take 2"])
    assert machine.call() == (DONE, ["train"])
    brought = sorted(path.name for path in machine.out.iterdir())
    assert brought == ["load1", "load2", "measured.jsonl", "page.txt", "queue.log"]


def test_training_begins_once_measuring_has_had_its_seconds(machine: Machine) -> None:
    """Also where an entry was cut in the middle, which goes on after the training."""
    trained(machine)
    machine.says("train", "")
    machine.says("gemma", "exit 75")
    said, calls = machine.call(LIMIT=480)
    assert (said, "train" in calls) == (AGAIN, False), "there is time left for measuring"
    (machine.work / "queue" / "gemma fp8.s").write_text("670")
    assert machine.call(LIMIT=220)[1][-1] == "train"
    machine.says("gemma", "")
    machine.says("train", 'touch "$CAESURA_WORK/run/done"')
    assert [machine.call()[1] for _ in range(2)] == [["train", "take 1"], ["train", "take 2"]]
    left = [name for name in ENTRIES if name.startswith("gemma")]
    assert machine.call() == (DONE, ["train", *left[1:], left[0]]), "what had its seconds comes last"


def test_without_seconds_for_measuring_the_training_is_first(machine: Machine) -> None:
    trained(machine)
    machine.says("train", "")
    assert machine.call(MEASURE=0) == (AGAIN, ["train"])


def test_a_training_that_fails_does_not_keep_the_rest_from_being_measured(machine: Machine) -> None:
    trained(machine)
    machine.says("train", "exit 1")
    assert machine.call(expected=1, MEASURE=0)[1] == ["train"], "somebody may know what to do"
    assert machine.call(expected=1)[1] == ENTRIES


def test_what_was_done_while_weights_travelled_is_not_done_again_and_what_was_not_is_stopped(machine: Machine) -> None:
    trained(machine)
    machine.says("train", 'touch "$CAESURA_WORK/run/done"')
    (machine.work / "queue").mkdir()
    (machine.work / "queue" / "test.done").touch()
    (machine.work / "idle").mkdir()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as idle:
        (machine.work / "idle" / "pid").write_text(f"{idle.pid}\n")
        calls = machine.call()[1]
    assert idle.returncode < 0
    assert calls == [*(name for name in ENTRIES if name != "test"), "train", "take 1"]


def test_a_call_brings_the_tables_the_traces_and_one_page(machine: Machine) -> None:
    machine.says(
        "tune",
        """mkdir -p "$CAESURA_WORK/tuned" "$CAESURA_WORK/measured"
        echo {} >"$CAESURA_WORK/tuned/nvidia-h200.json"
        echo zipped >"$CAESURA_WORK/measured/trace-gemma.json.gz"
        echo '{"measure": "probe", "what": "copy", "gb_s": 4300.0}' >"$CAESURA_WORK/measured/probe.jsonl" """,
    )
    machine.says("gemma", '. gpu/env; echo "${CAESURA_TUNED:-formulas}" >>"$CAESURA_WORK/tables"')
    machine.says("profile", '. gpu/env; echo "${CAESURA_TUNED:-formulas}" >>"$CAESURA_WORK/tables"')
    machine.call()
    brought = {path.name for path in machine.out.iterdir()}
    assert brought == {"measured.jsonl", "queue.log", "page.txt", "nvidia-h200.json", "traces.tar"}
    assert re.search(r"copy +- +- +4,300", (machine.out / "page.txt").read_text())
    read = (machine.work / "tables").read_text().splitlines()
    assert read[:2] == ["formulas", str(machine.work / "tuned")], "what comes after the tuning runs with its table"


def test_the_page_has_block_sizes_that_win_and_what_failed(
    scripts: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name: dict[str, Any] = {"measure": "tune", "kernel": "head", "shape": "8x4"}
    found = {"rows": 16, "wins": True}, {"rows": 32, "wins": False}, {"rows": 64, "failed": "lost"}
    (tmp_path / "tune.jsonl").write_text("".join(f"{json.dumps(name | line)}\n" for line in found))
    import_module("page").main(tmp_path)
    said = capsys.readouterr().out
    assert re.findall(r"8x4 +(\d+)", said) == ["16", "64"]
    assert said.rstrip().endswith("lost")


def end_session(leader: int) -> None:
    """As where a machine is cut off: every process of a session ends, whatever its group."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(entry.name)) == leader:
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.mark.slow
def test_the_queue_is_rehearsed_on_a_cpu_with_a_cut_in_the_middle(tmp_path: Path) -> None:
    """The entries that are cheap, as they are. The cut comes while block sizes are measured."""
    pytest.importorskip("triton")
    state, out, cheap = tmp_path / "queue", tmp_path / "out", ("probe", "compile", "tune")
    for folder in (state, out):
        folder.mkdir()
    for name in ENTRIES:
        if name not in cheap:
            (state / f"{name}.done").touch()
    given = {"DEVICE": "cpu", "CAESURA_WORK": tmp_path, "OUT": out, "LEAST": 2}

    def measured_by(name: str) -> list[str]:
        """Whole lines of a book."""
        book = tmp_path / "measured" / f"{name}.jsonl"
        return book.read_text().split("\n")[:-1] if book.exists() else []

    with subprocess.Popen([ROOT / "gpu" / "queue"], env=bare(**given), start_new_session=True) as cut:
        while len(measured_by("tune")) < 3:
            assert cut.poll() is None
            time.sleep(0.01)
        end_session(cut.pid)
    assert not (state / "tune.done").exists()
    first = {name: measured_by(name) for name in ("probe", "tune")}
    assert first["probe"]
    assert DONE in script("queue", **given)
    assert measured_by("probe") == first["probe"]
    known, found = first["tune"], measured_by("tune")
    assert found[: len(known)] == known, "not measured again"
    assert len(found) > len(known)
    names = [tuple(line[n] for n in ("kernel", "shape", "rows")) for line in map(json.loads, found)]
    assert len(names) == len(set(names))
    entries = [line["entry"] for line in map(json.loads, found) if line["entry"]]
    assert json.loads((out / "cpu.json").read_text())["entries"] == entries, "what was found before the cut too"
    assert (out / "measured.jsonl").read_text().splitlines() == [*first["probe"], *found]
    assert {path.name for path in out.iterdir()} == {"measured.jsonl", "queue.log", "page.txt", "cpu.json"}
    assert "Block sizes" in (out / "page.txt").read_text()


# What came back


def test_what_came_back_is_kept_with_its_conditions(measuring: ModuleType, tmp_path: Path) -> None:
    load, results = tmp_path / "load", tmp_path / "results"
    load.mkdir()
    results.mkdir()
    book = measuring.Book(load / "measured.jsonl", "cpu", 60)
    for name in ("a", "b"):
        book.measure({"measure": name}, lambda: {"p50_ms": 1.0})
    (load / "log.jsonl").write_text(
        '{"kind": "eval", "step": 0, "ce_token": 4.5}\n{"kind": "train", "step": 2}\n{"kind": "eval", "step": 3}\n'
    )
    command = [
        sys.executable,
        ROOT / "gpu" / "carried.py",
        "keep",
        "--load",
        load,
        "--out",
        results,
        "--commit",
        "c0ffee",
    ]
    subprocess.run(command, check=True, capture_output=True)
    found, training = (json.loads((results / f"{name}.json").read_text()) for name in ("gpu-cpu", "gpu-cpu-training"))
    conditions = {"commit": "c0ffee", "machine": "cpu", "torch": torch.__version__}
    assert found.items() >= conditions.items() <= training.items()
    assert found["lines"] == [{"measure": name, "p50_ms": 1.0} for name in ("a", "b")]
    assert training["evaluations"] == {"canvas": [{"step": 0, "ce_token": 4.5}, {"step": 3}]}


# What travels


def test_loads_travel_next_to_the_checkout_as_it_is(tmp_path: Path) -> None:
    """64 MiB a call, without the base, which travels in parts."""
    mib, stage = 1 << 20, tmp_path / ".stage"
    for name in ("packs", "coder"):
        (stage / name).mkdir(parents=True)
    for name, size in (("data", 30), (".stage/coder/base-1.safetensors", 50), (".stage/packs/a.pack", 7)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size * mib)
    command = [
        sys.executable,
        ROOT / "gpu" / "carried.py",
        "stage",
        "--out",
        ".stage",
        ".stage/coder/base-1.safetensors",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    loads = [[path.stat().st_size for path in load.iterdir()] for load in stage.glob("[0-9]*")]
    assert sum(map(sum, loads)) >= 57 * mib
    assert max(map(sum, loads)) <= (64 - 30) * mib
    assert len(loads) == 2
    assert (stage / "1" / "a.pack").exists(), "what can be begun with comes first"


def test_for_measuring_alone_weights_only_get_out_of_the_way(machine: Machine) -> None:
    embedded = machine.checkout / "engine" / "embedded"
    embedded.mkdir(parents=True)
    (embedded / "base.safetensors").write_text("weights")
    coder = machine.checkout / "models" / "coder" / "caesura_coder"
    coder.mkdir(parents=True)
    for number in (1, 2):
        (coder / f"base-{number}.safetensors").write_text(f"weights {number}")
    (machine.checkout / "gpu" / "stage").write_bytes((ROOT / "gpu" / "stage").read_bytes())
    (machine.checkout / "gpu" / "stage").chmod(0o755)
    for _ in range(2):
        script("stage", checkout=machine.checkout, NO_WHEELS=1)
        assert not [*embedded.iterdir(), *coder.iterdir()]
        assert not list((machine.checkout / ".stage").glob("[0-9]*"))
    script("stage", "--undo", checkout=machine.checkout)
    assert (embedded / "base.safetensors").read_text() == "weights"
    assert [path.read_text() for path in sorted(coder.iterdir())] == ["weights 1", "weights 2"]
