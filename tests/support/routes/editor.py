"""An editor that speaks LSP to the language server in this process. Only where time is that of a Clock."""

import asyncio
import json
import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..processes import sessions
from .engine import Engine

KEY_S = 0.12  # between two keys
AUTOMATIC, INVOKED = 2, 1  # of InlineCompletionTriggerKind


class Editor:
    """`text` and `cursor` are those of the document opened last. Fills are asked for as a preview."""

    def __init__(self, engine: Engine, folder: Path, language: str) -> None:
        from caesura.server.app import App
        from caesura.server.lsp.framing import Framer

        self.text, self.cursor = "", 0
        self._folder, self._language, self._uri, self._version = folder, language, "", 0
        self._server = App(lambda options, client, remote: engine).server  # type: ignore[arg-type, return-value]
        self._framer, self._waiting = Framer(), dict[int, asyncio.Future[Any]]()
        self._handed, self._idle = queue.Queue[bytes](), threading.Event()

    async def __aenter__(self) -> "Editor":
        self._serving = asyncio.create_task(self._server.serve_in_loop(self._read, self._write))
        await asyncio.sleep(0)
        self._idle.wait()  # the reader has begun
        can = {"general": {"positionEncodings": ["utf-32"]}}
        about = {"rootUri": self._folder.as_uri(), "capabilities": can}
        await self._ask("initialize", {"processId": None, **about})
        await self._say("initialized", {})
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.stop(0)
        await self._serving

    async def open(self, name: str, text: str, cursor: int = 0) -> None:
        self._uri, self._version, self.text, self.cursor = (self._folder / name).as_uri(), 0, text, cursor
        document = {"uri": self._uri, "languageId": self._language, "version": 0, "text": text}
        await self._say("textDocument/didOpen", {"textDocument": document})

    async def type(self, text: str, behind: str = "", *, erase: int = 0, wait_s: float = KEY_S) -> None:
        start, self._version = self.cursor - erase, self._version + 1
        change = {"range": self._range(start, self.cursor), "text": text + behind}
        document = {"uri": self._uri, "version": self._version}
        await self._say("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})
        self.text = self.text[:start] + text + behind + self.text[self.cursor :]
        self.cursor = start + len(text)
        await asyncio.sleep(wait_s)

    async def ghost(self, trigger: int) -> list[str]:
        """The items of ghost text at the cursor, each after its range."""
        where = {"textDocument": {"uri": self._uri}, "position": self._position(self.cursor)}
        answer = await self._ask("textDocument/inlineCompletion", {**where, "context": {"triggerKind": trigger}})
        return [inserted(item["range"], item["insertText"]) for item in (answer or {"items": []})["items"]]

    async def command(self, name: str, spans: Iterable[tuple[int, int]] = (), **more: Any) -> dict[str, Any]:
        """The edits of a command, each after its range, and what the user is told."""
        request = {"uri": self._uri, "ranges": [self._range(*span) for span in spans], "preview": True, **more}
        answer = await self._ask("workspace/executeCommand", {"command": f"caesura.{name}", "arguments": [request]})
        edits = answer.get("edit", {}).get("changes", {}).get(self._uri, [])
        told = {name: answer[name] for name in ("message", "level", "unfilled") if answer.get(name)}
        return told | {"edits": [inserted(edit["range"], edit["newText"]) for edit in edits]}

    def _position(self, offset: int) -> dict[str, int]:
        before = self.text[:offset]
        return {"line": before.count("\n"), "character": len(before.rpartition("\n")[2])}

    def _range(self, start: int, end: int) -> dict[str, Any]:
        return {"start": self._position(start), "end": self._position(end)}

    async def _ask(self, method: str, params: Any) -> Any:
        number = len(self._waiting)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._say(method, params, id=number)
        async with asyncio.timeout(sessions.PATIENCE_S):
            return await answer

    async def _say(self, method: str, params: Any, **more: int) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self._idle.clear()
        self._handed.put(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._idle.wait()  # the reader has passed it on to the loop
        await asyncio.sleep(sessions.AT_LEAST_S)

    def _read(self) -> bytes:
        self._idle.set()
        return self._handed.get()

    def _write(self, data: bytes) -> None:
        for message in map(json.loads, self._framer.feed(data)):
            if "method" not in message:
                self._waiting[message["id"]].set_result(message.get("result", message.get("error")))


def inserted(where: dict[str, dict[str, int]], text: str) -> str:
    start, end = (f"{where[side]['line']}:{where[side]['character']}" for side in ("start", "end"))
    return f"{start} {text}" if start == end else f"{start}-{end} {text}"
