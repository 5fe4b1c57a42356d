"""What fits in memory is known before anything is read; the table in docs/models.md is what the code counts."""

import json
import re
from pathlib import Path

import pytest
import torch

from caesura.engine import memory, models
from caesura.engine.models import ModelError
from caesura.engine.models.diffusion_gemma import Config, DiffusionGemma, kept
from caesura.engine.weights import WeightsError

from . import gemma
from .tiny import CODE

ROOT = Path(__file__).parents[1]
LARGE = Config.read(json.loads((ROOT / "gpu" / "diffusiongemma-26b.json").read_text()))
KEPT = kept(LARGE)
GIB = memory.GIB


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


def test_what_does_not_fit_is_refused_with_the_context_that_would() -> None:
    room = weights(4.5) + memory.of_step(LARGE.vocab_size) + 2 * GIB
    with pytest.raises(WeightsError, match=r"needs 14\.3 GiB .* 3\.0 .* 6\.1 for 261,888 .* 19\.3 are free on cuda"):
        memory.fit("it", weights(4.5), KEPT, LARGE.vocab_size, 261_888, 2, "cuda", 4, room)
    with pytest.raises(WeightsError) as error:
        memory.fit("it", weights(4.5), KEPT, LARGE.vocab_size, 261_888, 2, "cuda", 4, room)
    said = re.search(r"CAESURA_CONTEXT=(\d+)", str(error.value))
    assert said
    proposed = int(said[1])
    assert memory.fit("it", weights(4.5), KEPT, LARGE.vocab_size, proposed, 2, "cuda", 4, room) == 1
    more = proposed + memory.STRIDE
    with pytest.raises(WeightsError):
        memory.fit("it", weights(4.5), KEPT, LARGE.vocab_size, more, 2, "cuda", 4, room)


def test_where_no_context_fits_fewer_bits_are_proposed() -> None:
    with pytest.raises(WeightsError, match=r"convert it to fewer bits"):
        memory.fit("it", weights(16), KEPT, LARGE.vocab_size, 8192, 2, "cuda", 4, 32 * GIB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma.published(tmp_path_factory.mktemp("memory") / "tiny")


def test_a_machine_without_room_loads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda device: 1 << 20)
    with pytest.raises(ModelError, match=r"tiny needs 0\.0 GiB .* convert it to fewer bits"):
        models.load(str(folder))


@pytest.mark.parametrize("context", [0, 1000, 4096])
def test_a_context_outside_what_it_was_trained_on_is_refused(folder: Path, context: int) -> None:
    with pytest.raises(ModelError, match=r"tiny takes 1,024 to 4,080 tokens of context"):
        models.load(str(folder), "cpu", context)


def test_the_context_that_is_asked_for_is_used(folder: Path) -> None:
    assert models.load(str(folder), "cpu", 2048).max_context == 2048
    assert models.load(str(folder)).max_context == 4080


def test_a_long_context_holds_the_window_alone_on_sliding_layers(folder: Path) -> None:
    model = models.load(str(folder))
    assert isinstance(model, DiffusionGemma)
    ids = (model.tokenizer.encode(CODE) * 8)[:4000]
    kv = model.cache().lease([])
    for start in range(0, len(ids), model.chunk):
        model.prefill(ids[start : start + model.chunk], kv)
    assert kv.nbytes <= memory.of_context(kept(model.config), len(ids) + 256, 4)
    whole = model.cache().lease([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caesura.engine.cache.SLACK", 1 << 20)
        for start in range(0, len(ids), 1000):
            model.prefill(ids[start : start + 1000], whole)
    assert whole.nbytes > 1.5 * kv.nbytes
    canvas = list(range(20, 36))
    one, other = (model.denoise([models.Run(k, canvas, range(4000, 4016))]) for k in (kv, whole))
    assert torch.allclose(one, other, atol=5e-4)
