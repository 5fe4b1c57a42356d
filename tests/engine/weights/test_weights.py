"""What is stored is what was meant, and files that are not what the manifest says."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from caesura.engine.weights import stored as weights
from caesura.engine.weights import tensors
from caesura.engine.weights.stored import Stored, WeightsError
from caesura.engine.weights.tensors import ByName, quantised
from caesura.model_store.reading import UnusableModel


def whole(path: Path) -> Path:
    (path / "a.bin").write_bytes(b"weights")
    weights.write_manifest(path, {"name": "x"})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return whole(tmp_path)


def test_a_whole_folder_is_verified(folder: Path) -> None:
    first = weights.verify(folder)
    weights.write_manifest(folder, {"name": "x"})
    assert weights.verify(folder) == first
    assert set(json.loads((folder / "manifest.json").read_text())["files"]) == {"a.bin"}


def test_a_changed_file_is_named(folder: Path) -> None:
    (folder / "a.bin").write_bytes(b"weightz")
    with pytest.raises(WeightsError, match=r"a\.bin is damaged"):
        weights.verify(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "a.bin").unlink()
    with pytest.raises(UnusableModel, match=r"a\.bin is missing"):
        weights.verify(folder)


def test_a_file_that_the_manifest_does_not_name_is_named(folder: Path) -> None:
    (folder / "adapter.safetensors").write_bytes(b"of somebody else")
    with pytest.raises(WeightsError, match=r"adapter\.safetensors is not in the manifest"):
        weights.verify(folder)


@pytest.mark.parametrize("name", ["../a.bin", "/etc/passwd", "a/b.bin"])
def test_a_manifest_names_only_files_of_its_folder(folder: Path, name: str) -> None:
    (folder / "manifest.json").write_text(json.dumps({"files": {name: "0" * 64}}))
    with pytest.raises(UnusableModel, match="is no file of its folder"):
        weights.verify(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"null", b'{"files": []}', b'{"files": null}'])
def test_a_damaged_manifest_is_a_sentence(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(UnusableModel, match=r"manifest\.json is damaged"):
        weights.verify(folder)


@pytest.mark.parametrize("form", ["q8", "q4", "k4"])
def test_stored_codes_are_close_to_what_was_stored(tmp_path: Path, form: str) -> None:
    weight = torch.randn(7, 96, generator=torch.Generator().manual_seed(0))
    stored = quantised(form, weight)
    names = [f"x.{part}" for part in weights.FORMS[form]]
    save_file(dict(zip(names, stored, strict=True)), tmp_path / "w.safetensors")
    file = Stored(tmp_path / "w.safetensors")
    assert list(file) == ["x"]
    spread = weight.view(7, 3, 32).amax(-1) - weight.view(7, 3, 32).amin(-1)
    step = (spread / (127 if form == "q8" else 15)).repeat_interleave(32, 1)
    assert ((tensors.of(file.floats("x")) - weight).abs() <= step * 0.6 + 1e-2).all()


def test_constant_and_zero_groups_survive(tmp_path: Path) -> None:
    weight = torch.cat((torch.zeros(2, 32), torch.full((2, 32), 0.5)))
    for form in ("q8", "q4", "k4"):
        names = [f"x.{part}" for part in weights.FORMS[form]]
        save_file(dict(zip(names, quantised(form, weight), strict=True)), tmp_path / f"{form}.safetensors")
        torch.testing.assert_close(ByName(Stored(tmp_path / f"{form}.safetensors"))["x"], weight, atol=1e-3, rtol=0)


def test_a_k4_matrix_is_restored_within_half_a_step(tmp_path: Path) -> None:
    """A step of its group, and what 255ths of the row's largest scale and minimum round off."""
    weight = torch.randn(9, 128, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 0, 9)[:, None]
    save_k4(weight, tmp_path / "w.safetensors")
    groups = weight.view(9, 4, 32)
    least = groups.amin(-1)
    step = (groups.amax(-1) - least) / 15
    largest = step.amax(1, keepdim=True) * 15 + (-least).amax(1, keepdim=True)
    error = (ByName(Stored(tmp_path / "w.safetensors"))["x"] - weight).abs().view(9, 4, 32).amax(-1)
    assert (error <= step / 2 + largest / 255).all()


def test_k4_keeps_values_on_its_own_grid(tmp_path: Path) -> None:
    codes = torch.arange(64).view(2, 32) % 16
    weight = codes * torch.tensor([[0.5], [0.25]]) - torch.tensor([[2.0], [1.0]])
    save_k4(weight, tmp_path / "w.safetensors")
    torch.testing.assert_close(ByName(Stored(tmp_path / "w.safetensors"))["x"], weight, atol=1e-6, rtol=0)


def save_k4(weight: torch.Tensor, path: Path) -> None:
    save_file(dict(zip([f"x.{part}" for part in weights.FORMS["k4"]], quantised("k4", weight), strict=True)), path)


@pytest.mark.parametrize(
    ("part", "shape"), [("k4", (2, 15)), ("scale", (2, 3)), ("min", (2, 3)), ("unit", (3, 2)), ("unit", (2,))]
)
def test_k4_parts_that_do_not_fit_together_are_a_sentence(tmp_path: Path, part: str, shape: tuple[int, ...]) -> None:
    tensors = dict(zip([f"x.{name}" for name in weights.FORMS["k4"]], quantised("k4", torch.ones(2, 64)), strict=True))
    tensors[f"x.{part}"] = torch.ones(shape, dtype=tensors[f"x.{part}"].dtype)
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"The tensor x is damaged \(.*\); install the model again\."):
        Stored(tmp_path / "w.safetensors").floats("x")


def test_several_files_read_as_one(tmp_path: Path) -> None:
    for number in range(1, 12):
        save_file({f"layers.{number}": torch.full((2,), float(number))}, tmp_path / f"base-{number}.safetensors")
    whole = Stored(*weights.bases(tmp_path))
    assert {name: whole.floats(name).tolist() for name in whole} == {f"layers.{n}": [n, n] for n in range(1, 12)}


def test_a_base_of_one_file_is_found_by_its_name(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "base.safetensors")
    save_file({"y": torch.ones(2)}, tmp_path / "adapter.safetensors")
    assert list(Stored(*weights.bases(tmp_path))) == ["x"]


def test_parts_of_a_tensor_may_lie_in_two_files(tmp_path: Path) -> None:
    codes, scale = quantised("q8", torch.ones(2, 32))
    save_file({"x.q8": codes}, tmp_path / "base-1.safetensors")
    save_file({"x.scale": scale}, tmp_path / "base-2.safetensors")
    torch.testing.assert_close(ByName(Stored(*weights.bases(tmp_path)))["x"], torch.ones(2, 32), atol=1e-3, rtol=0)


def test_rows_of_a_tensor_in_later_files_follow_those_in_earlier_ones(tmp_path: Path) -> None:
    for number in range(1, 12):
        save_file({"x": torch.full((1, 2), float(number))}, tmp_path / f"base-{number}.safetensors")
    assert Stored(*weights.bases(tmp_path)).floats("x").tolist() == [[n, n] for n in range(1, 12)]


def test_rows_of_another_width_are_a_sentence(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1, 2)}, tmp_path / "base-1.safetensors")
    save_file({"x": torch.ones(1, 3)}, tmp_path / "base-2.safetensors")
    with pytest.raises(WeightsError, match=r"The tensor x is damaged \(.*\); install the model again\."):
        Stored(*weights.bases(tmp_path)).floats("x")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks the system what is mapped")
def test_a_file_is_not_mapped_once_its_tensors_are_read(tmp_path: Path) -> None:
    save_k4(torch.ones(64, 64), tmp_path / "mapped.safetensors")
    whole = Stored(tmp_path / "mapped.safetensors")
    read = whole.floats("x")
    assert read.shape == (64, 64)
    assert "mapped.safetensors" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_tensors_come_back_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a.b": torch.tensor([1.5, -2.0], dtype=dtype)}, tmp_path / "w.safetensors")
    file = Stored(tmp_path / "w.safetensors")
    assert file.floats("a.b").dtype == np.float32
    assert file.floats("a.b").tolist() == [1.5, -2.0]
    assert "a.b" in file
    assert "a" not in file


@pytest.mark.parametrize("form", ["q4", "k4"])
@pytest.mark.parametrize("lost", ["scale", "min"])
def test_half_a_tensor_is_a_sentence_that_names_it(tmp_path: Path, form: str, lost: str) -> None:
    names = [f"x.{part}" for part in weights.FORMS[form]]
    tensors = dict(zip(names, quantised(form, torch.ones(2, 32)), strict=True))
    del tensors[f"x.{lost}"]
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=rf"The tensor x is damaged \(x\.{lost} is missing\)"):
        Stored(tmp_path / "w.safetensors").floats("x")


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_safetensors_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match="damaged"):
        Stored(tmp_path / "w.safetensors")
