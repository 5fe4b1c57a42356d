"""What is stored is what was meant, and files that are not what the manifest says."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from caesura.engine import weights
from caesura.engine.weights import Stored, WeightsError


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
    with pytest.raises(WeightsError, match=r"a\.bin is missing"):
        weights.verify(folder)


def test_a_file_that_the_manifest_does_not_name_is_named(folder: Path) -> None:
    (folder / "adapter.safetensors").write_bytes(b"of somebody else")
    with pytest.raises(WeightsError, match=r"adapter\.safetensors is not in the manifest"):
        weights.verify(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"null", b'{"files": []}', b'{"files": null}'])
def test_a_damaged_manifest_is_a_sentence(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(WeightsError, match=r"manifest\.json"):
        weights.verify(folder)


@pytest.mark.parametrize("form", ["q8", "q4"])
def test_stored_codes_are_close_to_what_was_stored(tmp_path: Path, form: str) -> None:
    weight = torch.randn(7, 96, generator=torch.Generator().manual_seed(0))
    stored = getattr(weights, form)(weight)
    names = [f"x.{part}" for part in weights.FORMS[form]]
    save_file(dict(zip(names, stored, strict=True)), tmp_path / "w.safetensors")
    file = Stored(tmp_path / "w.safetensors")
    assert list(file) == ["x"]
    spread = weight.view(7, 3, 32).amax(-1) - weight.view(7, 3, 32).amin(-1)
    step = (spread / (15 if form == "q4" else 127)).repeat_interleave(32, 1)
    assert ((file["x"] - weight).abs() <= step * 0.6 + 1e-2).all()


def test_constant_and_zero_groups_survive(tmp_path: Path) -> None:
    weight = torch.cat((torch.zeros(2, 32), torch.full((2, 32), 0.5)))
    for form in ("q8", "q4"):
        names = [f"x.{part}" for part in weights.FORMS[form]]
        save_file(dict(zip(names, getattr(weights, form)(weight), strict=True)), tmp_path / f"{form}.safetensors")
        torch.testing.assert_close(Stored(tmp_path / f"{form}.safetensors")["x"], weight, atol=1e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_tensors_come_back_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a.b": torch.tensor([1.5, -2.0], dtype=dtype)}, tmp_path / "w.safetensors")
    file = Stored(tmp_path / "w.safetensors")
    assert file["a.b"].dtype == torch.float32
    assert file["a.b"].tolist() == [1.5, -2.0]
    assert "a.b" in file
    assert "a" not in file


@pytest.mark.parametrize("lost", ["x.scale", "x.min"])
def test_half_a_tensor_is_a_sentence_that_names_it(tmp_path: Path, lost: str) -> None:
    tensors = dict(zip(("x.q4", "x.scale", "x.min"), weights.q4(torch.ones(2, 32)), strict=True))
    del tensors[lost]
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match="x"):
        Stored(tmp_path / "w.safetensors")["x"]


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_safetensors_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match="damaged"):
        Stored(tmp_path / "w.safetensors")
