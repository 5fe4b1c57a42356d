"""Fixtures of the engine's tests; torch is only imported where one is used."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caesura.ipc import rendezvous

from .audit import calls
from .support.machines import Machine

# As in worker.py, and for its reason: threads that spin while they wait cost ten times the time on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Kernels run one program after another where there is no GPU to compile them for.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

CONNECTIONS = calls.listen()  # nothing leaves the machine

if TYPE_CHECKING:
    from caesura.engine.models.block_llama import BlockLlama


PROCESSES = 3  # of the suite, on two cores: some tests wait for processes of their own


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in several processes, unless `-n` says otherwise; what is named runs in this one."""
    option = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and option.markexpr.startswith("not slow")
    inside = hasattr(config, "workerinput") or option.usepdb or not config.pluginmanager.has_plugin("xdist")
    if whole and not inside and option.numprocesses is None:
        option.numprocesses, option.dist = PROCESSES, "worksteal"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if CONNECTIONS.exists():
        print(f"\nSomebody called another machine:\n{CONNECTIONS.read_text()}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers that tests start record nothing in the developer's own files, and find no paired machine."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model. Read only: copy it to break it."""
    from .support.checkpoints.tiny import make

    return make(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> BlockLlama:
    """The tiny random model, loaded."""
    import torch

    from caesura.engine.models import load
    from caesura.engine.models.block_llama import BlockLlama

    torch.set_num_threads(1)  # as the worker does
    model = load(str(tiny_folder))
    assert isinstance(model, BlockLlama)
    return model


@pytest.fixture(scope="module")
def own_engines() -> Iterator[None]:
    """Engines of a module's own, which end with it."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAESURA_RUNTIME", str(folder))
        patch.setenv("CAESURA_IDLE_EXIT", "60")
        yield
        for place in rendezvous.running():
            if holder := place.holder():
                rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may be in the middle of a write


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    yield folder
    for name in ("desk", "laptop"):
        if (folder / name / "run").exists():
            (folder / name / "run").chmod(0o700)  # a test may have changed it
        with Machine(folder / name).at():
            for place in rendezvous.running():
                if holder := place.holder():
                    rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def laptop(home: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine that these tests run on."""
    found = Machine(home / "laptop")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found
