"""The layer over pygls that makes a server one can trust: framing, lifecycle, and one response per request.

pygls keeps the protocol's types and its negotiation. Here is what it lacks: bodies are read by a thread of our own,
bad framing is skipped, every request is answered, nothing of a payload reaches a log, and no error becomes a dialog.
"""

import asyncio
import inspect
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, BinaryIO

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.io_ import StdoutWriter
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

MAX_MESSAGE = 64 << 20  # bytes
MAX_HEADER = 8 << 10
PARENT_POLL_S = 2.0

_HEADER = re.compile(rb"(?i)content-length:[ \t]*(\d{1,15})[ \t]*\r?\n(?:[^\r\n]+\r?\n)*\r?\n")
_OURS = (  # pygls keeps a second copy of each document, by another line model, and knows commands by another way
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.NOTEBOOK_DOCUMENT_DID_OPEN,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    types.WORKSPACE_EXECUTE_COMMAND,
)

log = logging.getLogger(__name__)


class MessageTooLarge(Exception):
    """A header announces more than we are ready to hold."""


class Framer:
    """Bytes in, message bodies out. What is not a header is skipped up to the next one."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted: int | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that `data` completes. Raises MessageTooLarge."""
        self._buffer += data
        while True:
            if self._wanted is None and not self._header():
                return
            assert self._wanted is not None
            if len(self._buffer) < self._wanted:
                return
            yield bytes(self._buffer[: self._wanted])
            del self._buffer[: self._wanted]
            self._wanted = None

    def _header(self) -> bool:
        found = _HEADER.search(self._buffer)
        if found is None:
            del self._buffer[:-MAX_HEADER]
            return False
        self._wanted = int(found[1])
        del self._buffer[: found.end()]
        if self._wanted > MAX_MESSAGE:
            raise MessageTooLarge
        return True


class _Protocol(LanguageServerProtocol):
    """pygls's protocol with our rules for what is answered and what is logged."""

    _server: "Server"
    _initialized = False

    def _register_builtin_features(self) -> None:
        super()._register_builtin_features()  # type: ignore[no-untyped-call]
        for method in _OURS:
            del self.fm.builtin_features[method]

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        self._initialized = True
        self._server.watch(params.process_id)
        result = yield from super().lsp_initialize(params)
        result.capabilities.experimental = self._server.experimental
        commands = self.fm.feature_options.get(types.WORKSPACE_EXECUTE_COMMAND)  # pygls tells of its own only
        result.capabilities.execute_command_provider = commands
        return result

    def receive(self, body: bytes) -> None:
        """Take one message: every request among them gets exactly one response."""
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            return self._send_error(None, types.ErrorCodes.ParseError)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return self._send_error(None, types.ErrorCodes.InvalidRequest)
        method, request = message.get("method"), message.get("id")
        if method == types.EXIT:
            return self._server.stop(0 if self._shutdown else 1)
        if isinstance(method, str) and (refusal := self._refusal(method)):
            return self._refuse(request, refusal)
        try:
            structured = self.structure_message(message)
        except JsonRpcException:
            if isinstance(method, str):
                self._refuse(request, types.ErrorCodes.InvalidParams)
                self._server.on_malformed(method, message.get("params"))
            return
        self.handle_message(structured)

    def _refusal(self, method: str) -> types.ErrorCodes | None:
        if self._shutdown or (self._initialized and method == types.INITIALIZE):
            return types.ErrorCodes.InvalidRequest
        if not self._initialized and method != types.INITIALIZE:
            return types.ErrorCodes.ServerNotInitialized
        if method != types.CANCEL_REQUEST and method not in self.fm.features.keys() | self.fm.builtin_features.keys():
            return types.ErrorCodes.MethodNotFound
        return None

    def _refuse(self, request: int | str | None, code: types.ErrorCodes) -> None:
        """Answer a request with an error; a notification that cannot be used has no answer."""
        if request is not None:
            self._send_error(request, code)

    def _send_error(self, request: int | str | None, code: types.ErrorCodes | types.LSPErrorCodes) -> None:
        error = types.ResponseError(code=code, message=code.name)
        self._send_response(request, error=error)  # type: ignore[arg-type]  # None where the id is unknown

    def _handle_request(self, msg_id: int | str, method_name: str, params: Any) -> None:
        if method_name in self.fm.builtin_features:
            super()._handle_request(msg_id, method_name, params)
            return
        outcome = self._call(method_name, params)
        task = asyncio.ensure_future(self._answer(msg_id, outcome))
        self._request_futures[msg_id] = task  # type: ignore[assignment]  # pygls mixes both kinds of futures too
        if inspect.iscoroutine(outcome):
            task.add_done_callback(lambda _: outcome.close())  # it never began where the cancel came with the request
        task.add_done_callback(lambda task: self._forget(msg_id, task))

    def _call(self, method: str, params: Any) -> Any:
        """Run a handler up to its first wait-able result, before any later message is read."""
        try:
            return self.fm.features[method](params)
        except Exception as error:
            log.error("%s failed: %s", method, describe(error))
            return None

    async def _answer(self, msg_id: int | str, outcome: Any) -> None:
        """Send the result in the same turn of the loop that produced it: nothing can make it stale in between."""
        try:
            result = await outcome if inspect.isawaitable(outcome) else outcome
        except Exception as error:
            log.error("A request failed: %s", describe(error))
            result = None
        self._send_response(msg_id, result=result)

    def _forget(self, msg_id: int | str, task: "asyncio.Task[None]") -> None:
        self._request_futures.pop(msg_id, None)
        if task.cancelled():
            self._send_error(msg_id, types.LSPErrorCodes.RequestCancelled)

    def _send_handler_result(self, future: Any, *, msg_id: int | str) -> None:
        """Of the handlers that are not coroutines. The error names its type only: its text may quote the document."""
        self._request_futures.pop(msg_id, None)
        try:
            self._send_response(msg_id, result=future.result())
        except JsonRpcException as error:
            self._send_response(msg_id, error=types.ResponseError(code=error.code, message=type(error).__name__))
        except Exception as error:
            log.error("A request failed: %s", describe(error))
            code = types.ErrorCodes.InternalError
            self._send_response(msg_id, error=types.ResponseError(code=code, message=type(error).__name__))

    def _send_data(self, data: Any) -> None:
        try:
            super()._send_data(data)
        except (BrokenPipeError, ValueError):  # the editor has gone, or we closed the pipe
            self._server.stop(1)


class Server(LanguageServer):
    """A language server on stdio. A handler of a request runs when the request arrives; what it returns may be
    awaitable, and then the client can cancel it. A handler that fails is logged and answered with null."""

    protocol: _Protocol

    def __init__(
        self, name: str, version: str, experimental: dict[str, Any], notebooks: types.NotebookDocumentSyncOptions
    ) -> None:
        logging.getLogger("pygls").setLevel(logging.CRITICAL)  # it logs payloads, which are the user's text
        super().__init__(name, version, notebook_document_sync=notebooks, protocol_cls=_Protocol)
        self.experimental = experimental
        self.on_malformed: Callable[[str, Any], None] = lambda method, params: None
        self.on_exit: Callable[[], Awaitable[None]] = _nothing
        self._stopped: asyncio.Future[int] | None = None
        self._parent: int | None = None

    def on(self, method: str, handler: Callable[..., Any], options: Any = None) -> None:
        """Handle `method`; without `options`, pygls does not advertise some of them."""
        self.protocol.fm.features[method] = handler
        if options is not None:
            self.protocol.fm.feature_options[method] = options

    def serve(self) -> int:
        """Serve stdio until the editor says exit or goes away; the exit code of the process."""
        return asyncio.run(self._serve(sys.stdin.fileno(), sys.stdout.buffer))

    def stop(self, code: int) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(code)

    def watch(self, parent: int | None) -> None:
        """Stop when the process `parent` ends, for editors that die with our pipe held open by someone else."""
        if parent and parent != os.getpid() and os.name == "posix" and _alive(parent):
            self._parent = parent
            asyncio.get_running_loop().call_later(PARENT_POLL_S, self._check_parent)

    def report_server_error(self, error: Exception, source: Any) -> None:
        """To the log, never to the screen."""
        log.error("%s: %s", getattr(source, "__name__", source), describe(error))

    def _check_parent(self) -> None:
        if self._parent is not None and _alive(self._parent):
            asyncio.get_running_loop().call_later(PARENT_POLL_S, self._check_parent)
        else:
            self.stop(1)

    async def _serve(self, stdin: int, stdout: BinaryIO) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: log.error("In the loop: %s", describe(context.get("exception"))))
        self._stopped = loop.create_future()
        self.protocol.set_writer(StdoutWriter(stdout))
        threading.Thread(target=self._read, args=(stdin, loop), daemon=True, name="stdin").start()
        code = await self._stopped
        await self.on_exit()
        return code

    def _read(self, stdin: int, loop: asyncio.AbstractEventLoop) -> None:
        """The reader thread. It reads the descriptor itself: a lock on sys.stdin would abort the interpreter's exit."""
        framer = Framer()
        try:
            while data := os.read(stdin, 1 << 16):
                for body in framer.feed(data):
                    loop.call_soon_threadsafe(self.protocol.receive, body)
            loop.call_soon_threadsafe(self.stop, 1)
        except (MessageTooLarge, OSError):
            loop.call_soon_threadsafe(self.stop, 1)
        except RuntimeError:  # the loop has ended before us
            return


async def _nothing() -> None:
    """Until the application has something to do at exit."""


def describe(error: BaseException | None) -> str:
    """An error for the log: its type and place, not its text, which may quote the document."""
    if error is None:
        return "an error without a cause"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""
    return type(error).__name__ + place


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
