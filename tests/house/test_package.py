"""The wheels: everything of the tree is in them, and the program imports from where pip puts it. Stand-ins take the
place of the weights: 76 MB would only be slow.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"caesura": "caesura", **{name: f"caesura/{name}" for name in ("server", "engine", "kernels", "cluster")}}
BIG = 1 << 20
WEIGHTS = "stands for the weights"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")]


def tracked() -> list[Path]:
    """The files of the checkout that are or will be tracked."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for path in tracked():
        if path.parts[0] in ("typings", "tests", "docs", "bench"):
            continue
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).stat().st_size > BIG and not (ROOT / path).is_symlink():
            (source / path).write_text(WEIGHTS)
        else:
            shutil.copy(ROOT / path, source / path, follow_symlinks=False)
    return source


def built(source: Path, out: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--wheel-dir", out, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(checkout, tmp_path_factory.mktemp("wheel"))


def test_every_module_and_data_file_is_in_the_wheel(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for path in tracked():
        if path.parts[0] in FOLDERS and path.suffix != ".safetensors":
            assert str(Path(FOLDERS[path.parts[0]], *path.parts[1:])) in inside


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops <= {"caesura", next(top for top in tops if top.endswith(".dist-info"))}


@pytest.mark.skipif(not shutil.which("gcc"), reason="no compiler")
def test_a_wheel_has_the_library_of_its_system_for_any_python(wheel: Path) -> None:
    assert "-py3-none-" in wheel.name
    assert [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("caesura/kernels/cpu/_library.")]


def test_an_update_of_the_program_downloads_no_weights(wheel: Path) -> None:
    assert [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".safetensors")] == []
    assert wheel.stat().st_size < 4 * BIG


@pytest.mark.parametrize("name", ["small", "coder"])
def test_a_model_is_a_distribution_of_its_own_with_its_licence(name: str, checkout: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(built(checkout / "models" / name, tmp_path))
    package, about = f"caesura_{name}", f"caesura_{name}-0.1.0.dist-info"
    files = {path.name for path in (ROOT / "models" / name / package).iterdir() if path.is_file()}
    assert {path for path in archive.namelist() if path.startswith(f"{package}/")} == {f"{package}/{n}" for n in files}
    assert {f"{about}/licenses/LICENSE", f"{about}/licenses/NOTICE"} <= set(archive.namelist())
    assert "Requires-Dist" not in archive.read(f"{about}/METADATA").decode()
    for path in (path for path in archive.namelist() if path.endswith(".safetensors")):
        assert archive.read(path).decode() == WEIGHTS  # what a link leads to, not the link


def test_it_imports_from_a_clean_folder_and_runs(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        modules = [name[:-3].replace("/", ".") for name in archive.namelist() if name.endswith(".py")]
    names = sorted(name.removesuffix(".__init__") for name in modules if not name.endswith("__main__"))
    code = (
        "import importlib, sys\n"
        "missing = ('ray', 'grpc', 'prometheus_client', 'opentelemetry')\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        f"        assert importlib.import_module(name).__file__.startswith({str(tmp_path)!r}), name\n"
        "    except ModuleNotFoundError as error:  # the extra `cluster` is not installed\n"
        "        assert name.startswith('caesura.cluster.') and error.name.split('.')[0] in missing, error\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert done.returncode == 0, done.stderr[-2000:]
    run = [sys.executable, "-P", "-m", "caesura", "--version"]
    shown = subprocess.run(
        run, capture_output=True, text=True, cwd=tmp_path, env={**clean, "PYTHONPATH": str(tmp_path)}
    )
    assert shown.returncode == 0, shown.stderr
    assert "caesura" in shown.stdout
