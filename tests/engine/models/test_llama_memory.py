"""What a model of Llama's kind takes is counted before it is read: in each form, with all rows of a step."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from caesura.engine import memory, models
from caesura.engine.memory import DoesNotFit
from caesura.engine.model import MAX_ROWS, ModelError, ModelSpec, Run
from caesura.engine.models import full
from caesura.engine.models.llama.config import Config, Mixture
from caesura.engine.models.llama.memory import Keeping, fitting, of_step, of_weights
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.weights import sources
from caesura.engine.weights.sources import Valueless

from ...support.checkpoints import masked
from ..test_memory import Held

ROOT = Path(__file__).parents[3]
GIB = memory.GIB
FIELDS = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "intermediate_size", "head_dim")
# By the words of the docs' table; the last says that embedding and head are one matrix.
SHAPES: dict[str, tuple[tuple[int, ...], bool]] = {
    "LLaDA-8B, LLaDA-1.5": ((126_464, 4096, 32, 32, 32, 12_288, 128), False),
    "Dream-7B, Dream-Coder, DiffuCoder, DreamOn": ((152_064, 3584, 28, 28, 4, 18_944, 128), False),
    "Open-dCoder-0.5B": ((151_936, 896, 24, 14, 2, 4864, 64), True),
    "CoDA-1.7B": ((151_936, 2048, 28, 16, 8, 6144, 128), True),
    "LLaDA-MoE-7B-A1B": ((157_184, 2048, 16, 16, 16, 8192, 128), False),
    "LLaDA2.0-mini, LLaDA2.1-mini, DMax (16B-A1.4B)": ((157_184, 2048, 20, 16, 4, 5120, 128), False),
    "RND1, SDAR-30B-A3B": ((151_936, 2048, 48, 32, 4, 6144, 128), False),
}
# The experts of all layers but the first so many.
MIXTURES = {
    "LLaDA-MoE-7B-A1B": (Mixture(64, 8, 1024), 0),
    "LLaDA2.0-mini, LLaDA2.1-mini, DMax (16B-A1.4B)": (Mixture(256, 8, 512, 512), 1),
    "RND1, SDAR-30B-A3B": (Mixture(128, 8, 768), 0),
}
GPU, CPU = Keeping("cuda", "bf16"), Keeping("cpu")


def sizes(name: str, **change: int) -> Config:
    fields = dict(zip(FIELDS, SHAPES[name][0], strict=True)) | change
    mixture, _ = MIXTURES.get(name, (None, 0))
    return replace(Config.read({**fields, "rope_theta": 1e6, "rms_norm_eps": 1e-6}), mixture=mixture)


def unquantised(name: str) -> str:
    return ""


def weights(name: str, keeping: Keeping) -> int:
    config, sparse = sizes(name), range(0)
    if name in MIXTURES:
        sparse = range(MIXTURES[name][1], config.num_layers)
    return of_weights(config, keeping, unquantised, tied=SHAPES[name][1], sparse=sparse)


def test_the_table_of_the_docs_is_what_is_counted() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    found = re.search(r"<!-- table: forms -->\n(.*?)<!-- end -->", text, re.S)
    assert found
    _, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[1].splitlines()]
    assert [row[0] for row in rows] == list(SHAPES)
    for name, *cells in rows:
        assert cells == [f"{n / GIB:.1f}" for n in counted(name)], f"{name}: {counted(name)}"


def counted(name: str) -> list[int]:
    """Bytes of the weights in each form; then of a step that is read by 256 tokens on a CPU, of the smallest and the
    largest step with 2,048 on a GPU."""
    config = sizes(name)
    of_forms = [weights(name, GPU._replace(quantise=form)) for form in ("", "fp8", "nvfp4")]
    of_forms += [weights(name, CPU._replace(quantise=form)) for form in ("q8", "k4")]
    (rows,) = full.steps(config, 256, "cpu")
    largest, *_, smallest = full.steps(config, 2048, "cuda")
    on_gpu = [of_step(config, step, smallest, smallest, GPU) for step in (smallest, largest)]
    return [*of_forms, of_step(config, rows, 256 + MAX_ROWS, 256 + MAX_ROWS, CPU), *on_gpu]


def test_a_model_is_counted_in_each_of_its_forms() -> None:
    name, table = "Dream-7B, Dream-Coder, DiffuCoder, DreamOn", 152_064 * 3584
    body = 28 * (3584 * (3584 + 1024) + 3584**2 + 3 * 3584 * 18_944)
    assert weights(name, GPU) == 2 * (body + 2 * table)
    assert weights(name, Keeping("cuda", "bf16", "nvfp4")) == pytest.approx(
        body * 4.5 / 8 + table * (1 + 8.5 / 8), rel=1e-2
    )
    assert weights(name, CPU._replace(quantise="k4")) == pytest.approx(body * 4.5 / 8 + 2 * table * 8.5 / 8, rel=1e-2)
    tied = "Open-dCoder-0.5B"
    assert weights(tied, GPU) < 2 * sum(p.size for p in drawn(sizes(tied)).values()), "the head is the embedding"


def drawn(config: Config) -> dict[str, np.ndarray]:
    d = config.hidden_size
    found = {"embed": (config.vocab_size, d), "norm": (d,), "head": (config.vocab_size, d)}
    for layer in range(config.num_layers):
        found |= {f"layers.{layer}.{matrix}": config.shape(matrix) for matrix in ("qkv", "out", "gate_up", "down")}
        found |= {f"layers.{layer}.{part}_norm": (d,) for part in ("attn", "mlp")}
    return {name: np.broadcast_to(np.float32(0), shape) for name, shape in found.items()}


@pytest.mark.parametrize("name", ["LLaDA-8B, LLaDA-1.5", "Dream-7B, Dream-Coder, DiffuCoder, DreamOn"])
def test_a_step_holds_no_more_than_is_counted_and_not_much_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three canvases, without values, in bfloat16."""
    config, canvas = sizes(name, num_layers=2), 2560
    spec = ModelSpec(None, "verify", max_context=canvas, chunk=canvas, tail=0, head=0)
    source = Valueless(sources.InMemory(drawn(config)))
    model = BlockLlama("it", config, None, spec, source, None, "meta", torch.bfloat16)  # type: ignore[arg-type]
    kv, ids = model.cache().lease([]), [0] * canvas
    kv.reserve(canvas)
    with Held() as held:
        model.denoise([Run(kv, ids, range(canvas), wanted=range(300))] * 3)
    counted = of_step(config, 3 * canvas, canvas, canvas, GPU)
    assert held.most < counted < 1.5 * held.most


def test_a_step_has_as_many_rows_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Dream-7B, Dream-Coder, DiffuCoder, DreamOn"
    config, keeping = sizes(name), Keeping("cuda", "bf16", "nvfp4")
    size, rows = weights(name, keeping), full.steps(config, 2048, "cuda")
    assert rows == [8192, 4096, 2560]
    found = {}
    for room in (6.0, 7.6, 12.0, 24.0):
        monkeypatch.setattr(memory, "free", lambda device, room=room: int(room * GIB))
        found[room] = fitting("it", config, size, 2048, rows, keeping, 64, whole=True)
    assert [step for _, step in found.values()] == [2560, 4096, 8192, 8192], "a 7B model fits 8 GB"
    assert found[24.0] == (64, 8192)
    monkeypatch.setattr(memory, "free", lambda device: int(5.5 * GIB))
    with pytest.raises(DoesNotFit, match=r"needs 4\.5 GiB .* 5\.5 are free on cuda; [\d,]+ tokens fit: set") as error:
        fitting("it", config, size, 2048, rows, keeping, 64, whole=True)
    said = re.search(r"CAESURA_CONTEXT=(\d+)", str(error.value))
    assert said
    proposed = int(said[1])
    assert fitting("it", config, size, proposed, full.steps(config, proposed, "cuda"), keeping, 64, whole=True)[0]


def test_a_machine_without_room_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = masked.published(tmp_path / "tiny", "dream")
    monkeypatch.setattr(memory, "free", lambda device: 1 << 20)
    monkeypatch.setattr("caesura.engine.weights.mapped.raw", lambda entry: pytest.fail("it was read"))
    with pytest.raises(ModelError, match=r"tiny needs 0\.0 GiB .* one of fewer bits"):
        models.load(str(folder), "cpu")
