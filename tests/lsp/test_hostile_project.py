"""What a project that somebody else made may do to its reader: nothing of it is imported by a process of ours, wherever
that is started, and where it is not trusted no file of it is read but the one that hides more.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from caesura.client import launch
from caesura.client.shared import Engine
from caesura.demo import session
from caesura.engine.supervisor import process as child
from caesura.ipc import rendezvous

from ..supervisor.test_processes import runtime
from ..support.clients import READY_S, answer, job, running, until
from .test_lsp import Client

__all__ = ["runtime"]  # the fixture

# What we import, what Python imports by itself, and what tools run.
TRAPS = (
    *("torch.py", "zmq.py", "msgspec.py", "json.py", "logging.py", "numpy.py", "server.py", "engine.py", "pygls.py"),
    *("sitecustomize.py", "usercustomize.py", "conftest.py", "caesura/__init__.py", "caesura/__main__.py"),
    *("lsprotocol/__init__.py", "tree_sitter/__init__.py", "safetensors/__init__.py", "tokenizers/__init__.py"),
)
PROCESSES: dict[str, Callable[[], Sequence[str]]] = {  # looked up when they are started: see test_engine_defences.py
    "server, by the console script": lambda: [str(Path(sys.executable).with_name("caesura")), "lsp"],
    "server, as editors are told and the demo does": lambda: session.COMMAND,
    "engine": lambda: launch.command("small", "cpu"),
    "worker": lambda: [*child.WORKER, "--help"],
}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project each file of which says that it was run. The suite's PYTHONPATH is the user's own; his wish for a safe
    path is not there."""
    project = tmp_path / "project"
    for name in TRAPS:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name + chr(10)!r})\n")
    (project / "project.pth").write_text(f"import os; open({str(tmp_path / 'ran')!r}, 'a').write('project.pth')\n")
    (project / "pyproject.toml").write_text("[tool.caesura]\nmodel = '/dev/null'\n")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return project


def ran(project: Path) -> list[str]:
    """The files of the project that somebody has imported."""
    found = project.with_name("ran")
    return found.read_text().split() if found.exists() else []


def start(command: Sequence[str], project: Path) -> None:
    """A process inside the project, until it ends because it has nobody to talk to, or is not let in."""
    Path(os.environ["CAESURA_RUNTIME"]).chmod(0o755)  # so that an engine ends once it has imported what it needs
    subprocess.run(command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("process", PROCESSES)
def test_no_process_imports_a_file_of_the_project_it_is_started_in(process: str, hostile: Path, runtime: Path) -> None:
    start(PROCESSES[process](), hostile)
    assert ran(hostile) == []


async def test_nor_does_an_engine_with_a_model_and_a_job(hostile: Path, runtime: Path, tiny_folder: Path) -> None:
    engine = subprocess.Popen(launch.command(str(tiny_folder), "auto"), cwd=hostile)
    try:
        await until(lambda: bool(rendezvous.running()), READY_S)
        async with running(Engine(client="test", model=str(tiny_folder), spawn=False)) as found:
            await found.ready(5 * READY_S)
            await answer(found, job("def count(total):\n    return "))
    finally:
        engine.terminate()
        engine.wait(READY_S)
    assert ran(hostile) == []


# A workspace that is not trusted

HEARD = f"""
import sys
project, record = sys.argv[1], open(sys.argv[2], "a", buffering=1)

def heard(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        path = arguments[0].decode() if isinstance(arguments[0], bytes) else str(arguments[0])
        if path.startswith(project):
            record.write(path[len(project) + 1:] + chr(10))
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "exec"):
        if event != "exec" or project in arguments[0].co_filename:
            record.write(event + chr(10))

sys.addaudithook(heard)
sys.path.append({str(Path(__file__).parents[1] / "support" / "faults")!r})
import served
sys.exit(served.make().server.serve())
"""


@pytest.mark.parametrize("trusted", [False, True])
async def test_of_a_workspace_that_is_not_trusted_one_file_is_read_and_nothing_is_run(
    trusted: bool, tmp_path: Path
) -> None:
    project, record = tmp_path / "project", tmp_path / "heard"
    texts = {
        ".caesuraignore": "private.py\n!.env\n[z-a]\n" + "*a" * 30 + "b\n",
        **dict.fromkeys((".vscode/settings.json", ".caesura.json", "caesura.json", "s.json"), '{"model": "/dev/null"}'),
        **dict.fromkeys(("caesura.toml", "pyproject.toml", ".editorconfig"), '[tool.caesura]\nmodel = "/dev/null"\n'),
        **dict.fromkeys((".env", ".git/config", ".git/hooks/post-checkout", "Makefile", "private.py"), "model=x\n"),
        "shapes.py": "def shape(): ...\n",
        "sitecustomize.py": "import os; os.system('true')\n",
    }
    for name, text in texts.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", HEARD, str(project), str(record)), stdin=pipe, stdout=pipe, cwd=project
    )
    client = Client(process)
    try:
        folders = [{"uri": project.as_uri(), "name": "project"}]
        settings = {"trusted": trusted}
        await client.start(workspaceFolders=folders, initializationOptions=settings)
        for name, language, text in (
            ("main.py", "python", "from shapes import shape\nfrom private import mine\nx = "),
            ("a.json", "json", '{"$schema": "./s.json", "model": '),
            (".env", "plaintext", "password="),
        ):
            document = {"uri": (project / name).as_uri(), "languageId": language, "version": 0, "text": text}
            client.notify("textDocument/didOpen", {"textDocument": document})
            *before, last = text.split("\n")
            where = {"line": len(before), "character": len(last)}
            ask = {"textDocument": {"uri": document["uri"]}, "position": where, "context": {"triggerKind": 1}}
            shown = await client.call("textDocument/inlineCompletion", ask)
            assert not (shown["items"] and name == ".env")
        if trusted:
            await until(lambda: "s.json" in record.read_text(), READY_S)
        else:
            await asyncio.sleep(1.0)  # which is more than that took, for what a thread would read late
        await client.call("shutdown", None)
        client.notify("exit", None)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        client._task.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    read = set(record.read_text().split())
    assert read == ({".caesuraignore", "shapes.py", "s.json"} if trusted else {".caesuraignore"})
