"""Runs an ASGI application with uvicorn on a loopback port, within limits. It defines no routes.

The application gets a request after all of it has arrived, and is cancelled when its client disconnects. Connections
that have shown no token cannot keep out those that do.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

ADDRESS = "127.0.0.1"
MAX_HEAD = 16 << 10  # bytes of request line and headers
MAX_BODY = 2 << 20  # bytes
MAX_CONNECTIONS = 32  # that have shown the token
MAX_STRANGERS = 32  # that have not; one more takes the place of the oldest
GRACE_S = 0.1  # for which a stranger keeps its place: a client needs it to send the head of its request
MAX_QUEUE = 1024  # connections that the system keeps until they are accepted
RETRY_S = 0.1  # pause after a failed accept
HEAD_S = 10.0  # to receive the whole head of a request
BODY_S = 10.0  # to receive the whole body
WRITE_S = 30.0  # for the client to read one part of an answer
PAUSE_S = 1.0  # between two parts of a refused body


class RequestRefused(Exception):
    """The answer has this status and a sentence for the user."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class Stream(Response):
    """Sends `first`, then each of `pieces` as it comes; closes `pieces` when the client disconnects. A generator cleans
    up only after its start: one that must clean up has given `first` already."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], media_type: str, first: bytes = b"") -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._pieces, self._first = pieces, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._pieces):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def bound(port: int) -> socket.socket:
    """A listening loopback socket: clients can connect from now on. `port` 0 chooses a free port."""
    return socket.create_server((ADDRESS, port), backlog=MAX_QUEUE)


@contextlib.asynccontextmanager
async def serving(
    listener: socket.socket,
    app: ASGIApp,
    name: str,
    knows: Callable[[Scope], bool] = lambda _: False,
    headers: Mapping[str, str] = {},
) -> AsyncIterator[None]:
    """Answer requests with `app` inside of the context, then close all connections. Error messages call the app `name`;
    each answer has these headers. `knows` finds the token in the head of a request; without it all are strangers."""
    config = uvicorn.Config(
        BoundedApp(app, name, knows),
        lifespan="off",
        ws="none",
        interface="asgi3",
        proxy_headers=False,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        headers=list(headers.items()),
        h11_max_incomplete_event_size=MAX_HEAD,
    )
    config.load()
    state = ServerState()
    state.default_headers = config.encoded_headers
    strangers: Strangers = {}
    accepting = asyncio.create_task(_accept(listener, lambda: BoundedConnection(config, state, strangers), strangers))
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.wait((accepting,))
        for connection in list(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(state.tasks)


def interruption() -> asyncio.Event:
    """An event that is set when the process is interrupted."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # on Windows, Ctrl-C raises KeyboardInterrupt
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def _accept(listener: socket.socket, connect: Callable[[], "BoundedConnection"], strangers: "Strangers") -> None:
    """Accept connections one after the other. While each stranger may still send its token, the next ones wait in the
    system's queue."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    while True:
        if len(strangers) >= MAX_STRANGERS:
            await asyncio.sleep(next(iter(strangers.values())) + GRACE_S - loop.time())
        try:
            newcomer, _ = await loop.sock_accept(listener)
            if len(strangers) >= MAX_STRANGERS:
                late = loop.time() - GRACE_S
                last = min(strangers, key=lambda one: (strangers[one] > late, one.asks))  # and of those the oldest
                last.transport.abort()
            await loop.connect_accepted_socket(connect, newcomer)
        except OSError:  # this connection failed, or there are too many open files
            await asyncio.sleep(RETRY_S)


class BoundedConnection(H11Protocol):
    """One of at most MAX_STRANGERS until it is `admit`ted, then one of at most MAX_CONNECTIONS. It closes if the head
    of a request does not arrive within HEAD_S."""

    _head_timer: asyncio.TimerHandle | None = None

    def __init__(self, config: uvicorn.Config, state: ServerState, strangers: "Strangers") -> None:
        super().__init__(config, state, {"admit": self.admit})
        self._strangers = strangers

    @property
    def asks(self) -> bool:
        """True from the head of a request to the end of its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    def admit(self) -> None:
        """A request has shown the token. One connection too many is closed."""
        self._strangers.pop(self, None)
        if len(self.connections) - len(self._strangers) > MAX_CONNECTIONS:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._strangers[self] = self.loop.time()
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.asks:
            self._end_head()
        else:
            self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._strangers.pop(self, None)
        self._end_head()

    def _time_head(self) -> None:
        """Start the timer, once for each head: a client that sends it byte by byte gets no more time."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.timeout_keep_alive_handler)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


Strangers = dict[BoundedConnection, float]  # when each came, by the loop's clock; the oldest first


class BoundedApp:
    """Wraps an application: limits the size of bodies and the time to receive them and to send answers, and cancels the
    application when its client disconnects."""

    def __init__(self, app: ASGIApp, name: str, knows: Callable[[Scope], bool]) -> None:
        self._app, self._name, self._knows = app, name, knows

    def __repr__(self) -> str:
        return f"<BoundedApp {self._name}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._knows(scope):  # before the body, which may take its time
            scope["state"]["admit"]()
        body = await _body(scope, receive, self._name)

        async def given() -> Message:
            if isinstance(body, RequestRefused):
                raise body
            return {"type": "http.request", "body": body}

        async def taken(message: Message) -> None:
            try:
                async with asyncio.timeout(WRITE_S):
                    await send(message)
            except TimeoutError:  # a client that does not read counts as disconnected
                raise asyncio.CancelledError from None

        async def taken_unread(message: Message) -> None:
            """Read the rest of the request before closing: a browser would lose the answer otherwise."""
            ends = message["type"] == "http.response.body" and not message.get("more_body")
            await taken({**message, "more_body": True} if ends else message)
            if ends:
                await _drain(receive)
                await taken({"type": "http.response.body", "body": b""})

        if isinstance(body, RequestRefused):
            await self._app(scope, given, taken_unread)
        else:
            await _while_connected(self._app(scope, given, taken), receive)


async def _while_connected(answering: Awaitable[None], receive: Receive) -> None:
    """Run the application until it has answered; cancel it when its client disconnects."""
    working = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(receive())  # the request is read: only a disconnect can follow
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait((working, leaving))
    if not working.cancelled() and (error := working.exception()):
        raise error


async def _body(scope: Scope, receive: Receive, name: str) -> bytes | RequestRefused:
    """The body of a request, or why it was refused."""
    sentence = f"The request is longer than the {MAX_BODY:,} bytes that {name} accepts."
    too_long = RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if int(announced) > MAX_BODY:  # h11 has checked that it is a number
        return too_long
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                more = message.get("more_body", False)
                if size > MAX_BODY:
                    return too_long
    except TimeoutError:
        return RequestRefused(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive within ten seconds.")
    return b"".join(parts)


async def _drain(receive: Receive) -> None:
    """Read the rest of a request."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BODY_S):
            more = True
            while more:
                async with asyncio.timeout(PAUSE_S):
                    more = (await receive()).get("more_body", False)
