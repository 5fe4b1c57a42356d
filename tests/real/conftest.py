"""What the real tests share: a runtime folder of their own, so that nobody's engine is touched; theirs ends too."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caesura import rendezvous


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
