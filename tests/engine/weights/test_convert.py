"""`caesura models`: a published checkpoint is converted, shown and verified; what cannot be is said in a sentence."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from caesura import cli
from caesura.engine import memory, models
from caesura.engine.model import Quantise, Run
from caesura.engine.models import audit
from caesura.engine.models.convert import convert, quantised
from caesura.engine.models.diffusion_gemma import model as diffusion_gemma
from caesura.engine.weights.hub import INDEX, headers
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import fp8, nvfp4
from caesura.model_store.reading import UnusableModel

from ...support.checkpoints.gemma import EXPERTS, LAYERS, MLP, TEXT, published, shapes

FORMS: tuple[Quantise, ...] = ("fp8", "nvfp4")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return published(tmp_path_factory.mktemp("published") / "tiny")


@pytest.fixture(scope="module")
def converted(source: Path) -> dict[Quantise, Path]:
    """Both forms of it. Read only."""
    out: dict[Quantise, Path] = {form: source.with_name(f"tiny-{form}") for form in FORMS}
    for form, folder in out.items():
        convert(source, folder, form, lambda done, total: None)
    return out


def logits(folder: Path) -> Tensor:
    """Of a canvas behind a prompt that is longer than the window; the second step knows the first."""
    model = models.load(str(folder), "cpu")
    kv = model.cache().lease([])
    model.prefill(list(range(100, 130)), kv)
    canvas = list(range(200, 216))
    first = model.denoise([Run(kv, canvas, range(30, 46))]).logits
    return torch.cat(
        (first, model.denoise([Run(kv, canvas, range(30, 46), conditioning=model.condition(first))]).logits)
    )


def rounded(source: Path, folder: Path, form: Quantise) -> Path:
    """The checkpoint with each matrix replaced, in floats, by what the form makes of it."""
    shutil.copytree(source, folder)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if not re.search("|".join(diffusion_gemma.ROUNDED.matrices), name):
                continue
            if form == "fp8":
                tensors[name] = fp8.Fp8Linear(*fp8.quantize(tensor)).dense(torch.float32)
            elif tensor.shape[-1] != MLP:
                tensors[name] = nvfp4.Nvfp4Linear(*nvfp4.quantize(tensor)).dense(torch.float32)
        save_file(tensors, path)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_a_converted_model_computes_with_the_rounded_weights(
    source: Path, converted: dict[Quantise, Path], form: Quantise, tmp_path: Path
) -> None:
    ours, expected = logits(converted[form]), logits(rounded(source, tmp_path / "rounded", form))
    assert (ours - expected).abs().max() < 1e-3


@pytest.mark.parametrize(("form", "least", "most"), [("fp8", 0.97, 0.99999), ("nvfp4", 0.8, 0.97)])
def test_a_converted_model_is_close_to_the_original(
    source: Path, converted: dict[Quantise, Path], form: Quantise, least: float, most: float, tmp_path: Path
) -> None:
    """A rounding moves random weights by about 2.6 % or 10 %, and that of some twenty matrices in a row adds up. Every
    expert takes part here: random ones have nothing in common, so another choice would hide the rounding."""
    for name, folder in (("before", source), ("after", converted[form])):
        config(Path(shutil.copytree(folder, tmp_path / name)), text_config={**TEXT, "top_k_experts": EXPERTS})
    alike = torch.cosine_similarity(logits(tmp_path / "before"), logits(tmp_path / "after"), dim=1)
    assert least < alike.median() < most


@pytest.mark.parametrize("form", FORMS)
def test_only_the_matrices_of_the_layers_are_quantised(converted: dict[Quantise, Path], form: Quantise) -> None:
    entries = {entry.name: entry for entry in headers(converted[form])}
    coded = {name.rpartition(".")[0] for name, entry in entries.items() if entry.dtype in ("U8", "F8_E4M3")}
    at = "model.decoder.layers.0"
    assert f"{at}.experts.gate_up_proj" in coded
    assert f"{at}.self_attn.q_proj" in coded
    stay = (
        f"{at}.router.proj.weight",
        f"{at}.input_layernorm.weight",
        "model.decoder.self_conditioning.up_proj.weight",
    )
    assert {entries[name].dtype for name in (*stay, "model.decoder.embed_tokens.weight")} == {"F32"}
    assert not any("vision" in name for name in entries)
    said = json.loads((converted[form] / "config.json").read_text())["quantization_config"]
    assert f"{at}.router.proj" in said["ignore"]
    assert (f"{at}.mlp.down_proj" in coded) == (f"{at}.mlp.down_proj" not in said["ignore"]) == (form == "fp8")
    assert said["format"] == {"fp8": "float-quantized", "nvfp4": "nvfp4-pack-quantized"}[form]


def test_a_stack_is_quantised_as_its_matrices_are() -> None:
    stack = torch.randn(3, 16, 32, generator=torch.Generator().manual_seed(1))
    for form in FORMS:
        whole = quantised(stack, form)
        for e, matrix in enumerate(stack):
            parts = zip(whole, quantised(matrix, form), strict=True)
            assert all(torch.equal(part[e].float(), value.float()) for part, value in parts)


def test_what_belongs_to_the_model_comes_along(source: Path, converted: dict[Quantise, Path]) -> None:
    for name in ("tokenizer.json", "generation_config.json"):
        assert (converted["fp8"] / name).read_bytes() == (source / name).read_bytes()
    manifest = json.loads((converted["fp8"] / "manifest.json").read_text())
    present = {path.name for path in converted["fp8"].iterdir()} - {"manifest.json"}
    assert set(manifest["files"]) == present >= {INDEX, "config.json", "canary.json", "tokenizer.json"}


# What cannot be converted

Break = Callable[[Path], object]


def config(folder: Path, **changes: Any) -> None:
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stored, **changes}))


REFUSED: dict[str, tuple[Break, str]] = {
    "our own family": (lambda f: config(f, model_type="block_llama"), "holds a model of type 'block_llama'"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no readable config.json"),
    "config of another kind": (
        lambda f: (f / "config.json").write_text("[1]"),
        "Expected `object`",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
    "no weights": (lambda f: (f / INDEX).unlink(), "has neither model.safetensors nor"),
    "quantised": (lambda f: config(f, quantization_config={}), "is quantised already; convert the original"),
    "reshaped": (
        lambda f: config(f, text_config={**TEXT, "intermediate_size": 80}),
        r"shape \[64, 88\] instead|shape \[88, 64\] instead",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_is_no_good_leaves_nothing_behind(source: Path, tmp_path: Path, case: str) -> None:
    breaks, sentence = REFUSED[case]
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    breaks(folder)
    with pytest.raises(UnusableModel, match=sentence):
        convert(folder, tmp_path / "out", "fp8", lambda done, total: None)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_form_that_its_layers_cannot_be_computed_in_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="of type 'diffusion_gemma', which cannot be converted to int4"):
        convert(source, tmp_path / "out", "int4", lambda done, total: None)


def test_a_file_needs_no_conversion(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match=r"m.gguf loads as it is; `caesura engine --quantise fp8` keeps"):
        convert(tmp_path / "m.gguf", tmp_path / "out", "fp8", lambda done, total: None)


def test_a_quantised_model_is_not_quantised_again(converted: dict[Quantise, Path], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is quantised already"):
        convert(converted["fp8"], tmp_path / "out", "nvfp4", lambda done, total: None)


def test_a_folder_that_exists_is_left_alone(source: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="exists already; choose another folder with --out"):
        convert(source, tmp_path, "fp8", lambda done, total: None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WeightsError, match="There is no folder"):
        convert(source, tmp_path / "none" / "out", "fp8", lambda done, total: None)


def test_a_full_disk_is_noticed_before_the_work(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 100_000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(WeightsError, match=r"has 0.0 GB free and the converted model takes .* GB; make room"):
        convert(source, tmp_path / "out", "fp8", lambda done, total: None)


def test_an_interrupted_conversion_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    def full(done: int, total: int) -> None:
        if done > total // 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(WeightsError, match=r"could not be written: .*No space left"):
        convert(source, tmp_path / "out", "fp8", full)
    assert list(tmp_path.iterdir()) == []


def test_a_model_too_large_for_this_machine_is_converted_without_a_canary(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free", lambda device: 1 << 20)
    convert(source, tmp_path / "small", "fp8", lambda done, total: None)
    assert not (tmp_path / "small" / audit.CANARY).exists()
    audit.check(tmp_path / "small")


def test_progress_ends_with_everything_read(source: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    convert(source, tmp_path / "out", "fp8", lambda done, total: heard.append((done, total)))
    assert heard == sorted(heard)
    assert heard[-1][0] == heard[-1][1] == sum(e.nbytes for e in headers(source) if "vision" not in e.name)


# The command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def ask(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["models", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ask


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(converted: dict[Quantise, Path], tmp_path: Path) -> Path:
    """A converted model to break."""
    return Path(shutil.copytree(converted["fp8"], tmp_path / "model"))


def test_the_command_converts_beside_the_source(source: Path, tmp_path: Path, run: Ask) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "model"))
    code, out, _ = run("convert", folder, "--to", "nvfp4", "--json")
    assert code == 0
    assert json.loads(out)["folder"] == f"{folder}-nvfp4"
    assert run("verify", f"{folder}-nvfp4")[0] == 0
    assert run("convert", folder, "--to", "nvfp4")[2].endswith("choose another folder with --out.\n")
    assert run("convert", folder, "--to", "fp8", "--out", tmp_path / "out")[1].startswith(
        f"{tmp_path / 'out'}: 0.00 GB"
    )


def test_a_published_checkpoint_needs_no_manifest_to_be_listed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Ask
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "caesura" / "models").mkdir(parents=True, mode=0o700)
    shutil.copytree(source, tmp_path / "caesura" / "models" / "published")
    (tmp_path / "caesura" / "models" / "else").mkdir()
    assert "published" in [one["name"] for one in json.loads(run("list", "--json")[1])["models"]]
    assert run("show", "published")[0] == 0


def test_a_published_checkpoint_is_shown_from_its_headers(source: Path, run: Ask) -> None:
    about = json.loads(run("show", source, "--json")[1])
    names = {name for name in shapes() if "vision" not in name}
    assert (about["format"], about["layers"]) == ("F32", LAYERS)
    assert about["parameters"] == sum(torch.Size(shape).numel() for name, shape in shapes().items() if name in names)
    assert about["bytes"] == 4 * about["parameters"]
    assert about["skipped"] == ["model.encoder.vision_tower.patch.weight"]


@pytest.mark.parametrize("form", FORMS)
def test_a_converted_model_has_as_many_parameters(
    source: Path, converted: dict[Quantise, Path], form: Quantise
) -> None:
    before, after = audit.summary(source), audit.summary(converted[form])
    assert after["parameters"] == before["parameters"]
    assert after["bytes"] < before["bytes"]
    assert after["format"].startswith("compressed-tensors ")


def test_a_whole_model_is_verified(folder: Path, source: Path, run: Ask) -> None:
    said = f"{folder}: {len(list(folder.iterdir())) - 1} files, all whole; every tensor in place; 64 rows of the canary"
    assert run("verify", folder)[1] == f"{said} as recorded.\n"
    assert run("verify", source)[1] == (
        f"{source}: no manifest: hashes not checked; every tensor in place; no canary.\n"
    )
    assert json.loads(run("verify", folder, "--json")[1])["canary"] == 64


def test_a_canary_can_be_recorded_later(folder: Path, run: Ask) -> None:
    (folder / audit.CANARY).unlink()
    assert "canary.json" in run("verify", folder)[2]
    (folder / audit.CANARY).write_text("{}")
    (folder / "manifest.json").unlink()
    assert "canary.json is damaged" in run("verify", folder)[2]
    assert run("verify", folder, "--record")[1].endswith("64 rows of the canary as recorded.\n")


def test_recording_keeps_the_manifest_true(folder: Path, run: Ask) -> None:
    (folder / audit.CANARY).unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][audit.CANARY]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert run("verify", folder, "--record")[0] == 0
    assert f"{len(manifest['files']) + 1} files, all whole" in run("verify", folder)[1]


def forged(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Other weights, and no manifest to tell."""
    (folder / "manifest.json").unlink()
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)


def swapped(tensors: dict[str, Tensor]) -> None:
    """Rows in another order: every shape is right."""
    for name in [name for name in tensors if name.endswith("o_proj.weight")]:
        tensors[name] = tensors[name].view(torch.uint8).flip(0).view(torch.float8_e4m3fn)


def louder(tensors: dict[str, Tensor]) -> None:
    """Only a step that knows the one before can tell."""
    if "model.decoder.self_conditioning.down_proj.weight" in tensors:
        tensors["model.decoder.self_conditioning.down_proj.weight"] *= 1000


DAMAGE: Sequence[tuple[Break, str]] = [
    (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json of .* damaged or missing"),
    (lambda f: forged(f, lambda t: t.pop("model.decoder.norm.weight", None)), "model.decoder.norm.weight|tensor norm"),
    (lambda f: forged(f, lambda t: t.update(odd=torch.ones(3))), "1 tensors without a place in this model: odd"),
    (lambda f: forged(f, louder), r"answers \d+ of 64 rows otherwise than canary.json says"),
    (lambda f: forged(f, swapped), r"answers \d+ of 64 rows otherwise than canary.json says"),
]


@pytest.mark.parametrize(("breaks", "sentence"), DAMAGE)
def test_a_model_that_is_not_whole_is_told(folder: Path, run: Ask, breaks: Break, sentence: str) -> None:
    breaks(folder)
    code, out, err = run("verify", folder)
    assert (code, out) == (1, "")
    assert re.search(sentence, err)
    assert err.count("\n") == 1
