"""A language server on two streams: reading, writing, back-pressure and shutdown."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from caesura.server.lsp.framing import Framer, MessageTooLarge
from caesura.server.lsp.protocol import StrictProtocol, converter, describe

CHUNK = 1 << 16  # bytes per read
BACKLOG = 2048  # messages read but not handled; beyond that, the editor has to wait
HELD = 64 << 20  # bytes read but not handled, the incomplete message included; a larger message is held alone
PARENT_POLL_S = 2.0
STUCK_S = 5.0  # timeout of the event loop's end, if it is blocked in a write

ReadBytes = Callable[[], bytes]  # blocks; empty at the end of the stream
WriteBytes = Callable[[bytes], None]  # raises OSError or ValueError once the reader has gone

log = logging.getLogger(__name__)


def from_stdin() -> bytes:
    """Reads the descriptor: a lock held on sys.stdin would abort the interpreter's exit."""
    return os.read(sys.stdin.fileno(), CHUNK)


def to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class BackPressure:
    """Back-pressure: bounds the messages and bytes read but not yet handled. The reader thread waits for room, and so
    does the editor. A message larger than the bound is read once all others are handled."""

    def __init__(self) -> None:
        self._messages = self._bytes = 0
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"<BackPressure {self._messages} messages, {self._bytes} bytes>"

    def wait_to_read(self, begun: int) -> None:
        """Wait for the room of one more chunk, added to `begun` bytes of an incomplete message."""
        with self._changed:
            self._changed.wait_for(lambda: not self._messages or self._bytes + begun + CHUNK <= HELD)

    def acquire(self, size: int) -> None:
        """Wait for the room of one more message, and count it."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages < BACKLOG)
            self._messages, self._bytes = self._messages + 1, self._bytes + size

    def release(self, size: int) -> None:
        """A message of `size` bytes was handled."""
        with self._changed:
            self._messages, self._bytes = self._messages - 1, self._bytes - size
            self._changed.notify()


class Server(LanguageServer):
    """A language server on any pair of streams. A request's handler runs when the request arrives. Its result may be
    awaitable; then the client can cancel it. If a handler fails, the error is logged and the answer is null."""

    protocol: StrictProtocol

    def __init__(
        self, name: str, version: str, experimental: dict[str, Any], notebooks: types.NotebookDocumentSyncOptions
    ) -> None:
        logging.getLogger("pygls").setLevel(logging.CRITICAL)  # it logs payloads, which hold the user's text
        super().__init__(
            name, version, notebook_document_sync=notebooks, protocol_cls=StrictProtocol, converter_factory=converter
        )
        self.experimental = experimental
        self.on_malformed: Callable[[str, Any], None] = lambda method, params: None
        self.on_exit: Callable[[], Awaitable[None]] = _nothing
        self._write: WriteBytes = to_stdout
        self._stopped: asyncio.Future[int] | None = None
        self._ended = threading.Event()
        self._pressure = BackPressure()

    def on(self, method: str, handler: Callable[..., Any], options: Any = None) -> None:
        """Handle `method`. pygls announces some methods only if they have `options`."""
        self.protocol.fm.features[method] = handler
        if options is not None:
            self.protocol.fm.feature_options[method] = options

    def serve(self, read: ReadBytes = from_stdin, write: WriteBytes = to_stdout) -> int:
        """Serve until the editor sends `exit` or closes the stream. Returns the exit code of the process."""
        try:
            return asyncio.run(self.serve_in_loop(read, write))
        finally:
            self._ended.set()

    def send(self, data: bytes) -> None:
        """Write a message, unless the server has not started or has stopped."""
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
        """Stop when the process `parent` ends: another process may keep our pipe open after the editor dies."""
        if parent and parent > 0 and parent != os.getpid() and os.name == "posix" and _alive(parent):
            arguments = parent, asyncio.get_running_loop()
            threading.Thread(target=self._watch, args=arguments, daemon=True, name="parent").start()

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log the error; pygls would show it to the user."""
        log.error("%s: %s", getattr(source, "__name__", source), describe(error))

    async def serve_in_loop(self, read: ReadBytes, write: WriteBytes) -> int:
        """`serve` in the loop that runs."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: log.error("In the loop: %s", describe(context.get("exception"))))
        self._stopped, self._write = loop.create_future(), write
        threading.Thread(target=self._read, args=(read, loop), daemon=True, name="reader").start()
        code = await self._stopped
        await self.on_exit()
        return code

    def _read(self, read: ReadBytes, loop: asyncio.AbstractEventLoop) -> None:
        """The reader thread: reads ahead while the loop is busy, within the bounds."""
        framer = Framer()
        with contextlib.suppress(MessageTooLarge, OSError):
            while data := read():
                for body in framer.feed(data):
                    self._pressure.acquire(len(body))
                    if not _soon(loop, self._take, body):
                        return
                self._pressure.wait_to_read(framer.held)
        self._end(loop)

    def _take(self, body: bytes) -> None:
        try:
            if self._stopped is not None and not self._stopped.done():
                self.protocol.receive(body)
        finally:
            # After the callbacks that this has scheduled: an answer that is ready is written before more is read.
            asyncio.get_running_loop().call_soon(self._pressure.release, len(body))

    def _watch(self, parent: int, loop: asyncio.AbstractEventLoop) -> None:
        while _alive(parent):
            time.sleep(PARENT_POLL_S)
        self._end(loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop from another thread. Exit the process if the loop is blocked in a write to an editor that does not
        read."""
        _soon(loop, self.stop, 1)
        if not self._ended.wait(STUCK_S):
            os._exit(1)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> bool:
    """Schedule a call from another thread; False if the loop has ended."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True


async def _nothing() -> None:
    """The default of `on_exit`."""


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
