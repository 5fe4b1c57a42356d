"""pygls's protocol, with exactly one response for every request.

pygls does the types and the negotiation. This adds the lifecycle, errors for malformed messages, strict types of
values, and logs without payloads; no error becomes a dialog.
"""

import asyncio
import inspect
import json
import logging
import os
from collections.abc import Generator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from cattrs import Converter
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.protocol import (
    JsonRPCNotification,
    JsonRPCRequestMessage,
    LanguageServerProtocol,
    default_converter,
    lsp_method,
)

if TYPE_CHECKING:
    from caesura.server.lsp.transport import Server

_FRAME = b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n%s"
_OURS = (  # pygls would keep a second copy of each document, with another line model, and its own table of commands
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.NOTEBOOK_DOCUMENT_DID_OPEN,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    types.WORKSPACE_EXECUTE_COMMAND,
)

JsonMessage = dict[str, Any]

log = logging.getLogger(__name__)


class StrictProtocol(LanguageServerProtocol):
    """pygls's protocol, with stricter rules for responses and logs."""

    _server: "Server"
    _initialized = False

    def __init__(self, server: "Server", converter: Converter) -> None:
        super().__init__(server, converter)
        self._pending: dict[int | str, asyncio.Task[None]] = {}  # the client's requests; pygls keeps ours

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
        commands = self.fm.feature_options.get(types.WORKSPACE_EXECUTE_COMMAND)  # pygls announces only its own
        result.capabilities.execute_command_provider = commands
        return result

    @lsp_method(types.SHUTDOWN)
    def lsp_shutdown(self, *args: Any) -> Generator[Any, Any, None]:
        for task in self._pending.values():
            task.cancel()
        yield from super().lsp_shutdown(*args)

    def receive(self, body: bytes) -> None:
        """Handle one message. Every request gets exactly one response."""
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

    def _structure(self, method: str, message: JsonMessage) -> Any:
        """The typed message. Parameters of non-standard methods become attributes. Raises JsonRpcException or
        RecursionError."""
        if self.get_message_type(method) is not None:
            return self.structure_message(message)
        params = json.loads(json.dumps(message.get("params")), object_hook=lambda pairs: SimpleNamespace(**pairs))
        if "id" in message:
            return JsonRPCRequestMessage(message["id"], method, "2.0", params)
        return JsonRPCNotification(method, "2.0", params)

    def _receive_response(self, message: JsonMessage) -> None:
        """Resolve our request with the client's response, or with an error if it is malformed."""
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
            return types.ErrorCodes.InvalidRequest  # a duplicate id, or an id on a notification
        return None

    def _refuse(self, request: int | str | None, code: types.ErrorCodes) -> None:
        """Answer a request with an error. A notification gets no answer."""
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
            task.add_done_callback(lambda _: outcome.close())  # a cancel may come before it starts
        task.add_done_callback(lambda task: self._forget(msg_id, task))

    def _call(self, method: str, params: Any) -> Any:
        """Call a handler before any later message is read. Its result may be awaitable."""
        try:
            return self.fm.features[method](params)
        except Exception as error:
            log.error("%s failed: %s", method, describe(error))
            return None

    async def _answer(self, msg_id: int | str, outcome: Any) -> None:
        """Send the result in the turn of the loop that produced it, so that it cannot become stale in between."""
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
        """Send a result of pygls's own handlers. The error has only the type, since its text may quote the document."""
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
        """Raises TypeError, ValueError or AttributeError if `data` cannot be serialised."""
        body = json.dumps(data, default=self._serialize_message).encode()
        self._server.send(_FRAME % (len(body), body))


def converter() -> Converter:
    """A strict converter: pygls's accepts `true` as a number and null as the text `None`. `initialize` is converted
    leniently, since editors send odd values there and nothing works without it."""
    strict: Converter
    tolerant, strict = default_converter(), default_converter()  # type: ignore[no-untyped-call]
    for kind in (int, str):
        strict.register_structure_hook(kind, _exactly)
    strict.register_structure_hook(types.InitializeParams, tolerant.structure)
    return strict


def _exactly(value: object, kind: type) -> object:
    """Structure hook for int, str and their enumerations."""
    if kind in (int, str) and type(value) is not kind:
        raise TypeError
    return kind(value)


def _refuse_constant(name: str) -> NoReturn:
    """`NaN` and infinities are not JSON."""
    raise ValueError(name)


def describe(error: BaseException | None) -> str:
    """An error's type and place for the log, without its text, which may quote the document."""
    if error is None:
        return "an error without a cause"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""
    return type(error).__name__ + place
