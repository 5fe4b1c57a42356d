"""A machine that computes something else than the model was made with is noticed before anybody is answered."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from caesura.engine import canary, models, worker
from caesura.engine.model import ModelError
from caesura.engine.models.llama import layer as llama_layer
from caesura.engine.models.llama import trunk
from caesura.engine.models.llama.layer import KvRows, Shape, attention
from caesura.engine.weights import stored
from caesura.kernels import cpu, int8
from caesura.kernels.cpu import layers
from caesura.model_store import CODER, SMALL, locate

from ..support.checkpoints import tiny


def wrong(q: torch.Tensor, span: KvRows, shape: Shape) -> torch.Tensor:
    return attention(q.flip(-1), span, shape)


def noisy(x: torch.Tensor, packed: Any) -> torch.Tensor:
    out = int8.product(x, packed)
    return out + 0.3 * out.std() * torch.randn(out.shape, generator=torch.Generator().manual_seed(1))


DAMAGE: dict[str, tuple[str, Any]] = {
    "attention is wrong": ("attention", wrong),
    "products are not numbers": ("product", lambda x, packed: int8.product(x, packed) * float("nan")),
    "products are nothing": ("product", lambda x, packed: int8.product(x, packed) * 0),
    "products are noisy": ("product", noisy),
    "positions are not counted": ("rotate", lambda x, cos, sin: x),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_kernel_that_computes_something_else_is_refused_in_a_sentence(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAESURA_CPU", "torch")
    monkeypatch.setattr(llama_layer, "layer", llama_layer.written)
    monkeypatch.setattr(llama_layer, *DAMAGE[damage])
    with pytest.raises(
        worker.CannotLoad, match=rf"^The model {SMALL} does not give .*install Caesura again"
    ) as refused:
        worker.load(SMALL, "cpu")
    assert len(str(refused.value)) <= 256


KINDS = [(SMALL, keys, packed) for keys in (torch.float32, torch.bfloat16) for packed in (True, False)]


@pytest.mark.parametrize(("name", "keys", "packed"), [*KINDS, (CODER, torch.bfloat16, False)])
def test_a_shipped_model_is_itself_on_cpus_of_every_kind(
    name: str, keys: torch.dtype, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without our own library: with and without AVX512-BF16, for keys and values, and the int8 kernels."""
    assert "canary" in json.loads((locate(name) / "manifest.json").read_text())
    monkeypatch.setenv("CAESURA_CPU", "torch")
    monkeypatch.setattr(trunk, "attended", lambda: keys)
    if not packed:
        monkeypatch.setattr(int8, "available", lambda: False)
        monkeypatch.setattr(int8, "product", int8._dense)
        monkeypatch.setattr(llama_layer, "product", int8._dense)
        monkeypatch.setattr(llama_layer, "layer", llama_layer.written)
    assert worker.load(name, "cpu").device == "cpu:torch"


@pytest.mark.parametrize(
    ("name", "variant"),
    [*((SMALL, variant) for variant in cpu.variants()), *((CODER, v) for v in [*cpu.variants()][:1])],
)
def test_a_shipped_model_is_itself_with_every_variant_of_our_library(
    name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAESURA_CPU", variant)
    assert worker.load(name, "cpu").device == f"cpu:{variant}"


@pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")
def test_a_library_that_computes_something_else_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    through = layers.Layers.through

    def still(self: layers.Layers, x: cpu.F32, cos: cpu.F32, sin: cpu.F32, *more: Any) -> Any:
        return through(self, x, np.ones_like(cos), np.zeros_like(sin), *more)

    monkeypatch.setattr(layers.Layers, "through", still)
    with pytest.raises(worker.CannotLoad, match=rf"^The model {SMALL} does not give "):
        worker.load(SMALL, "cpu")


def test_a_model_that_says_something_else_than_it_said_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    model = models.load(str(folder))
    said = canary.record(model)
    stored.write_manifest(folder, {"canary": said})
    canary.check(model, folder)
    stored.write_manifest(folder, {"canary": said | {"logp": [value - 0.6 for value in said["logp"]]}})
    with pytest.raises(ModelError, match="does not give its recorded answers on this machine"):
        canary.check(model, folder)


def test_a_model_without_a_canary_is_not_asked(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny")
    assert "canary" not in json.loads((folder / "manifest.json").read_text())
    assert worker.load(str(folder), "cpu").step_s > 0


HOSTILE: dict[str, Any] = {
    "no object": 7,
    "rows missing": {"best": [1]},
    "an id outside the vocabulary": {"context": [2**30]},
    "a row below nothing": {"best": [-1, 2]},
    "text": {"logp": ["-0.5", "a"]},
    "nothing to read": {"context": []},
    "too much to read": {"context": [1] * 10_000},
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_damaged_canary_is_refused_in_a_sentence(tmp_path: Path, change: str) -> None:
    folder = tiny.make(tmp_path / "tiny")
    said = {"context": [1, 2], "canvas": [3, 4], "best": [1, 2], "logp": [-9.0, -9.0]}
    hostile = HOSTILE[change]
    stored.write_manifest(folder, {"canary": {**said, **hostile} if isinstance(hostile, dict) else hostile})
    with pytest.raises(ModelError, match=r"manifest\.json is damaged.*install"):
        canary.check(models.load(str(folder)), folder)


def test_a_model_without_a_canvas_has_one_too(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "model")
    (folder / "adapter.safetensors").unlink()
    stored.write_manifest(folder, {})
    model = models.load(str(folder))
    assert model.spec.noise is None
    said = canary.record(model)
    stored.write_manifest(folder, {"canary": said})
    canary.check(model, folder)
    stored.write_manifest(folder, {"canary": said | {"logp": [value - 0.6 for value in said["logp"]]}})
    with pytest.raises(ModelError, match="does not give its recorded answers on this machine"):
        canary.check(model, folder)
