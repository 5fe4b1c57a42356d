"""A relay on loopback between a client and an HTTP server: what was asked and when, and when the client left."""

import asyncio
import re
import threading
import time
from dataclasses import dataclass
from types import TracebackType

HEAD = re.compile(rb"POST /infill HTTP/1\.1\r\n(?:[^\r\n]+\r\n)*?content-length: *(\d+)\r\n(?:[^\r\n]+\r\n)*\r\n", re.I)
CHUNK = 1 << 16


@dataclass
class Passed:
    """A POST /infill. Times are those of `time.perf_counter`; `closed`: when the client closed the connection."""

    body: bytes
    asked: float
    answer: bytes = b""  # head and chunks included
    answered: float | None = None  # the last byte of it so far
    closed: float | None = None


class Relay:
    """In a thread of its own, so that the one who is measured does not wait for it."""

    def __init__(self, port: int) -> None:
        self.passed = list[Passed]()
        self._upstream = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        opened = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self.port: int = opened.result().sockets[0].getsockname()[1]

    def __repr__(self) -> str:
        return f"<Relay {self.port} to {self._upstream}, {len(self.passed)} requests>"

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(_stop_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
        mine = list[Passed]()
        back = asyncio.create_task(_answers(from_server, writer, mine))
        seen = b""
        try:
            while part := await reader.read(CHUNK):
                seen = self._note(seen + part, mine)
                to_server.write(part)
        except (ConnectionError, asyncio.CancelledError):
            pass
        for passed in mine[-1:]:
            passed.closed = time.perf_counter()
        back.cancel()
        to_server.close()
        writer.close()

    def _note(self, seen: bytes, mine: list[Passed]) -> bytes:
        """Keep each request that is whole; what is left of `seen`."""
        while (found := HEAD.search(seen)) and len(seen) >= (end := found.end() + int(found[1])):
            mine.append(Passed(seen[found.end() : end], time.perf_counter()))
            self.passed.append(mine[-1])
            seen = seen[end:]
        return seen


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mine: list[Passed]) -> None:
    try:
        while part := await reader.read(CHUNK):
            writer.write(part)
            for passed in mine[-1:]:
                passed.answer += part
                passed.answered = time.perf_counter()
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def _stop_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
