"""`caesura demo` over HTTP, without a browser: who may ask, what is read, and what the page hears. The engine is a
fake one, and so is the engine behind the real language server.
"""

import asyncio
import contextlib
import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caesura import wire
from caesura.client.backend import EngineUnavailable
from caesura.demo import fills
from caesura.demo.app import MAX_PAGES, DemoApp, DemoDocument, examples, files
from caesura.demo.fills import MAX_TEXT
from caesura.demo.guard import PageGuard
from caesura.serve import hosting

ROOT = Path(__file__).parents[2]
LSP = (sys.executable, str(ROOT / "tests" / "support" / "processes" / "lsp_server.py"))
TEXT = "def area(width, height):\n    return \n"
WANTED = {"text": TEXT, "start": 36, "end": 36, "language": "python", "sampler": "verify", "seed": 7}
PATIENCE_S = 30.0
NESTED = b"[" * 50_000 + b"]" * 50_000


class FakeEngine:
    """Says two steps and an answer in each job; `endless` ones say a step and wait."""

    def __init__(self) -> None:
        self.state = "ready"
        self.jobs: list[wire.Infill] = []
        self.ended: list[str] = []
        self.endless = self.missing = False

    async def start(self) -> None:
        pass

    async def ready(self, timeout_s: float) -> None:
        self.state = "ready"

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        wire.decode_client(wire.encode(job))
        if self.missing:
            raise EngineUnavailable("There is no engine here.")
        self.jobs.append(job)
        text = "width * height" if job.method == "verify" else "width"
        try:
            for step in (1, 2):
                draft = wire.Fill(
                    text, ((0, 5 * (step - 1)),) if step > 1 else (), 0.5, 3, ((5, 0.9), (len(text), 0.4))
                )
                yield wire.Locked(job.job, step - 1, (draft,), step, 40)
                if self.endless:
                    await asyncio.sleep(3600)
            done = wire.Fill(text, ((0, len(text)),), 0.6, 0, ((5, 0.9), (len(text), 0.4)))
            tokens = wire.Tokens(canvas=1, lookup=2)
            yield wire.Done(
                **{"job": job.job, "seq": 2, "holes": (done,), "steps": 2},
                **{"tokens": tokens, "timings": wire.Timings(), "stop": "complete"},
            )
        finally:
            self.ended.append(job.job)


async def test_a_page_that_is_closed_ends_its_job_at_once() -> None:
    engine = FakeEngine()
    events = fills.fill(engine, msgspec.convert(WANTED, fills.Wanted))  # type: ignore[arg-type]
    while not isinstance(await anext(events), fills.Step):
        pass
    await events.aclose()
    assert engine.ended == [job.job for job in engine.jobs]


@dataclass
class Demo:
    """A demo that runs, and a browser's way to it."""

    guard: PageGuard
    engine: FakeEngine
    app: DemoApp

    @property
    def port(self) -> int:
        return int(self.guard.host.rpartition(":")[2])

    @property
    def origin(self) -> dict[str, str]:
        """What a browser says of who asks, for our page."""
        return {"Origin": f"http://{self.guard.host}", "Sec-Fetch-Site": "same-origin"}

    async def enter(self) -> dict[str, str]:
        """Open the page; the headers of what it asks from then on."""
        status, _, body = await self.trade(self.guard.address)
        assert status == 200
        return {**self.origin, **bearer(json.loads(body))}

    async def trade(self, address: str, headers: Mapping[str, str] = {}) -> tuple[int, dict[str, str], bytes]:
        """Ask for the key with the token of an address."""
        return await self.ask("POST", "/key", {**self.origin, **bearer(address.partition("#")[2]), **headers})

    async def get(self, path: str, headers: Mapping[str, str] = {}) -> tuple[int, dict[str, str], bytes]:
        return await self.ask("GET", path, headers)

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str] = {}, body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer."""
        given = {"Host": self.guard.host, "Content-Length": str(len(body)), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        return parsed(await self.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body))

    async def raw(self, data: bytes) -> bytes:
        """What is answered to these bytes, to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    @asynccontextmanager
    async def stream(self, path: str, headers: Mapping[str, str], body: object = None) -> AsyncIterator[Any]:
        """Values as they come; leaving closes the connection, as closing the page does."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(body).encode()
        given = {"Host": self.guard.host, "Content-Length": str(len(data)), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data)
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            assert b" 200 OK" in head, head + await reader.read()
            yield values(reader)
        finally:
            writer.close()


async def values(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    while size := int((await asyncio.wait_for(reader.readline(), PATIENCE_S)) or b"0", 16):
        line = await reader.readexactly(size + 2)
        yield json.loads(line)


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    engine = FakeEngine()
    app = DemoApp(engine, examples(), lsp=LSP)  # type: ignore[arg-type]
    async with app.listening(0) as guard:
        yield Demo(guard, engine, app)


async def until(condition: Any, what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


# Who may ask


async def test_the_files_of_the_page_are_public_and_all_else_needs_the_key(demo: Demo) -> None:
    for path in ("/", "/?token=wrong", "/main.js", "/monaco/editor.js"):
        assert (await demo.get(path))[0] == 200, path
    headers = await demo.enter()
    key, token = headers["Authorization"].removeprefix("Bearer "), demo.guard.address.partition("#")[2]
    others: list[dict[str, str]] = [{}, bearer(""), bearer(key[:-1]), bearer(token), bearer("é")]
    others += [{"Authorization": key}, {"Authorization": f"Basic {key}"}, {"Cookie": f"key={key}"}]
    for path in ("/documents", "/fill", "/sessions", "/sessions/x", "/nothing", f"/documents?key={key}"):
        for other in others:
            status, _, body = await demo.ask("POST", path, {**demo.origin, **other}, json.dumps(WANTED).encode())
            assert (status, b"`caesura demo` printed" in body) == (403, True), (path, other)
    assert demo.engine.jobs == []
    assert (await demo.ask("POST", "/documents", headers))[0] == 200
    assert (await demo.ask("POST", "/nothing", headers))[0] == 404
    for path in ("/documents", "/key", "/nothing"):
        assert (await demo.get(path, headers))[0] == 404, "a GET reads files and nothing else"


@pytest.mark.parametrize("token", ["", "wrong", "é"])
async def test_the_key_is_for_a_token_alone(demo: Demo, token: str) -> None:
    assert (await demo.trade(f"#{token}"))[0] == 403
    assert (await demo.ask("POST", "/key", await demo.enter()))[0] == 403
    assert (await demo.ask("POST", f"/key?token={demo.guard.address.partition('#')[2]}", demo.origin))[0] == 403


async def test_the_key_is_in_no_address_in_no_file_and_in_no_cookie(demo: Demo) -> None:
    _, sent, body = await demo.trade(demo.guard.address)
    key = json.loads(body)
    assert len(key) == 43
    assert sent["cache-control"] == "no-store"
    assert key not in demo.guard.address + demo.guard.address_once, "who sees a history does not know the key"
    assert [name for name, file in files().items() if key.encode() in file.body] == []
    for path in ("/", "/main.js", "/nothing"):
        assert "set-cookie" not in (await demo.get(path))[1]
    for path in ("/key", "/documents"):
        assert "set-cookie" not in (await demo.ask("POST", path, {**demo.origin, **bearer(key)}))[1]
    assert "set-cookie" not in sent


async def test_a_token_is_behind_the_hash_which_no_browser_sends(demo: Demo) -> None:
    for address in (demo.guard.address, demo.guard.address_once):
        assert re.fullmatch(rf"http://{re.escape(demo.guard.host)}/#[\w-]{{43}}", address)


async def test_the_address_that_a_browser_is_started_with_opens_the_page_once(demo: Demo) -> None:
    address = demo.guard.address_once
    for refused in ({"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}, {"Host": "localhost"}):
        assert (await demo.trade(address, refused))[0] == 403, "who may not ask does not use it up"
    assert (await demo.trade(address))[0] == 200
    status, _, body = await demo.trade(address)
    assert (status, b"open the one that `caesura demo` printed" in body) == (403, True)
    assert [(await demo.trade(demo.guard.address))[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("host", ["localhost", "evil.example", "evil.example:80", "127.0.0.1", "[::1]", ""])
async def test_another_host_is_refused_though_it_leads_here(demo: Demo, host: str) -> None:
    headers = await demo.enter()
    status, _, body = await demo.ask("POST", "/documents", {**headers, "Host": host})
    assert status == 403
    assert demo.guard.host in body.decode()
    assert (await demo.trade(demo.guard.address, {"Host": host}))[0] == 403
    assert (await demo.get("/", {"Host": host}))[0] == 403


@pytest.mark.parametrize("origin", ["http://127.0.0.1:1", "https://evil.example", "null", ""])
async def test_another_page_is_refused_though_it_had_the_key(demo: Demo, origin: str) -> None:
    headers = {**await demo.enter(), "Origin": origin}
    assert (await demo.get("/main.js", headers))[0] == 403
    assert (await demo.ask("POST", "/documents", headers))[0] == 403
    assert (await demo.trade(demo.guard.address, {"Origin": origin}))[0] == 403
    assert (await demo.ask("POST", "/fill", headers, json.dumps(WANTED).encode()))[0] == 403
    assert demo.engine.jobs == []


async def test_a_request_with_the_key_needs_an_origin(demo: Demo) -> None:
    headers = await demo.enter()
    del headers["Origin"]
    assert (await demo.ask("POST", "/fill", headers, json.dumps(WANTED).encode()))[0] == 403
    assert (await demo.ask("POST", "/documents", headers))[0] == 403
    assert (await demo.get("/main.js"))[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_page_cannot_embed_what_is_here_but_lead_here(demo: Demo, site: str) -> None:
    headers = {**await demo.enter(), "Sec-Fetch-Site": site}
    assert (await demo.ask("POST", "/documents", headers))[0] == 403
    for path in ("/main.js", "/index.html", "/monaco/editor.js"):
        assert (await demo.get(path, {"Sec-Fetch-Site": site}))[0] == 403, path
    assert (await demo.get("/", {"Sec-Fetch-Site": site}))[0] == 200, "a link in a terminal that is a page"


async def test_every_answer_forbids_foreign_scripts_and_grants_nothing_to_other_pages(demo: Demo) -> None:
    for method, path, headers in (("GET", "/", {}), ("POST", "/documents", await demo.enter()), ("POST", "/", {})):
        _, sent, _ = await demo.ask(method, path, headers)
        policy = dict(part.strip().split(" ", 1) for part in sent["content-security-policy"].split(";"))
        assert policy["default-src"] == "'self'"
        assert "script-src" not in policy
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert sent["x-content-type-options"] == "nosniff"
        assert sent["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in sent if name.startswith("access-control")]


def test_the_page_has_no_inline_script_and_nothing_from_elsewhere() -> None:
    page = files()["/index.html"].body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"\son\w+=", page) == []
    own = [name for name in files() if name.endswith((".html", ".css", ".js")) and "monaco" not in name]
    assert len(own) > 6
    for name in own:
        text = files()[name].body.decode()
        assert re.findall(r"(?:https?:)?//[\w-]+\.\w", text.replace("http://www.w3.org", "")) == [], name


async def test_it_listens_on_loopback_alone(demo: Demo) -> None:
    assert demo.guard.host.startswith("127.0.0.1:")
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.2", demo.port)


# What is read


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py",
        "/%2e%2e/app.py",
        "//etc/passwd",
        "/monaco/../../app.py",
        "/examples/stack.js.txt",
        "/index.html/..",
    ],
)
async def test_no_file_of_the_disk_can_be_read(demo: Demo, path: str) -> None:
    headers = await demo.enter()
    for method in ("GET", "POST"):
        assert (await demo.ask(method, path, headers))[0] == 404


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: HERE\r\n" + b"X: y\r\n" * 4000, 400),  # a head without an end
        (b"POST /fill HTTP/1.1\r\nHost: HERE\r\nContent-Length: 99999999\r\n\r\n", 403),
        (b"POST /fill HTTP/1.1\r\nHost: HERE\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST /fill HTTP/1.1\r\nHost: HERE\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /fill HTTP/1.1\r\nHost: HERE\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: HERE\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : HERE\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 403),
        (b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: HERE\r\n\r\n", 404),
        (b"GET //[ HTTP/1.1\r\nHost: HERE\r\n\r\n", 404),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"OPTIONS /fill HTTP/1.1\r\nHost: HERE\r\n\r\n", 405),
        (b"DELETE / HTTP/1.1\r\nHost: HERE\r\n\r\n", 405),
    ],
)
async def test_what_is_no_request_of_ours_is_refused(demo: Demo, data: bytes, status: int) -> None:
    assert parsed(await demo.raw(data.replace(b"HERE", demo.guard.host.encode())))[0] == status


async def test_one_that_says_nothing_is_let_go(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "HEAD_S", 0.1)
    assert await demo.raw(b"GET / HT") == b""


async def test_a_silent_crowd_is_bounded_and_keeps_nobody_out(demo: Demo) -> None:
    crowd = [await asyncio.open_connection("127.0.0.1", demo.port) for _ in range(2 * hosting.MAX_STRANGERS)]
    assert (await demo.get("/"))[0] == 200
    assert (await demo.ask("POST", "/documents", await demo.enter()))[0] == 200
    for stranger, _ in crowd[: hosting.MAX_STRANGERS]:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(stranger.read(), PATIENCE_S) == b""
    for _, writer in crowd:
        writer.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {**WANTED, "sampler": "left_to_right"},
        {**WANTED, "start": -1},
        {**WANTED, "seed": 2**40},
        {**WANTED, "path": "/etc/passwd"},
        {"text": "x"},
        [],
        NESTED,
        b'{"text": "\xff"}',
    ],
    ids=["sampler", "start", "seed", "unknown field", "missing", "no map", "nested", "no text"],
)
async def test_a_wrong_order_is_refused_with_a_sentence(demo: Demo, wrong: object) -> None:
    body = wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()
    status, _, body = await demo.ask("POST", "/fill", await demo.enter(), body)
    assert status == 400
    assert body.startswith(b"The demo cannot fill this: ")
    assert demo.engine.jobs == []


@pytest.mark.parametrize(
    ("length", "sentence"),
    [
        (MAX_TEXT + 1, b"The text is longer than the 262,144 characters that the demo accepts.\n"),
        (hosting.MAX_BODY, b"The request is longer than the 2,097,152 bytes that the demo accepts.\n"),
        (8 * hosting.MAX_BODY, b"The request is longer than the 2,097,152 bytes that the demo accepts.\n"),
    ],
)
async def test_a_text_over_the_limit_is_refused_with_a_sentence(demo: Demo, length: int, sentence: bytes) -> None:
    wanted = {**WANTED, "text": "x" * length, "start": length, "end": length}
    status, _, body = await demo.ask("POST", "/fill", await demo.enter(), json.dumps(wanted).encode())
    assert (status, body) == (413, sentence)
    assert demo.engine.jobs == []


async def test_a_text_of_just_the_limit_is_filled(demo: Demo) -> None:
    wanted = {**WANTED, "text": "x" * MAX_TEXT, "start": MAX_TEXT, "end": MAX_TEXT}
    async with demo.stream("/fill", await demo.enter(), wanted) as told:
        assert [event["type"] async for event in told].count("ended") == 2


# Fills


async def test_a_gap_is_filled_twice_each_step_told(demo: Demo) -> None:
    async with demo.stream("/fill", await demo.enter(), WANTED) as told:
        heard = [event async for event in told]
    assert [(e["type"], e.get("run")) for e in heard] == [
        ("read", None),
        *[("step", "diffusion"), ("step", "diffusion"), ("ended", "diffusion")],
        *[("step", "left_to_right"), ("step", "left_to_right"), ("ended", "left_to_right")],
    ]
    answers = [event for event in heard if event["type"] == "ended"]
    assert [answer["inserted"] for answer in answers] == ["width * height", "width"]
    assert answers[0]["tokens"] == {"canvas": 1, "lookup": 2, "left_to_right": 0}
    for run in ("diffusion", "left_to_right"):
        times = [event["ms"] for event in heard if event.get("run") == run]
        assert times == sorted(times)


async def test_both_runs_have_the_same_gap_and_start_with_the_context_read(demo: Demo) -> None:
    async with demo.stream("/fill", await demo.enter(), WANTED) as told:
        _ = [event async for event in told]
    reading, one, other = demo.engine.jobs
    assert [job.method for job in (reading, one, other)] == ["left_to_right", "verify", "left_to_right"]  # any model's
    assert (one.prefix, one.suffix, one.segments, one.seed) == (other.prefix, other.suffix, other.segments, other.seed)
    assert (reading.prefix, reading.suffix) == (one.prefix, one.suffix)
    assert one.prefix.endswith("    return ")
    assert one.seed == 7


async def test_offsets_are_code_points(demo: Demo) -> None:
    wanted = {**WANTED, "text": "🎈 = \n", "start": 4, "end": 4}
    async with demo.stream("/fill", await demo.enter(), wanted) as told:
        _ = [event async for event in told]
    assert demo.engine.jobs[0].prefix == "🎈 = "


async def test_an_engine_that_starts_is_waited_for(demo: Demo) -> None:
    demo.engine.state = "loading"
    async with demo.stream("/fill", await demo.enter(), WANTED) as told:
        assert (await anext(told))["type"] == "waiting"
        assert (await anext(told))["type"] == "read"


async def test_an_engine_that_fails_is_a_sentence(demo: Demo) -> None:
    demo.engine.missing = True
    async with demo.stream("/fill", await demo.enter(), WANTED) as told:
        assert [event async for event in told] == [{"type": "failed", "message": "There is no engine here."}]


async def test_closing_the_page_frees_the_engine(demo: Demo) -> None:
    demo.engine.endless = True
    async with demo.stream("/fill", await demo.enter(), WANTED):
        await until(lambda: demo.engine.jobs, "a job")
    await until(lambda: demo.engine.ended == [job.job for job in demo.engine.jobs], "the job to end")


# The language server


def opened(uri: str = "inmemory:/a.py") -> dict[str, object]:
    document = {"uri": uri, "languageId": "python", "version": 1, "text": TEXT}
    return {"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": document}}


def request(method: str, params: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}


async def send(demo: Demo, headers: Mapping[str, str], session: str, *messages: object) -> tuple[int, str]:
    status, _, body = await demo.ask("POST", f"/sessions/{session}", headers, json.dumps(messages).encode())
    return status, body.decode()


async def test_a_page_talks_to_a_language_server_of_its_own(demo: Demo) -> None:
    headers = await demo.enter()
    ask = request(
        "textDocument/inlineCompletion",
        {
            "textDocument": {"uri": "inmemory:/a.py"},
            "position": {"line": 0, "character": 99},
            "context": {"triggerKind": 1},
        },
    )
    cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}}
    async with demo.stream("/sessions", headers) as told, demo.stream("/sessions", headers) as other:
        session = (await anext(told))["session"]
        assert (await anext(other))["session"] != session
        assert await send(demo, headers, session, opened(), ask) == (204, "")
        assert await send(demo, headers, session, cancel) == (204, "")
        async for message in told:
            if message.get("id") == 1:
                assert message["error"]["code"] == -32800
                break
        servers = [int(re.sub(r"\D", "", repr(session))) for session in demo.app.sessions.values()]
        assert len(servers) == 2
        assert all(map(runs, servers))
    await until(lambda: not any(map(runs, servers)), "the servers to end with their pages")
    assert demo.app.sessions == {}


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_ending_the_demo_ends_what_its_pages_run_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    engine.endless = True
    app = DemoApp(engine, examples(), lsp=LSP)  # type: ignore[arg-type]
    async with AsyncExitStack() as pages:
        async with app.listening(0) as guard:
            demo = Demo(guard, engine, app)
            headers = await demo.enter()
            await anext(await pages.enter_async_context(demo.stream("/sessions", headers)))
            await pages.enter_async_context(demo.stream("/fill", headers, WANTED))
            await until(lambda: engine.jobs, "a job")
            async with demo.stream("/sessions", headers) as left:
                await anext(left)
        assert not app.sessions
        assert engine.ended == [job.job for job in engine.jobs]
        await asyncio.sleep(0)
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


async def test_a_page_cannot_make_its_language_server_read_files(demo: Demo) -> None:
    headers = await demo.enter()
    async with demo.stream("/sessions", headers) as told:
        session = (await anext(told))["session"]
        for wrong in (
            opened("file:///etc/passwd"),
            request("initialize", {"rootUri": "file:///"}),
            request("workspace/executeCommand", {"command": "caesura.edit"}),
            request("workspace/didChangeConfiguration", {"settings": {"caesura": {"schemas": []}}}),
            request("textDocument/codeAction"),
            {"jsonrpc": "2.0", "id": 1, "result": None},
            {"method": "textDocument/didOpen", "params": [1]},
        ):
            status, sentence = await send(demo, headers, session, opened(), wrong)
            assert (status, sentence.endswith(".\n")) == (400, True), wrong
        for body in (b"no json", NESTED, b'[{"method": "x", "params": ' + NESTED + b"}]"):
            assert (await demo.ask("POST", f"/sessions/{session}", headers, body))[0] == 400
        assert (await demo.ask("POST", "/sessions/another", headers, b"[]"))[0] == 404


async def test_pages_are_bounded(demo: Demo) -> None:
    headers = await demo.enter()
    async with AsyncExitStack() as pages:
        for _ in range(MAX_PAGES):
            assert "session" in await anext(await pages.enter_async_context(demo.stream("/sessions", headers)))
        async with demo.stream("/sessions", headers) as more:
            (refused,) = [event async for event in more]
    assert refused["type"] == "failed"
    assert "close one of them" in refused["message"]


# Documents and files


async def test_the_examples_and_their_gaps_are_told(demo: Demo) -> None:
    _, _, body = await demo.ask("POST", "/documents", await demo.enter())
    told = json.loads(body)
    assert [document["name"] for document in told] == ["stack.js", "words.go", "shapes.py"]
    assert [document["language"] for document in told] == ["javascript", "go", "python"]
    for document in told:
        assert document["gaps"]
        assert "<FILL>" not in document["text"]


def test_a_text_is_shown_without_its_markers() -> None:
    document = DemoDocument.marked("a.py", "🎈 = <FILL>\ny = <FILL>\n")
    assert (document.text, document.gaps, document.language) == ("🎈 = \ny = \n", (4, 9), "python")


def test_a_file_of_the_user_comes_first_and_takes_the_place_of_an_example_of_its_name() -> None:
    own = DemoDocument.marked("words.go", "package mine\n")
    assert [document.name for document in examples([own])] == ["words.go", "stack.js", "shapes.py"]
    assert examples([own])[0].text == "package mine\n"


def test_monaco_is_what_the_script_built() -> None:
    listed = (ROOT / "editors" / "monaco" / "sha256sums").read_text()
    folder = ROOT / "caesura" / "demo" / "page" / "monaco"
    built = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    assert "".join(built) == listed
    assert b"MIT License" in (folder / "LICENSE").read_bytes()


async def test_what_is_stored_compressed_is_sent_so(demo: Demo) -> None:
    _, headers, body = await demo.get("/monaco/editor.js")
    assert headers["content-encoding"] == "gzip"
    assert headers["content-type"].startswith("text/javascript")
    assert b"inlineSuggest" in gzip.decompress(body)


# The command


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "caesura", "demo", "--no-browser", *arguments]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_ends_with_ctrl_c(number: signal.Signals, runtime: Path) -> None:
    process = subprocess.Popen(command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert re.fullmatch(r"The demo is at http://127\.0\.0\.1:\d+/#[\w-]{43}\n", process.stdout.readline())
    assert process.stdout.readline() == "Ctrl-C ends it.\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert list(runtime.iterdir()) == []


def test_a_file_whose_name_is_no_text_is_served(runtime: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/n\xff.py"
    with open(path, "w") as file:
        file.write("x = <FILL>\n")
    process = subprocess.Popen([*command(), path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("The demo is at ")
    process.terminate()
    assert process.communicate(timeout=PATIENCE_S)[1] == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing.py",), "nothing.py does not exist."),
        (("--port", "70000"), "'70000' is not a port, 0 to 65535"),
    ],
)
def test_what_cannot_be_served_is_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    ran = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode in (1, 2)
    assert sentence in ran.stderr


def test_a_port_that_is_taken_is_a_sentence(runtime: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(command("--port", port), capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 1
    assert "in use" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder without an engine; none is started before a page asks."""
    monkeypatch.setenv("CAESURA_RUNTIME", str(tmp_path))
    return tmp_path
