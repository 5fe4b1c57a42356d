"""A hub on loopback with a tiny model, and `caesura models` in this process."""

import importlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from caesura import cli

from ..support.checkpoints import qwen
from ..support.processes import hub as hubs
from ..support.processes.hub import Hub, Run


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, with pickles and code next to it that are nobody's business."""
    folder = qwen.published(tmp_path_factory.mktemp("repository"))
    for name in ("pytorch_model.bin", "modeling_tiny.py", "consolidated.safetensors", "README.md"):
        (folder / name).write_bytes(b"not to be taken")
    return folder


@pytest.fixture
def hub(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The library reads its settings once: as if it were imported now, and afterwards as before."""
    with hubs.serve(shutil.copytree(repository, tmp_path / "repository")) as hub, monkeypatch.context() as patch:
        for name, value in {"HF_ENDPOINT": hub.address, "HF_HOME": tmp_path / "hf", "XDG_DATA_HOME": tmp_path}.items():
            patch.setenv(name, str(value))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):  # other tests set the second one
            patch.delenv(name, raising=False)
        importlib.reload(constants)
        yield hub
    importlib.reload(constants)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Without a terminal, or with one on which somebody answers."""

    def ask(*arguments: str, answer: str | None = None) -> tuple[int, str, str]:
        stdin = io.StringIO(answer)
        monkeypatch.setattr(stdin, "isatty", lambda: answer is not None)
        monkeypatch.setattr("sys.stdin", stdin)
        code = cli.main(["models", *arguments])
        return code, *capsys.readouterr()

    return ask
