"""Published checkpoints: every format gives the values it stands for, whatever is wrong with a file is said in one
sentence, and a checkpoint is never in memory as a whole.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from caesura.engine.weights import hub
from caesura.engine.weights.checkpoint import Checkpoint
from caesura.engine.weights.hub import INDEX, SINGLE, headers
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import fp8, nvfp4
from caesura.kernels.linear import Linear
from caesura.model_store.reading import UnusableModel

N, K, E = 8, 32, 3
EXPERTS = (E, 2 * N, K)
Tensors = dict[str, Tensor]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def canonical(name: str) -> str | None:
    return None if name.startswith("vision.") else name.removeprefix("model.").replace("moe.experts", "experts")


def save(folder: Path, tensors: Tensors, shards: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    if not shards:
        save_file(tensors, folder / SINGLE)
        return folder
    names = list(tensors)
    places = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


# Formats: how a matrix is stored, and what it stands for, computed here by the books


def dense(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    return {f"{stem}.weight": weight}, weight


def fp8_rows(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    codes, scale = fp8.quantize(weight)
    return {f"{stem}.weight": codes, f"{stem}.weight_scale": scale.bfloat16()}, codes.float() * scale.bfloat16().float()


def fp8_flat_rows(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    codes, scale = fp8.quantize(weight)
    return {f"{stem}.weight": codes, f"{stem}.weight_scale": scale.squeeze(-1)}, codes.float() * scale


def fp8_modelopt(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    scale = weight.abs().amax() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    stored = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.5)}
    return {f"{stem}.{part}": value for part, value in stored.items()}, codes.float() * scale


def nvfp4_values(codes: Tensor, scale: Tensor) -> Tensor:
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = torch.empty(codes.shape[0], 2 * codes.shape[1])
    values[:, 0::2], values[:, 1::2] = table[(codes & 15).long()], table[(codes >> 4).long()]
    return values * scale.float().repeat_interleave(16, 1)


def nvfp4_packed(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    codes, scale, factor = nvfp4.quantize(weight)
    stored = {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": 1 / factor[0]}
    stored["input_global_scale"] = torch.ones(1)
    return {f"{stem}.{part}": value for part, value in stored.items()}, nvfp4_values(codes, scale) * factor


def nvfp4_modelopt(stem: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    codes, scale, factor = nvfp4.quantize(weight)
    stored = {"weight": codes, "weight_scale": scale, "weight_scale_2": factor[0, 0].clone()}
    stored["input_scale"] = torch.tensor(1.0)
    return {f"{stem}.{part}": value for part, value in stored.items()}, nvfp4_values(codes, scale) * factor


FORMS = [dense, fp8_rows, fp8_flat_rows, fp8_modelopt, nvfp4_packed, nvfp4_modelopt]
Form = Callable[[str, Tensor], tuple[Tensors, Tensor]]


def same(linear: Linear, expected: Tensor) -> None:
    torch.testing.assert_close(linear.dense(torch.float32), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shards", [0, 2])
def test_a_matrix_is_what_its_format_says(form: Form, shards: int, tmp_path: Path) -> None:
    tensors, expected = form("model.a", random(N, K))
    checkpoint = Checkpoint(save(tmp_path / "m", tensors, shards), canonical)
    same(checkpoint.linear("a", (N, K)), expected)
    checkpoint.finish()


@pytest.mark.parametrize("prefix", ["model.experts", "model.moe.experts"])
@pytest.mark.parametrize("form", FORMS)
def test_experts_stored_one_by_one_become_a_stack(form: Form, prefix: str, tmp_path: Path) -> None:
    """The factors and scales of gate and up, and of every expert, are different ones."""
    tensors, expected = dict[str, Tensor](), torch.empty(EXPERTS)
    for e in range(E):
        for half, part in enumerate(("gate_proj", "up_proj")):
            stored, values = form(f"{prefix}.{e}.{part}", random(N, K, seed=10 * e + half) * (e + 1) * (half + 0.5))
            tensors |= stored
            expected[e, half * N : (half + 1) * N] = values
    checkpoint = Checkpoint(save(tmp_path / "m", tensors, 2), canonical)
    same(checkpoint.experts("experts", "gate_up_proj", ("gate_proj", "up_proj"), EXPERTS), expected)
    checkpoint.finish()


@pytest.mark.parametrize("form", FORMS)
def test_experts_stored_as_a_stack(form: Form, tmp_path: Path) -> None:
    stored = [form("experts.gate_up_proj", random(2 * N, K, seed=e) * (e + 1)) for e in range(E)]
    tensors = {name: torch.stack([one[name] for one, _ in stored]) for name in stored[0][0]}
    if form is dense:
        tensors = {"experts.gate_up_proj": tensors["experts.gate_up_proj.weight"]}  # as it is published
    checkpoint = Checkpoint(save(tmp_path / "m", tensors), canonical)
    linear = checkpoint.experts("experts", "gate_up_proj", ("gate_proj", "up_proj"), EXPERTS)
    same(linear, torch.stack([values for _, values in stored]))
    checkpoint.finish()


def test_dense_tensors_come_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    tensors = {"a.weight": random(N, K).bfloat16(), "b": random(N).half(), "head": random(3)}
    checkpoint = Checkpoint(save(tmp_path / "m", tensors), canonical)
    assert checkpoint.linear("a", (N, K), torch.float32).tensors[0].dtype == torch.float32
    assert checkpoint.tensor("b", (N,)).dtype == torch.float16
    assert checkpoint.optional("none", (N,)) is None
    assert torch.equal(checkpoint.tensor("head", (3,)), tensors["head"])


def test_what_is_left_out_on_purpose_is_named(tmp_path: Path) -> None:
    tensors = {"a.weight": random(N, K), "vision.b": random(3), "layers.0.self_attn.k_scale": torch.ones(1)}
    tensors["layers.0.self_attn.v_proj.output_scale"] = torch.ones(1)
    checkpoint = Checkpoint(save(tmp_path / "m", tensors), canonical)
    checkpoint.linear("a", (N, K))
    checkpoint.finish()
    assert sorted(checkpoint.skipped) == sorted(tensors.keys() - {"a.weight"})


def test_the_same_tensor_under_two_names_is_one(tmp_path: Path) -> None:
    tensors = {"a.weight": random(N, K), "model.a.weight": random(N, K)}
    checkpoint = Checkpoint(save(tmp_path / "m", tensors), canonical)
    same(checkpoint.linear("a", (N, K)), tensors["a.weight"])
    checkpoint.finish()


def test_a_tensor_is_taken_once(tmp_path: Path) -> None:
    checkpoint = Checkpoint(save(tmp_path / "m", {"a": random(3)}), canonical)
    checkpoint.tensor("a", (3,))
    with pytest.raises(WeightsError, match="no tensor a"):
        checkpoint.tensor("a", (3,))


def test_without_values_shapes_are_checked_all_the_same(tmp_path: Path) -> None:
    tensors = {**nvfp4_packed("a", random(N, K))[0], "experts.0.down_proj.weight": random(N, K)}
    checkpoint = Checkpoint(save(tmp_path / "m", tensors), canonical, "meta")
    assert {tensor.device.type for tensor in checkpoint.linear("a", (N, K)).tensors} == {"meta"}
    stack = checkpoint.experts("experts", "down_proj", ("down_proj",), (1, N, K))
    assert (stack.shape, stack.tensors[0].device.type) == ((1, N, K), "meta")
    checkpoint.finish()


# What is wrong with a checkpoint


def load(folder: Path) -> None:
    """A small family: a vector, a dense, an FP8 and an NVFP4 matrix, and two experts."""
    checkpoint = Checkpoint(folder, canonical)
    checkpoint.tensor("norm", (K,))
    for stem in ("a", "b", "c"):
        checkpoint.linear(stem, (N, K))
    checkpoint.experts("experts", "gate_up_proj", ("gate_proj", "up_proj"), (2, 2 * N, K))
    checkpoint.finish()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return whole(tmp_path)


def whole(tmp_path: Path) -> Path:
    tensors = {"norm": random(K), **dense("a", random(N, K))[0]}
    tensors |= fp8_rows("b", random(N, K))[0] | nvfp4_packed("c", random(N, K))[0]
    for e in range(2):
        for part in ("gate_proj", "up_proj"):
            tensors |= fp8_rows(f"experts.{e}.{part}", random(N, K))[0]
    return save(tmp_path / "model", tensors, 3)


def change(folder: Path, **changes: Tensor | None) -> None:
    """Replace, add or remove tensors; `__` in a name is a dot. The index follows."""
    index = json.loads((folder / INDEX).read_text())
    for name, tensor in ((name.replace("__", "."), tensor) for name, tensor in changes.items()):
        file = index["weight_map"].pop(name, "model-0.safetensors")
        tensors = load_file(folder / file)
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
            index["weight_map"][name] = file
        save_file(tensors, folder / file)
    (folder / INDEX).write_text(json.dumps(index))


def place(folder: Path, name: str, file: Any) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][name] = file
    (folder / INDEX).write_text(json.dumps(index))


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def of(folder: Path, name: str) -> Tensor:
    file = json.loads((folder / INDEX).read_text())["weight_map"][name]
    return load_file(folder / file)[name].clone()


def spoiled(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.flatten()[0] = value
    return tensor


def e4m3(byte: int, *shape: int) -> Tensor:
    return torch.full(shape, byte, dtype=torch.uint8).view(torch.float8_e4m3fn)


SHARD = "model-0.safetensors"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (lambda f: (f / INDEX).unlink(), r"has neither model.safetensors nor .*index.json"),
    "index is not JSON": (lambda f: (f / INDEX).write_text("{"), r"index.json is damaged .*download the model again"),
    "index is a list": (lambda f: (f / INDEX).write_text("[]"), r"index.json is damaged"),
    "index too deep": (lambda f: (f / INDEX).write_text('{"a":' * 100_000), r"index.json is damaged"),
    "missing shard": (lambda f: (f / SHARD).unlink(), r"model-0.safetensors is missing; .*download the model again"),
    "index names a missing file": (lambda f: place(f, "norm", "model-9.safetensors"), "model-9.safetensors is missing"),
    "index leaves the folder": (lambda f: place(f, "norm", "../x.safetensors"), r"names '\.\./x.* no weights file of"),
    "index with an absolute path": (lambda f: place(f, "norm", "/x.safetensors"), r"names '/x.safetensors'"),
    "index with a number": (lambda f: place(f, "norm", 3), r"Expected `str`, got `int`"),
    "index puts a tensor elsewhere": (
        lambda f: place(f, "norm", "model-1.safetensors"),
        r"model-1.* has no tensor norm",
    ),
    "truncated shard": (lambda f: rewrite(f / SHARD, lambda b: b[:-9]), r"model-0.safetensors is damaged \(.*again"),
    "empty shard": (lambda f: (f / SHARD).write_bytes(b""), r"model-0.safetensors is damaged"),
    "corrupted header": (lambda f: rewrite(f / SHARD, lambda b: b[:9] + b"x" * 40 + b[49:]), r"model-0.* is damaged"),
    "header of another length": (lambda f: rewrite(f / SHARD, lambda b: b"\xff" * 8 + b[8:]), r"model-0.* is damaged"),
    "renamed tensor": (lambda f: change(f, norm=None, norn=random(K)), r"has no tensor norm, which this model needs"),
    "extra tensor": (lambda f: change(f, d__bias=random(N)), r"has 1 tensors without a place in this model: d.bias;"),
    "reshaped vector": (lambda f: change(f, norm=random(K + 1)), r"norm has the shape \[33\] instead of \[32\]"),
    "transposed matrix": (lambda f: change(f, a__weight=random(K, N)), r"a.weight has the shape \[32, 8\] instead"),
    "whole numbers": (
        lambda f: change(f, norm=torch.ones(K, dtype=torch.int32)),
        r"norm is of type I32 instead of BF16",
    ),
    "codes without a scale": (lambda f: change(f, b__weight_scale=None), r"has no tensor b.weight_scale"),
    "scale of another shape": (
        lambda f: change(f, b__weight_scale=random(N, 2)),
        r"b.weight_scale has the shape \[8, 2\]",
    ),
    "NaN scale": (
        lambda f: change(f, b__weight_scale=spoiled(of(f, "b.weight_scale"), float("nan"))),
        r"b.weight_scale holds something that is no scale",
    ),
    "negative scale": (lambda f: change(f, b__weight_scale=-torch.ones(N, 1)), r"b.weight_scale holds something"),
    "scale of 8-bit NaN": (
        lambda f: change(f, c__weight_scale=e4m3(0xFF, N, K // 16)),
        r"c.weight_scale holds something",
    ),
    "divisor of zero": (lambda f: change(f, c__weight_global_scale=torch.zeros(1)), r"c.weight_global_scale holds"),
    "packed too narrow": (
        lambda f: change(f, c__weight_packed=torch.zeros(N, K // 2 - 1, dtype=torch.uint8)),
        r"c.weight_packed has the shape \[8, 15\] instead of \[8, 16\]",
    ),
    "packed scale of floats": (lambda f: change(f, c__weight_scale=random(N, 2)), r"c.weight_scale is of type F32"),
    "a zero point": (lambda f: change(f, b__weight_zero_point=torch.ones(N, 1)), r"1 tensors .*: b.weight_zero_point"),
    "one expert missing": (
        lambda f: change(f, experts__1__up_proj__weight=None),
        r"has no tensor experts.1.up_proj.weight",
    ),
    "one expert too many": (
        lambda f: change(f, experts__2__up_proj__weight=random(N, K)),
        r"has 1 tensors .*: experts.2.up_proj.weight",
    ),
    "experts of two precisions": (
        lambda f: change(f, experts__1__up_proj__weight=random(N, K), experts__1__up_proj__weight_scale=None),
        r"the experts of experts are not all of one precision",
    ),
    "two names that differ": (
        lambda f: change(f, model__norm=random(K, seed=9)),
        r"norm and (model.)?norm must be the same and are not",
    ),
    "a tensor in two shards": (
        lambda f: save_file({**load_file(f / SHARD), **load_file(f / "model-1.safetensors")}, f / SHARD),
        r"model-1.safetensors and model-0.safetensors both have",
    ),
}


def test_the_checkpoint_that_is_broken_below_is_whole(folder: Path) -> None:
    load(folder)


@pytest.mark.parametrize("case", REFUSED)
def test_a_broken_checkpoint_is_refused_in_a_sentence(folder: Path, case: str) -> None:
    breaks, sentence = REFUSED[case]
    breaks(folder)
    with pytest.raises(UnusableModel, match=sentence) as caught:
        load(folder)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert len(said) < 600


def test_a_huge_index_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_LARGE", (folder / INDEX).stat().st_size - 1)
    with pytest.raises(UnusableModel, match=r"index.json is larger than"):
        load(folder)


def test_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"has neither model.safetensors nor model.safetensors.index.json; download"):
        Checkpoint(tmp_path, canonical)


def test_a_width_that_has_no_whole_groups_is_not_nvfp4(tmp_path: Path) -> None:
    tensors = {"a.weight_packed": torch.zeros(N, 12, dtype=torch.uint8), "a.weight_scale": e4m3(8, N, 1)}
    checkpoint = Checkpoint(save(tmp_path / "m", {**tensors, "a.weight_global_scale": torch.ones(1)}), canonical)
    with pytest.raises(WeightsError, match="24 columns are no multiple of 16"):
        checkpoint.linear("a", (N, 24))


def test_an_entry_counts_its_bytes(tmp_path: Path) -> None:
    tensors = {"a": random(3, 5).bfloat16(), "b": torch.zeros(7, dtype=torch.uint8), "c": e4m3(0, 11)}
    assert sorted(entry.nbytes for entry in headers(save(tmp_path / "m", tensors))) == [7, 11, 30]


# Memory

LAYERS, WIDTH = 6, 1024  # a layer is 16 MiB of dense weights, or 4 MiB of FP8 experts, and so is a shard
WATCH = """
import sys
from pathlib import Path
import torch
from caesura.engine.weights.checkpoint import Checkpoint

def resident(*kinds):
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) / 1024

def mapped():
    return len({line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith(".safetensors")})

layers, width, experts = int(sys.argv[2]), int(sys.argv[3]), 16
checkpoint = Checkpoint(Path(sys.argv[1]), lambda name: name)
torch.ones(8, 8).sum()
before, peak, files = resident("RssAnon", "RssFile"), 0.0, 0
for layer in range(layers):
    a = checkpoint.linear(f"layers.{layer}.a", (4 * width, width))
    b = checkpoint.experts(f"layers.{layer}", "b", ("b",), (experts, 256, width))
    total = a.dense(torch.float32).sum() + sum(b[e].dense(torch.float32).sum() for e in range(experts))
    peak, files = max(peak, resident("RssAnon", "RssFile") - before), max(files, mapped())
    del a, b
checkpoint.finish()
print(peak, files, mapped())
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the process's memory from /proc")
def test_loading_holds_no_more_than_a_shard_and_a_layer(tmp_path: Path) -> None:
    """As a GPU is filled: layer after layer, each let go when it has been read whole."""
    places: dict[str, str] = {}
    for layer in range(LAYERS):
        file = f"model-{layer}.safetensors"
        tensors = {f"layers.{layer}.a.weight": torch.ones(4 * WIDTH, WIDTH)}
        codes = torch.ones(256, WIDTH).to(torch.float8_e4m3fn)
        for e in range(16):
            tensors |= {
                f"layers.{layer}.{e}.b.weight": codes.clone(),
                f"layers.{layer}.{e}.b.weight_scale": torch.ones(1),
            }
        places |= dict.fromkeys(tensors, file)
        save_file(tensors, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    command = [sys.executable, "-P", "-c", WATCH, str(tmp_path), str(LAYERS), str(WIDTH)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, files, left = map(float, done.stdout.split())
    assert peak < 20 + 20 + 8, "MiB: a shard, a layer, and what the sum itself takes"
    assert (files, left) == (1, 0)
