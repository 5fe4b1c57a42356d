"""The layer over pygls that makes a server one can trust: lifecycle, one response per request, and its end.

pygls keeps the protocol's types and its negotiation. Here is what it lacks: a thread of our own reads, every request
is answered, nothing of a payload reaches a log, no error becomes a dialog, and what is no number is taken for none.
"""

import asyncio
import contextlib
import inspect
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from types import SimpleNamespace
from typing import Any, NoReturn

from cattrs import Converter
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import (
    JsonRPCNotification,
    JsonRPCRequestMessage,
    LanguageServerProtocol,
    default_converter,
    lsp_method,
)

from caesura.server.framing import Framer, MessageTooLarge

CHUNK = 1 << 16  # bytes of one read, and of a message that count as one
BACKLOG = 2048  # chunks that were read and not handled; then the editor waits
PARENT_POLL_S = 2.0
STUCK_S = 5.0  # for a loop that nobody reads from any more, and that shall end

_FRAME = b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n%s"
_OURS = (  # pygls keeps a second copy of each document, by another line model, and knows commands by another way
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.NOTEBOOK_DOCUMENT_DID_OPEN,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    types.WORKSPACE_EXECUTE_COMMAND,
)

Message = dict[str, Any]
Read = Callable[[], bytes]  # waits for bytes; none at the end
Write = Callable[[bytes], None]  # OSError or ValueError where nobody reads any more

log = logging.getLogger(__name__)


def from_stdin() -> bytes:
    """Of the descriptor itself: a lock on sys.stdin would abort the interpreter's exit."""
    return os.read(sys.stdin.fileno(), CHUNK)


def to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class _Protocol(LanguageServerProtocol):
    """pygls's protocol with our rules for what is answered and what is logged."""

    _server: "Server"
    _initialized = False

    def __init__(self, server: "Server", converter: Converter) -> None:
        super().__init__(server, converter)
        self._pending: dict[int | str, asyncio.Task[None]] = {}  # the client's requests; pygls has those of ours

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

    @lsp_method(types.SHUTDOWN)
    def lsp_shutdown(self, *args: Any) -> Generator[Any, Any, None]:
        for task in self._pending.values():
            task.cancel()
        yield from super().lsp_shutdown(*args)

    def receive(self, body: bytes) -> None:
        """Take one message: every request among them gets exactly one response."""
        try:
            message = json.loads(body.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return self._send_error(None, types.ErrorCodes.ParseError)
        if not isinstance(message, dict):
            return self._send_error(None, types.ErrorCodes.InvalidRequest)
        request, method = message.get("id"), message.get("method")
        if "method" not in message and message.keys() & {"result", "error"}:
            return self._receive_response(message)
        known = type(request) in (int, str)
        if message.get("jsonrpc") != "2.0" or not isinstance(method, str) or ("id" in message and not known):
            return self._send_error(request if known else None, types.ErrorCodes.InvalidRequest)
        if method == types.EXIT:
            return self._server.stop(0 if self._shutdown else 1)
        if refusal := self._refusal(method, request):
            return self._refuse(request, refusal)
        try:
            structured = self._structure(method, message)
        except (JsonRpcException, RecursionError):
            self._refuse(request, types.ErrorCodes.InvalidParams)
            self._server.on_malformed(method, message.get("params"))
            return
        self.handle_message(structured)

    def _structure(self, method: str, message: Message) -> Any:
        """Raises JsonRpcException, and RecursionError. Parameters of methods that are not LSP's become attributes."""
        if self.get_message_type(method) is not None:
            return self.structure_message(message)
        params = json.loads(json.dumps(message.get("params")), object_hook=lambda pairs: SimpleNamespace(**pairs))
        if "id" in message:
            return JsonRPCRequestMessage(message["id"], method, "2.0", params)
        return JsonRPCNotification(method, "2.0", params)

    def _receive_response(self, message: Message) -> None:
        """Whoever waits for a response of the client's goes on, also where it cannot be read."""
        request = message.get("id")
        waiting = self._request_futures.get(request) if isinstance(request, int | str) else None
        if waiting is None or waiting.done():
            return
        try:
            self.handle_message(self.structure_message(message))
        except JsonRpcException as error:
            del self._request_futures[message["id"]]
            waiting.set_exception(error)

    def _refusal(self, method: str, request: int | str | None) -> types.ErrorCodes | None:
        if self._shutdown or (self._initialized and method == types.INITIALIZE):
            return types.ErrorCodes.InvalidRequest
        if not self._initialized and method != types.INITIALIZE:
            return types.ErrorCodes.ServerNotInitialized
        if method != types.CANCEL_REQUEST and method not in self.fm.features.keys() | self.fm.builtin_features.keys():
            return types.ErrorCodes.MethodNotFound
        standard = self.get_message_type(method) is not None
        if request is not None and (request in self._pending or (standard and self.get_result_type(method) is None)):
            return types.ErrorCodes.InvalidRequest  # an id twice, or one of what has no answer
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
        self._pending[msg_id] = task
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
        try:
            self._send_response(msg_id, result=result)
        except (TypeError, ValueError, AttributeError) as error:
            log.error("A result cannot be sent: %s", describe(error))
            self._send_error(msg_id, types.ErrorCodes.InternalError)

    def _forget(self, msg_id: int | str, task: "asyncio.Task[None]") -> None:
        del self._pending[msg_id]
        if task.cancelled():
            self._send_error(msg_id, types.LSPErrorCodes.RequestCancelled)

    def _handle_cancel_notification(self, msg_id: int | str) -> None:
        if task := self._pending.get(msg_id):
            task.cancel()

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
        """Raises what makes `data` unfit to be sent."""
        body = json.dumps(data, default=self._serialize_message).encode()
        self._server.send(_FRAME % (len(body), body))


class Server(LanguageServer):
    """A language server on any pair of streams. A handler of a request runs when the request arrives; what it returns
    may be awaitable, and then the client can cancel it. A handler that fails is logged and answered with null."""

    protocol: _Protocol

    def __init__(
        self, name: str, version: str, experimental: dict[str, Any], notebooks: types.NotebookDocumentSyncOptions
    ) -> None:
        logging.getLogger("pygls").setLevel(logging.CRITICAL)  # it logs payloads, which are the user's text
        super().__init__(
            name, version, notebook_document_sync=notebooks, protocol_cls=_Protocol, converter_factory=_converter
        )
        self.experimental = experimental
        self.on_malformed: Callable[[str, Any], None] = lambda method, params: None
        self.on_exit: Callable[[], Awaitable[None]] = _nothing
        self._write: Write = to_stdout
        self._stopped: asyncio.Future[int] | None = None
        self._ended = threading.Event()
        self._room = threading.Semaphore(BACKLOG)

    def on(self, method: str, handler: Callable[..., Any], options: Any = None) -> None:
        """Handle `method`; without `options`, pygls does not advertise some of them."""
        self.protocol.fm.features[method] = handler
        if options is not None:
            self.protocol.fm.feature_options[method] = options

    def serve(self, read: Read = from_stdin, write: Write = to_stdout) -> int:
        """Serve until the editor says exit or goes away; the exit code of the process."""
        try:
            return asyncio.run(self._serve(read, write))
        finally:
            self._ended.set()

    def send(self, data: bytes) -> None:
        """Nothing is said before an editor is there, nor after the end."""
        if self._stopped is None or self._stopped.done():
            return
        try:
            self._write(data)
        except (OSError, ValueError):  # the editor has gone, or we closed the pipe
            self.stop(1)

    def stop(self, code: int) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(code)

    def watch(self, parent: int | None) -> None:
        """Stop when the process `parent` ends, for editors that die with our pipe held open by someone else."""
        if parent and parent > 0 and parent != os.getpid() and os.name == "posix" and _alive(parent):
            arguments = parent, asyncio.get_running_loop()
            threading.Thread(target=self._watch, args=arguments, daemon=True, name="parent").start()

    def report_server_error(self, error: Exception, source: Any) -> None:
        """To the log, never to the screen."""
        log.error("%s: %s", getattr(source, "__name__", source), describe(error))

    async def _serve(self, read: Read, write: Write) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: log.error("In the loop: %s", describe(context.get("exception"))))
        self._stopped, self._write = loop.create_future(), write
        threading.Thread(target=self._read, args=(read, loop), daemon=True, name="reader").start()
        code = await self._stopped
        await self.on_exit()
        return code

    def _read(self, read: Read, loop: asyncio.AbstractEventLoop) -> None:
        """The reader thread: it reads on while the loop is busy, but not without a bound."""
        framer = Framer()
        with contextlib.suppress(MessageTooLarge, OSError):
            while data := read():
                for body in framer.feed(data):
                    chunks = 1 + len(body) // CHUNK
                    for _ in range(chunks):
                        self._room.acquire()
                    if not _soon(loop, self._take, body, chunks):
                        return
        self._end(loop)

    def _take(self, body: bytes, chunks: int) -> None:
        self._room.release(chunks)
        if self._stopped is not None and not self._stopped.done():
            self.protocol.receive(body)

    def _watch(self, parent: int, loop: asyncio.AbstractEventLoop) -> None:
        while _alive(parent):
            time.sleep(PARENT_POLL_S)
        self._end(loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """From another thread. A loop that waits for a reader who has gone cannot end itself."""
        _soon(loop, self.stop, 1)
        if not self._ended.wait(STUCK_S):
            os._exit(1)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> bool:
    """False where the loop has ended before us."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True


def _converter() -> Converter:
    """pygls's makes a number of `true`, and of null the text `None`. Of `initialize` we stay tolerant: editors send
    odd things in it, and without it nothing works."""
    converter: Converter
    tolerant, converter = default_converter(), default_converter()  # type: ignore[no-untyped-call]
    for kind in (int, str):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook(types.InitializeParams, tolerant.structure)
    return converter


def _exactly(value: object, kind: type) -> object:
    """`kind` is int, str or an enumeration of either."""
    if kind in (int, str) and type(value) is not kind:
        raise TypeError
    return kind(value)


def _refuse_constant(name: str) -> NoReturn:
    """`NaN` and its like are no JSON."""
    raise ValueError(name)


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
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
