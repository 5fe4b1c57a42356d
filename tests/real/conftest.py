"""What the real tests share: where the editors are, and a runtime folder of their own, so that nobody's engine is
touched; theirs ends too."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caesura.client.shared import Engine
from caesura.ipc import rendezvous

EDITORS = Path(os.environ.get("CAESURA_EDITORS") or Path(__file__).parents[2] / ".editors")
ENGINE_S = 300.0


@pytest.fixture(scope="session")
def editor() -> Callable[[str], str]:
    """The program of an editor by name: the one that `editors.sh` installed, else the one on PATH."""

    def find(name: str) -> str:
        found = shutil.which(name, path=EDITORS / "bin") or shutil.which(name)
        if not found:
            pytest.fail(f"{name} is needed: `make editors` installs it on Debian; else put it on PATH.", pytrace=False)
        return found

    return find


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAESURA_RUNTIME", str(folder))
        for name in ("STATE", "DATA", "CONFIG", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        yield folder
        for place in rendezvous.running():
            if holder := place.holder():
                rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may be in the middle of a write


@pytest.fixture(scope="module")
def warm(runtime: Path) -> None:
    """The shared engine with its model loaded, as it is after the first minute of a day."""

    async def start() -> None:
        engine = Engine(client="test")
        await engine.start()
        await engine.ready(ENGINE_S)
        await engine.close()

    asyncio.run(start())


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: $CAESURA_PICTURES, to keep them in docs/pictures."""
    found = Path(os.environ.get("CAESURA_PICTURES") or tmp_path_factory.mktemp("pictures"))
    found.mkdir(parents=True, exist_ok=True)
    return found
