"""Fixtures of the engine's tests; torch is only imported where one is used. Without PyTorch the test files that need it
are left out; only in the folders TORCH may a file need it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from caesura.engine.models.llama.native import NativeLlama


TORCH = ("engine", "kernels", "tools", "cluster")  # folders whose files may need PyTorch
BROUGHT = ("torch", "safetensors", "triton", "transformers")  # packages that come with it, or need it
LEFT_OUT = set[str]()  # files, by their path

PROCESSES = 3  # of the suite, on two cores: some tests wait for processes of their own


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in several processes, unless `-n` says otherwise; what is named runs in this one."""
    option = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and option.markexpr.startswith("not slow")
    inside = hasattr(config, "workerinput") or option.usepdb or not config.pluginmanager.has_plugin("xdist")
    if whole and not inside and option.numprocesses is None:
        option.numprocesses, option.dist = PROCESSES, "worksteal"


class SuiteModule(pytest.Module):
    """A test file, which is left out if it needs PyTorch and may, where that is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = error.__cause__
            if not isinstance(missing, ModuleNotFoundError) or (missing.name or "").split(".")[0] not in BROUGHT:
                raise
            if has_torch() or self.path.relative_to(Path(__file__).parent).parts[0] not in TORCH:
                raise
            LEFT_OUT.add(self.nodeid)
            return []


def has_torch() -> bool:
    with suppress(ModuleNotFoundError):  # tests/support/torchless raises it
        return find_spec("torch") is not None
    return False


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return SuiteModule.from_parent(parent, path=module_path)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of the suite has ended."""
    LEFT_OUT.update(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEFT_OUT:
        terminalreporter.write_line(f"{len(LEFT_OUT)} test files were left out: they need PyTorch, which is not here.")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = sorted(LEFT_OUT)
    if CONNECTIONS.exists():
        print(f"\nSomebody called another machine:\n{CONNECTIONS.read_text()}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers that tests start record nothing in the developer's own files, and find no paired machine."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    base = tmp_path_factory.getbasetemp()  # of one of pytest's processes, which share the tiles of the models
    os.environ["XDG_CACHE_HOME"] = str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model. Read only: copy it to break it."""
    return shutil.copytree(Path(__file__).parent / "data" / "tiny", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> NativeLlama:
    """The tiny random model, loaded."""
    import torch

    from caesura.engine.models import load
    from caesura.engine.models.llama.native import NativeLlama

    torch.set_num_threads(1)  # as the worker does
    model = load(str(tiny_folder))
    assert isinstance(model, NativeLlama)
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
