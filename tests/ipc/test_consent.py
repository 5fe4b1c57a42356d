"""Which documents go to a service: those in folders that the user has named on the command line, and nothing else."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caesura import cli, wire
from caesura.client import choose
from caesura.client.backend import Condition, EngineUnavailable, FinishedJob
from caesura.client.backends import KINDS, named
from caesura.client.backends.kinds import APIS
from caesura.client.routed import Routed
from caesura.client.shared import Engine

from ..client.test_backends import END, PROPS, STREAM, job, part
from ..lsp.test_lsp import Client
from ..support.processes.service import Service, events, response, serving


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "config" / "caesura" / "keys"


def add(*more: str, name: str = "desk", url: str = "http://127.0.0.1:8012", kind: str = "llama-server") -> int:
    return cli.main(["backend", "add", name, url, "--kind", kind, *more])


def test_a_service_is_used_for_folders_that_were_named_for_it(config: Path, tmp_path: Path) -> None:
    (tmp_path / "one" / "inner").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert add() == 0
    assert choose.agreement([one]) is None
    assert cli.main(["backend", "use", one]) == 0
    agreed = choose.agreement([f"{one}/inner"])
    assert agreed
    assert agreed.engine.name == "desk"
    assert agreed.covers(tmp_path / "one" / "a.py")
    assert not agreed.covers(tmp_path / "two" / "a.py")
    for folders in ([], [two], [one, two], [str(tmp_path)], ["one"]):
        assert choose.agreement(folders) is None
    assert cli.main(["backend", "remove", one]) == 0
    assert not agreed.covers(tmp_path / "one" / "a.py")  # at once, also for who holds the agreement


def test_a_folder_inside_another_has_its_own_engine_whatever_was_named_first(config: Path, tmp_path: Path) -> None:
    outer, inner, deep = tmp_path / "code", tmp_path / "code" / "secret", tmp_path / "code" / "secret" / "deep"
    deep.mkdir(parents=True)
    add(name="work")
    add(name="desk")
    assert cli.main(["pair", "with", "127.0.0.1:7411", "ab" * 32, "--name", "laptop"]) == 0
    assert cli.main(["backend", "use", str(deep), "--backend", "desk"]) == 0
    assert cli.main(["pair", "use", str(inner)]) == 0
    assert cli.main(["backend", "use", str(outer), "--backend", "work"]) == 0
    owners = {outer: "work", inner: "laptop", deep: "desk"}
    for folder, name in owners.items():
        agreed = choose.agreement([str(folder)])
        assert agreed
        assert agreed.engine.name == name
        assert [place for place in owners if agreed.covers(place / "a.py")] == [folder]
    assert choose.agreement([str(outer), str(inner)]) is None


@pytest.mark.parametrize(
    "change", [["--model", "other"], ["--key-from", "KEY"], ["--kind", "fim"], ["http://127.0.0.1:9"], "remove"]
)
def test_an_agreement_ends_when_the_service_becomes_another_one(config: Path, tmp_path: Path, change: Any) -> None:
    add()
    cli.main(["backend", "use", str(tmp_path)])
    agreed = choose.agreement([str(tmp_path)])
    assert agreed
    if change == "remove":
        assert cli.main(["backend", "remove", "desk"]) == 0
    elif change[0].startswith("http"):
        assert add(url=change[0]) == 0
        assert choose.agreement([str(tmp_path)]) is None  # the folders were for the other address
    else:
        assert add(*change) == 0
        assert choose.agreement([str(tmp_path)]) is not None
    assert not agreed.covers(tmp_path / "a.py")


def test_a_folder_of_a_paired_machine_stays_there(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pair", "with", "127.0.0.1:7411", "ab" * 32, "--name", "laptop"]) == 0
    assert cli.main(["pair", "use", str(tmp_path)]) == 0
    add()
    assert cli.main(["backend", "use", str(tmp_path)]) == 1
    assert "belongs to laptop" in capsys.readouterr().err
    agreed = choose.agreement([str(tmp_path)])
    assert agreed
    assert agreed.engine.name == "laptop"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://127.0.0.1:8012", "http://127.0.0.1:8012/"),
        ("http://localhost:8012/", "http://localhost:8012/"),
        ("http://[::1]:8012/v1", "http://[::1]:8012/"),
        ("http://192.168.0.7:8012/v1/", "http://192.168.0.7:8012/"),
        ("http://169.254.1.2", "http://169.254.1.2/"),
        ("http://172.31.0.1", "http://172.31.0.1/"),
        ("http://[fd00::1]", "http://[fd00::1]/"),
        ("http://10.1.2.3/llm/v1", "http://10.1.2.3/llm/"),
        ("https://API.inceptionlabs.ai/v1", "https://api.inceptionlabs.ai/"),
        ("https://8.8.8.8", "https://8.8.8.8/"),
    ],
)
def test_an_address_is_kept_as_what_it_means(url: str, kept: str) -> None:
    assert named.address(url) == named.address(kept) == kept


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://8.8.8.8:8012",
            "http://example.com",
            "http://0.0.0.0:1",
            "http://[::]:1",
            "http://[::ffff:8.8.8.8]:1",
        ),
        *("http://100.64.0.1", "http://198.18.0.1", "http://203.0.113.1", "http://240.0.0.1", "http://0.1.2.3"),
        *("http://localhost.example.com", "http://127.0.0.1.example.com", "http://2130706433", "http://127.1"),
        *("ftp://127.0.0.1", "file:///etc/passwd", "127.0.0.1:8012", "", "https://", "http://127.0.0.1:99999"),
        *("https://user:secret@example.com", "https://example.com/?key=secret", "https://example.com/#a"),
        *("https://example.com/../x", "https://exa mple.com", "https://éxample.com", "http://127.0.0.1\\@example.com"),
    ],
)
def test_other_addresses_are_refused(config: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(named.BadUrl):
        named.address(url)
    assert add(url=url) == 2
    assert not named.services()


def test_a_file_that_somebody_has_changed_names_nobody(
    config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add()
    cli.main(["backend", "use", str(tmp_path)])
    path = config / "backends.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    for broken in (path.read_text().replace("http://127.0.0.1:8012/", "http://8.8.8.8/"), "{", "[]", '{"x": 1}'):
        path.write_text(broken)
        assert choose.agreement([str(tmp_path)]) is None
        assert "No backend counts as named" in caplog.text
        assert cli.main(["backend", "list"]) == 1


# Keys


class Locked(Exception):
    pass


class Ring:
    """The keyring library; with `locked`, a keyring that its user does not open."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, *names: str) -> str | None:
        if self.locked:
            raise Locked
        return self.keys.get((names[0], names[1]))

    def set_password(self, service: str, name: str, key: str) -> None:
        self.get_password(service, name)
        self.keys[service, name] = key

    def delete_password(self, service: str, name: str) -> None:
        del self.keys[service, name]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    found = Ring()
    monkeypatch.setitem(sys.modules, "keyring", found)
    monkeypatch.setitem(sys.modules, "keyring.errors", SimpleNamespace(KeyringError=Locked))
    return found


def test_a_key_of_the_keyring_belongs_to_a_host_and_goes_with_it(
    config: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    typed = ["wrong", "right", "", "other", "two words", ""]
    monkeypatch.setattr("getpass.getpass", lambda prompt: typed.pop(0))
    for url, key in [("a", "wrong"), ("a", "right"), ("a", "right"), ("b", "other")]:
        assert add("--key-from", "keyring", url=f"https://{url}.example") == 0
        assert ring.keys == {("caesura", f"desk@{url}.example"): key}
        assert named.key(named.services()[0]) == key
    assert add("--key-from", "keyring", url="https://b.example") == 1  # no key, so the old one stays
    assert ring.keys == {("caesura", "desk@b.example"): "other"}
    assert add("--key-from", "keyring", url="https://c.example") == 1  # the old host's is not for it
    assert "The key of desk is not in keyring" in capsys.readouterr().err
    assert cli.main(["backend", "remove", "desk"]) == 0
    assert not ring.keys


@pytest.mark.parametrize(("missing", "sentence"), [(True, "install: pip install"), (False, "keyring does not open")])
def test_a_keyring_that_cannot_be_used_is_one_sentence(
    config: Path, ring: Ring, missing: bool, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("getpass.getpass", lambda prompt: "k-123")
    ring.locked = True
    if missing:
        monkeypatch.setitem(sys.modules, "keyring", None)
    assert add("--key-from", "keyring") == 1
    assert sentence in capsys.readouterr().err
    assert not named.services()


def test_a_key_comes_from_the_environment_or_the_keyring_and_is_kept_nowhere(
    config: Path, ring: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DESK_KEY", "k-123")
    add("--key-from", "DESK_KEY")
    (service,) = named.services()
    assert named.key(service) == "k-123"
    monkeypatch.delenv("DESK_KEY")
    with pytest.raises(named.NoKey, match="not in DESK_KEY; set it where your editor starts"):
        named.key(service)
    monkeypatch.setenv("DESK_KEY", "two\r\nwords: 1")
    with pytest.raises(named.NoKey, match="not a valid key for desk") as raised:
        named.key(service)
    assert "words" not in str(raised.value)
    ring.keys["caesura", "desk@127.0.0.1:8012"] = "k-123"
    assert add("--key-from", "keyring") == 0
    assert named.key(named.services()[0]) == "k-123"
    assert cli.main(["backend", "list"]) == 0
    said = capsys.readouterr().out
    assert "key from keyring" in said
    assert "k-123" not in said + (config / "backends.json").read_text()


# The engine that answers


class Counting:
    """An engine that answers each job with its name, or raises."""

    def __init__(self, name: str, trouble: str = "", lacks: frozenset[Any] = frozenset()) -> None:
        self.name, self.trouble = name, trouble
        self.condition = Condition("unavailable" if trouble else "ready", name, "cpu", trouble, lacks=lacks)
        self.started, self.left_ms = 0, 0.0
        self.on_change, self.on_job = lambda: None, lambda job: None

    async def start(self) -> None:
        self.started += 1

    async def close(self) -> None:
        self.started = -1

    async def infill(self, job: wire.Infill) -> AsyncGenerator[Any, None]:
        self.left_ms = job.deadline_ms
        self.on_job(FinishedJob(job.job, "unavailable" if self.trouble else "done", job.priority))
        if self.trouble:
            raise EngineUnavailable(self.trouble)
        yield self.name


async def answered(found: Any, job: wire.Infill) -> list[Any]:
    async with aclosing(found.infill(job)) as heard:
        return [event async for event in heard]


GRAMMAR = {"segments": (wire.Hole(grammar=wire.Json()),)}
HOLES = {"segments": (wire.Hole(), wire.Text(","), wire.Hole())}


async def test_what_the_service_lacks_goes_to_the_local_engine_which_starts_only_then() -> None:
    remote, local = Counting("remote", lacks=frozenset({"grammars", "holes", "candidates"})), Counting("local")
    found = Routed("desk", remote, local, fallback=False)
    finished = list[FinishedJob]()
    found.on_job = finished.append
    await found.start()
    assert await answered(found, job(candidates=3)) == ["remote"]
    assert (remote.started, local.started) == (1, 0)
    for needy in (GRAMMAR, HOLES):
        assert await answered(found, job(**needy)) == ["local"]
    assert local.started == 1
    assert len(finished) == 3
    assert found.condition.model == "remote"
    assert "grammars" in found.condition.lacks
    await found.close()
    assert (remote.started, local.started) == (-1, -1)


async def test_another_model_answers_only_where_the_user_has_said_so_and_the_status_tells() -> None:
    remote, local = Counting("remote", "desk is off."), Counting("local")
    strict = Routed("desk", remote, local, fallback=False)
    finished = list[FinishedJob]()
    strict.on_job = finished.append
    with pytest.raises(EngineUnavailable, match="desk is off"):
        await answered(strict, job())
    assert (local.started, strict.condition) == (0, remote.condition)
    found = Routed("desk", remote, local, fallback=True)
    found.on_job = finished.append
    assert await answered(found, job()) == ["local"]
    assert [one.end for one in finished] == ["unavailable", "done"]  # once for each job
    assert local.left_ms < remote.left_ms
    assert (found.condition.state, found.condition.model) == ("ready", "local")
    assert found.condition.device == "cpu, while desk does not answer"


def test_which_engine_a_server_gets(config: Path, tmp_path: Path) -> None:
    local = choose.engine(None, client="test", model="small", device="cpu")
    assert isinstance(local, Engine)
    add()
    found = choose.engine(named.services()[0], client="test", model="small", device="cpu")
    assert isinstance(found, Routed)
    assert found.condition.device == "desk (127.0.0.1:8012)"
    assert set(APIS) == set(KINDS)


# The server as an editor has it


@asynccontextmanager
async def editor(*folders: Path, **settings: Any) -> AsyncIterator[Client]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-m", "caesura", "lsp")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    client = Client(process)
    try:
        known = {"experimental": {"caesura": {"status": True}}}
        uris = [{"uri": folder.as_uri(), "name": folder.name} for folder in folders]
        await client.start(workspaceFolders=uris, capabilities=known, initializationOptions={"warm": False, **settings})
        yield client
    finally:
        client._task.cancel()
        process.kill()
        await process.wait()


async def complete(client: Client, uri: str, text: str) -> list[str]:
    """What is proposed at the end of a document."""
    document = {"uri": uri, "languageId": "python", "version": 0, "text": text}
    client.notify("textDocument/didOpen", {"textDocument": document})
    *before, last = text.split("\n")
    where = {"textDocument": {"uri": uri}, "position": {"line": len(before), "character": len(last)}}
    found = await client.call("textDocument/inlineCompletion", {**where, "context": {"triggerKind": 1}})
    return [item["insertText"] for item in found["items"]]


@pytest.fixture
def project(config: Path, tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    return found


async def named_service(service: Service, folder: Path, *more: str) -> None:
    assert await asyncio.to_thread(add, *more, url=service.url) == 0
    assert await asyncio.to_thread(cli.main, ["backend", "use", str(folder)]) == 0


async def test_an_editor_gets_a_services_answers_and_hidden_files_and_secrets_stay(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_KEY", "k-123")
    (project / ".caesuraignore").write_text("private.py\n")
    outside = project.parent / "outside.py"
    (project / "away.py").symlink_to(outside)
    async with serving(PROPS, STREAM) as service:
        await named_service(service, project, "--key-from", "DESK_KEY")
        async with editor(project) as client:
            text = 'password = "hunter2!x9"\ntotal = '
            assert await complete(client, (project / "main.py").as_uri(), text) == ["a + b"]
            asked = len(service.asked)
            for path in (project / "private.py", outside, project / "away.py"):
                assert await complete(client, path.as_uri(), "secret_plan = ") == []
            assert len(service.asked) == asked
            told = [one["params"] for one in client.others if one.get("method") == "caesura/status"]
    assert "hunter2!x9" not in str(service.asked)
    assert told[-1]["device"] == f"desk ({service.url.removeprefix('http://')})"
    assert (told[-1]["state"], told[-1]["model"]) == ("ready", "qwen")
    assert "k-123" not in str(client.others)


async def test_no_setting_of_a_project_names_a_service(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAESURA_RUNTIME", str(project.parent / "run"))
    async with serving(PROPS, STREAM) as service:
        about = {"url": service.url, "name": "desk", "kind": "llama-server", "folders": [str(project)]}
        (project / ".vscode").mkdir()
        (project / "backends.json").write_text(str(about))
        settings = {"backend": about, "backends": [about], "remote": "desk", "model": "tests/no-such-model"}
        async with editor(project, **settings, url=service.url, deadlineMs=50) as client:
            assert await complete(client, (project / "main.py").as_uri(), "total = ") == []
    assert service.connections == 0


async def test_a_failure_shows_nothing_and_is_one_line_of_the_log(project: Path) -> None:
    async with serving(PROPS, response({}, 402)) as service:
        await named_service(service, project)
        async with editor(project) as client:
            for line in ("total = ", "other = "):
                assert await complete(client, (project / f"{line[:5]}.py").as_uri(), line) == []
            said = [one["params"] for one in client.others if one.get("method") == "window/logMessage"]
    assert [one["message"] for one in said] == [
        "Caesura gives no completions: desk asks for payment; check the account there."
    ]
    assert len(service.asked) == 2  # the model, and one job


async def test_status_and_test_say_how_a_service_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CAESURA_RUNTIME", str(project.parent / "run"))
    sum_of = events(part("a + b"), END, done=False)
    async with serving(PROPS, PROPS, sum_of, response({}, 401)) as service:
        await named_service(service, project)
        assert await asyncio.to_thread(cli.main, ["status"]) == 0
        assert f"desk ({service.url}/): ready: qwen" in capsys.readouterr().out
        assert await asyncio.to_thread(cli.main, ["backend", "test", "desk"]) == 0
        assert "desk answers with qwen" in capsys.readouterr().out
        assert await asyncio.to_thread(cli.main, ["backend", "test", "desk"]) == 1
        assert "does not accept the key" in capsys.readouterr().err
    assert not any(os.path.realpath(project) in str(body) for _, body in service.asked)
