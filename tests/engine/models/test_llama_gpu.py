"""A model of the Llama kind on a GPU: in bfloat16 it finds nearly what the CPU's way finds, and a pass that is recorded
is the pass, whatever its size, its tree and its context.

On a CPU a replay calls the pass again, on the same buffers; tests/kernels/test_gpu.py captures it.
"""

import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from caesura.engine import models
from caesura.engine.cache import KV
from caesura.engine.model import Quantise, Run
from caesura.engine.models.llama import config, trunk
from caesura.engine.models.llama.gpu import passes
from caesura.engine.models.llama.gpu.passes import COLUMNS, ROWS, Passes, RecordedPass
from caesura.engine.models.llama.published import FLOATS
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.scheduler import Scheduler
from caesura.kernels import attention, gated, norms, rotary
from caesura.wire import Hole

from ...support.checkpoints import compared, masked, qwen
from ...support.checkpoints.tiny import CODE, VOCABULARY, alone, infill

IN_BF16 = 0.05  # of the norm of the logits; either way is 0.01 to 0.03 off float32
CLOSE = 1e-5  # float32 sums in another order
IDS = torch.randint(0, VOCABULARY - 20, (4000,), generator=torch.Generator().manual_seed(2)).tolist()


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (trunk, config):
        monkeypatch.setattr(module, "on_gpu", lambda device: True)


@pytest.fixture
def model(tmp_path: Path) -> BlockLlama:
    found = models.load(str(qwen.published(tmp_path / "qwen")), "cpu", exact=True)
    assert isinstance(found, BlockLlama)
    return found


def tree(kv: KV, fresh: int, rows: int, seed: int) -> Run:
    """A random tree of which some rows are in the KV already, and context that it reads first."""
    draw = torch.Generator().manual_seed(seed)
    earlier = kv.length - len(kv.ids)
    mask = torch.rand(rows, earlier + rows, generator=draw) < 0.5
    mask[:, earlier:] = mask[:, earlier:].tril()
    mask[range(rows), range(earlier, earlier + rows)] = True
    positions = (len(kv.ids) + fresh + torch.randint(0, 9, (rows,), generator=draw)).tolist()
    return Run(kv, IDS[seed : seed + rows], positions, mask.numpy(), fresh=IDS[len(kv.ids) : len(kv.ids) + fresh])


def behind(model: BlockLlama, context: int) -> KV:
    kv = model.cache().lease([])
    if context:
        model.prefill(IDS[:context], kv)
    return kv


def judged(model: BlockLlama, kv: KV, *trees: tuple[int, int]) -> list[Tensor]:
    """The logits of trees that follow each other, each after so much fresh context and of so many rows."""
    return [model.forward([tree(kv, fresh, rows, seed)])[0].logits for seed, (fresh, rows) in enumerate(trees)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each pass from now on was replayed."""
    judge, replayed = Passes.judge, list[bool]()

    def judging(self: Passes, run: Run) -> Tensor | None:
        found = judge(self, run)
        replayed.append(found is not None)
        return found

    monkeypatch.setattr(Passes, "judge", judging)
    return replayed


@pytest.mark.parametrize("quantise", [None, "fp8", "nvfp4"])
@pytest.mark.parametrize("family", ["dream", "qwen"])
def test_in_bfloat16_it_is_nearly_what_products_in_float32_give(
    tmp_path: Path, family: str, quantise: Quantise | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same weights, in bfloat16 or in codes."""
    folder = qwen.published(tmp_path / "m") if family == "qwen" else masked.published(tmp_path / "m", family)
    monkeypatch.setitem(FLOATS, "cpu", "bf16")
    found = []
    for gpu in (True, False):
        for module in (trunk, config):
            monkeypatch.setattr(module, "on_gpu", lambda device, gpu=gpu: gpu)
        found.append(compared.logits(models.load(str(folder), "cpu", quantise=quantise), IDS[:90]))
    ours, theirs = found
    assert (ours - theirs).norm() < IN_BF16 * theirs.norm()


def test_a_recorded_pass_is_the_pass(model: BlockLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every size, with fresh context and without; keys and values are the same too."""
    sizes = range(1, ROWS[-1] + 1)
    trees = [[(min(3, rows - 1), max(1, rows - 3)), (0, rows), (0, 5)] for rows in sizes]
    plain, ours = ([behind(model, 100) for _ in sizes] for _ in range(2))
    expected = [judged(model, kv, *some) for kv, some in zip(plain, trees, strict=True)]
    model.rehearse()
    replayed = counted(monkeypatch)
    found = [judged(model, kv, *some) for kv, some in zip(ours, trees, strict=True)]
    torch.testing.assert_close(found, expected, atol=CLOSE, rtol=CLOSE)
    assert replayed == [True] * 3 * len(sizes)
    for one, other in zip(ours, plain, strict=True):
        assert (one.ids, one.length) == (other.ids, other.length)
        held = [[kv.get(layer, 0, kv.length) for layer in range(model.config.num_layers)] for kv in (one, other)]
        torch.testing.assert_close(*held, atol=CLOSE, rtol=CLOSE)


def test_one_recording_a_size_serves_every_context(model: BlockLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, short and long ones in turn, and after buffers have moved; nothing is recorded while somebody waits."""
    trees = [(2, 9), (0, 20), (0, 40)]
    plain, ours = ([behind(model, context) for context in (0, 7, 250, 900)] for _ in range(2))
    expected = [judged(model, kv, *trees) for kv in plain]
    model.rehearse()
    monkeypatch.setattr(RecordedPass, "capture", None)
    replayed, found = counted(monkeypatch), list[list[Tensor]]([[] for _ in ours])
    for seed, (fresh, rows) in enumerate(trees):
        for kv, logits in zip(ours, found, strict=True):
            logits.append(model.forward([tree(kv, fresh, rows, seed)])[0].logits)
            before = kv.buffers
            kv.reserve(before[0][0].shape[1] + 1)
            for buffer in (buffer for layer in before for buffer in layer):
                buffer.fill_(torch.nan)  # as whoever gets that memory next would
    torch.testing.assert_close(found, expected, atol=CLOSE, rtol=CLOSE)
    assert replayed == [True] * 12


def test_what_is_too_large_is_launched(model: BlockLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than any recording has, a tree of more rows than a mask has, two trees at once, a canvas."""
    model.rehearse()
    replayed = counted(monkeypatch)
    kv = behind(model, 10)
    judged(model, kv, (0, ROWS[-1] + 1), *[(0, ROWS[-1])] * (COLUMNS // ROWS[-1]))
    assert replayed == [False] + [True] * (len(replayed) - 2) + [False]
    two = [tree(behind(model, at), 0, 3, at) for at in (20, 30)]
    assert model.forward(two)[0].rows == 6
    assert len(replayed) == 1 + COLUMNS // ROWS[-1]


def test_a_job_is_what_it_is_without_recordings(model: BlockLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        infill("a", CODE[:400] + "    retu", "\n\nprint(1)\n", Hole(6, "line")),
        infill("b", CODE[:300], CODE[400:500], Hole(20, "block")),
        infill("c", CODE[:300], CODE[400:500], Hole(8), method="left_to_right"),
    ]
    expected = [alone(model, job) for job in jobs]
    replayed = counted(monkeypatch)
    monkeypatch.setattr(model, "device", Here("cpu"))
    for job, plain in zip(jobs, expected, strict=True):
        found = alone(model, job)
        assert [fill.text for fill in found.holes] == [fill.text for fill in plain.holes]
        assert (found.steps, found.tokens, found.stop) == (plain.steps, plain.tokens, plain.stop)
    assert sum(replayed) > 10


class Here(str):
    """A device that says it is a GPU, at which a scheduler rehearses."""

    def startswith(self, *_: Any) -> bool:
        return True


def test_a_rehearsal_records_every_size_in_shared_memory(model: BlockLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = list[Any]()

    def capture(self: RecordedPass, pool: Any) -> str:
        captured.append(pool)
        self.replay()
        return "the first one's"

    monkeypatch.setattr(RecordedPass, "capture", capture)
    Scheduler(model)
    assert not captured
    monkeypatch.setattr(model, "device", Here("cpu"))
    for _ in range(2):
        Scheduler(model)
    assert captured == [None] + ["the first one's"] * (len(ROWS) - 1)


def test_where_none_can_be_recorded_the_log_says_so_once_and_passes_are_launched(
    model: BlockLlama, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def capture(self: RecordedPass, pool: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(RecordedPass, "capture", capture)
    expected = judged(model, behind(model, 50), (1, 4))
    model.rehearse()
    assert torch.equal(judged(model, behind(model, 50), (1, 4))[0], expected[0])
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "A step could not be recorded; steps run kernel by kernel. There is not enough memory."
    ]


def test_recordings_keep_no_context(model: BlockLlama) -> None:
    model.rehearse()
    kv = behind(model, 50)
    judged(model, kv, (1, 4))
    held = weakref.ref(kv.buffers[0][0])
    del kv
    assert held() is None


def test_a_pass_through_the_kernels_is_the_pass(model: BlockLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, recorded and not; addresses come from the table."""
    pytest.importorskip("triton")
    monkeypatch.setattr(passes, "ROWS", (8,))
    shape, (plain, launched, replayed) = (2, 4), (behind(model, 70) for _ in range(3))
    expected, names = judged(model, plain, shape), set[str]()
    for module in (attention, gated, norms, rotary):
        monkeypatch.setattr(module, "fused", lambda *_, name=module.__name__, **__: names.add(name) or True)
    torch.testing.assert_close(judged(model, launched, shape), expected, atol=1e-4, rtol=1e-4)
    model.rehearse()
    torch.testing.assert_close(judged(model, replayed, shape), expected, atol=1e-4, rtol=1e-4)
    assert len(names) == 4
