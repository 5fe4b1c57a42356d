"""Without PyTorch, each use of it is one sentence that says what to install."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from caesura.engine.weights import stored
from caesura.model_store import extras

from ..support.checkpoints import qwen

ROOT = Path(__file__).parents[2]
WITHOUT = ROOT / "tests" / "support" / "torchless"  # a sitecustomize by which torch is not installed
INSTALL = f"run `{sys.executable} -m pip install -e '{ROOT}[torch]'`"
OTHERS = "use `coder` or a dense model of the Llama kind"
SENTENCES = {
    extras.GPU: f"A GPU needs PyTorch: {INSTALL}, or use `--device cpu`.",
    extras.CONVERT: f"`caesura models convert` needs PyTorch: {INSTALL}.",
    extras.ASKED_KERNELS: f"CAESURA_CPU=torch needs PyTorch: {INSTALL}, or unset it.",
    extras.NO_LIBRARY: (
        f"Without its C library, Caesura needs PyTorch: {INSTALL}, "
        "or install gcc 11 or clang and then Caesura again (faster)."
    ),
    extras.model("mine"): f"The model mine needs PyTorch: {INSTALL}, or {OTHERS}.",
    extras.family("diffusion_gemma"): f"A model of type diffusion_gemma needs PyTorch: {INSTALL}, or {OTHERS}.",
}


def ran(*words: object) -> tuple[int, str]:
    """The exit code and the errors of a command where PyTorch is not installed."""
    return python("-m", "caesura", *map(str, words))


def python(*words: str, **more: str) -> tuple[int, str]:
    """Those of Python there."""
    command = [sys.executable, "-P", *words]
    with tempfile.TemporaryDirectory() as data:  # no model of the user's
        environment = {**os.environ, "PYTHONPATH": str(WITHOUT), "XDG_DATA_HOME": data, **more}
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment)
    return done.returncode, done.stderr


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder that looks like a published model's."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    return tmp_path


@pytest.mark.parametrize("use", SENTENCES, ids=lambda use: use.what)
@pytest.mark.parametrize("package", ["torch", "safetensors.torch"])
def test_a_missing_pytorch_is_one_sentence(use: extras.TorchUse, package: str) -> None:
    with pytest.raises(extras.NoTorch) as told, extras.pytorch_for(use):
        raise ModuleNotFoundError(name=package)
    assert str(told.value) == SENTENCES[use]


def test_any_other_missing_module_is_a_bug_that_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError), extras.pytorch_for(extras.GPU):
        import caesura.no_such_module  # type: ignore[import-not-found]  # noqa: F401


def test_outside_a_clone_an_extra_is_installed_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("caesura.__file__", str(tmp_path / "caesura" / "__init__.py"))
    assert extras.install("torch") == "run `pip install 'caesura[torch]'`"


def test_convert_without_pytorch(published: Path) -> None:
    assert ran("models", "convert", published, "--to", "int8") == (1, f"caesura: {SENTENCES[extras.CONVERT]}\n")


@pytest.mark.parametrize("command", ["verify", "add", "show"])
def test_a_family_that_computes_in_pytorch(command: str, published: Path) -> None:
    (published / "config.json").write_text('{"model_type": "diffusion_gemma"}')
    assert ran("models", command, published) == (1, f"caesura: {SENTENCES[extras.family('diffusion_gemma')]}\n")


@pytest.mark.parametrize("command", ["verify", "add"])
def test_layers_that_c_lacks(command: str, tmp_path: Path) -> None:
    folder = qwen.published(tmp_path / "mine")
    (folder / "config.json").write_text(json.dumps({**qwen.CONFIG, "partial_rotary_factor": 0.5}))
    assert ran("models", command, folder) == (1, f"caesura: {SENTENCES[extras.model('mine')]}\n")


def test_a_code_model_is_checked_and_added(tmp_path: Path) -> None:
    """As it is where PyTorch is installed."""
    folder = qwen.published(tmp_path / "mine")
    assert ran("models", "verify", folder) == (0, "")
    assert ran("models", "add", folder) == (0, "")
    (folder / "config.json").write_text(json.dumps({**qwen.CONFIG, "intermediate_size": 128}))
    code, said = ran("models", "verify", folder)
    assert code == 1
    assert said == "caesura: The tensor layers.0.gate_up has shape [192, 64], not [256, 64].\n"


BARE = "from caesura.kernels import cpu; cpu.variants = tuple\n"  # no C library
LOAD = """
import sys
from caesura.engine import models
from caesura.model_store.reading import UnusableModel
try:
    models.load(sys.argv[1], "cpu")
except UnusableModel as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("code", "asked", "use"),
    [(LOAD, {"CAESURA_CPU": "torch"}, extras.ASKED_KERNELS), (BARE + LOAD, {}, extras.NO_LIBRARY)],
    ids=["asked", "no library"],
)
def test_a_code_model_that_only_pytorch_could_compute(
    code: str, asked: dict[str, str], use: extras.TorchUse, tmp_path: Path
) -> None:
    folder = qwen.published(tmp_path / "mine")
    assert python("-c", code, str(folder), **asked) == (1, f"{SENTENCES[use]}\n")


@pytest.mark.parametrize("command", ["verify", "show"])
def test_a_gguf_file_of_a_family_that_computes_in_pytorch(command: str, tmp_path: Path) -> None:
    def text(value: bytes) -> bytes:
        return len(value).to_bytes(8, "little") + value

    path = tmp_path / "mine.gguf"
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    path.write_bytes(head + text(b"general.architecture") + (8).to_bytes(4, "little") + text(b"diffusion-gemma"))
    assert ran("models", command, path) == (1, f"caesura: {SENTENCES[extras.family('diffusion_gemma')]}\n")


TILED = "The weights of mine are for Caesura's C library,"
NOT_TILED = {
    "which this installation lacks; install gcc 11 or clang, then Caesura again.": (BARE + LOAD, "", {}),
    "which CAESURA_CPU=torch leaves out; unset it.": (LOAD, "", {"CAESURA_CPU": "torch"}),
    "which does not compute this model; install a form of it without tiles.": (LOAD, "light.safetensors", {}),
}


@pytest.mark.parametrize("why", NOT_TILED)
def test_tiles_that_the_library_does_not_compute(why: str, tmp_path: Path) -> None:
    code, more, asked = NOT_TILED[why]
    config = json.loads((ROOT / "models" / "small" / "caesura_small" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "name": "mine"}))
    for name in ("base-1.tiles.safetensors", *filter(None, [more])):
        (tmp_path / name).touch()
    stored.write_manifest(tmp_path, {})
    assert python("-c", code, str(tmp_path), **asked) == (1, f"{TILED} {why}\n")
