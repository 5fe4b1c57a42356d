"""HTTP for one page on loopback: what is read, who may ask, and how an answer is written. It knows no route.

A connection is for one request. A stream is JSON, a value a line.
"""

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec

ADDRESS = "127.0.0.1"
MAX_HEAD = 16 << 10  # bytes of request line and headers
MAX_BODY = 2 << 20  # bytes
MAX_CONNECTIONS = 32
READ_S = 10.0  # for a whole request
WRITE_S = 30.0  # for a part of an answer that nobody reads
KEY_PATH = "/key"  # where the page gets the key for its token
USED = (
    "This address works once and has been used: open the one that `caesura demo` printed, and if it was not you who"
    " used it, end the demo with Ctrl-C."
)

# Monaco writes style elements and attributes of its own; scripts come from files alone.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}


@dataclass(frozen=True)
class Request:
    """`headers` have lower-case names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    body: bytes
    type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Stream = AsyncGenerator[object, None]
Handler = Callable[[Request], Awaitable[Response | Stream]]


class Refused(Exception):
    """The request gets this status and a sentence for a person."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Who may ask: for the page's files, which are public, anyone; for all else, a page that was opened with a token.

    Host keeps out names that were rebound to us, Origin and Sec-Fetch-Site other pages, the key other users. It is in
    a header and in no cookie, since a browser sends cookies of a host to all of its ports.
    """

    def __init__(self, port: int) -> None:
        self.host = f"{ADDRESS}:{port}"
        self._key, self._token, self._once = (secrets.token_urlsafe(32) for _ in range(3))
        self._used = False  # the one that opens the page once

    @property
    def address(self) -> str:
        """Opens the page as often as one likes."""
        return f"{self.origin}/#{self._token}"

    @property
    def address_once(self) -> str:
        """Opens the page once: other users see the command line of a browser."""
        return f"{self.origin}/#{self._once}"

    def check(self, request: Request) -> Response | None:
        """Answers with the key, for a token; None for what others answer. Raises Refused."""
        headers, public = request.headers, request.method == "GET"
        if headers.get("host") != self.host:
            raise Refused(HTTPStatus.FORBIDDEN, f"This is {self.host}, not the host that was asked for.")
        if headers.get("origin", self.origin if public else "") != self.origin:
            raise Refused(HTTPStatus.FORBIDDEN, "Another page may not ask.")
        linked = public and request.path == "/"  # the address may be a link in a terminal that is a page
        if not linked and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Refused(HTTPStatus.FORBIDDEN, "Another page may not ask.")
        if public:
            return None
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        asks_key = request.path == KEY_PATH
        if scheme != "Bearer" or not (self._takes(secret) if asks_key else _same(secret, self._key)):
            raise Refused(HTTPStatus.FORBIDDEN, "Open the address that `caesura demo` printed; it holds a token.")
        return Response(msgspec.json.encode(self._key)) if asks_key else None

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    def _takes(self, token: str) -> bool:
        """Whether the token opens the page. Raises Refused for the one that has done so already."""
        if not _same(token, self._once):
            return _same(token, self._token)
        if self._used:
            raise Refused(HTTPStatus.FORBIDDEN, USED)
        self._used = True
        return True


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


@contextlib.asynccontextmanager
async def listening(port: int, handler: Handler) -> AsyncIterator[Guard]:
    """Answer requests with `handler` meanwhile. `port` 0 is one that is free."""
    connections = set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(connections) < MAX_CONNECTIONS:
                connections.add(task)
                await _converse(reader, writer, guard, handler)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the other side is gone, or does not read
        except asyncio.CancelledError:
            pass  # the other side is gone from a stream, or we end; nobody waits for this task
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, ADDRESS, port, limit=MAX_HEAD)
    guard = Guard(server.sockets[0].getsockname()[1])
    try:
        yield guard
    finally:
        server.close()
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(connections)


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, guard: Guard, handler: Handler) -> None:
    """One request and its answer."""
    try:
        async with asyncio.timeout(READ_S):
            request = await _read(reader)
        answer = guard.check(request) or await handler(request)
    except Refused as refused:
        text = f"{refused}\n".encode()
        await _write(writer, _head(refused.status, "text/plain; charset=utf-8", {"Content-Length": len(text)}) + text)
        await _drain(reader, writer)
        return
    if isinstance(answer, Response):
        headers = {**answer.headers, "Content-Length": len(answer.body)}
        await _write(writer, _head(answer.status, answer.type, headers) + answer.body)
    else:
        await _write(writer, _head(HTTPStatus.OK, "application/x-ndjson", {"Transfer-Encoding": "chunked"}))
        await _stream(reader, writer, answer)


async def _read(reader: asyncio.StreamReader) -> Request:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too long.") from None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = dict[str, str]()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip() or name.lower() in headers:
            raise Refused(HTTPStatus.BAD_REQUEST, "A header is malformed, or there twice.")
        headers[name.lower()] = value.strip()
    words = first.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1" or not words[1].startswith("/"):
        raise Refused(HTTPStatus.BAD_REQUEST, "This is not a request of HTTP/1.1.")
    if words[0] not in ("GET", "POST"):
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and POST are known here.")
    path = words[1].partition("?")[0]
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()):
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "A body needs its length.")
    if len(length) > 9 or int(length) > MAX_BODY:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"What was sent is longer than the {MAX_BODY:,} bytes that the demo takes.",
        )
    return Request(words[0], path, headers, await reader.readexactly(int(length)))


async def _drain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what is left of a request that was refused unread: closed over it, a browser would lose the answer."""
    with contextlib.suppress(OSError):  # a timeout is one as well
        writer.write_eof()
        async with asyncio.timeout(READ_S):
            while await reader.read(MAX_HEAD):
                pass


def _head(status: HTTPStatus, type: str, headers: Mapping[str, object]) -> bytes:
    lines = {**HEADERS, "Content-Type": type, **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{text}\r\n".encode("latin-1")


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, values: Stream) -> None:
    """Write what comes until it ends, or until the page is gone: then it is closed, with all that it holds."""
    task = asyncio.current_task()
    assert task is not None

    def left(reading: asyncio.Task[bytes]) -> None:
        if not reading.cancelled():
            reading.exception()  # a connection that breaks is one that ends
            task.cancel()

    reading = asyncio.create_task(reader.read(1))
    reading.add_done_callback(left)
    try:
        async with contextlib.aclosing(values):
            async for value in values:
                line = msgspec.json.encode(value) + b"\n"
                await _write(writer, b"%x\r\n%s\r\n" % (len(line), line))
        await _write(writer, b"0\r\n\r\n")
    finally:
        reading.cancel()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(WRITE_S):
        await writer.drain()
