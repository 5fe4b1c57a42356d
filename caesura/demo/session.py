"""The language server of one open page: its own `caesura lsp`, and the LSP messages that may pass between the two.

The page edits its own texts and asks for inline completions; it sends no files and no settings.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

import caesura

COMMAND = (sys.executable, "-P", "-m", "caesura", "lsp")  # -P: ignores a caesura.py in the current folder
PASSED = (
    *("textDocument/didOpen", "textDocument/didChange", "textDocument/didClose"),
    *("textDocument/inlineCompletion", "$/cancelRequest"),
)
SCHEME = "inmemory:"  # of the page's documents, which are on no disk
MAX_MESSAGE = 16 << 20  # bytes
END_S = 3.0  # for the server to end by itself

Message = dict[str, Any]


class NotPassed(Exception):
    """The page may not send this message; the text is a sentence for the user."""


class EditorProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def __repr__(self) -> str:
        return f"<EditorProcess {self._process.pid}>"

    @staticmethod
    @contextlib.asynccontextmanager
    async def started(command: Sequence[str], options: Mapping[str, object]) -> AsyncIterator["EditorProcess"]:
        """The initialized language server of this command, with these settings; it ends with the context."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=MAX_MESSAGE
        )
        session = EditorProcess(process)
        try:
            await session._initialize(options)
            yield session
        finally:
            await session._end()

    async def _end(self) -> None:
        process = self._process
        assert process.stdin is not None
        process.stdin.close()  # which ends the server
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await process.wait()
        finally:  # also after a cancellation
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _initialize(self, options: Mapping[str, object]) -> None:
        params = {
            "processId": os.getpid(),
            "clientInfo": {"name": "caesura demo", "version": caesura.__version__},
            "rootUri": None,
            "capabilities": {
                "general": {"positionEncodings": ["utf-16"]},
                "textDocument": {"inlineCompletion": {}},
                "experimental": {"caesura": {"status": True}},
            },
            "initializationOptions": options,
        }
        self._send({"jsonrpc": "2.0", "id": "initialize", "method": "initialize", "params": params})
        while (message := await self._receive()) and message.get("id") != "initialize":
            pass
        self._send({"jsonrpc": "2.0", "method": "initialized", "params": {}})

    async def messages(self) -> AsyncIterator[Message]:
        """Answers and notifications of the server, until it ends. Its requests are refused, since we announced no
        capability for them."""
        while message := await self._receive():
            if "id" in message and "method" in message:
                error = {"code": -32601, "message": "The demo does not support this request."}
                self._send({"jsonrpc": "2.0", "id": message["id"], "error": error})
            else:
                yield message

    async def _receive(self) -> Message | None:
        """The next message; None after the last."""
        output = self._process.stdout
        assert output is not None
        try:
            head = (await output.readuntil(b"\r\n\r\n")).lower()
            length = next(line.partition(b":")[2] for line in head.splitlines() if line.startswith(b"content-length:"))
            message: Message = msgspec.json.decode(await output.readexactly(int(length)))
        except asyncio.IncompleteReadError:
            return None
        return message

    def pass_on(self, body: bytes) -> None:
        """Messages of the page, all or none. Raises NotPassed."""
        try:
            messages = msgspec.json.decode(body, type=list[Message])
            for message in messages:
                _check(message)
            frames = b"".join(map(_frame, messages))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise NotPassed("The body is not a list of messages.") from None
        self._write(frames)

    def _send(self, message: Message) -> None:
        self._write(_frame(message))

    def _write(self, frames: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(frames)


def _frame(message: Message) -> bytes:
    body = msgspec.json.encode(message)
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def _check(message: Message) -> None:
    """Raises NotPassed."""
    if message.get("method") not in PASSED:
        raise NotPassed("The page may only edit texts and ask for completions.")
    params = message.get("params")
    document = params.get("textDocument") if isinstance(params, dict) else None
    uri = document.get("uri") if isinstance(document, dict) else None
    if message["method"] != "$/cancelRequest" and not str(uri).startswith(SCHEME):
        raise NotPassed(f"URIs of the page's documents must start with '{SCHEME}'.")
