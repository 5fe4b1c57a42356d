"""DiffusionGemma and code models on a CUDA device. Needs no more than a GPU machine is assumed to have
(gpu/README.md)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from caesura.engine import models, samplers
from caesura.engine.canvas.canvas import HoleState
from caesura.engine.canvas.layout import lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.draws import Draws
from caesura.engine.methods import _forward
from caesura.engine.methods.uniform import canvases as uniform
from caesura.engine.methods.uniform.graphs import Graphs
from caesura.engine.methods.uniform.renoise import by_entropy
from caesura.engine.methods.verify.search import Search
from caesura.engine.model import Quantise, Run
from caesura.engine.models.convert import convert
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.engine.models.llama.gpu.passes import ROWS
from caesura.engine.noise import Uniform
from caesura.engine.scores import Best, told
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.wire import Hole, Json, Pattern

from ..support.checkpoints import compared, gemma, qwen
from ..support.checkpoints.tiny import CODE, VOCABULARY, Scripted, alone, infill, train_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]


def test_it_finds_what_the_cpu_finds(tmp_path: Path) -> None:
    folder = gemma.published(tmp_path / "tiny")
    here, there = models.load(str(folder), "cpu"), models.load(str(folder), "cuda")
    assert isinstance(there, DiffusionGemma)
    assert there.device.startswith("cuda")
    canvas, prompt = list(range(20, 40)), here.tokenizer.encode(CODE[:400])
    at = range(len(prompt), len(prompt) + len(canvas))
    one, other = (m.denoise([Run(m.cache().lease([]), canvas, at, fresh=prompt)]).logits for m in (here, there))
    assert torch.allclose(one, other.cpu(), atol=5e-3)
    assert alone(there, infill("a", CODE[:400], CODE[400:600], Hole(12, "line"))).holes[0].text


class Place:
    """A context on the device, behind which steps are recorded already."""

    def __init__(self, folder: Path) -> None:
        model = models.load(str(gemma.published(folder)), "cuda")
        assert isinstance(model, DiffusionGemma)
        assert isinstance(model.spec.noise, Uniform)
        vocabulary, self.model = Vocabulary(model), model
        self.recorded = Graphs(model, model.spec.noise.schedule, by_entropy, vocabulary)
        self.recorded.rehearse()
        assert self.recorded._recordings
        self.layout = lay(model, vocabulary, infill("j", CODE[:400] + "x = ", CODE[400:600], Hole(20, "line")), 20)
        self.kv = model.cache().lease(self.layout.context)
        model.prefill(self.layout.context, self.kv)
        first = self.canvas(0)
        for _ in range(2):
            uniform.step(model, [first], self.recorded.step)

    def canvas(self, seed: int) -> uniform.Renoising:
        return uniform.Renoising(self.layout.canvas.resized([20]), self.kv, by_entropy, 24, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_step_as_a_cuda_graph_is_the_step(tmp_path: Path, seed: int) -> None:
    """From the same states: whole fills may part where the last digit of a probability decides."""
    place, replayed = Place(tmp_path / "tiny"), 0
    ours, plain = place.canvas(seed), place.canvas(seed)
    while not (ours.finished or plain.finished):
        uniform.step(place.model, [ours], place.recorded.step)
        uniform.step(place.model, [plain])
        for one, other in zip(ours.canvas.slots, plain.canvas.slots, strict=True):
            assert one.prob == pytest.approx(other.prob, abs=5e-3)
        replayed += place.recorded._under_way.pop(ours, None) is not None  # it went on from another state
        ours.state = plain.state
    assert replayed
    assert not place.recorded._recordings.failed


@pytest.mark.parametrize("seed", range(3))
def test_steps_launched_ahead_are_those_launched_one_by_one(tmp_path: Path, seed: int) -> None:
    place = Place(tmp_path / "tiny")

    def one_by_one(work: Sequence[uniform.Renoising]) -> Sequence[uniform.Renoising]:
        recording = place.recorded._recording(work)
        assert recording is not None
        launched = recording.launch(work)
        torch.cuda.synchronize()
        return [] if place.recorded._take(work, launched, alone=False) else work

    found = []
    for replay in (place.recorded.step, one_by_one):
        w, steps = place.canvas(seed), list[list[tuple[int | None, bool]]]()
        while not w.finished:
            uniform.step(place.model, [w], replay)
            steps.append([(slot.draft, slot.locked) for slot in w.canvas.slots])
        found.append(steps)
    assert found[0] == found[1]


def test_a_code_model_in_bfloat16_says_what_the_cpu_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = compared.qwen_in("f32", tmp_path, "cpu", monkeypatch)
    there = compared.qwen_in("bf16", tmp_path, "cuda", monkeypatch)
    rows, mask = list(range(40, 60)), np.tri(20, dtype=np.bool_)
    one, other = (
        m.forward([Run(m.cache().lease(rows), rows, range(20, 40), mask, fresh=rows)])[0].logits.softmax(-1).cpu()
        for m in (here, there)
    )
    assert (one - other).abs().sum(-1).max() < 0.05


def test_a_pass_as_a_cuda_graph_is_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several sizes, after contexts that move in memory."""
    model = compared.qwen_in("bf16", tmp_path, "cuda", monkeypatch)

    def judged() -> list[Tensor]:
        found, kvs = [], [model.cache().lease([]) for _ in range(2)]
        for rows in (1, 9, 41, 3, 48) * 4:
            for kv in kvs:
                at, mask = kv.length, np.tri(rows, dtype=np.bool_)
                run = Run(kv, [*range(40, 40 + rows)], range(at, at + rows), mask, fresh=[] if at else [5, 6])
                found.append(model.forward([run])[0].logits.softmax(-1))
        return found

    launched = judged()
    model.rehearse()
    assert model._passes is not None
    assert len(model._passes.recordings) == len(ROWS)
    for one, other in zip(judged(), launched, strict=True):
        assert (one - other).abs().sum(-1).max() < 0.05


@pytest.mark.parametrize("form", ["fp8", "nvfp4"])
def test_a_model_in_a_form_says_what_its_rounded_weights_say(form: Quantise, tmp_path: Path) -> None:
    """Converted; in bfloat16 beside the embedding in 8 bits."""
    folder = qwen.published(tmp_path / "floats")
    convert(folder, tmp_path / form, form, lambda done, total: None)
    here, there = (models.load(str(tmp_path / form), device, exact=device == "cpu") for device in ("cpu", "cuda"))
    ids = list(range(20, 60))
    one, other = (compared.logits(model, ids).softmax(-1).cpu() for model in (here, there))
    assert (one - other).abs().sum(-1).max() < 0.05


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seed": 3},
        {"sampler": "left_to_right"},
        {"segments": (Hole(32, "block", Json(schema=0)),), "schemas": ("{}",)},
    ],
    ids=["search", "another answer", "left to right", "grammar"],
)
def test_a_code_model_fills_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    """Behind a context of several chunks; a few numbers come to the CPU once a pass."""
    model = compared.qwen_in("bf16", tmp_path, "cuda", monkeypatch)
    model.spec = replace(model.spec, chunk=128)
    job = infill("a", CODE[:1500], CODE[1500:1700], **{"segments": (Hole(6),)} | fields)
    copied, on_host = list[int](), _forward.on_host

    def counted(*parts: Tensor) -> tuple[Tensor, ...]:
        copied.append(sum(part.numel() for part in parts if part.is_cuda))
        return on_host(*parts)

    monkeypatch.setattr(_forward, "on_host", counted)
    answer = alone(model, job)
    assert answer.holes[0].text
    assert len(copied) == answer.steps
    assert 0 < min(copied) <= max(copied) < VOCABULARY, "less than the log-probabilities of one row"


@pytest.mark.parametrize("seed", [None, 3])
def test_a_search_finds_the_same_numbers_on_a_gpu_and_waits_for_none(
    tmp_path: Path, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (compared.qwen_in("f32", tmp_path, device, monkeypatch) for device in ("cpu", "cuda"))
    encode, draw = here.tokenizer.encode, torch.Generator().manual_seed(1)
    tail, head = encode("x ="), encode("\ny")
    draws = Draws(seed) if seed else None
    one, other = (Search(Vocabulary(m), HoleState(True, 8), tail, head, 0, draws) for m in (here, there))
    for search in (one, other):
        search.propose(encode(" count + 1"), "lookup")
    for _ in range(4):
        rows = [len(search.plan().ids) for search in (one, other)]
        logits = torch.randn(rows[0], VOCABULARY, generator=draw)
        copied, expected = TensorScores(logits.cuda()), told(*one.read(TensorScores(logits)))
        with not_waiting(strict=seed is None):
            asked = other.read(copied)
        for mine, its in zip(flat(told(*asked)), flat(expected), strict=True):
            np.testing.assert_allclose(mine, its, atol=1e-4)
        for search in (one, other):
            search.receive(expected)
            search.prune()


def flat(answers: Iterable[Any]) -> list[Any]:
    """The arrays of answers, some of which have several."""
    return [part for answer in answers if answer is not None for part in (answer if type(answer) is Best else [answer])]


@contextmanager
def not_waiting(*, strict: bool) -> Iterator[None]:
    """An error if the host waits for the GPU; a draw for another answer is copied there, and may."""
    torch.cuda.set_sync_debug_mode("error" if strict else "default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class There(Scripted):
    """With its logits on the GPU."""

    device = "cuda"

    def hidden(self, runs: Sequence[Run]) -> Tensor:
        return super().hidden(runs).cuda()


@pytest.mark.parametrize("sampler", samplers.names())
@pytest.mark.parametrize(
    ("prefix", "answer", "hole", "text"),
    [
        ("", "count + total[index]", Hole(24), "count + total[index]"),
        ("x = cou", " count + total", Hole(12, "line"), "nt + total"),
        ('x = "', ' "count', Hole(8, "line", Pattern("[a-z]{3,9}")), "count"),
    ],
    ids=["free", "healed", "grammar"],
)
def test_a_canvas_is_filled_on_a_gpu(
    tmp_path: Path, sampler: str, prefix: str, answer: str, hole: Hole, text: str
) -> None:
    tokenizer = Tokenizer(train_tokenizer(tmp_path / "tokenizer.json"))
    suffix = '"\n' if prefix.endswith('"') else "\n"
    found = alone(There(tokenizer, tokenizer.encode(answer)), infill("a", prefix, suffix, hole, sampler=sampler))
    assert found.holes[0].text == text
