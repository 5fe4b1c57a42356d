"""Published autoregressive models compute what Transformers computes, and fill gaps through the engine's own loop."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from caesura import wire
from caesura.engine.model import Model, ModelError, Run, Verifier
from caesura.engine.models import audit, load
from caesura.engine.models.llama import config as llama_config
from caesura.engine.models.llama import trunk
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.tokens.tokenizer_file import QWEN
from caesura.engine.weights.gguf.file import GGUF

from ...support.checkpoints import compared
from ...support.checkpoints.compared import logits, tensor
from ...support.checkpoints.tiny import infill, run, train_tokenizer
from ..test_scheduler import JOBS, keeps_the_contract
from ..weights import test_gguf

F32 = GGMLQuantizationType.F32
SIZES: dict[str, Any] = {
    "vocab_size": 416,  # padded: the tokenizer has fewer
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-3": {"model_type": "llama", "rope_parameters": LLAMA3},
    "granite-code": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    },
    "starcoder2": {"model_type": "starcoder2", "sliding_window": None},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random checkpoints, written by Transformers."""
    return {name: written(tmp_path_factory.mktemp(name), shape) for name, shape in SHAPES.items()}


def written(folder: Path, shape: dict[str, Any]) -> Path:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**SIZES | shape)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():  # biases and norms that count
        if parameter.ndim == 1:
            parameter.data = torch.randn_like(parameter) * 0.1 + ("norm.weight" in name)
    model.save_pretrained(folder)
    train_tokenizer(folder / "tokenizer.json")
    return folder


def exact(folder: Path) -> BlockLlama:
    found = load(str(folder), "cpu", exact=True)
    assert isinstance(found, BlockLlama)
    return found


def judged(model: Model, context: list[int], rows: list[int]) -> Tensor:
    mask = np.tri(len(rows), dtype=np.bool_)
    kv, positions = model.cache().lease(context), range(len(context), len(context) + len(rows))
    return tensor(cast(Verifier, model).forward([Run(kv, rows, positions, mask, fresh=context)])[0])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("gpu", [False, True])
def test_logits_are_those_of_transformers(
    folders: dict[str, Path], name: str, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU layers take another way."""
    for module in (trunk, llama_config):
        monkeypatch.setattr(module, "on_gpu", lambda device: gpu)
    ids = torch.randint(0, 400, (1, 150), generator=torch.Generator().manual_seed(1))
    reference = transformers.AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32).eval()
    with torch.inference_mode():
        theirs = reference(ids).logits[0, :, :400]
    model = exact(folders[name])
    ours = judged(model, ids[0, :120].tolist(), ids[0, 120:].tolist())
    assert ours.shape == theirs[120:].shape, "as many columns as there are tokens"
    torch.testing.assert_close(ours, theirs[120:], atol=1e-4, rtol=0)
    torch.testing.assert_close(logits(model, ids[0].tolist()), theirs, atol=1e-4, rtol=0)


def enough(arrays: dict[str, np.ndarray]) -> None:
    """More rows of the embedding than there are tokens, as in real files."""
    arrays["token_embd.weight"] = np.random.default_rng(5).standard_normal((416, test_gguf.HIDDEN)).astype(np.float32)


def test_fewer_weights_than_tokens_are_refused(tmp_path: Path) -> None:
    test_gguf.write(tmp_path / "m.gguf", vocabulary=(QWEN, "qwen2"))
    with pytest.raises(ModelError, match="has 401 tokens, but weights for only 400 of them"):
        load(str(tmp_path / "m.gguf"), "meta")


@pytest.mark.parametrize("architecture", test_gguf.KINDS)
def test_a_gguf_file_computes_what_transformers_makes_of_its_weights(tmp_path: Path, architecture: str) -> None:
    path, ids = tmp_path / "m.gguf", list(range(20, 140))
    weights = test_gguf.write(path, architecture, F32, change=enough, vocabulary=(QWEN, "qwen2"))
    file = GGUF(path)
    rows = len(weights["model.embed_tokens.weight"])
    config = transformers.AutoConfig.for_model(**file.config, vocab_size=rows)
    reference = transformers.AutoModelForCausalLM.from_config(config)
    reference.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=False)
    reference.tie_weights()
    with torch.inference_mode():
        theirs = reference.eval()(torch.tensor([ids])).logits[0, 20:, :401]
    ours = judged(load(str(path), "cpu", exact=True), ids[:20], ids[20:])
    torch.testing.assert_close(ours, theirs, atol=1e-4 * float(theirs.std()), rtol=1e-4)  # weights as large as one
    quantised = load(str(path), "cpu")
    assert isinstance(quantised, NativeLlama)
    coarse = judged(quantised, ids[:20], ids[20:])
    assert (coarse - theirs).norm() < 0.25 * theirs.norm()
    # Random weights have near ties, which int8 and, where the CPU has it, bfloat16 attention decide otherwise.
    assert coarse.argmax(-1).eq(theirs.argmax(-1)).sum() >= 0.8 * len(theirs)
    assert load(str(path), "meta").width == 401


@pytest.mark.parametrize("name", SHAPES)
def test_on_a_cpu_it_is_nearly_the_same_in_8_bits(folders: dict[str, Path], name: str) -> None:
    rows = list(range(40, 60))
    whole, quantised = (judged(model, rows, rows) for model in (exact(folders[name]), load(str(folders[name]), "cpu")))
    assert (whole.softmax(-1) - quantised.softmax(-1)).abs().sum(-1).max() < 0.05


def test_in_bfloat16_it_is_nearly_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU (tests/kernels/test_gpu.py)."""
    whole, halved = (
        compared.qwen_in("f32", tmp_path, "cpu", monkeypatch),
        compared.qwen_in("bf16", tmp_path, "cpu", monkeypatch),
    )
    rows = list(range(40, 60))
    assert (judged(whole, rows, rows).softmax(-1) - judged(halved, rows, rows).softmax(-1)).abs().sum(-1).max() < 0.05
    for job in JOBS.values():
        keeps_the_contract(run(Scheduler(halved), [infill("j", *job, wire.Hole(6))])["j"])


@pytest.mark.parametrize(("device", "chunk"), [("cpu", 128), ("meta", 512)])
def test_a_gpu_reads_a_cold_context_in_larger_chunks_and_a_cancel_still_ends_it(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, device: str, chunk: int
) -> None:
    """`meta` stands for a GPU."""
    model, read = load(str(folders["qwen2"]), "cpu"), list[int]()
    model.spec, prefill = load(str(folders["qwen2"]), device).spec, model.prefill
    monkeypatch.setattr(model, "prefill", lambda ids, kv: (read.append(len(ids)), prefill(ids, kv)))
    scheduler = Scheduler(model)
    scheduler.take(b"p", infill("j", "x = 1\n" * 1000, ""), 0.0)
    scheduler.step(lambda: 0.0)
    scheduler.take(b"p", wire.Cancel("j"), 0.0)
    assert not scheduler.busy
    assert read == [chunk]


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> NativeLlama:
    found = load(str(folders["qwen2"]), "cpu")
    assert isinstance(found, NativeLlama)
    return found


@pytest.mark.parametrize("sampler", [None, "left_to_right"])
@pytest.mark.parametrize(("prefix", "suffix"), JOBS.values(), ids=JOBS)
def test_every_job_keeps_the_contract(model: NativeLlama, sampler: str | None, prefix: str, suffix: str) -> None:
    events = run(Scheduler(model), [infill("j", prefix, suffix, wire.Hole(6), sampler=sampler)])["j"]
    answer = keeps_the_contract(events)
    assert answer.tokens.canvas == 0, "it has none"


def test_holes_with_a_grammar_are_whole_at_any_deadline(model: NativeLlama) -> None:
    schema = '{"type": "object", "required": ["name", "size"]}'
    holes = [wire.Hole(32, "block", wire.Json(schema=0)), wire.Text(", "), wire.Hole(32, "block", wire.Json(schema=0))]
    for steps in (0, 1, 3):
        scheduler = Scheduler(model)
        scheduler.take(b"p", infill("j", "[", "]", *holes, schemas=(schema,), deadline_ms=1000), 0.0)
        scheduler.step(lambda: 0.0)
        for _ in range(steps):
            scheduler.step(lambda: 0.0)
        (answer,) = [event for _, event in scheduler.expire(2.0)]
        assert isinstance(answer, wire.Done)
        assert all({"name", "size"} <= json.loads(fill.text).keys() for fill in answer.holes)


def test_the_rest_of_an_earlier_answer_is_neither_of_a_canvas_nor_repeated(model: NativeLlama) -> None:
    once = keeps_the_contract(run(Scheduler(model), [infill("j", "x = ", "\n", wire.Hole(6))])["j"])
    again = infill("j", "x = ", "\n", wire.Hole(6), draft=(once.holes[0].text,))
    answer = keeps_the_contract(run(Scheduler(model), [again])["j"])
    assert answer.holes == once.holes
    assert answer.tokens == once.tokens == wire.Tokens(left_to_right=1)


def test_a_sampler_of_canvases_is_refused(model: NativeLlama) -> None:
    ((_, event),) = Scheduler(model).take(b"p", infill("j", "a", "b", sampler="threshold"), 0.0)
    assert isinstance(event, wire.Failed)
    assert "has no canvas" in event.message


REFUSED = {
    "another activation": ({"hidden_act": "relu"}, "activation relu"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "take its GGUF file"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4}, "rope_parameters": None}, "by 'yarn'"),
    "vision": ({"model_type": "qwen2_vl"}, "'qwen2_vl' are not supported"),
    "fewer layers": ({"num_hidden_layers": 1}, "have no place in this model"),
    "more layers": ({"num_hidden_layers": 3}, "lack the tensor layers.2"),
    "another width": ({"intermediate_size": 128}, "has shape"),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_compute_is_refused_in_a_sentence(
    folders: dict[str, Path], tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    for file in folders["qwen2"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    for device in ("cpu", "meta"):
        with pytest.raises(ModelError, match=sentence):
            load(str(tmp_path), device)


def test_a_gguf_file_is_shown_without_reading_its_weights(tmp_path: Path) -> None:
    weights = test_gguf.write(tmp_path / "m.gguf", change=enough, vocabulary=(QWEN, "qwen2"))
    found = audit.summary(tmp_path / "m.gguf")
    assert (found["model_type"], found["format"], found["layers"]) == ("qwen2", "F16, F32", test_gguf.LAYERS)
    assert found["parameters"] == sum(array.size for array in weights.values())
    audit.check(tmp_path / "m.gguf")


def test_what_a_file_says_of_ends_and_windows_cannot_break_the_engine(folders: dict[str, Path], tmp_path: Path) -> None:
    for name, change in {"ends": {"eos_token_id": [999_999, -1, True, 7]}, "window": {"sliding_window": 512}}.items():
        folder = tmp_path / name
        folder.mkdir()
        for file in folders["starcoder2"].iterdir():
            (folder / file.name).symlink_to(file)
        config = json.loads((folder / "config.json").read_text()) | change
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config))
    ends = load(str(tmp_path / "ends"), "cpu")
    assert 7 in ends.spec.ends
    assert all(0 <= end < ends.width for end in ends.spec.ends)
    keeps_the_contract(run(Scheduler(ends), [infill("j", "x = ", "\n", wire.Hole(4))])["j"])
    with pytest.raises(ModelError, match="sees 512 tokens at once; 1,024 are needed"):
        load(str(tmp_path / "window"), "cpu")
