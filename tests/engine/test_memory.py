"""What fits in memory is known before anything is read; the table in docs/models.md is what the code counts."""

import json
import os
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from caesura.engine import memory, models
from caesura.engine.memory import DoesNotFit
from caesura.engine.methods.uniform import graphs
from caesura.engine.model import ModelError, Run
from caesura.engine.models.diffusion_gemma.model import CONTEXTS, Config, DiffusionGemma, kept
from caesura.engine.supervisor import supervisor
from caesura.kernels import head, jit

from ..support.checkpoints import gemma, tiny
from ..support.checkpoints.tiny import CODE

ROOT = Path(__file__).parents[2]
LARGE = Config.read(json.loads((ROOT / "gpu" / "diffusiongemma-26b.json").read_text()))
KEPT = kept(LARGE)
GIB = memory.GIB


def on_cpu(tokens: int) -> int:
    return memory.of_step(LARGE.vocab_size)


def on_cuda(tokens: int) -> int:
    return memory.of_step(LARGE.vocab_size) + memory.of_recorded(LARGE.vocab_size, 2)


def weights(bits: float) -> int:
    """Bytes of the 26B text model whose quantised matrices take `bits` a weight, scales included."""
    d, total = LARGE.hidden_size, 2 * 2 * LARGE.hidden_size * LARGE.vocab_size // 2
    for shape in LARGE.shapes:
        q, kv = LARGE.num_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        attention = d * (2 * q + kv * (2 if shape.sliding else 1))
        mlps = 3 * d * (LARGE.intermediate_size + LARGE.num_experts * LARGE.moe_intermediate_size)
        total += int((attention + mlps) * bits / 8) + 2 * d * LARGE.num_experts
    return total + 2 * 3 * d * LARGE.intermediate_size


def test_the_table_of_the_docs_is_what_is_counted() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    found = re.search(r"<!-- table: memory -->\n(.*?)<!-- end -->", text, re.S)
    assert found
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[1].splitlines()]
    contexts = [int(cell.removeprefix("KV ").replace(",", "")) for cell in head[2:]]
    assert contexts[-1] == LARGE.max_position_embeddings - LARGE.canvas_length
    for row, bits in zip(rows, (16, 8, 4.5), strict=True):
        expected = [weights(bits), *(memory.of_context(KEPT, n, 2) for n in contexts)]
        assert row[1:] == [f"{n / GIB:.1f}" for n in expected]
    assert f"and {memory.of_step(LARGE.vocab_size) / GIB:.1f} for a\nstep's logits" in text
    assert f"on a GPU {memory.of_recorded(LARGE.vocab_size, 2) / GIB:.2f} more, which recorded steps keep" in text


def test_what_does_not_fit_is_refused_with_the_context_that_would() -> None:
    width = LARGE.vocab_size
    room = weights(4.5) + memory.of_step(width) + memory.of_recorded(width, 2) + 2 * GIB
    with pytest.raises(DoesNotFit, match=r"needs 14\.3 GiB .* 3\.5 .* 6\.2 for 261,888 .* 19\.8 are free on cuda"):
        memory.fit("it", weights(4.5), KEPT, on_cuda, 261_888, 2, "cuda", 4, room, 1024)
    with pytest.raises(DoesNotFit) as error:
        memory.fit("it", weights(4.5), KEPT, on_cuda, 261_888, 2, "cuda", 4, room, 1024)
    said = re.search(r"CAESURA_CONTEXT=(\d+)", str(error.value))
    assert said
    proposed = int(said[1])
    assert memory.fit("it", weights(4.5), KEPT, on_cuda, proposed, 2, "cuda", 4, room, 1024) == 1
    more = proposed + 1024
    with pytest.raises(DoesNotFit):
        memory.fit("it", weights(4.5), KEPT, on_cuda, more, 2, "cuda", 4, room, 1024)


@pytest.mark.parametrize(
    ("device", "left", "contexts"),
    [
        ("cuda", 2 * GIB, 14),  # half are 7
        ("cuda", 20 * GIB, 71),
        ("cuda", 100 * GIB, 256),
        ("cpu", 1 * GIB, 7),  # no more fit
        ("cpu", 8 * GIB, 14),  # a laptop
        ("cpu", 256 * GIB, 56),
        ("cpu", None, 14),
    ],
)
def test_contexts_follow_the_memory_and_a_laptop_keeps_few(device: str, left: int | None, contexts: int) -> None:
    assert memory.contexts(left, 144 << 20, device) == contexts


def test_where_no_context_fits_fewer_bits_are_proposed() -> None:
    with pytest.raises(DoesNotFit, match=r"one of fewer bits"):
        memory.fit("it", weights(16), KEPT, on_cuda, 8192, 2, "cuda", 4, 32 * GIB, 1024)


class Held(TorchDispatchMode):
    """Bytes of the tensors that operations make, at most at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._tensors = dict[int, int]()  # of each storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and func.overloadpacket.__name__ != "detach":
                self._keep(tensor, tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes())
        return out

    def _keep(self, tensor: Tensor, storage: int, size: int) -> None:
        def gone() -> None:
            self._tensors[storage] -= 1
            self.now -= 0 if self._tensors[storage] else size

        self.now += 0 if self._tensors.get(storage) else size
        self._tensors[storage] = self._tensors.get(storage, 0) + 1
        self.most = max(self.most, self.now)
        weakref.finalize(tensor, gone)


@pytest.mark.skipif(jit.triton is None, reason="Triton is not for this platform")
def test_what_recorded_steps_keep_is_enough_and_not_much_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head takes most of a step: counted at its shapes, while kernels do nothing."""
    monkeypatch.setattr(jit.triton.runtime.interpreter.GridExecutor, "__call__", lambda *_, **__: None)
    rows, width, hidden = graphs.BUCKETS[-1], LARGE.vocab_size, LARGE.hidden_size
    with torch.device("meta"):
        embed, x = torch.empty(width, hidden, dtype=torch.bfloat16), torch.empty(rows, hidden, dtype=torch.bfloat16)
        open, number = torch.ones(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.int64)
        asked, of = head.Rows(x, torch.ones(rows), torch.zeros(4, width), number, open), head.Head(embed, embed, 30.0)
        with Held() as held:
            seen = head.launch(of, asked)
            head.launch_draw(of, asked, seen, torch.zeros(rows), open)
        kept = sum(graphs.BUCKETS) * hidden * 2 * CONTEXTS  # what recordings hold of their own, nearly all of it
    assert held.now < held.most / 4, "what was let go is not counted"
    assert held.most + kept < memory.of_recorded(width, 2) < 1.5 * (held.most + kept)


def test_a_model_of_short_contexts_is_told_of_one_that_fits() -> None:
    width = LARGE.vocab_size
    room = memory.of_step(width) + memory.of_context(KEPT, 600, 2)
    with pytest.raises(DoesNotFit, match="512 tokens fit: set CAESURA_CONTEXT=512"):
        memory.fit("it", 0, KEPT, on_cpu, 768, 2, "cpu", 4, room, 512)


def test_recorded_steps_have_room_on_a_gpu_alone() -> None:
    width, one = LARGE.vocab_size, memory.of_context(KEPT, 8192, 2)
    room = memory.of_step(width) + one
    assert memory.fit("it", 0, KEPT, on_cpu, 8192, 2, "cpu", 4, room, 1024) == 1
    with pytest.raises(DoesNotFit):
        memory.fit("it", 0, KEPT, on_cuda, 8192, 2, "cuda", 4, room + memory.of_recorded(width, 2) - 1, 1024)
    assert memory.fit("it", 0, KEPT, on_cuda, 8192, 2, "cuda", 4, room + memory.of_recorded(width, 2), 1024) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma.published(tmp_path_factory.mktemp("memory") / "tiny")


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="Linux counts what processes share")
def test_memory_that_two_processes_share_is_counted_once() -> None:
    """In what `caesura status` says of the engine's processes."""
    held = bytearray(b"x") * (64 << 20)
    alone = supervisor._memory_mb(os.getpid()) or 0.0
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)  # until the test has looked, and closes the other end
        os._exit(0)
    try:
        both = [supervisor._memory_mb(process) or 0.0 for process in (os.getpid(), child)]
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)
    del held  # until here: the pages that both share
    assert min(both) > 32
    assert sum(both) < alone + 32


def test_a_machine_without_room_loads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda device: 1 << 20)
    with pytest.raises(ModelError, match=r"tiny needs 0\.0 GiB .* one of fewer bits"):
        models.load(str(folder))


@pytest.mark.parametrize(("free", "contexts"), [(64 << 20, 14), (64 * GIB, 256)])
def test_a_large_machine_keeps_the_contexts_of_more_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, contexts: int
) -> None:
    monkeypatch.setattr(memory, "free", lambda device: free)
    assert models.load(str(tiny.make(tmp_path))).cache().entries == contexts


@pytest.mark.parametrize("context", [0, 1000, 4096])
def test_a_context_outside_what_it_was_trained_on_is_refused(folder: Path, context: int) -> None:
    with pytest.raises(ModelError, match=r"tiny takes 1,024 to 4,080 tokens of context"):
        models.load(str(folder), "cpu", context)


def test_the_context_that_is_asked_for_is_used(folder: Path) -> None:
    assert models.load(str(folder), "cpu", 2048).spec.max_context == 2048
    assert models.load(str(folder)).spec.max_context == 4080


def test_a_long_context_holds_the_window_alone_on_sliding_layers(folder: Path) -> None:
    model = models.load(str(folder))
    assert isinstance(model, DiffusionGemma)
    ids = (model.tokenizer.encode(CODE) * 8)[:4000]
    kv = model.cache().lease([])
    for start in range(0, len(ids), model.spec.chunk):
        model.prefill(ids[start : start + model.spec.chunk], kv)
    assert kv.nbytes <= memory.of_context(kept(model.config), len(ids) + 256, 4)
    whole = model.cache().lease([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caesura.engine.cache.SLACK", 1 << 20)
        for start in range(0, len(ids), 1000):
            model.prefill(ids[start : start + 1000], whole)
    assert whole.nbytes > 1.5 * kv.nbytes
    canvas = list(range(20, 36))
    one, other = (model.denoise([Run(k, canvas, range(4000, 4016))]).logits for k in (kv, whole))
    assert torch.allclose(one, other, atol=5e-4)
