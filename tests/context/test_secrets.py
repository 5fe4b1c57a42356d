"""Fifty planted secrets, and words of the user's that are none: where they go when all goes well, and when an engine, a
worker, a handler or a thread fails with an error that quotes them.
"""

import asyncio
import logging
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from caesura import logs
from caesura.client.shared import Engine
from caesura.ipc import rendezvous

from ..lsp.test_lsp import Client
from ..support.clients import FAKE, running, status_when
from .test_privacy import TOKENS

WORD = "CONFIDENTIAL"  # stands in every document, covered nowhere
SERVER = f"""
import asyncio, sys, threading
from caesura.client import choose
from caesura.server import app
from caesura.server.lsp.completion import GhostText

def engine(client, model, device, remote):
    return Engine(client=client, model="records", command=[sys.executable, "-P", {str(FAKE)!r}, "records"])

def fails(self, params):
    raise ValueError(f"a bug on {{params}}")

async def fails_later(self, params):
    await asyncio.sleep(0)
    raise ValueError(f"a bug on {{params}}")

def fails_elsewhere(self, params):
    threading.Thread(target=fails, args=(self, params)).start()
    asyncio.get_running_loop().call_soon(fails, self, params)
    self._server.tasks = [asyncio.ensure_future(fails_later(self, params))]
    del self._server.tasks

Engine, choose.Engine = choose.Engine, engine
GhostText.did_show = fails
GhostText.did_accept_a_part = fails_elsewhere
GhostText.stream = fails_later
sys.exit(app.main())
"""


def planted() -> tuple[list[str], list[str], list[str]]:
    """Fifty: in a document, in one beside it, and in one that it imports."""
    here, beside, imported = ([token[:-3] + f"{n:03}" for token in TOKENS] for n in (111, 222, 333))
    return [*here, "hunter2!x9", "correct-h0rse"], beside, imported


def lines(secrets: list[str]) -> str:
    """Code that holds them."""
    tokens = "".join(f'service_{number} = connect("{secret}")\n' for number, secret in enumerate(secrets[:16]))
    return tokens + "".join(f'password = "{word}"\n' for word in secrets[16:])


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where all lies that an engine and a server write."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    for name, part in {"CAESURA_RUNTIME": "runtime", "XDG_STATE_HOME": "state", "XDG_DATA_HOME": "data"}.items():
        monkeypatch.setenv(name, str(folder / part))
    yield folder
    for place in rendezvous.running():
        if holder := place.holder():
            rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def session(home: Path, project: Path) -> AsyncIterator[Client]:
    """With all that Python and the protocol can say of themselves turned on, and core files allowed."""
    pipe = asyncio.subprocess.PIPE
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    with (home / "stderr").open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", SERVER),
            **{"stdin": pipe, "stdout": pipe, "stderr": stderr, "cwd": project, "limit": 1 << 24},
            env=os.environ | {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "always"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (most, most)),
        )
        client = Client(process)
        try:
            folders = [{"uri": project.as_uri(), "name": project.name}]
            await client.start(workspaceFolders=folders, trace="verbose", initializationOptions={"deadlineMs": 5_000})
            client.notify("$/setTrace", {"value": "verbose"})
            yield client
        finally:
            client._task.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()


def opened(client: Client, path: Path, text: str) -> dict[str, Any]:
    document = {"uri": path.as_uri(), "languageId": "python", "version": 0, "text": text}
    client.notify("textDocument/didOpen", {"textDocument": document})
    *before, last = text.split("\n")
    return {
        "textDocument": {"uri": path.as_uri()},
        "position": {"line": len(before), "character": len(last)},
        "context": {"triggerKind": 1},
    }


def left_behind(home: Path) -> dict[str, bytes]:
    """By name, all files but the record of what the model got, which is checked for itself."""
    files = [path for path in home.rglob("*") if path.is_file() and path.name != "recorded"]
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in files}


async def test_no_secret_and_no_word_of_the_user_is_left_behind_whatever_fails(home: Path, tmp_path: Path) -> None:
    here, beside, imported = planted()
    (tmp_path / "shapes.py").write_text(lines(imported) + f"def visible_shape(): ...  # {WORD}\n")
    text = f"# {WORD}\nfrom shapes import visible_shape\n" + lines(here)
    async with session(home, tmp_path) as client:
        # all goes well
        opened(client, tmp_path / "beside.py", lines(beside) + f"def visible_beside(): ...  # {WORD}\n")
        where = opened(client, tmp_path / "main.py", text + "visible_beside(visible_shape(")
        assert (await client.call("textDocument/inlineCompletion", where))["items"]
        # the engine fails on a text, the worker in a step of one, and by a signal
        for start in ("refuse", "raise"):
            where = opened(client, tmp_path / f"{start}.py", f"{start} = {WORD}\n{lines(here)}x = ")
            assert (await client.call("textDocument/inlineCompletion", where))["items"] == []
        (place,) = rendezvous.running()
        async with running(Engine(client="test", spawn=False, place=place)) as engine:
            status = await status_when(engine, lambda status: status.worker_pid is not None and status.state == "ready")
            os.kill(status.worker_pid or 0, signal.SIGSEGV)
            await status_when(engine, lambda status: status.restarts == 2)
        # a handler fails at once and another later, a call of the loop, a thread, and a message
        shown = {"item": {"insertText": WORD, "command": {"arguments": [*here, WORD]}}}
        client.notify("textDocument/didShowCompletion", shown)
        client.notify("textDocument/didPartiallyAcceptCompletion", shown)
        assert await client.call("caesura/inlineCompletionStream", where | {"partialResultToken": WORD}) is None
        client.notify(
            "textDocument/didChange", {"textDocument": {"uri": WORD, "version": WORD}, "contentChanges": here}
        )
        await client.call("shutdown", None)
        client.notify("exit", None)
        assert await asyncio.wait_for(client.process.wait(), 20) == 0
        said = [message["params"] for message in client.others if message.get("method", "").startswith("window/")]
    left = left_behind(home) | {"what the editor was told": repr(said).encode()}
    secrets = [*here, *beside, *imported]
    assert len(set(secrets)) == 50
    found = [(word, name) for word in (*secrets, WORD) for name, data in left.items() if word.encode() in data]
    assert found == []
    got = (home / "runtime" / "recorded").read_bytes()
    assert [secret for secret in secrets if secret.encode() in got] == []
    assert WORD.encode() in got
    # and it was left what there is to know
    assert {"trace.jsonl", "stats.json"} <= {Path(name).name for name in left}
    server, (engine_log,) = (
        left["stderr"].decode(),
        [data.decode() for name, data in left.items() if "/e-" in name and name.endswith(".log")],
    )
    for told in ("FeatureNotificationError: ", "A request failed: ValueError", "In the loop: ValueError"):
        assert told in server
    assert re.search(r"not caught in a thread\n(.*\n)+ValueError\n", server)
    for told in ("was not taken", "the worker cannot go on", "in _advance", "Fatal Python error: Segmentation fault"):
        assert told in engine_log
    assert engine_log.count("\nValueError\n") == 2


async def test_a_crash_of_no_process_leaves_an_image_of_its_memory(home: Path, tmp_path: Path) -> None:
    async with session(home, tmp_path) as client:
        where = opened(client, tmp_path / "main.py", "x = ")
        assert (await client.call("textDocument/inlineCompletion", where))["items"]
        (place,) = rendezvous.running()
        async with running(Engine(client="test", spawn=False, place=place)) as engine:
            status = await engine.status()
        for pid in (client.process.pid, status.pid, status.worker_pid):
            (most,) = re.findall(r"Max core file size +(\S+)", Path(f"/proc/{pid}/limits").read_text())
            assert most in ("0", "1")  # 1: nor one by a program


@contextmanager
def put_back() -> Iterator[None]:
    """What `logs.begin` changes of a process; what pytest has in its place is away meanwhile."""
    level, core = logging.root.level, resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (core[1], core[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "handlers", [])
        for owner, name in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
            patch.setattr(owner, name, getattr(owner, f"__{name}__"))
        try:
            yield
        finally:
            logging.root.setLevel(level)
            resource.setrlimit(resource.RLIMIT_CORE, core)


def test_an_error_is_logged_by_type_and_place_and_a_crash_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        try:
            raise KeyError(WORD)
        except KeyError as error:
            raise ValueError(WORD) from error

    with put_back():
        logs.begin(logging.INFO, "%(levelname)s %(message)s")
        try:
            fails()
        except ValueError as error:
            logging.getLogger("any").exception("job %s was not taken", 1)
            sys.excepthook(type(error), error, error.__traceback__)
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
        core, most = resource.getrlimit(resource.RLIMIT_CORE)
    said = capsys.readouterr().err
    for line in ("ERROR job 1 was not taken", "CRITICAL not caught", "ERROR not caught in a thread"):
        assert line in said
    assert WORD not in said
    assert len(re.findall("KeyError\nwhich led to\n(?:  .*\n)+ValueError\n", said)) == 3
    assert core == int(most != 0)
