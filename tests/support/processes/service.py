"""A service over HTTP that answers each connection's requests from a list of byte strings, headers included."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

Reply = bytes | tuple[Any, ...] | Callable[[str, Any], bytes | tuple[Any, ...]]
RECORDED = Path(__file__).parents[2] / "data" / "backends"


async def until(happened: Callable[[], Any]) -> None:
    """Wait until that is so; fail after ten seconds."""
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.001)


def recorded(name: str) -> bytes:
    """A response as it came over the socket."""
    return (RECORDED / f"{name}.http").read_bytes()


def response(body: bytes | str | object, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    """A response of our own; what is neither text nor bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n{more}\r\n".encode() + data


def events(*data: object, done: bool = True) -> bytes:
    """A stream of server-sent events."""
    lines = [f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in data]
    return response("".join(lines) + "data: [DONE]\n\n" * done, kind="text/event-stream")


class Service:
    """`answers` are used up in order; the last one stays. A tuple has parts, after which the connection ends; `...` in
    it waits until the client hangs up. A function gets the path and the body."""

    def __init__(self, *answers: Reply) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []  # path and body of each request
        self.heads: list[str] = []
        self.connections = 0
        self.waiting = 0  # answers that wait
        self.left = asyncio.Event()  # a client has hung up on an answer that waits
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await self._head(reader):
                length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0] or 0)
                body = await reader.readexactly(length)
                self.asked.append((head.split(" ")[1], json.loads(body) if body else None))
                self.heads.append(head)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                answer = answer(*self.asked[-1]) if callable(answer) else answer
                for part in answer if isinstance(answer, tuple) else (answer,):
                    if part is ...:
                        self.waiting += 1
                        with suppress(ConnectionError):
                            await reader.read()
                        self.waiting -= 1
                        self.left.set()
                        return
                    writer.write(part)
                    await writer.drain()
                if isinstance(answer, tuple):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> str:
        try:
            return (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return ""


@asynccontextmanager
async def serving(*answers: Reply) -> AsyncIterator[Service]:
    service = Service(*answers)
    server = await asyncio.start_server(service._serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield service
