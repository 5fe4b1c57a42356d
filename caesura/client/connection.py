"""One connection to an engine, from its Hello until either side ends. A broken connection is not reused."""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from caesura import wire
from caesura.characters import shown
from caesura.ipc import endpoints
from caesura.ipc.endpoints import Endpoint
from caesura.ipc.rendezvous import BUILD
from caesura.ipc.silence import Silence, usage

PING_S = 1.0
SILENCE_S = 2.5  # an engine that answers no ping for this long counts as hung, like a worker
MAX_EVENTS = 1024  # of a failed connection: more than a monitor keeps
_CLOSED = zmq.EVENT_CLOSED  # no process listens
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_STRANGE = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class Lost(Exception):
    """The engine ended, hangs, or closed the connection."""


class Unanswered(TimeoutError):
    """No answer. `refused`: the engine does not know our key; `strange`: the other end has an unknown key or is not an
    engine."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.refused = last == _REFUSED
        self.strange = bool(last & _STRANGE)


class Connection:
    def __init__(
        self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, welcome: wire.Welcome, pid: int
    ) -> None:
        self.welcome = welcome
        self._socket = socket
        self._monitor = monitor
        self._asked = time.monotonic()
        self._silence, self._pid = Silence(self._asked), pid

    @property
    def stale(self) -> bool:
        """True after this process stood still for so long that the engine may have dropped it: then it will be Lost."""
        return time.monotonic() - self._asked > SILENCE_S

    @staticmethod
    async def open(
        context: zmq.asyncio.Context, endpoint: Endpoint, client: str, timeout_s: float, *, pid: int = 0
    ) -> "Connection":
        """Connect, and wait for the Welcome. `pid`: the engine's process, if it is one of this machine. Raises
        Unanswered."""
        socket = context.socket(zmq.DEALER)
        # Not IMMEDIATE, which would drop the last messages of an engine that ends. If zmq keeps a job for the next
        # engine, that one drops it, since it has no Hello from us.
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        socket.setsockopt(zmq.SNDHWM, 256)
        socket.setsockopt(zmq.RCVHWM, 256)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | _REFUSED | _STRANGE | _CLOSED)
        try:
            endpoints.connect(socket, endpoint)
            async with asyncio.timeout(timeout_s):
                await socket.send(wire.encode(wire.Hello(wire.PROTOCOL, BUILD, client)))
                while not isinstance(message := _decode(await socket.recv_multipart()), wire.Welcome):
                    pass
        except BaseException as error:
            last = await _last(monitor) if isinstance(error, TimeoutError) else 0
            _hang_up(socket, monitor)  # a slow engine will read Hello and Bye
            if isinstance(error, TimeoutError):
                raise Unanswered(last) from None
            raise
        return Connection(socket, monitor, message, pid)

    def send(self, frame: bytes) -> bool:
        """Send a frame without waiting. False if the engine has ended or does not read."""
        return _send(self._socket, frame)

    async def messages(self) -> AsyncIterator[wire.EngineMessage]:
        """The engine's messages, until Lost is raised. Renews the lease meanwhile."""
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
        _hang_up(self._socket, self._monitor)

    async def _read(self, inbox: asyncio.Queue[wire.EngineMessage | Lost]) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            self._silence.heard(time.monotonic())
            message = _decode(frames) or self._give_up(frames)
            if message is not None and not isinstance(message, wire.Pong):
                inbox.put_nowait(message)

    def _give_up(self, frames: list[bytes]) -> wire.Failed | None:
        """Cancel the job of an answer that cannot be decoded, and fail it here."""
        job = wire.job_of(frames[0]) if len(frames) == 1 else None
        if job is None:
            return None
        self.send(wire.encode(wire.Cancel(job)))
        return wire.Failed(job, "engine_lost", "The engine's answer could not be read.")

    async def _ping(self, inbox: asyncio.Queue[wire.EngineMessage | Lost]) -> None:
        frame = wire.encode(wire.Ping())
        while not self.stale and (left := self._left()) > 0:
            self.send(frame)
            self._asked = time.monotonic()
            await asyncio.sleep(min(PING_S, left))
        inbox.put_nowait(Lost())

    def _left(self) -> float:
        """Seconds of silence left until the engine counts as hung."""
        return SILENCE_S - self._silence.lasts(time.monotonic(), lambda: usage(self._pid))

    async def _watch(self, inbox: asyncio.Queue[wire.EngineMessage | Lost]) -> None:
        """Report a killed engine within milliseconds, by the kernel's event instead of its silence."""
        while await _event(self._monitor) != zmq.EVENT_DISCONNECTED:
            pass
        while await self._socket.poll(0):  # its last messages come first
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        inbox.put_nowait(Lost())


def _send(socket: zmq.asyncio.Socket, frame: bytes) -> bool:
    sent = asyncio.ensure_future(socket.send(frame, zmq.NOBLOCK))
    return sent.done() and sent.exception() is None


def _hang_up(socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
    """Close the connection, which ends the lease."""
    _send(socket, wire.encode(wire.Bye()))
    socket.disable_monitor()
    monitor.close(linger=0)  # else the loop would keep its descriptor
    socket.close(linger=100)


async def _event(monitor: zmq.asyncio.Socket) -> int:
    return int((await recv_monitor_message(monitor))["event"])


async def _last(monitor: zmq.asyncio.Socket) -> int:
    """The event that ended the last attempt to connect. An engine that dies during one looks strange, but only once."""
    last = 0
    for _ in range(MAX_EVENTS):
        if not await monitor.poll(0):
            break
        event = await _event(monitor)
        last = last if event == zmq.EVENT_DISCONNECTED else event
    return last


def _decode(frames: list[bytes]) -> wire.EngineMessage | None:
    """The message; None if an engine of our build would not send it."""
    try:
        (frame,) = frames
        message = wire.decode_engine(frame)
    except (ValueError, msgspec.DecodeError):
        return None
    if isinstance(message, wire.Welcome | wire.Failed | wire.Status):
        about = {name: _printable(getattr(message, name)) for name in message.__struct_fields__}
        return msgspec.structs.replace(message, **about)
    return message


def _printable(value: object) -> object:
    """Names and sentences as a person may read them: the engine may be on another's machine."""
    match value:
        case str():
            return shown(value)
        case tuple():
            return tuple(map(shown, value))
    return value
