"""Weights as wheels (models/wheels.py): installed, they are one folder, from which engines map their tiles."""

import importlib.util
import shutil
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from caesura import model_store
from caesura.engine.weights.tiles import Packing, file, kept
from caesura.kernels import cpu

from ..support.checkpoints import tiny

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, with limits for a tiny model."""
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "models" / "wheels.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(file, "LARGEST", 20_000)
    monkeypatch.setattr(module, "LARGEST", 100_000)
    monkeypatch.setattr(module, "CONTENT", 30_000)
    return module


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of `models/` with a tiny model."""
    made = tmp_path / "tiny"
    shutil.copytree(ROOT / "models" / "small", made, ignore=shutil.ignore_patterns("caesura_*"))
    about = made / "pyproject.toml"
    about.write_text(
        about.read_text().replace("caesura-small", "caesura-tiny").replace("caesura_small", "caesura_tiny")
    )
    tiny.make(made / "caesura_tiny")
    (made / "caesura_tiny" / "__init__.py").write_text('"""Weights."""\n')
    return made


def nothing() -> dict[str, Packing]:
    raise AssertionError("the wheels have all tiles")


def test_wheels_of_a_model_install_as_one_folder(tool: ModuleType, model: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "caesura_tiny-0.0.9-py3-none-any.whl").write_bytes(b"larger than a wheel may be" * 5000)
    wheels = tool.built(model, tmp_path / "scratch", tmp_path / "out")
    assert len(wheels) > 2
    names = list[str]()
    for number, wheel in enumerate(wheels, 1):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / "site")
            names += archive.namelist()
            stem = "caesura_tiny" if number == 1 else f"caesura_tiny_{number}"
            licences = {f"{stem}-0.1.0.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")}
            assert licences <= set(archive.namelist())
            needs = archive.read(f"{stem}-0.1.0.dist-info/METADATA").decode()
        others = [f"caesura-tiny-{other}==0.1.0" for other in range(2, len(wheels) + 1)] if number == 1 else []
        assert [line.split(": ")[1] for line in needs.splitlines() if line.startswith("Requires-Dist")] == others
    assert len(names) == len(set(names))  # no file is in two

    folder, before = tmp_path / "site" / "caesura_tiny", model / "caesura_tiny"
    assert model_store.damaged(folder) == []
    found = kept.loaded(folder, nothing, dict)
    sources = kept.sources(before)
    assert found.keys() == sources.keys()
    for name, packing in sources.items():
        for matrix, shape in file.shapes(packing):
            ours, theirs = (of.matrix(matrix, shape).matrices for of in (found[name], packing))
            assert [part.tiles.tobytes() for part in ours] == [part.tiles.tobytes() for part in theirs]
    assert (folder / "tokenizer.json").read_bytes() == (before / "tokenizer.json").read_bytes()


def test_a_wheel_that_is_too_large_fails(
    tool: ModuleType, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tool, "LARGEST", 10_000)
    with pytest.raises(SystemExit, match=r"caesura_tiny-0\.1\.0-py3-none-any\.whl.* more than 0\.01 MB"):
        tool.built(model, tmp_path / "scratch", tmp_path / "out")
    assert not [*tmp_path.glob("out/*")]
