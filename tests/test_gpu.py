"""DiffusionGemma on a CUDA device. Needs no more than a GPU machine is assumed to have (gpu/README.md)."""

from pathlib import Path

import pytest
import torch

from caesura.engine import denoise, models
from caesura.engine.canvas import Vocabulary, lay
from caesura.engine.graphs import Graphs
from caesura.engine.models import Run
from caesura.engine.models.diffusion_gemma import DiffusionGemma
from caesura.engine.noise import Uniform
from caesura.engine.samplers import entropy_bound
from caesura.wire import Hole

from . import gemma
from .tiny import CODE, alone, infill

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]


def test_it_finds_what_the_cpu_finds(tmp_path: Path) -> None:
    folder = gemma.published(tmp_path / "tiny")
    here, there = models.load(str(folder), "cpu"), models.load(str(folder), "cuda")
    assert isinstance(there, DiffusionGemma)
    assert there.device.startswith("cuda")
    canvas, prompt = list(range(20, 40)), here.tokenizer.encode(CODE[:400])
    at = range(len(prompt), len(prompt) + len(canvas))
    one, other = (m.denoise([Run(m.cache().lease([]), canvas, at, fresh=prompt)]) for m in (here, there))
    assert torch.allclose(one, other.cpu(), atol=5e-3)
    assert alone(there, infill("a", CODE[:400], CODE[400:600], Hole(12, "line"))).holes[0].text


@pytest.mark.parametrize("seed", range(3))
def test_a_step_as_a_cuda_graph_is_the_step(tmp_path: Path, seed: int) -> None:
    """From the same states: whole fills may part where the last digit of a probability decides."""
    model = models.load(str(gemma.published(tmp_path / "tiny")), "cuda")
    assert isinstance(model, DiffusionGemma)
    assert isinstance(model.noise, Uniform)
    vocabulary, sampler = Vocabulary(model), entropy_bound.select
    recorded = Graphs(model, model.noise.schedule, sampler, vocabulary)
    layout = lay(model, vocabulary, CODE[:400] + "x = ", CODE[400:600], [Hole(20, "line")], slots=20)
    kv = model.cache().lease(layout.context)
    model.prefill(layout.context, kv)
    ours, plain = (
        denoise.Denoising(layout.canvas.resized([20]), kv, sampler, 24, torch.Generator("cuda").manual_seed(seed))
        for _ in range(2)
    )
    while not (ours.finished or plain.finished):
        denoise.step(model, [ours], recorded.step)
        denoise.step(model, [plain])
        for one, other in zip(ours.canvas.slots, plain.canvas.slots, strict=True):
            assert one.prob == pytest.approx(other.prob, abs=5e-3)
        ours.state = plain.state
    assert list(recorded._recordings), "it was recorded"
    assert not recorded._failed
