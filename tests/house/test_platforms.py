"""The code of macOS and Windows, as far as Linux can run it; test_endpoints.py has the ports of Windows."""

import asyncio
import os
import runpy
import signal
import subprocess
import sys
from io import FileIO
from pathlib import Path
from types import ModuleType

import psutil  # before a test says that this is another platform: it looks too
import pytest

from caesura import paths
from caesura.client.backend import EngineFailed
from caesura.engine import memory, worker
from caesura.engine.device import Host
from caesura.engine.supervisor import supervisor
from caesura.ipc import endpoints, locks, rendezvous
from caesura.ipc.rendezvous import Holder

from ..supervisor.test_processes import client, runtime  # noqa: F401 (a fixture)
from ..support.clients import alive, answer, in_flight, job, running, until

NOTICED_S = 5.0  # without being told, on a busy machine
elsewhere = pytest.mark.parametrize("platform", ["darwin", "win32"])
assert psutil.LINUX


@elsewhere
def test_a_process_is_known_by_its_start_and_only_that_one_is_killed(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        monkeypatch.setattr(sys, "platform", platform)
        started = rendezvous.started(process.pid)
        assert started == rendezvous.started(process.pid)
        assert started
        assert not rendezvous.kill(Holder(process.pid, "at another time"))
        assert supervisor._memory_mb(process.pid)
        assert process.poll() is None
        assert rendezvous.kill(Holder(process.pid, started))
        assert process.wait() == -signal.SIGKILL
        assert rendezvous.started(process.pid) is None
        assert not rendezvous.kill(Holder(process.pid, started))
        assert supervisor._memory_mb(process.pid) is None


@elsewhere
async def test_the_end_of_a_process_is_noticed_by_the_other(
    platform: str,
    runtime: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without pidfd and parent-death signal."""
    monkeypatch.setattr(endpoints, "UNIX", platform != "win32")
    monkeypatch.setenv("CAESURA_TEST_PLATFORM", platform)
    async with running(client()) as one:
        waiting = await in_flight(one)
        status = await one.status()
        assert status.worker_pid
        assert not any("pidfd" in os.readlink(link) for link in Path(f"/proc/{status.pid}/fd").iterdir())
        os.kill(status.worker_pid, signal.SIGKILL)
        with pytest.raises(EngineFailed):
            await asyncio.wait_for(waiting, NOTICED_S)
        assert await answer(one, job()) == "answer"
        status = await one.status()
        assert status.worker_memory_mb
        os.kill(status.pid, signal.SIGKILL)
        await until(lambda: not alive(status.worker_pid or 0), NOTICED_S)


@elsewhere
def test_a_model_is_loaded_without_glibc(platform: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    from caesura.engine import models

    real = ctypes.CDLL

    def nameless(name: str | None) -> ctypes.CDLL:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")  # as Windows says
        return real(name)

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", nameless)
    with worker.frugal():
        assert models.load(str(tiny_folder)).device == "cpu"


def test_memory_is_that_of_the_machine_where_nobody_says_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert memory.free(Host()) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.delattr(os, "sysconf")
    assert memory.free(Host()) is None


def test_on_windows_a_lock_keeps_nobody_from_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = ModuleType("msvcrt")
    windows.LK_NBLCK = 2  # type: ignore[attr-defined]
    held = dict[int, int]()  # the byte that is locked, of a file

    def locking(file: int, mode: int, size: int) -> None:
        assert (mode, size) == (2, 1)
        if os.fstat(file).st_ino in held:
            raise PermissionError
        held[os.fstat(file).st_ino] = os.lseek(file, 0, os.SEEK_CUR)

    windows.locking = locking  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    monkeypatch.setattr(sys, "platform", "win32")
    lock = runpy.run_path(locks.__file__)["lock"]
    with FileIO(tmp_path / "lock", "a+") as one, FileIO(tmp_path / "lock", "a+") as other:
        assert lock(one)
        one.truncate(0)
        one.write(b"who I am")
        assert not lock(other)
        assert not lock(other, shared=True, wait_s=0.01)
        assert other.read() == b"who I am"
        assert min(held.values()) > 1 << 20


def test_on_windows_no_owner_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("USERNAME", "ada")
    monkeypatch.delattr(os, "getuid")
    monkeypatch.delattr(os, "O_NOFOLLOW")
    monkeypatch.delattr(os, "O_NONBLOCK")
    monkeypatch.delenv("CAESURA_RUNTIME", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(paths.tempfile, "gettempdir", lambda: str(tmp_path))
    paths.write(paths.runtime() / "key", b"\r\n\x1a")
    assert paths.read(paths.runtime() / "key") == b"\r\n\x1a"


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_the_types_hold_on_every_platform(platform: str) -> None:
    """What a platform's Python does not have is found: `os.getuid` on Windows, say."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", f".mypy_cache/{platform}"]
    checked = subprocess.run([*command, "-p", "caesura"], cwd=root, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
