"""What a model computes, and the one sentence for every file that is not what it should be."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from caesura.engine import models
from caesura.engine.cache import KV
from caesura.engine.model import Model, ModelError, Run
from caesura.engine.models.llama import packed, trunk
from caesura.engine.models.llama.config import MATRICES, SPECIALS, Config
from caesura.engine.models.llama.layer import times
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.models.llama.packed import matrix
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.weights import stored
from caesura.engine.weights.sources import InMemory
from caesura.kernels import cpu

from ...support.checkpoints import compared
from ...support.checkpoints.tiny import CODE, CONFIG

built = pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")
IDS = list(range(30, 90))


def context(model: NativeLlama | BlockLlama, ids: list[int]) -> KV:
    kv = model.cache().lease(ids)
    model.prefill(ids, kv)
    return kv


def causal(model: NativeLlama | BlockLlama, kv: KV, ids: list[int]) -> Tensor:
    mask = np.tri(len(ids), dtype=np.bool_)
    scores, _ = model.forward([Run(kv, ids, range(kv.length, kv.length + len(ids)), mask)])
    kv.truncate(len(kv.ids))
    return compared.tensor(scores)


def drawn(model: Model, *runs: Run) -> Tensor:
    return compared.tensor(model.denoise(runs))


def judged(model: NativeLlama | BlockLlama, *trees: Run) -> Tensor:
    return compared.tensor(model.forward(trees)[0])


@pytest.fixture
def by_torch(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> BlockLlama:
    """The tiny model as it is where our own library was not built."""
    monkeypatch.setenv("CAESURA_CPU", "torch")
    model = models.load(str(tiny_folder))
    assert isinstance(model, BlockLlama)
    return model


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def changed(folder: Path, **config: Any) -> Path:
    """Another config, and a manifest that agrees with it."""
    old = json.loads((folder / "config.json").read_text())
    new = {k: v for k, v in {**old, **config}.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(new))
    return sealed(folder)


def sealed(folder: Path) -> Path:
    stored.write_manifest(folder, {"name": "changed"})
    return folder


def adapter_of(config: Config, *, zero: bool, seed: int = 0) -> dict[str, Tensor]:
    """Low-rank updates of every matrix, canvas norms and the special rows."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    out = {"special": normal(len(SPECIALS), config.hidden_size)}
    for layer in range(config.num_layers):
        for name in MATRICES:
            n, k = config.shape(name)
            out[f"layers.{layer}.{name}.a"] = normal(4, k)
            out[f"layers.{layer}.{name}.b"] = normal(n, 4) * (0.0 if zero else 1.0)
        if not zero:
            out[f"layers.{layer}.attn_norm"] = 1 + normal(config.hidden_size)
    return out


def with_adapter(folder: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "adapter.safetensors")
    return sealed(folder)


# What a model computes


def test_the_tiny_model_is_tiny(tiny_folder: Path) -> None:
    assert sum(p.stat().st_size for p in tiny_folder.iterdir()) < 1 << 20


def test_appending_to_the_kv_equals_a_full_prefill(tiny: NativeLlama) -> None:
    whole = causal(tiny, tiny.cache().lease([]), IDS)
    kv = context(tiny, IDS[:20])
    tiny.prefill(IDS[20:33], kv)
    parts = causal(tiny, kv, IDS[33:])
    torch.testing.assert_close(parts, whole[33:], atol=5e-3, rtol=0)
    assert torch.equal(parts.argmax(-1), whole[33:].argmax(-1))


def test_a_fork_computes_what_its_original_does(tiny: NativeLlama) -> None:
    kv = context(tiny, IDS)
    fork = kv.fork()
    tiny.prefill([1, 2, 3], kv)
    assert torch.equal(causal(tiny, fork, [5, 6]), causal(tiny, context(tiny, IDS), [5, 6]))


def test_nothing_is_kept_unless_asked(tiny: NativeLlama) -> None:
    kv = context(tiny, IDS)
    before = causal(tiny, kv, [5, 6, 7])
    tiny.denoise([Run(kv, [8, 9, 400], range(60, 63), None, [2])])
    assert (kv.length, kv.ids) == (60, IDS)
    assert torch.equal(causal(tiny, kv, [5, 6, 7]), before)
    tiny.forward([Run(kv, [5], [60])])
    assert kv.length == 61
    assert torch.equal(causal(tiny, kv, [6, 7]), before[1:])


def test_rows_after_a_context_can_be_asked_for_their_logits(tiny: NativeLlama) -> None:
    canvas = Run(context(tiny, IDS[:40]), IDS[40:], range(40, 60))
    found = compared.logits(tiny, IDS, context=40)
    assert torch.equal(found[:-1], drawn(tiny, canvas)[1:])  # a row of the canvas is told by the one before


def test_a_row_that_is_masked_is_not_seen(tiny: NativeLlama) -> None:
    kv = context(tiny, IDS)
    tree = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)  # two children of one row
    both = judged(tiny, Run(kv, [5, 6, 7], [60, 61, 61], tree))
    kv.truncate(60)
    for child, row in ((6, 1), (7, 2)):
        torch.testing.assert_close(both[row], causal(tiny, kv, [5, child])[1], atol=1e-3, rtol=0)


def test_a_tree_and_a_canvas_in_one_forward_are_what_each_is_alone(tiny: NativeLlama, folder: Path) -> None:
    model = models.load(str(with_adapter(folder, adapter_of(tiny.config, zero=False))))
    assert isinstance(model, NativeLlama)
    tree = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)
    branches, canvas = ([5, 6, 7], [60, 61, 61], tree), ([8, 9, 400, 401], range(60, 64), None, [2, 3])
    alone = model.forward([Run(context(model, IDS), *branches)])[0], model.denoise([Run(context(model, IDS), *canvas)])
    kv = context(model, IDS[:41])
    together = model.forward([Run(kv, *branches, fresh=IDS[41:])], [Run(kv, *canvas)])
    for found in zip(together, alone, strict=True):
        one, other = map(compared.tensor, found)
        torch.testing.assert_close(one, other, atol=2e-2, rtol=0)
        assert torch.equal(one.argmax(-1), other.argmax(-1))
    assert (kv.ids, kv.length) == (IDS, 63)  # the tree stays behind the context


def test_what_lies_behind_the_rows_is_not_seen(tiny: NativeLlama) -> None:
    kv, clean = context(tiny, IDS), context(tiny, IDS)
    for layer in range(tiny.config.num_layers):
        for rows in kv.get(layer, 70, 128):
            rows[:] = int(np.float32(1e9).view(np.uint32)) >> 16  # in bfloat16; finite, as what was put there once is
    assert torch.equal(causal(tiny, kv, [5, 6, 7]), causal(tiny, clean, [5, 6, 7]))


def test_attention_in_bfloat16_is_that_in_float32_but_for_rounding(
    by_torch: BlockLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = []
    for supported in (False, True):  # as the CPU says
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda supported=supported: supported)
        logits.append(causal(by_torch, context(by_torch, IDS), [5, 6, 7]))
    exact, rounded = logits
    assert 0 < (rounded - exact).norm() < 0.02 * exact.norm()


def test_runs_do_not_see_each_other(tiny: NativeLlama) -> None:
    first, second = context(tiny, IDS), context(tiny, IDS[10:30])
    one, other = Run(first, [7, 8, 400], range(60, 63), None, [1, 2]), Run(second, [9, 400], range(20, 22), None, [1])
    together = drawn(tiny, one, other)
    assert torch.equal(together[:2], drawn(tiny, one))
    assert torch.equal(together[2:], drawn(tiny, other))


def test_two_canvases_behind_one_context_do_not_see_each_other(tiny: NativeLlama) -> None:
    kv = context(tiny, IDS)
    one, other = Run(kv, [7, 8, 400], range(60, 63), None, [1, 2]), Run(kv, [9, 400], range(60, 62), None, [1])
    assert torch.equal(drawn(tiny, one, other), torch.cat((drawn(tiny, one), drawn(tiny, other))))


def test_logits_are_one_row_for_each_wanted(tiny: NativeLlama) -> None:
    kv = context(tiny, IDS)
    assert tiny.denoise([Run(kv, [1, 400, 400], range(60, 63), None, [1, 2])]).logits.shape == (2, 402)
    assert tiny.forward([Run(kv, [1, 2, 3], range(60, 63))])[0].logits.shape == (3, 400)


# Base and adapter


def test_an_adapter_leaves_the_context_path_alone(tiny: NativeLlama, folder: Path) -> None:
    adapted = models.load(str(with_adapter(folder, adapter_of(tiny.config, zero=False))))
    assert isinstance(adapted, NativeLlama)
    assert torch.equal(causal(adapted, context(adapted, IDS), IDS[:9]), causal(tiny, context(tiny, IDS), IDS[:9]))
    run = [1, 2, 400]
    ours, theirs = (drawn(m, Run(context(m, IDS), run, range(60, 63), None, [2])) for m in (adapted, tiny))
    assert not torch.allclose(ours[:, :400], theirs[:, :400], atol=1e-2)


def test_with_a_zero_adapter_a_canvas_of_one_slot_is_the_next_token_model(tiny: NativeLlama, folder: Path) -> None:
    zero = models.load(str(with_adapter(folder, adapter_of(tiny.config, zero=True))))
    assert isinstance(zero, NativeLlama)
    for model in (zero, tiny):  # and without an adapter file
        kv = context(model, IDS)
        slot = drawn(model, Run(kv, [9], [60], None, [1]))
        assert torch.equal(slot[:, :400], causal(model, kv, [9]))


# Files that are not what they should be


@pytest.mark.parametrize("form", [packed.by_torch, pytest.param(packed.by_library, marks=built)])
def test_one_packed_matrix_serves_both_paths(form: packed.Form) -> None:
    draw = torch.Generator().manual_seed(0)
    weight, down, up, x = (torch.randn(*size, generator=draw) for size in ((96, 64), (8, 64), (96, 8), (5, 64)))
    base, adapter = InMemory({"m": weight.numpy()}), InMemory({"m.a": down.numpy(), "m.b": up.numpy()})
    held = matrix(base, adapter, "m", (96, 64), form)
    for canvas, exact in ((False, x @ weight.T), (True, x @ (weight + up @ down).T)):
        assert (times(x, held, canvas) - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("fresh", [0, 3, 30])
def test_rows_that_two_threads_share_are_what_one_makes_of_them(
    by_torch: BlockLlama, monkeypatch: pytest.MonkeyPatch, fresh: int
) -> None:
    draw, count = random.Random(fresh), 40
    mask = np.eye(count, dtype=np.bool_)
    for row in range(1, count):  # of a tree, each behind another
        mask[row] |= mask[draw.randrange(row)]
    found = []
    for most in (count + fresh, 4):
        monkeypatch.setattr(trunk, "WORTH_TWO", most)
        kv = context(by_torch, IDS)
        ids, positions = list(range(40, 40 + count)), [len(IDS) + fresh + int(row.sum()) - 1 for row in mask]
        found.append(judged(by_torch, Run(kv, ids, positions, mask, fresh=IDS[:fresh])))
        assert kv.ids == [*IDS, *IDS[:fresh]]
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


def trees(model: NativeLlama | BlockLlama, several: int) -> list[Run]:
    """Each behind a context of its own, with fresh rows."""
    chain = np.tri(9, dtype=np.bool_)
    at = len(IDS) + 2
    return [Run(context(model, IDS), IDS[n : n + 9], range(at, at + 9), chain, fresh=IDS[:2]) for n in range(several)]


def test_trees_of_several_jobs_are_cut_wherever_the_middle_lies(
    by_torch: BlockLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (99, 4):
        monkeypatch.setattr(trunk, "WORTH_TWO", most)
        found.append(judged(by_torch, *trees(by_torch, 3)))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize(  # torch's layers in two lanes, and the library, which has one
    ("place", "ahead"), [("_layer", True), ("_layer", False), pytest.param("through", True, marks=built)]
)
def test_a_thread_that_fails_ends_the_forward_and_no_other(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, place: str, ahead: bool
) -> None:
    """The one that waits for it neither hangs nor goes on behind it."""
    model: NativeLlama | BlockLlama = request.getfixturevalue("by_torch" if place == "_layer" else "tiny")
    right, works, asked = judged(model, *trees(model, 2)), getattr(model._paths[0], place), []

    def fails(*arguments: Any) -> Any:
        asked.append(threading.current_thread() is threading.main_thread())
        if asked[-1] == ahead:
            raise RuntimeError("a fault of this lane")
        return works(*arguments)

    with monkeypatch.context() as broken:
        broken.setattr(model._paths[0], place, fails)
        with pytest.raises(RuntimeError, match="a fault of this lane"):
            model.forward(trees(model, 2))
    torch.testing.assert_close(judged(model, *trees(model, 2)), right, atol=1e-4, rtol=0)


def said(folder: Path, before: str = "", **env: str) -> tuple[str, Tensor]:
    """In a process of its own: what kind of function a layer is, and the logits of a tree and of a canvas."""
    asked = f"""
import numpy as np
import torch
{before}
from caesura.engine import models
from caesura.engine.model import Run
from caesura.engine.models.llama import layer as llama_layer
model = models.load({str(folder)!r})
kv = model.cache().lease([])
model.prefill({IDS}, kv)
chain = np.tri(20, dtype=np.bool_)
tree, canvas = (Run(kv, {IDS[:20]}, range({len(IDS)}, {len(IDS) + 20}), mask) for mask in (chain, None))
judged, logits = (scores.logits for scores in model.forward([tree], [canvas]))
print(type(llama_layer.layer).__name__, [judged.tolist(), logits[:, : judged.shape[1]].tolist()])
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", asked],
        env=os.environ | {"CAESURA_CPU": "torch"} | env,
        capture_output=True,
        check=True,
        text=True,
    )
    kind, logits = done.stdout.split(" ", 1)
    return kind, torch.tensor(json.loads(logits))


@pytest.mark.slow
def test_where_there_is_no_torchscript_the_same_comes_out(folder: Path) -> None:
    (plain, expected), (scripted, found) = (said(folder, PYTORCH_JIT=on) for on in "01")
    assert (plain, scripted) == ("function", "ScriptFunction")
    assert torch.equal(found, expected)


def test_where_there_is_no_int8_kernel_nearly_the_same_comes_out(folder: Path) -> None:
    """As on ARM without our own library."""
    _, expected = said(folder)
    scripted, found = said(folder, "torch.backends.quantized.engine = 'onednn'")
    assert scripted == "ScriptFunction"
    assert 0 < (found - expected).norm() < 0.05 * expected.norm()


def test_no_such_kernels_are_a_sentence(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAESURA_CPU", "sse")
    with pytest.raises(ModelError, match=r"^CAESURA_CPU is 'sse'; this machine has .*torch\.$"):
        models.load(str(tiny_folder))


def test_no_such_model_is_a_sentence() -> None:
    with pytest.raises(ModelError, match="no model 'nope'"):
        models.load("nope")


def broken(path: str, content: bytes | None, *, seal: bool = False) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        if content is None:
            (folder / path).unlink()
        else:
            (folder / path).write_bytes(content)
        if seal:
            sealed(folder)

    return damage


def flipped(folder: Path) -> None:
    raw = bytearray((folder / "base.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "base.safetensors").write_bytes(raw)


FILES: dict[str, Callable[[Path], None]] = {
    "a flipped bit": flipped,
    "no weights": broken("base.safetensors", None),
    "no weights, and none promised": broken("base.safetensors", None, seal=True),
    "cut weights": broken("base.safetensors", b"\x08\0\0\0\0\0\0\0{}"),
    "no tokenizer": broken("tokenizer.json", None),
    "no tokenizer, and none promised": broken("tokenizer.json", None, seal=True),
    "no config": broken("config.json", None),
    "config is a list": broken("config.json", b"[]", seal=True),
    "config is no JSON": broken("config.json", b"\xff", seal=True),
    "no manifest": broken("manifest.json", None),
    "manifest is a list": broken("manifest.json", b"[]"),
    "manifest without files": broken("manifest.json", b"{}"),
    "manifest with a list of files": broken("manifest.json", b'{"files": []}'),
    "weights are text": broken("base.safetensors", b"hello", seal=True),
    "tokenizer is text": broken("tokenizer.json", b"hello", seal=True),
    "adapter is text": broken("adapter.safetensors", b"hello", seal=True),
}


@pytest.mark.parametrize("damage", FILES.values(), ids=FILES)
def test_a_damaged_file_is_a_sentence(
    folder: Path, damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its tiles are not in the cache yet; later they are what is read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    damage(folder)
    with pytest.raises(ModelError) as caught:
        models.load(str(folder))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gpt9"}, "not supported"),
        ({"model_type": "__init__"}, "not supported"),
        ({"model_type": "../x"}, "not supported"),
        ({"model_type": None}, "config"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "wide"}, "config"),
        ({"num_layers": 3}, "layers.2"),
        ({"num_layers": 999}, "says 999 layers"),
        ({"num_layers": float("inf")}, "config.json is damaged"),
        ({"rms_norm_eps": float("nan")}, "above 0 and at most"),
        ({"hidden_size": 96}, "96"),
        ({"intermediate_size": 128}, "gate_up"),
        ({"num_kv_heads": 2}, "qkv"),
        ({"num_heads": 0}, "config|heads"),
        ({"num_heads": 3, "num_kv_heads": 3}, "config|heads|shape"),
        ({"vocab_size": 500}, "500"),
        ({"separator": "<nope>"}, "<nope>"),
        ({"sampler": "nope"}, "nope"),
        ({"method": "uniform"}, "nor a method of this model"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_config_that_does_not_fit_is_a_sentence(folder: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        models.load(str(changed(folder, **config)))


def without(name: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    change.__name__ = f"no {name}"
    return change


def shaped(name: str, *shape: int) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = torch.zeros(*shape, dtype=tensors[name].dtype)

    change.__name__ = f"{name} {list(shape)}"
    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("norm"), "norm"),
        (shaped("norm", 65), "norm"),
        (without("embed.scale"), "embed"),
        (shaped("embed.scale", 7, 2), "embed"),
        (shaped("embed.q8", 300, 64), "embed"),
        (without("layers.1.out.q4"), "layers.1.out"),
        (without("layers.1.out.min"), "layers.1.out"),
        (shaped("layers.0.mlp_norm", 1), "layers.0.mlp_norm"),
        (shaped("layers.0.down.q4", 64, 40), "layers.0.down"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_tensor_that_does_not_fit_is_named(
    folder: Path, change: Callable[[dict[str, Tensor]], None], says: str
) -> None:
    tensors = load_file(folder / "base.safetensors")
    change(tensors)
    save_file(tensors, folder / "base.safetensors")
    with pytest.raises(ModelError, match=says):
        models.load(str(sealed(folder)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("special"), "special"),
        (shaped("special", 2, 63), "special"),
        (shaped("special", 3, 64), "special"),
        (without("layers.0.out.b"), "layers.0.out"),
        (shaped("layers.0.out.a", 4, 63), "layers.0.out"),
        (shaped("layers.1.attn_norm", 2), "layers.1.attn_norm"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_adapter_that_does_not_fit_is_named(
    tiny: NativeLlama, folder: Path, change: Callable[[dict[str, Tensor]], None], says: str
) -> None:
    tensors = adapter_of(tiny.config, zero=False)
    change(tensors)
    with pytest.raises(ModelError, match=says):
        models.load(str(with_adapter(folder, tensors)))


def test_a_tokenizer_of_another_size_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": 400, "content": "<more>"})
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError, match=r"40[01]"):
        models.load(str(sealed(folder)))


def test_the_tokenizer_knows_the_code_it_was_trained_on(tiny: NativeLlama) -> None:
    assert len(tiny.tokenizer.encode(CODE)) < len(CODE) / 2
    assert tiny.config.vocab_size == CONFIG["vocab_size"] == tiny.tokenizer.size
