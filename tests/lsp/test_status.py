"""What an editor is told of the engine, and what it has told us of itself."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import converters, types

from caesura import wire
from caesura.client.backend import Condition, EngineError, FinishedJob, job_id
from caesura.client.shared import Engine
from caesura.ipc import rendezvous
from caesura.server.lsp import client, status
from caesura.server.lsp.configuration import EditorSettings
from caesura.server.lsp.status import StatusReporter

FAKE = Path(__file__).parents[1] / "support" / "processes" / "fake_engine.py"
CONVERTER = converters.get_converter()
TROUBLE = "The engine did not start in 5 tries; see the log."


class Editor:
    """Keeps what it is told, as JSON; `creates` is its answer to a progress that the server wants to begin."""

    def __init__(self, creates: Exception | None = None) -> None:
        self.told: list[tuple[str, Any]] = []
        self.protocol = self
        self.creates = creates
        self.client_capabilities = types.ClientCapabilities()

    def notify(self, method: str, params: Any) -> None:
        self.told.append((method, params))

    def progress(self, params: types.ProgressParams) -> None:
        self.told.append(("$/progress", CONVERTER.unstructure(params)))

    def window_log_message(self, params: types.LogMessageParams) -> None:
        self.told.append(("window/logMessage", params.message))

    async def window_work_done_progress_create_async(self, params: types.WorkDoneProgressCreateParams) -> None:
        self.told.append(("create", params.token))
        if self.creates:
            raise self.creates

    async def workspace_configuration_async(self, params: types.ConfigurationParams) -> None:
        raise ValueError("no")

    async def client_register_capability_async(self, params: types.RegistrationParams) -> None:
        self.told.append(("register", [(one.method, one.register_options) for one in params.registrations]))
        if self.creates:
            raise self.creates

    def of(self, method: str) -> list[Any]:
        return [params for told, params in self.told if told == method]


class Told:
    """A status whose engine changes at our word."""

    def __init__(self, editor: Editor, *, wanted: bool = True, progress: bool = True) -> None:
        self.engine = SimpleNamespace(condition=Condition("connecting"))
        self.status = StatusReporter(editor, self.engine, wanted=wanted, progress=progress)  # type: ignore[arg-type]

    async def be(self, *conditions: Condition) -> None:
        for condition in conditions:
            self.engine.condition = condition
            self.status.changed()
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PATIENCE_S", 0.001)


READY = Condition("ready", "small", "cpu")


async def test_the_status_is_copilots_and_comes_only_when_it_changes() -> None:
    editor = Editor()
    told = Told(editor)
    await told.be(Condition("connecting"))
    await told.be(Condition("connecting"))
    await told.be(READY)
    await told.be(Condition("ready", "small", "cpu", busy=True))
    await told.be(Condition("unavailable", message=TROUBLE))
    assert editor.of("didChangeStatus") == [
        {"busy": True, "message": "Starting the engine", "kind": "Normal"},
        {"busy": False, "message": "", "kind": "Normal"},
        {"busy": True, "message": "", "kind": "Normal"},
        {"busy": False, "message": TROUBLE, "kind": "Error"},
    ]


async def test_a_job_that_follows_another_at_once_is_no_change() -> None:
    editor = Editor()
    told = Told(editor)
    busy = Condition("ready", busy=True)
    await told.be(busy)
    await told.be(READY, busy)
    assert len(editor.of("didChangeStatus")) == 1


async def test_our_own_status_names_the_model_and_does_not_follow_every_job() -> None:
    editor = Editor()
    told = Told(editor)
    await told.be(READY)
    await told.be(Condition("ready", "small", "cpu", busy=True))
    told.status.enable(False)
    await told.be(READY)
    about = {"model": "small", "device": "cpu", "message": ""}
    assert editor.of("caesura/status") == [{"state": "ready", **about}, {"state": "off", **about}]
    assert editor.of("didChangeStatus")[-1]["kind"] == "Inactive"


async def test_an_editor_that_does_not_know_the_status_is_not_sent_it() -> None:
    editor = Editor()
    told = Told(editor, wanted=False, progress=False)
    await told.be(Condition("connecting"))
    await told.be(READY)
    assert editor.told == []


async def test_a_trouble_goes_to_the_log_once_and_again_after_better_times() -> None:
    editor = Editor()
    told = Told(editor, wanted=False)
    bad = Condition("unavailable", message=TROUBLE)
    await told.be(bad)
    await told.be(Condition("connecting"))
    await told.be(bad)
    assert editor.of("window/logMessage") == [f"Caesura gives no completions: {TROUBLE}"]
    told.status.trouble(TROUBLE)  # of a job
    assert len(editor.of("window/logMessage")) == 1
    await told.be(READY)
    await told.be(bad)
    assert len(editor.of("window/logMessage")) == 2


async def test_a_job_that_fails_while_the_engine_is_ready_is_logged_once_until_a_job_is_answered() -> None:
    editor = Editor()
    told = Told(editor, wanted=False)
    await told.be(READY)
    for sentence in ("Too much to do.", "Too much to do.", "", "Too much to do."):
        told.status.trouble(sentence)
        await told.be(Condition("ready", busy=True), READY)
    assert editor.of("window/logMessage") == ["Caesura gives no completions: Too much to do."] * 2


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("end", "message"), [(READY, "small on cpu"), (Condition("unavailable", message=TROUBLE), "no engine")]
)
async def test_a_model_that_loads_is_a_progress_that_ends(end: Condition, message: str) -> None:
    editor = Editor()
    told = Told(editor, wanted=False)
    await told.be(Condition("loading"))
    await until(lambda: editor.of("$/progress"))
    await told.be(Condition("loading", progress="reading, 40 %"))
    await told.be(end)
    assert [one["value"] for one in editor.of("$/progress")] == [
        {"kind": "begin", "title": "Caesura", "message": "loading the model"},
        {"kind": "report", "message": "reading, 40 %"},
        {"kind": "end", "message": message},
    ]
    assert {one["token"] for one in editor.of("$/progress")} == set(editor.of("create"))


@pytest.mark.usefixtures("impatient")
async def test_a_second_loading_is_a_second_progress() -> None:
    editor = Editor()
    told = Told(editor, wanted=False)
    for number in (1, 2):
        await told.be(Condition("loading"))
        await until(lambda number=number: len(editor.of("$/progress")) == 2 * number - 1)
        await told.be(READY)
    assert len(set(editor.of("create"))) == 2
    assert [one["value"]["kind"] for one in editor.of("$/progress")] == ["begin", "end"] * 2


async def test_an_engine_that_runs_already_is_no_progress() -> None:
    editor = Editor()
    told = Told(editor)
    await told.be(Condition("connecting"))
    await told.be(READY)
    assert editor.of("create") == []


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_refuses_a_progress_is_not_asked_again_for_it() -> None:
    editor = Editor(creates=ValueError("no"))
    told = Told(editor)
    await told.be(Condition("loading"))
    await until(lambda: editor.of("create"))
    await told.be(Condition("connecting"), Condition("loading"))
    await told.be(READY)
    assert (len(editor.of("create")), editor.of("$/progress")) == (1, [])


# What the engine tells


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    monkeypatch.setenv("CAESURA_RUNTIME", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    found = Engine(client="test", model="fake", command=[sys.executable, str(FAKE), "fake"])
    yield found
    await found.close()
    for place in rendezvous.running():
        if holder := place.holder():
            rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may be in the middle of a write


def job(prefix: str = "") -> wire.Infill:
    return wire.Infill(
        job=job_id(), document="d", prefix=prefix, suffix="", segments=(wire.Hole(),), deadline_ms=20_000
    )


async def run(engine: Engine, request: wire.Infill, events: int = 1000) -> None:
    """Read at most so many events, then leave."""
    reading = engine.infill(request)
    try:
        for _ in range(events):
            await anext(reading)
    except (StopAsyncIteration, EngineError):
        pass
    finally:
        await reading.aclose()


async def test_an_engine_tells_of_its_start_its_jobs_and_its_end(engine: Engine) -> None:
    seen: list[Condition] = []
    jobs: list[FinishedJob] = []
    engine.on_change = lambda: seen.append(engine.condition)
    engine.on_job = jobs.append
    await engine.start()
    await engine.ready(20)
    assert seen[-1] == Condition("ready", "fake", "fake")
    await run(engine, job())
    assert {one.busy for one in seen} == {True, False}
    assert not seen[-1].busy
    await run(engine, job("endless"), 1)
    await run(engine, job("refuse"))
    assert [(one.end, one.priority) for one in jobs] == [
        ("done", "automatic"),
        ("cancelled", "automatic"),
        ("invalid", "automatic"),
    ]
    assert (jobs[0].steps, jobs[0].ms["denoise"], jobs[0].ms["first_lock"]) == (6, 12.0, 2.0)
    assert set(jobs[1].ms) == {"total"}
    before = len(seen)
    await engine.close()
    assert len(seen) == before


# What the editor tells


def initialize(**params: Any) -> types.InitializeParams:
    params = {"processId": None, "rootUri": None, "capabilities": {}, **params}
    return CONVERTER.structure(params, types.InitializeParams)


@pytest.mark.parametrize(
    ("params", "folders"),
    [
        ({}, []),
        ({"rootPath": "/old"}, ["/old"]),
        ({"rootPath": "/old", "rootUri": "file:///root%20folder"}, ["/root folder"]),
        ({"rootUri": "file:///root", "workspaceFolders": None}, ["/root"]),
        ({"rootUri": "file:///root", "workspaceFolders": []}, []),
        (
            {
                "rootUri": "file:///root",
                "workspaceFolders": [{"uri": "file:///a", "name": "a"}, {"uri": "file:///b", "name": "b"}],
            },
            ["/a", "/b"],
        ),
        ({"workspaceFolders": [{"uri": "untitled:x", "name": "x"}, {"uri": "file:///c%3A/d", "name": "d"}]}, ["c:/d"]),
    ],
)
def test_the_workspaces_folders_are_paths(params: dict[str, Any], folders: list[str]) -> None:
    assert client.folders(initialize(**params)) == folders


def test_folders_come_and_go() -> None:
    event = {
        "added": [{"uri": "file:///c", "name": "c"}, {"uri": "file:///b", "name": "b"}],
        "removed": [{"uri": "file:///a", "name": "a"}],
    }
    after = client.folders_after(["/a", "/b"], CONVERTER.structure(event, types.WorkspaceFoldersChangeEvent))
    assert after == ["/c", "/b"]


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({}, False),
        ({"initializationOptions": {"mode": "quiet"}}, False),
        ({"initializationOptions": {"editorPluginInfo": {"name": "copilot.lua", "version": "1"}}}, True),
        ({"capabilities": {"experimental": {"caesura": {"status": True}}}}, True),
        ({"capabilities": {"experimental": {"caesura": True}}}, False),
    ],
)
def test_the_status_is_for_editors_that_know_it(params: dict[str, Any], wanted: bool) -> None:
    assert client.wants_status(initialize(**params)) is wanted


def test_a_client_is_known_by_its_name_and_abilities() -> None:
    assert client.name(initialize()) == "an editor"
    assert client.name(initialize(clientInfo={"name": "Neovim", "version": "0.12"})) == "Neovim 0.12"
    odd = client.name(initialize(clientInfo={"name": "vim\x1b[31m\n" + "m" * 300, "version": "\u202e1"}))
    assert odd == r"vim\x1b[31m\n" + "m" * 86 + "…"
    wire.decode_client(wire.encode(wire.Hello(wire.PROTOCOL, "1", odd)))  # so it gets an engine
    announced = {
        "textDocument": {"inlineCompletion": {"dynamicRegistration": True}},
        "workspace": {"applyEdit": True, "configuration": False},
        "window": {"workDoneProgress": True},
    }
    found = client.abilities(initialize(capabilities=announced).capabilities)
    assert found == ("inlineCompletion", "applyEdit", "workDoneProgress")


async def test_settings_that_change_are_asked_for_where_the_client_wants_to_be_asked() -> None:
    editor = Editor()
    await client.watch_settings(editor)  # type: ignore[arg-type]
    assert editor.told == []
    dynamic = {"workspace": {"didChangeConfiguration": {"dynamicRegistration": True}}}
    for editor in (Editor(), Editor(creates=ValueError("no"))):
        editor.client_capabilities = initialize(capabilities=dynamic).capabilities
        await client.watch_settings(editor)  # type: ignore[arg-type]
        assert editor.of("register") == [[("workspace/didChangeConfiguration", {"section": "caesura"})]]


async def test_an_editor_that_does_not_answer_with_its_settings_keeps_those_of_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    editor = Editor()
    editor.client_capabilities = initialize(capabilities={"workspace": {"configuration": True}}).capabilities
    await EditorSettings(editor, SimpleNamespace(), SimpleNamespace()).pull()  # type: ignore[arg-type]
    assert "settings" in caplog.text
