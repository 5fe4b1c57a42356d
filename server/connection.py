"""One connection to the shared engine, from its Hello until either side is gone. It is never mended: make a new one."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from caesura import wire
from caesura.rendezvous import BUILD

PING_S = 1.0
SILENCE_S = 3.0


class Lost(Exception):
    """The engine's process is gone, stuck, or has hung up."""


class Connection:
    def __init__(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self._socket = socket
        self._monitor = monitor
        self._heard = time.monotonic()

    @staticmethod
    async def open(context: zmq.asyncio.Context, path: Path, client: str, timeout_s: float) -> "Connection":
        """Connect and say hello. Raises TimeoutError when nobody answers."""
        socket = context.socket(zmq.DEALER)
        # Not IMMEDIATE: it throws away what an engine said just before it ended. A job that zmq keeps for the next
        # engine does no harm, for that one has not heard our hello and drops it.
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        socket.setsockopt(zmq.SNDHWM, 256)
        socket.setsockopt(zmq.RCVHWM, 256)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            socket.connect(f"ipc://{path}")
            async with asyncio.timeout(timeout_s):
                await socket.send(wire.encode(wire.Hello(wire.PROTOCOL, BUILD, client)))
                while not isinstance(message := _decode(await socket.recv_multipart()), wire.Welcome):
                    pass
        except BaseException:
            _hang_up(socket)  # an engine that is only slow will read both
            raise
        return Connection(socket, monitor, message)

    def send(self, frame: bytes) -> bool:
        """Hand a frame over now. False when the engine is gone or does not read."""
        return _send(self._socket, frame)

    async def messages(self) -> AsyncIterator[wire.EngineMessage]:
        """What the engine says, until it is gone: then Lost is raised. Keeps the lease alive meanwhile."""
        inbox: asyncio.Queue[wire.EngineMessage | Lost] = asyncio.Queue()
        watchers = [asyncio.create_task(watch(inbox)) for watch in (self._read, self._ping, self._watch)]
        try:
            while not isinstance(message := await inbox.get(), Lost):
                yield message
            raise message
        finally:
            for watcher in watchers:
                watcher.cancel()

    def close(self) -> None:
        _hang_up(self._socket)

    async def _read(self, inbox: asyncio.Queue[wire.EngineMessage | Lost]) -> None:
        while True:
            message = _decode(await self._socket.recv_multipart())
            self._heard = time.monotonic()
            if message is not None and not isinstance(message, wire.Pong):
                inbox.put_nowait(message)

    async def _ping(self, inbox: asyncio.Queue[wire.EngineMessage | Lost]) -> None:
        frame = wire.encode(wire.Ping())
        while time.monotonic() - self._heard < SILENCE_S:
            self.send(frame)
            await asyncio.sleep(PING_S)
        inbox.put_nowait(Lost())

    async def _watch(self, inbox: asyncio.Queue[wire.EngineMessage | Lost]) -> None:
        """The kernel tells of a killed engine within milliseconds, long before its silence does."""
        await recv_monitor_message(self._monitor)
        while await self._socket.poll(0):  # what it said last comes first
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        inbox.put_nowait(Lost())


def _send(socket: zmq.asyncio.Socket, frame: bytes) -> bool:
    sent = asyncio.ensure_future(socket.send(frame, zmq.NOBLOCK))
    return sent.done() and sent.exception() is None


def _hang_up(socket: zmq.asyncio.Socket) -> None:
    """The lease ends with the connection."""
    _send(socket, wire.encode(wire.Bye()))
    socket.disable_monitor()
    socket.close(linger=100)


def _decode(frames: list[bytes]) -> wire.EngineMessage | None:
    """None for what an engine of our build would not send."""
    try:
        (frame,) = frames
        return wire.decode_engine(frame)
    except (ValueError, msgspec.DecodeError):
        return None
