"""Models of Llama's kind in 8 and 4 bits: converted or quantised when they are loaded, they compute with the rounded
weights, and take the memory that is counted."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from caesura import cli
from caesura.engine import memory, models
from caesura.engine.model import ModelError, Quantise
from caesura.engine.models import audit
from caesura.engine.models.convert import convert
from caesura.engine.models.llama import published
from caesura.engine.models.llama.layer import Weights
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.weights import forms, tensors
from caesura.engine.weights.forms import OF
from caesura.engine.weights.hub import headers
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import cpu, matmul
from caesura.wire import Hole

from ...support.checkpoints import compared, kept, masked, sparse
from ...support.checkpoints.tiny import alone, infill

IDS = torch.randint(0, 400, (60,), generator=torch.Generator().manual_seed(1)).tolist()
FAMILIES = ("llada", "dream", "open_dcoder", "rnd1")  # names of its own; biases; embedding and head in one; experts
ON_CPU: tuple[Quantise, ...] = ("int8", "int4")
ON_GPU: tuple[Quantise, ...] = ("fp8", "nvfp4")
in_c = pytest.mark.skipif(cpu.chosen() == "torch", reason="the C library is not built")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """By family and form; none for the original. Read only."""
    place, found = tmp_path_factory.mktemp("forms"), dict[tuple[str, str], Path]()
    for family in FAMILIES:
        found[family, ""] = source = masked.published(place / family, family, calm(family))
        for form in (*ON_CPU, *ON_GPU):
            found[family, form] = place / f"{family}-{form}"
            convert(source, found[family, form], form, lambda done, total: None)
    return found


def calm(family: str) -> Any:
    """Weights whose rounding does not grow from layer to layer, as that of trained ones does not."""
    model = masked.oracle(family)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 0.4
    return model


def exact(folder: Path) -> Tensor:
    return compared.logits(models.load(str(folder), "cpu", exact=True), IDS)


def off(found: Tensor, right: Tensor) -> float:
    """By how much most rows differ: in one that takes another expert all is different."""
    return float(((found - right).norm(dim=1) / right.norm(dim=1)).median())


def rounded(source: Path, folder: Path, form: Quantise) -> Path:
    """The checkpoint with each matrix replaced, in floats, by what the form makes of it."""
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    held = load_file(path)
    for name, tensor in held.items():
        if "mlp.gate." in name or not forms.fits(OF[form], tensor.shape[-1]):
            continue  # a router, or narrow experts
        table = any(part in name for part in ("embed_tokens", "lm_head", "wte", "transformer.ff_out"))
        if tensor.ndim == 2 and not (table and form in ON_GPU):
            made = "q8" if table else OF[form]
            held[name] = tensors.dense(made, tensors.quantised(made, tensor))
    save_file(held, path)
    return folder


@pytest.mark.parametrize("form", [*ON_CPU, *ON_GPU])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_computes_with_the_rounded_weights(
    folders: dict[tuple[str, str], Path], family: str, form: Quantise, tmp_path: Path
) -> None:
    expected = exact(rounded(folders[family, ""], tmp_path / "rounded", form))
    assert (exact(folders[family, form]) - expected).abs().max() < 1e-5 * expected.abs().max()
    original = exact(folders[family, ""])
    assert 0.001 < off(expected, original) < {"int8": 0.04, "fp8": 0.15}.get(form, 0.5)


@in_c
@pytest.mark.parametrize("form", ON_CPU)
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_cpu_matrices_stay_in_the_bits_of_the_file(
    folders: dict[tuple[str, str], Path], family: str, form: Quantise
) -> None:
    """So a 7B model in 4 bits fits the memory of a laptop; what a step rounds are its activations."""
    model, right = models.load(str(folders[family, form]), "cpu"), exact(folders[family, form])
    found = compared.logits(model, IDS)
    assert off(found, right) < 0.05
    assert kept.forms(model) == {cpu.FORMS[OF[form]]}
    loaded = models.load(str(folders[family, ""]), "cpu", quantise=form)
    assert torch.equal(compared.logits(loaded, IDS), found), "quantised when it is loaded, it is the same"


@in_c
@pytest.mark.parametrize("form", ["", *ON_CPU])
def test_what_is_counted_is_what_the_weights_take(
    folders: dict[tuple[str, str], Path], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, fit = list[int](), memory.fit
    monkeypatch.setattr(
        memory, "fit", lambda name, weights, *rest: counted.append(weights) or fit(name, weights, *rest)
    )
    model = models.load(str(folders["dream", form]), "cpu")
    assert isinstance(model, NativeLlama)
    held = sum(one.tiles.nbytes for packed in (*kept.matrices(model), model._heads[False]) for one in packed.matrices)
    held += forms.nbytes("q8", *(model.config.vocab_size, model.config.hidden_size))  # the embedding, once it is read
    assert 0.95 * held < counted[0] < 1.05 * held


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "FLOATS", {"cpu": "bf16"})


@pytest.mark.parametrize("form", ON_GPU)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_gpu_computes_in_a_form_is_near_the_rounded_weights(
    folders: dict[tuple[str, str], Path], family: str, form: Quantise, as_on_a_gpu: None
) -> None:
    """By the references of its kernels, in bfloat16, with an embedding in 8 bits and the head in FP8."""
    right = exact(folders[family, form])
    ready, loaded = (
        models.load(str(folders[family, form]), "cpu"),
        models.load(str(folders[family, ""]), "cpu", quantise=form),
    )
    for model, bound in ((ready, 0.05), (loaded, {"fp8": 0.05, "nvfp4": 0.3}[form])):  # with other factors
        assert isinstance(model, BlockLlama)
        attention = [layer.attention for layer, _ in model._layers]
        assert {type(of.out.packed).__name__ for of in attention} == {f"{form.title()}Linear"}
        assert off(compared.logits(model, IDS), right) < bound


@pytest.mark.parametrize("form", ON_GPU)
def test_the_kernels_of_a_gpu_multiply_by_the_matrices_of_a_model(
    folders: dict[tuple[str, str], Path], form: Quantise, as_on_a_gpu: None
) -> None:
    """In Triton's interpreter, which knows no bfloat16."""
    pytest.importorskip("triton")
    model = models.load(str(folders["dream", form]), "cpu")
    assert isinstance(model, BlockLlama)
    layer = model._layers[0][0]
    assert isinstance(layer, Weights)
    for matrix in (layer.attention.qkv.packed, layer.mlp.down.packed):
        x = torch.randn(5, matrix.shape[1], generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(matmul.launch(x, matrix), x @ matrix.dense(torch.float32).T, atol=1e-5, rtol=1e-4)


def test_a_converted_model_fills_and_is_listed_by_the_command(
    folders: dict[tuple[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shutil.copytree(folders["dream", ""], tmp_path / "dream")
    assert cli.main(["models", "convert", str(source), "--to", "int4"]) == 0
    assert "caesura int4" in capsys.readouterr().out
    assert cli.main(["models", "verify", f"{source}-int4"]) == 0
    assert "rows of the canary as recorded" in capsys.readouterr().out
    found, before = audit.summary(Path(f"{source}-int4")), audit.summary(source)
    assert found["parameters"] == before["parameters"]
    assert found["bytes"] < before["bytes"] / 4
    answer = alone(models.load(f"{source}-int4", "cpu"), infill("j", "x = ", "\n", Hole(4)))
    assert answer.stop == "complete"
    assert answer.tokens.canvas


def test_experts_shared_ones_and_fused_matrices_are_quantised_and_routers_are_not(tmp_path: Path) -> None:
    """Of LLaDA2, which at 16B fits 16 GB so."""
    source = sparse.published(tmp_path / "llada2", sparse.LLADA2)
    convert(source, tmp_path / "out", "int4", lambda done, total: None)
    found = forms.matrices(headers(tmp_path / "out"))
    plain = {name for name, (form, entries) in found.items() if not form and len(entries[0].shape) > 1}
    assert plain == {name for name in found if name.endswith("mlp.gate.weight")}
    assert {form for form, _ in found.values()} == {"", "q8", "k4"}
    assert {name for name, (form, _) in found.items() if form == "q8"} == {
        "lm_head.weight",
        "model.word_embeddings.weight",
    }
    model = models.load(str(tmp_path / "out"), "cpu")
    assert off(compared.logits(model, IDS), exact(tmp_path / "out")) < 0.1
    if cpu.chosen() != "torch":
        assert kept.forms(model) == {cpu.FORMS["k4"]}


def test_a_model_without_a_canvas_is_converted_too(folders: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    source = shutil.copytree(folders["open_dcoder", ""], tmp_path / "qwen")
    (source / "tokenizer_config.json").unlink()  # no mask token: an autoregressive model
    convert(source, tmp_path / "out", "int4", lambda done, total: None)
    assert not (tmp_path / "out" / audit.CANARY).exists()
    model = models.load(str(tmp_path / "out"), "cpu")
    assert model.spec.noise is None
    assert len(compared.logits(model, IDS)) == len(IDS)


def test_a_form_for_the_other_device_is_refused(folders: dict[tuple[str, str], Path], as_on_a_gpu: None) -> None:
    with pytest.raises(ModelError, match=r"cannot be computed in int4 on cpu; choose fp8 or nvfp4"):
        models.load(str(folders["dream", ""]), "cpu", quantise="int4")
    with pytest.raises(ModelError, match=r"cannot be kept as 'int3'; choose int8, int4, fp8, nvfp4"):
        models.load(str(folders["dream", ""]), "cpu", quantise="int3")


def test_a_form_that_nobody_knows_is_refused(folders: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["dream", ""], tmp_path / "dream")
    config = json.loads((folder / "config.json").read_text())
    for said in ({"quant_method": "gptq"}, {"format": "pack-quantized"}, "fp8", None):
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
        with pytest.raises(ModelError, match="is quantised in a format that is not supported"):
            models.load(str(folder), "cpu")


def broken(folder: Path, target: Path, name: str, tensor: Tensor | None) -> Path:
    """A copy in which a tensor is another, or missing."""
    shutil.copytree(folder, target)
    (path,) = target.glob("*.safetensors")
    held = load_file(path)
    assert held.pop(name, None) is not None
    index = target / "model.safetensors.index.json"
    places = json.loads(index.read_text())
    del places["weight_map"][name]
    if tensor is not None:
        held[name] = tensor
        places["weight_map"][name] = path.name
    index.write_text(json.dumps(places))
    save_file(held, path)
    return target


MATRIX = "model.layers.1.self_attn.o_proj.weight"
DAMAGE = {
    "no scale": ("int4", f"{MATRIX}.scale", None, "has no tensor .*o_proj.weight.scale"),
    "another scale": ("int4", f"{MATRIX}.scale", torch.zeros(3, 2, dtype=torch.uint8), "is damaged"),
    "another form": ("int8", f"{MATRIX}.q8", torch.zeros(64, 32, dtype=torch.int8), r"has shape \[64, 32\]"),
    "no number": ("fp8", f"{MATRIX}_scale", torch.full((64, 1), torch.nan), "has an invalid scale"),
    "few scales": ("fp8", f"{MATRIX}_scale", torch.ones(3, 1), "has no scale for each of its rows"),
    "no factor": ("nvfp4", f"{MATRIX}_global_scale", torch.zeros(1), "has no scale for each of its rows"),
}


@pytest.mark.parametrize(("form", "name", "tensor", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_told_in_a_sentence(
    folders: dict[tuple[str, str], Path], tmp_path: Path, form: str, name: str, tensor: Tensor | None, sentence: str
) -> None:
    folder = broken(folders["dream", form], tmp_path / "broken", name, tensor)
    with pytest.raises(ModelError, match=sentence):
        models.load(str(folder), "cpu")


def test_a_form_in_memory_is_no_longer_than_a_form_in_a_file(folders: dict[tuple[str, str], Path]) -> None:
    for form in (*ON_CPU, *ON_GPU):
        found = forms.matrices(headers(folders["llada", form]))
        body = {made for name, (made, _) in found.items() if ".blocks." in name and "norm" not in name}
        assert body == {OF[form]}
        for made, entries in found.values():
            if made:
                rows, columns = forms.stored_shape(made, entries)
                assert abs(sum(entry.nbytes for entry in entries) - forms.nbytes(made, rows, columns)) <= 4 * rows


def test_a_converted_model_is_not_converted_again(folders: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is quantised already"):
        convert(folders["dream", "int4"], tmp_path / "out", "int8", lambda done, total: None)
