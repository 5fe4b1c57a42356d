"""FP8 weights that multiply activations in FP8: which models do, and how far their answers move. Computed by the
reference, on the trained mini."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from caesura.engine import models
from caesura.engine.model import Run
from caesura.engine.models.convert import convert
from caesura.engine.models.diffusion_gemma import model as diffusion_gemma
from caesura.engine.models.diffusion_gemma.files import rounding
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma

ROOT = Path(__file__).parents[3]
MINI = ROOT / "tests" / "data" / "mini"
sys.path.insert(0, str(ROOT / "training"))

import sudoku  # noqa: E402
from mini_tasks import Boards  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mini in FP8. Each test leaves config.json as it was."""
    made = tmp_path_factory.mktemp("rounding") / "mini"
    convert(MINI, made, "fp8", lambda done, total: None)
    return made


def load(folder: Path, *, exact: bool = False) -> DiffusionGemma:
    model = models.load(str(folder), "cpu", exact=exact)
    assert isinstance(model, DiffusionGemma)
    return model


def rounds(model: DiffusionGemma) -> set[bool]:
    layers, c = model.weights.layers, model.weights.conditioner
    assert not c.gate_up.rounds
    every = [(one.qkv, one.o, one.gate_up, one.down, one.expert_gate_up, one.expert_down) for one in layers]
    return {matrix.rounds for layer in every for matrix in layer}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were one that multiplies e4m3."""
    monkeypatch.setattr(diffusion_gemma, "fused", lambda _, *, fp8: fp8)


def without(groups: dict[str, Any]) -> None:
    groups["group_0"]["input_activations"] = None


def static(groups: dict[str, Any]) -> None:
    groups["group_0"]["input_activations"]["dynamic"] = False


def partly(groups: dict[str, Any]) -> None:
    groups["group_1"] = {"input_activations": None}


def test_on_a_gpu_a_model_rounds_as_its_file_says(folder: Path, on_gpu: None) -> None:
    assert rounds(load(folder)) == {True}
    assert rounds(load(folder, exact=True)) == {False}
    assert rounds(load(MINI)) == {False}


@pytest.mark.parametrize("change", [without, static, partly])
def test_activations_stay_as_they_come_where_a_file_does_not_say_so(
    folder: Path, on_gpu: None, change: Callable[[dict[str, Any]], None]
) -> None:
    path = folder / "config.json"
    before = path.read_text()
    config = json.loads(before)
    change(config["quantization_config"]["config_groups"])
    path.write_text(json.dumps(config))
    try:
        assert rounds(load(folder)) == {False}
    finally:
        path.write_text(before)


def test_on_a_cpu_activations_stay_as_they_come(folder: Path) -> None:
    assert rounds(load(folder)) == {False}


def test_rounding_activations_moves_answers_no_more_than_rounding_weights(folder: Path) -> None:
    """Sudoku with noise in the hidden cells, a step without conditioning."""
    plain, coded, both = load(MINI), load(folder), load(folder)
    both.weights = rounding(both.weights)
    full, solved = sudoku.collection(40, 1, 987654, most=50)
    board = Boards(plain.tokenizer.encode, 9, min(plain.spec.ends))
    true, hidden = board.render(full[:10], board.rows), board.hide(solved[:10] > 0, board.rows)
    drawn = torch.randint(plain.width, true.shape, generator=torch.Generator().manual_seed(0))
    shown = torch.where(hidden, drawn, true)

    def logits(model: DiffusionGemma) -> Tensor:
        kv = model.cache().lease(board.legend)
        model.prefill(board.legend, kv)
        at = range(kv.length, kv.length + shown.shape[1])
        return torch.cat([model.denoise([Run(kv, row.tolist(), at)]).logits for row in shown])[hidden.flatten()]

    before, weights, activations = (logits(model) for model in (plain, coded, both))
    moved = (weights - before).abs().mean(), (activations - weights).abs().mean()
    assert 0 < moved[1] < 1.3 * moved[0] < 0.2
    assert (activations.argmax(-1) == weights.argmax(-1)).float().mean() > 0.95
