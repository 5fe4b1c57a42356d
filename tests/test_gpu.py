"""DiffusionGemma on a CUDA device. Needs no more than a GPU machine is assumed to have (gpu/README.md)."""

from pathlib import Path

import pytest
import torch

from caesura.engine import models
from caesura.engine.models import Run
from caesura.engine.models.diffusion_gemma import DiffusionGemma
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
