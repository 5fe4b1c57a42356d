"""The reader of safetensors: it gives what the library gives, and refuses files whose header cannot be true."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from caesura.engine.weights import mapped, tensors
from caesura.engine.weights.mapped import Damaged

DTYPES = (*("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "bool"), *("int64", "int32", "int8", "uint8"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_type_are_those_that_were_saved(tmp_path: Path, dtype: str) -> None:
    saved = {
        "x": (torch.arange(6).view(2, 3) % 2).to(getattr(torch, dtype)),
        "a": torch.ones(3),
        "empty": torch.ones(0, 4),
    }
    save_file(saved, tmp_path / "m.safetensors")
    found = {
        entry.name: tensors.of(mapped.array(entry), entry.dtype) for entry in mapped.entries(tmp_path / "m.safetensors")
    }
    assert found.keys() == saved.keys()
    for name, tensor in saved.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].float(), tensor.float())


def test_bytes_of_8_bits_mean_what_torch_says() -> None:
    right = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(mapped.e4m3(), right)


def test_a_change_of_an_array_does_not_reach_the_file(tmp_path: Path) -> None:
    save_file({"x": torch.ones(4)}, tmp_path / "m.safetensors")
    [entry] = mapped.entries(tmp_path / "m.safetensors")
    mapped.array(entry)[:] = 7
    assert mapped.array(entry).tolist() == [1] * 4


X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LIES: dict[str, dict[str, Any]] = {
    "a gap": {"x": X, "y": {**X, "data_offsets": [12, 20]}},
    "an overlap": {"x": X, "y": {**X, "data_offsets": [4, 12]}},
    "the same place twice": {"x": X, "y": X},
    "more than the file": {"x": {**X, "shape": [8], "data_offsets": [0, 32]}},
    "less than the file": {"x": X},
    "another size": {"x": {**X, "shape": [3]}, "y": {**X, "data_offsets": [8, 16]}},
    "backwards": {"x": {**X, "data_offsets": [16, 8]}},
    "below zero": {"x": {**X, "shape": [-2, -1]}, "y": {**X, "data_offsets": [8, 16]}},
    "an unknown type": {"x": {**X, "dtype": "F3"}, "y": {**X, "data_offsets": [8, 16]}},
    "many dimensions": {"x": {**X, "shape": [2, *[1] * 5000]}, "y": {**X, "data_offsets": [8, 16]}},
    "huge dimensions": {"x": {**X, "shape": [2**70, 2**70]}, "y": {**X, "data_offsets": [8, 16]}},
    "nothing, but huge": {
        "x": {**X, "shape": [0, 2**62], "data_offsets": [0, 0]},
        "y": {**X, "shape": [4], "data_offsets": [0, 16]},
    },
    "nothing, but huge in all": {
        "x": {**X, "shape": [0, 2**31, 2**31], "data_offsets": [0, 0]},
        "y": {**X, "shape": [4], "data_offsets": [0, 16]},
    },
    "no offsets": {"x": {"dtype": "F32", "shape": [4]}},
    "no tensor": {"x": 3},
}


def written(path: Path, header: dict[str, Any]) -> Path:
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(16))
    return path


def test_a_header_that_is_true_is_read(tmp_path: Path) -> None:
    said = {"__metadata__": {"a": "b"}, "y": {**X, "data_offsets": [8, 16]}, "x": X}
    assert [entry.name for entry in mapped.entries(written(tmp_path / "m", said))] == ["x", "y"]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F64"])
def test_an_empty_tensor_may_be_as_large_as_numpy_takes(tmp_path: Path, dtype: str) -> None:
    shape = [0, mapped.MAX_VALUES]
    said = {
        "x": {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]},
        "y": {**X, "shape": [4], "data_offsets": [0, 16]},
    }
    [entry, _] = mapped.entries(written(tmp_path / "m", said))
    assert mapped.floats(entry).shape == tuple(shape)


@pytest.mark.parametrize("header", LIES.values(), ids=LIES)
def test_a_header_that_cannot_be_true_is_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    with pytest.raises(Damaged):
        mapped.entries(written(tmp_path / "m", header))


def test_a_file_that_is_cut_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m", {"x": {**X, "shape": [4], "data_offsets": [0, 16]}})
    [entry] = mapped.entries(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(Damaged):
        mapped.array(entry)


def test_weights_are_read_and_packed_without_torch() -> None:
    parts = ("stored", "forms", "hub", "packing", "gguf.file")
    lines = [*(f"import caesura.engine.weights.{part}" for part in parts), "import sys"]
    lines.append("sys.exit([name for name in ('torch', 'safetensors', 'gguf') if name in sys.modules] or 0)")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
