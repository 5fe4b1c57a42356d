"""What an editor sees: the real server process over stdio, with a fake engine (lsp_server.py) that the test drives."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from caesura.server import options
from caesura.server.app import App

from ..support.processes.lsp_server import FakeEngine

SERVER = Path(__file__).parents[1] / "support" / "processes" / "lsp_server.py"
URI = "file:///project/a.py"
LATER = 60_000  # a deadline that no test lives to see


class Client:
    """A raw LSP client: numbered requests, and whatever else arrives is kept."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.others: list[dict[str, Any]] = []
        self.version = 0
        self._next = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._task = asyncio.create_task(self._read())

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)

    def notify(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def ask(self, method: str, params: Any) -> "asyncio.Future[dict[str, Any]]":
        self._next += 1
        future = self._waiting[self._next] = asyncio.get_running_loop().create_future()
        self.send({"id": self._next, "method": method, "params": params})
        return future

    async def call(self, method: str, params: Any) -> Any:
        response = await asyncio.wait_for(self.ask(method, params), 20)
        assert "error" not in response, response
        return response["result"]

    async def start(self, encodings: list[str] | None = None, **more: Any) -> Any:
        """Say hello; what the server computes ahead on its own is off unless a test asks for it."""
        capabilities = {"general": {"positionEncodings": encodings or ["utf-16"]}} | more.pop("capabilities", {})
        settings = {"speculate": False, "leastKeys": 0} | more.pop("initializationOptions", {})
        hello = {"processId": None, "capabilities": capabilities, "initializationOptions": settings, **more}
        result = await self.call("initialize", hello)
        self.notify("initialized", {})
        return result

    def open(self, text: str, language: str = "python") -> None:
        document = {"uri": URI, "languageId": language, "version": 0, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def type(self, line: int, character: int, text: str, *, end: tuple[int, int] | None = None) -> None:
        self.version += 1
        where = {"start": _position(line, character), "end": _position(*(end or (line, character)))}
        document = {"uri": URI, "version": self.version}
        change = {"textDocument": document, "contentChanges": [{"range": where, "text": text}]}
        self.notify("textDocument/didChange", change)

    def complete(self, line: int, character: int, **context: Any) -> "asyncio.Future[dict[str, Any]]":
        where = {"textDocument": {"uri": URI}, "position": _position(line, character)}
        return self.ask("textDocument/inlineCompletion", {**where, "context": {"triggerKind": 2, **context}})

    async def engine(self, text: str = "", locked: int | None = None, done: bool = True) -> Any:
        """Let the newest job say `text`; without it, only ask what the engine knows."""
        order = {"text": text, "locked": len(text) if locked is None else locked, "done": done} if text else {}
        return await self.call("test/engine", order)

    async def _read(self) -> None:
        assert self.process.stdout
        while header := await self.process.stdout.readline():
            await self.process.stdout.readuntil(b"\r\n\r\n")
            message = json.loads(await self.process.stdout.readexactly(int(header.split(b":")[1])))
            if "method" not in message and message.get("id") in self._waiting:
                self._waiting.pop(message["id"]).set_result(message)
            else:
                self.others.append(message)
        for future in self._waiting.values():
            future.set_exception(EOFError("the server has ended"))


def _position(line: int, character: int) -> dict[str, int]:
    return {"line": line, "character": character}


@asynccontextmanager
async def server(*arguments: str) -> AsyncIterator[Client]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(SERVER), *arguments, stdin=pipe, stdout=pipe, stderr=None, limit=1 << 24
    )
    client = Client(process)
    try:
        yield client
    finally:
        client._task.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with server() as client:
        yield client


def items(response: dict[str, Any]) -> list[tuple[str, int, int]] | None:
    """(text, start, end) of each item; None where the answer is null."""
    assert "error" not in response, response
    if response["result"] is None:
        return None
    return [
        (item["insertText"], item["range"]["start"]["character"], item["range"]["end"]["character"])
        for item in response["result"]["items"]
    ]


async def answer(request: "asyncio.Future[dict[str, Any]]") -> list[tuple[str, int, int]] | None:
    return items(await asyncio.wait_for(request, 20))


async def test_initialize_advertises_what_we_do(client: Client) -> None:
    result = await client.start()
    capabilities = result["capabilities"]
    assert capabilities["inlineCompletionProvider"] == {}
    assert capabilities["textDocumentSync"]["change"] == 2
    assert capabilities["textDocumentSync"]["openClose"] is True
    assert capabilities["positionEncoding"] == "utf-16"
    assert capabilities["experimental"]["caesura"] == {
        "stream": "caesura/inlineCompletionStream",
        "cursor": "caesura/cursor",
        "nextEdit": True,
    }


async def test_a_canvas_begun_by_typing_answers_the_request(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("def f(a):\n    retur\n")
    client.type(1, 9, "n ")
    [job] = (await client.engine())["jobs"]
    assert (job["prefix"], job["suffix"]) == ("def f(a):\n    return ", "\n")
    await client.engine("a + 1")
    assert await answer(client.complete(1, 11)) == [("a + 1", 11, 11)]
    assert len((await client.engine())["jobs"]) == 1


@pytest.mark.parametrize(("encoding", "character"), [("utf-8", 13), ("utf-16", 11), ("utf-32", 10)])
async def test_positions_in_every_encoding(client: Client, encoding: str, character: int) -> None:
    result = await client.start([encoding], initializationOptions={"deadlineMs": 10_000})
    assert result["capabilities"]["positionEncoding"] == encoding
    client.open('x = "😀" + \n')
    request = client.complete(0, character)
    assert (await client.engine("y"))["jobs"][0]["prefix"] == 'x = "😀" + '
    assert await answer(request) == [("y", character, character)]


async def test_typing_what_is_proposed_costs_no_job(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("")
    client.type(0, 0, "x")
    await client.engine(" = compute(1)")
    assert await answer(client.complete(0, 1)) == [(" = compute(1)", 1, 1)]
    for column, key in enumerate(" = com", start=1):
        client.type(0, column, key)
    assert await answer(client.complete(0, 7)) == [("pute(1)", 7, 7)]
    assert len((await client.engine())["jobs"]) == 1
    client.type(0, 7, "!")
    assert len((await client.engine())["jobs"]) == 2


async def test_an_auto_closed_bracket_is_not_doubled(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("")
    client.type(0, 0, "f")
    await client.engine("(a, b) + 1")
    assert await answer(client.complete(0, 1)) == [("(a, b) + 1", 1, 1)]
    client.type(0, 1, "()")
    assert await answer(client.complete(0, 2)) == [("a, b) + 1", 2, 3)]
    assert len((await client.engine())["jobs"]) == 1


async def test_an_edit_supersedes_and_leaves_what_still_fits(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": LATER / 10})
    client.open("")
    client.type(0, 0, "x")
    await client.engine(" = 12")
    assert await answer(client.complete(0, 1)) == [(" = 12", 1, 1)]
    client.type(0, 1, " ")
    client.type(0, 2, "= 12;")  # past all that was proposed: a new canvas
    waiting = client.complete(0, 7)
    client.type(0, 7, " ")
    assert await answer(waiting) == []  # what is shown, ` = 12`, does not fit ` = 12; `
    waiting = client.complete(0, 8)
    client.type(0, 8, "y")
    assert await answer(waiting) is None  # nothing is shown


async def test_a_newer_request_supersedes_the_older(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": LATER / 10})
    client.open("x = ")
    older, newer = client.complete(0, 4), client.complete(0, 4)
    await client.engine("1")
    assert await answer(older) is None
    assert await answer(newer) == [("1", 4, 4)]


async def test_shown_text_survives_a_superseded_request_while_it_is_typed(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": LATER / 10})
    client.open("def f():\n    \n")
    waiting = client.complete(1, 4)
    await client.engine("first = 1\n    second = 2", locked=14, done=False)
    assert await answer(waiting) == [("first = 1", 4, 4)]  # the first locked line
    client.type(1, 4, "first = 1")
    waiting = client.complete(1, 13)  # nothing locked past here yet
    client.type(1, 13, "0")
    assert await answer(waiting) == []
    assert len((await client.engine())["jobs"]) == 2


async def test_from_the_deadline_on_locked_words_are_shown_and_drafts_never(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 1})
    client.open("x = ")
    waiting = client.complete(0, 4)
    await client.engine("alphabet + beta", locked=12, done=False)
    await client.engine("alphabet + betas", locked=12, done=False)
    assert await answer(waiting) == [("alphabet", 4, 4)]  # a `+` with nothing behind it would be an error


async def test_a_request_with_nothing_to_show_waits_for_the_end_of_its_canvas(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 1})
    client.open("x = ")
    waiting = client.complete(0, 4)
    await client.engine("f(a, b)", locked=4, done=False)
    await client.engine()
    assert not waiting.done()  # `f(a,` looks like a line cut off
    await client.engine("f(a, b)")
    assert await answer(waiting) == [("f(a, b)", 4, 4)]
    assert len((await client.engine())["jobs"]) == 1


@pytest.mark.parametrize("device", ["cuda:0", "tpu", ""])
def test_no_device_is_taken_that_the_engine_would_refuse(device: str) -> None:
    found, problems = options.parse({"device": device})
    assert found.device == "auto"
    assert len(problems) == 1


async def test_nothing_to_propose_is_an_empty_list(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("foo(x)")
    waiting = client.complete(0, 4)
    await client.engine("x)")  # all of it stands there already
    assert await answer(waiting) == []


@pytest.mark.parametrize("text", ["abc", "abcd"])
async def test_by_default_what_saves_fewer_than_four_keys_waits_to_be_asked_for(client: Client, text: str) -> None:
    await client.call("initialize", {"processId": None, "capabilities": {}})
    client.notify("initialized", {})
    client.open("x = f(, 1)\n")
    client.type(0, 6, " ")
    await client.engine(text)
    shown = [(text, 7, 7)]
    assert await answer(client.complete(0, 7)) == (shown if len(text) >= 4 else [])
    assert await answer(client.complete(0, 7, triggerKind=1)) == shown


async def test_a_user_is_told_why_there_is_no_suggestion(client: Client) -> None:
    await client.start(initializationOptions={"minConfidence": 0.95})
    client.open("x = ")

    def why(**argument: Any) -> "asyncio.Future[dict[str, Any]]":
        return client.ask("workspace/executeCommand", {"command": "caesura.why", "arguments": [argument]})

    asked = why(uri=URI, position={"line": 0, "character": 4})
    await client.engine("alpha")
    told = (await asked)["result"]
    assert "0.95 is needed" in told["message"]
    assert told["text"] == "alpha"
    told = (await why(uri="file:///other.py", position={"line": 0, "character": 0}))["result"]
    assert "not open here" in told["message"]
    assert "position" in (await why(uri=URI))["result"]["message"]


async def test_a_language_of_an_odd_name_gets_completions(client: Client) -> None:
    await client.start()
    client.open("x = ", "a\x1b[31m\n" + "b" * 300)
    request = client.complete(0, 4)
    await client.engine("1")
    assert [item["insertText"] for item in (await request)["result"]["items"]] == ["1"]


async def test_low_confidence_is_not_shown(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000, "minConfidence": 0.95})
    client.open("x = ")
    waiting = client.complete(0, 4)
    await client.engine("1")
    assert await answer(waiting) == []


async def test_without_an_engine_answers_are_empty() -> None:
    async with server("--missing") as client:
        await client.start()
        client.open("x = ")
        assert await answer(client.complete(0, 4)) == []
        client.type(0, 4, "1")
        assert await answer(client.complete(0, 5)) == []
        assert not [m for m in client.others if m.get("method") == "window/showMessage"]


async def test_a_document_with_odd_line_ends_stays_in_sync(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000, "syntaxGate": False})
    client.open("a\x0cb\u2028c\r\nd\re\n")
    client.type(2, 1, "!")
    client.type(1, 0, "", end=(2, 0))
    assert not (await client.engine())["jobs"], "in front of a letter"
    waiting = client.complete(1, 2)
    job = (await client.engine())["jobs"][-1]
    assert (job["prefix"], job["suffix"]) == ("a\x0cb\u2028c\r\ne!", "\n")
    await client.engine(" z")
    assert await answer(waiting) == [(" z", 2, 2)]


async def test_closing_frees_the_canvas(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": LATER / 10})
    client.open("x = ")
    waiting = client.complete(0, 4)
    assert (await client.engine())["live"] == 1
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    assert await answer(waiting) is None
    assert (await client.engine())["live"] == 0
    assert await answer(client.complete(0, 4)) == []


async def test_a_cancelled_request_is_answered_and_the_canvas_goes_on(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": LATER / 10})
    client.open("x = ")
    waiting = client.complete(0, 4)
    await client.engine()
    client.notify("$/cancelRequest", {"id": 2})
    assert (await asyncio.wait_for(waiting, 20))["error"]["code"] == -32800
    assert (await client.engine("1"))["live"] == 1
    assert await answer(client.complete(0, 4)) == [("1", 4, 4)]


async def test_a_cancel_that_comes_with_its_request_leaves_nothing_in_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with server() as client:
        await client.start()
        client.open("x = ")
        waiting = client.complete(0, 4)
        client.notify("$/cancelRequest", {"id": 2})  # in the same read
        assert (await asyncio.wait_for(waiting, 20))["error"]["code"] == -32800
        await client.call("shutdown", None)
        client.notify("exit", None)
        await asyncio.wait_for(client.process.wait(), 20)
    assert capfd.readouterr().err == ""


async def test_a_selected_popup_item_is_clamped_into_the_canvas(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("os.pa")
    where = {"start": {"line": 0, "character": 3}, "end": {"line": 0, "character": 5}}
    waiting = client.complete(0, 5, selectedCompletionInfo={"range": where, "text": "path"})
    assert (await client.engine())["jobs"][-1]["prefix"] == "os.path"
    await client.engine(".join(a)")
    assert await answer(waiting) == [("path.join(a)", 3, 5)]
    client.type(0, 5, "t")
    where["end"]["character"] = 6
    again = client.complete(0, 6, selectedCompletionInfo={"range": where, "text": "path"})
    assert await answer(again) == [("path.join(a)", 3, 6)]
    assert len((await client.engine())["jobs"]) == 1
    other = client.complete(0, 6, selectedCompletionInfo={"range": where, "text": "pardir"})
    await client.engine(" + b")
    assert await answer(other) == [("pardir + b", 3, 6)]


async def test_a_streaming_request_tells_states_that_only_grow_and_ends_like_the_plain_one(client: Client) -> None:
    await client.start()
    client.open('x = "😀" + ')
    params = {"textDocument": {"uri": URI}, "position": _position(0, 11), "context": {"triggerKind": 2}}
    waiting = client.ask("caesura/inlineCompletionStream", params | {"partialResultToken": "t"})
    await client.engine('"😀"\nbeta', locked=2, done=False)  # a guess, of which no line is sure
    await client.engine('"😁"\nbeta', locked=4, done=False)
    await client.engine('"😁"\ngamma', locked=4, done=False)
    await client.engine('"😁"\ngamma')
    assert await answer(waiting) == [('"😁"\ngamma', 11, 11)]
    values = [m["params"]["value"] for m in client.others if m.get("method") == "$/progress"]
    states = [(v["seq"], v["items"][0]["insertText"], v["done"]) for v in values]
    assert states == [(0, '"😁"', False), (1, '"😁"\ngamma', True)]
    assert values[0]["version"] == 0
    assert values[0]["items"][0]["range"]["start"] == _position(0, 11)


async def test_where_the_cursor_rests_the_context_is_read_before_the_first_key(client: Client) -> None:
    await client.start()
    client.open('x = "😀" + ')
    client.notify("caesura/cursor", {"textDocument": {"uri": URI}, "position": _position(0, 11)})
    client.notify("caesura/cursor", {"textDocument": 1})
    client.notify("caesura/cursor", {"textDocument": {"uri": "file:///other"}, "position": _position(0, 0)})
    [job] = (await client.engine())["jobs"]
    assert job["prefix"] == 'x = "😀" + '


async def test_a_streaming_request_that_cannot_be_read_is_answered_with_nothing(client: Client) -> None:
    await client.start()
    client.open("x = ")
    assert await answer(client.ask("caesura/inlineCompletionStream", {"textDocument": 1})) == []
    endless = f'{{"textDocument": {{"uri": "{URI}"}}, "position": {{"line": 1e999}}, "partialResultToken": "t"}}'
    body = f'{{"jsonrpc": "2.0", "id": 99, "method": "caesura/inlineCompletionStream", "params": {endless}}}'
    response = client._waiting[99] = asyncio.get_running_loop().create_future()
    client.write(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    assert await answer(response) == []


async def test_editors_tell_what_became_of_items_as_copilots_do(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("x = ")
    waiting = client.complete(0, 4)
    await client.engine("compute()")
    item = (await asyncio.wait_for(waiting, 20))["result"]["items"][0]
    client.notify("textDocument/didShowCompletion", {"item": item})
    client.notify("textDocument/didPartiallyAcceptCompletion", {"item": item, "acceptedLength": 7})
    assert await client.call("workspace/executeCommand", item["command"]) is None
    assert not [m for m in client.others if m.get("method") == "window/logMessage"]


async def test_an_inverted_range_silences_the_document_until_it_comes_whole(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("abcdef")
    client.type(0, 4, "Z", end=(0, 1))
    assert await answer(client.complete(0, 1)) == []
    whole = {"textDocument": {"uri": URI, "version": 9}, "contentChanges": [{"text": "x = "}]}
    client.notify("textDocument/didChange", whole)
    waiting = client.complete(0, 4)
    await client.engine("1")
    assert await answer(waiting) == [("1", 4, 4)]


async def test_an_editor_that_sends_the_whole_text_types_what_differs_and_nothing_where_nothing_does(
    client: Client,
) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    client.open("x = \ny = 2\n")

    def send(text: str) -> None:
        client.version += 1
        document = {"uri": URI, "version": client.version}
        client.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    send("x = m\ny = 2\n")
    waiting = client.complete(0, 5)
    send("x = m\ny = 2\n")
    assert (await client.engine())["jobs"][-1]["prefix"] == "x = m"
    await client.engine("ax(1)")
    assert await answer(waiting) == [("ax(1)", 5, 5)]
    send("x = max\ny = 2\n")
    assert await answer(client.complete(0, 7)) == [("(1)", 7, 7)]  # and no engine has said more


async def test_settings_change_and_wrong_ones_reported_once(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": "soon", "colour": 1})
    client.notify("workspace/didChangeConfiguration", {"settings": {"caesura": {"enable": False}}})
    client.open("x = ")
    assert await answer(client.complete(0, 4)) == []
    assert (await client.engine())["jobs"] == []
    [report] = [m for m in client.others if m.get("method") == "window/logMessage"]
    assert "colour" in report["params"]["message"]
    assert "deadlineMs" in report["params"]["message"]


@pytest.mark.parametrize("enable", [False, True])
async def test_settings_that_come_in_one_piece_with_initialized_hold(enable: bool) -> None:
    engine = FakeEngine()
    app = App(lambda options, client, remote: engine)  # type: ignore[arg-type, return-value]
    document = {"uri": URI, "languageId": "python", "version": 0, "text": "x = "}
    cursor = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 4}, "context": {"triggerKind": 2}}
    for message in (
        {"id": 1, "method": "initialize", "params": {"processId": None, "capabilities": {}}},
        {"method": "initialized", "params": {}},
        {"method": "workspace/didChangeConfiguration", "params": {"settings": {"caesura": {"enable": enable}}}},
        {"method": "textDocument/didOpen", "params": {"textDocument": document}},
        {"id": 2, "method": "textDocument/inlineCompletion", "params": cursor},
    ):
        app.server.protocol.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())
    for _ in range(8):  # turns of the loop
        await asyncio.sleep(0)
    assert len(engine.jobs) == enable


async def test_a_setting_that_is_taken_back_is_as_at_the_start(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 10_000})
    for settings in ({"enable": False}, {}):
        client.notify("workspace/didChangeConfiguration", {"settings": {"caesura": settings}})
    client.open("x = ")
    waiting = client.complete(0, 4)
    await client.engine("1")
    assert await answer(waiting) == [("1", 4, 4)]


async def test_settings_are_pulled_from_a_client_that_can(client: Client) -> None:
    capabilities = {"workspace": {"configuration": True}}
    await client.call("initialize", {"processId": None, "capabilities": capabilities})
    client.notify("initialized", {})
    await client.engine()
    [pull] = [m for m in client.others if m.get("method") == "workspace/configuration"]
    assert pull["params"]["items"] == [{"section": "caesura"}]
    client.send({"id": pull["id"], "result": [{"enable": False}]})
    await client.engine()
    client.open("x = ")
    assert await answer(client.complete(0, 4)) == []
    assert (await client.engine())["jobs"] == []


async def test_bad_messages_get_their_errors(client: Client) -> None:
    early = await client.ask("textDocument/inlineCompletion", {})
    assert early["error"]["code"] == -32002
    await client.start()
    assert (await client.ask("initialize", {"capabilities": {}}))["error"]["code"] == -32600
    assert (await client.ask("textDocument/inlineCompletion", {"position": 1}))["error"]["code"] == -32602
    assert (await client.ask("no/such", {}))["error"]["code"] == -32601
    client.write(b"Content-Length: abc\r\n\r\n{}\r\ncontent-length: 5\n\n{nope")
    assert (await client.engine())["jobs"] == []  # still alive and in step
    assert client.others[-1]["error"]["code"] == -32700
    assert await client.call("shutdown", None) is None
    answered = len(client.others)
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    assert (await client.ask("test/engine", {}))["error"]["code"] == -32600
    assert len(client.others) == answered


async def test_no_text_of_the_user_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    async with server() as client:
        await client.start()
        client.open("SECRET = 1")
        change = {"textDocument": {"uri": URI, "version": "SECRET"}, "contentChanges": "SECRET"}
        client.notify("textDocument/didChange", change)
        assert (await client.ask("textDocument/inlineCompletion", {"position": "SECRET"}))["error"]["code"] == -32602
        client.notify("exit", None)
        await asyncio.wait_for(client.process.wait(), 20)
    logged = capfd.readouterr().err
    assert "waiting for the whole text" in logged
    assert "SECRET" not in logged


@pytest.mark.parametrize(("goodbye", "code"), [("shutdown", 0), ("exit", 1), ("eof", 1)])
async def test_exit_codes(client: Client, goodbye: str, code: int) -> None:
    await client.start()
    if goodbye == "shutdown":
        await client.call("shutdown", None)
    if goodbye == "eof":
        assert client.process.stdin
        client.process.stdin.close()
    else:
        client.notify("exit", None)
    assert await asyncio.wait_for(client.process.wait(), 20) == code


@pytest.mark.skipif(os.name != "posix", reason="processes are watched by signal 0")
async def test_the_server_ends_with_its_parent(client: Client) -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    await client.call("initialize", {"processId": parent.pid, "capabilities": {}})
    parent.kill()
    await parent.wait()
    assert await asyncio.wait_for(client.process.wait(), 20) == 1


async def test_no_torch_in_this_process() -> None:
    code = "import sys, caesura.server.app; sys.exit('torch' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", code)
    assert await process.wait() == 0
