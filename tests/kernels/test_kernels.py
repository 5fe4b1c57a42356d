"""All kernels together: a DiffusionGemma step through them is a step without them, and they compile for real GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from caesura.engine import models
from caesura.engine.methods.uniform import renoise
from caesura.engine.model import Quantise, Run
from caesura.engine.models.convert import convert
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.engine.scores import Allowed
from caesura.kernels import attention, experts, gated, head, matmul, norms, rotary

from ..support.checkpoints import gemma
from ..support.checkpoints.tiny import CODE

pytest.importorskip("triton")

ROOMY, TIGHT = 232_448, 101_376  # bytes of shared memory a program may have: Hopper, and sm_120


@pytest.mark.slow
@pytest.mark.parametrize("form", [None, "nvfp4"])
def test_a_step_through_the_kernels_is_a_step_without_them(
    form: Quantise | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gemma.published(tmp_path / "tiny")
    if form is not None:
        convert(folder, tmp_path / form, form, lambda done, total: None)
        folder = tmp_path / form
    model = models.load(str(folder), "cpu")
    assert isinstance(model, DiffusionGemma)
    text = model.tokenizer.encode(CODE[:120])
    canvas, temperature, anything = list(range(20, 37)), torch.tensor(0.6), Allowed(np.ones(model.width, np.bool_))

    def steps() -> list[tuple[torch.Tensor, ...]]:
        """Two steps behind text that came in two parts, the second conditioned on the first."""
        kv, found = model.cache().lease([]), list[tuple[torch.Tensor, ...]]()
        model.prefill(text[:-7], kv)
        conditioning, fresh = None, text[-7:]
        for _ in range(2):
            at = len(text)
            run = Run(kv, canvas, range(at, at + len(canvas)), fresh=fresh, conditioning=conditioning)
            asked = renoise.Asked(model.hidden([run]), temperature, [anything] * len(canvas), [True] * len(canvas))
            outlook, fresh = renoise.outlooks(model, [asked])[0], []
            conditioning = outlook.soft
            assert conditioning is not None
            found.append((outlook.scores.token, outlook.scores.entropy, outlook.logit, conditioning))
        return found

    without = steps()
    launched = set[str]()
    modules = (attention, experts, gated, head, norms, rotary, *([matmul] if form else []))
    for module in modules:
        monkeypatch.setattr(module, "fused", lambda *_, name=module.__name__, **__: launched.add(name) or True)
    for ours, plain in zip(steps(), without, strict=True):
        assert torch.equal(ours[0], plain[0])
        for one, other in zip(ours[1:-1], plain[1:-1], strict=True):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(ours[-1], plain[-1], atol=1e-2, rtol=0)  # a thousandth of the mass is left out
    assert len(launched) == len(modules)


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "most"), [(90, ROOMY), (120, TIGHT)])
def test_they_compile_for_a_gpu_that_is_not_here(capability: int, most: int) -> None:
    """At DiffusionGemma's shapes in every precision; ptxas comes with Triton."""
    folders = os.pathsep.join(str(Path(__file__).parents[2] / name) for name in ("gpu", "bench"))
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": folders}
    made = subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name("compiled.py"), str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    shared = {line.split()[0]: int(line.split()[1]) for line in made.stdout.splitlines()}
    of_head = {"_scan", "_combine", "_gather", "_weigh", "_mean", "_collect", "_draw", "_logit"}
    of_step, of_attention = {"_enter", "_add_signals", "_biases", "_accept", "_settle"}, {"_turn", "_attend", "_merge"}
    of_layer = {"_add_attention", "_route", "_list", "_up", "_down", "_sum", "_add_experts", "_add_norm"}
    of_products = {"_multiply", "_add", "_gate", "_gate_up", "_quantise"}
    assert shared.keys() == of_head | of_step | of_attention | of_layer | of_products
    assert max(shared.values()) <= most, shared
