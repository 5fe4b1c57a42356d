"""A fresh installation that grows fails in CI (.ci/fresh.py)."""

import importlib.util
import json
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / ".ci" / "fresh.json").read_text())


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with a record of its own."""
    spec = importlib.util.spec_from_file_location("fresh", ROOT / ".ci" / "fresh.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RECORD", tmp_path / "fresh.json")
    module.RECORD.write_text(json.dumps(RECORDED))
    return module


@pytest.mark.parametrize("name", RECORDED)
def test_growth_by_more_than_a_tenth_fails(
    name: str, fresh: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fresh, "measured", lambda: {**RECORDED, name: 1.11 * RECORDED[name]})
    assert fresh.main([]) == 1
    assert capsys.readouterr().err.startswith(f"{name}: ")
    monkeypatch.setattr(fresh, "measured", lambda: {**RECORDED, name: 1.09 * RECORDED[name]})
    assert fresh.main([]) == 0


def test_a_record_is_what_was_measured(fresh: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    larger = {name: 2 * value for name, value in RECORDED.items()}
    monkeypatch.setattr(fresh, "measured", lambda: larger)
    assert fresh.main(["--write"]) == 0
    assert json.loads(fresh.RECORD.read_text()) == larger
    assert fresh.main([]) == 0


def test_a_package_that_is_needed_counts_with_all_that_it_needs(
    fresh: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, needs in {"outer": "inner", "inner": "outer; extra == 'more'", "other": "inner"}.items():
        about = tmp_path / f"{name}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nRequires-Dist: {needs}\n")
        (about / "RECORD").write_text(f"{name}.py,,\n{name}-1.dist-info/RECORD,,\n")
        (tmp_path / f"{name}.py").write_bytes(b"#" * 1000)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = dict[str, object]()
    fresh.needed("outer", found)
    assert list(found) == ["inner"]
    assert fresh.size(found["inner"]) == 1000 + (tmp_path / "inner-1.dist-info" / "RECORD").stat().st_size


def test_pytorch_is_not_needed(fresh: ModuleType) -> None:
    found = dict[str, object]()
    fresh.needed(fresh.PROGRAM, found)
    assert distribution("numpy").metadata["Name"] in found
    assert not {"torch", "safetensors", "triton", "setuptools"} & found.keys()


def test_it_stops_no_engine_of_the_user_and_reads_no_cache_of_theirs(
    fresh: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    theirs = {name: str(tmp_path / name) for name in ("CAESURA_RUNTIME", "XDG_CACHE_HOME")}
    for name, folder in theirs.items():
        monkeypatch.setenv(name, folder)
    ran = list[tuple[str, ...]]()

    def run(command: tuple[str, ...], *, env: dict[str, str], **_: object) -> None:
        ran.append(tuple(command))
        folders.append({name: env[name] for name in theirs})

    folders = list[dict[str, str]]()
    monkeypatch.setattr(fresh.subprocess, "run", run)
    fresh.measured()
    assert ran[-1][-1] == "stop"  # none stays
    assert all(own == folders[0] for own in folders)
    assert not folders[0].items() & theirs.items()
    assert not any(Path(own).exists() for own in folders[0].values())
