"""A session in an editor from its start to its exit: the real server, the real supervisor, a model of a dozen lines.
What the editor is told on the way, and what `caesura doctor` and `caesura stats` know afterwards.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caesura.ipc import rendezvous
from caesura.server.records import stats, trace
from caesura.server.session import EditorInfo, Session

from .test_lsp import Client, server

FAKE = Path(__file__).parents[1] / "support" / "processes" / "fake_engine.py"
SERVER = f"""
import sys
from caesura.server.app import App
from caesura.client.shared import Engine
command = [sys.executable, {str(FAKE)!r}, "fake"]
app = App(lambda options, client, remote: Engine(client=client, model="fake", command=command, remote=remote))
sys.exit(app.server.serve())
"""
CAPABILITIES = {
    "textDocument": {"inlineCompletion": {"dynamicRegistration": True}},
    "workspace": {"didChangeConfiguration": {"dynamicRegistration": True}},
}
COPILOT = {"editorInfo": {"name": "Neovim"}, "editorPluginInfo": {"name": "copilot.lua"}, "deadlineMs": 10_000}


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    """The first session starts the engine, the others find it running."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAESURA_RUNTIME", str(folder))
        yield
        for place in rendezvous.running():
            if holder := place.holder():
                rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may be in the middle of a write


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", SERVER, stdin=pipe, stdout=pipe)
    client = Client(process)
    yield client
    client._task.cancel()
    if process.returncode is None:
        process.kill()
        await process.wait()


async def told(client: Client, method: str, count: int = 1) -> list[dict[str, Any]]:
    """The messages of a kind, when there are so many."""
    async with asyncio.timeout(20):
        while len(found := [one for one in client.others if one.get("method") == method]) < count:
            await asyncio.sleep(0.005)
    return found


async def leave(client: Client) -> None:
    await client.call("shutdown", None)
    client.notify("exit", None)
    assert await asyncio.wait_for(client.process.wait(), 20) == 0


async def start(client: Client, options: dict[str, Any], capabilities: dict[str, Any] = CAPABILITIES) -> None:
    info = {"name": "Neovim", "version": "0.12"}
    await client.start(clientInfo=info, capabilities=capabilities, initializationOptions=options)


async def complete(client: Client) -> dict[str, Any]:
    """Type, ask, and take the answer; the item."""
    client.open("SECRET = 1\n")
    client.type(1, 0, "x")
    [item] = (await asyncio.wait_for(client.complete(1, 1), 20))["result"]["items"]
    client.type(1, 1, item["insertText"])
    await client.call("workspace/executeCommand", item["command"])
    return item


async def test_a_session_leaves_a_trace_and_counts(client: Client) -> None:
    await start(client, COPILOT)
    item = await complete(client)
    await leave(client)
    [past] = trace.read(trace.file())
    assert past.session.client == "Neovim 0.12"
    assert (past.session.model, past.session.device, past.session.encoding) == ("fake", "fake", "utf-16")
    assert "inlineCompletion" in past.session.capabilities
    shown = [request for request in past.requests if request.shown]
    assert [(one.language, one.shown) for one in shown] == [("python", len(item["insertText"]))]
    [job] = [job for job in past.jobs if job.job == shown[0].job]
    assert (job.end, job.ms["denoise"]) == ("done", 12.0)
    lines = trace.file().read_text().replace('"answer":', "")  # the name of a field, and what this engine proposes
    assert "SECRET" not in lines
    assert "answer" not in lines
    [counts] = [counts["python"] for counts in stats.read(stats.file()).values()]
    assert (counts.shown, counts.accepted, counts.rejected) == (1, 1, 0)
    assert counts.accepted_characters == counts.shown_characters == len(item["insertText"])


async def test_a_session_with_stats_off_leaves_nothing(client: Client) -> None:
    await start(client, {**COPILOT, "stats": False})
    await complete(client)
    await leave(client)
    assert not trace.file().exists()
    assert not stats.file().exists()


async def test_a_plugin_made_for_copilot_is_told_how_the_engine_is(client: Client) -> None:
    await start(client, COPILOT)
    await complete(client)
    found = [one["params"] for one in await told(client, "caesura/status", 2)]
    assert [one["state"] for one in found][-1] == "ready"
    assert (found[-1]["model"], found[-1]["device"]) == ("fake", "fake")
    kinds = {(one["params"]["busy"], one["params"]["kind"]) for one in await told(client, "didChangeStatus", 3)}
    assert kinds == {(True, "Normal"), (False, "Normal")}
    assert not [one for one in client.others if one.get("method") in ("window/logMessage", "window/showMessage")]


async def test_another_editor_is_told_nothing_that_it_does_not_know(client: Client) -> None:
    await start(client, {"deadlineMs": 10_000}, {})
    await complete(client)
    await leave(client)
    assert [one for one in client.others if not one["method"].startswith("$/")] == []


async def test_settings_that_change_are_asked_for(client: Client) -> None:
    await start(client, COPILOT)
    [request] = await told(client, "client/registerCapability")
    [registration] = request["params"]["registrations"]
    assert registration["method"] == "workspace/didChangeConfiguration"
    client.send({"id": request["id"], "result": None})
    client.notify("workspace/didChangeConfiguration", {"settings": {"caesura": {"enable": False}}})
    client.open("x = ")
    assert (await asyncio.wait_for(client.complete(0, 4), 20))["result"] == {"items": []}


async def test_the_cells_of_a_notebook_are_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with server() as client:
        capabilities = {"notebookDocument": {"synchronization": {}}}
        found = await client.start(capabilities=capabilities, initializationOptions={"deadlineMs": 10_000})
        assert found["capabilities"]["notebookDocumentSync"] == {"notebookSelector": [{"notebook": "*"}]}
        book, cells = "file:///project/a.ipynb", [f"vscode-notebook-cell:/project/a.ipynb#{name}" for name in "abc"]
        texts = [("markdown", "Count them."), ("python", "import os"), ("python", "print(n)\n")]
        documents = [
            {"uri": cell, "languageId": language, "version": 1, "text": text}
            for cell, (language, text) in zip(cells, texts, strict=True)
        ]
        order = [{"kind": 2, "document": cell} for cell in cells]
        notebook = {"uri": book, "notebookType": "jupyter-notebook", "version": 1, "cells": order}
        client.notify("notebookDocument/didOpen", {"notebookDocument": notebook, "cellTextDocuments": documents})
        where = {"start": {"line": 0, "character": 9}, "end": {"line": 0, "character": 9}}
        content = {"document": {"uri": cells[1], "version": 2}, "changes": [{"range": where, "text": "\nn = "}]}
        change = {"notebookDocument": {"uri": book, "version": 2}, "change": {"cells": {"textContent": [content]}}}
        client.notify("notebookDocument/didChange", change)
        [job] = (await client.engine())["jobs"]
        assert (job["prefix"], job["suffix"]) == ("# Count them.\n\nimport os\nn = ", "\n\nprint(n)")


async def test_rules_of_a_new_folder_that_cannot_be_used_are_said(client: Client, tmp_path: Path) -> None:
    (tmp_path / ".caesuraignore").write_text("a\n" * 1001)
    await client.start()
    event = {"added": [{"uri": tmp_path.as_uri(), "name": "b"}], "removed": []}
    client.notify("workspace/didChangeWorkspaceFolders", {"event": event})
    [said] = await told(client, "window/logMessage")
    assert "hides all files" in said["params"]["message"]


async def test_nothing_is_kept_of_a_document_that_grows_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.server.text.workspace.MAX_DOCUMENT", 10)
    session = Session(EditorInfo("test", "utf-16", [], (), {}), lambda *_: SimpleNamespace())  # type: ignore[arg-type, return-value]
    session.open("file:///a.py", "python", 0, "x = ")
    session.change("file:///a.py", 1, [((0, 0), (0, 0), "a b c")])
    session.change("file:///a.py", 2, [((0, 0), (0, 0), "a b c d e")])
    assert (session.project._known, repr(session.panes)) == ({}, "<Panes []>")


async def test_the_folders_of_a_workspace_may_change(client: Client) -> None:
    folders = [{"uri": "file:///a", "name": "a"}]
    found = await client.start(workspaceFolders=folders)
    assert found["capabilities"]["workspace"]["workspaceFolders"] == {"supported": True, "changeNotifications": True}
    event = {"added": [{"uri": "file:///b", "name": "b"}], "removed": folders}
    client.notify("workspace/didChangeWorkspaceFolders", {"event": event})
    await leave(client)
