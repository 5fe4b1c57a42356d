"""The sockets that clients connect to: typed messages in and out, and one slow client never holds up the rest.

There is always the Unix socket of this machine's clients, and where the user asks for it one for paired machines. A
peer's first byte says which, so that the names that clients give themselves cannot meet.
"""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from caesura import doors, pairing, wire
from caesura.engine.supervisor import admission
from caesura.engine.supervisor.admission import REMOTE, TRIAL_S, Gate

MAX_BACKLOG = 64  # events kept for a client that does not read
MAX_SLOW_S = 5.0
HEARTBEAT_MS = 5000  # after three that get no answer, a machine that is gone without a word holds no connection
LIBZMQ = (4, 3, 5)  # what is tested; before 4.3.3 there are holes that a client without a key can reach
BYE = wire.Bye()


class CannotListen(Exception):
    """There is no safe socket, for other machines or at all; the message is a sentence for the user."""


@dataclass
class _Backlog:
    """What a slow client has not taken yet: the newest event of each job, for they are cumulative, and the newest of
    each other kind of message. `since`: the first try to send them again."""

    since: float | None = None
    frames: dict[str | type[wire.EngineMessage], bytes] = field(default_factory=dict)


class Received(NamedTuple):
    """A message of a client, None where nobody could have meant it, and the frame that it came in."""

    peer: bytes
    message: wire.ClientMessage | None
    frame: bytes


class Front:
    """The doors, and what goes in and out of them. Raises CannotListen where libzmq is too old."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> None:
        if zmq.zmq_version_info() < LIBZMQ:
            oldest = ".".join(map(str, LIBZMQ))
            raise CannotListen(
                f"libzmq {zmq.zmq_version()} is too old; install pyzmq with libzmq {oldest} or a later one."
            )
        self._context = context
        self._path = path
        self._backlogs: dict[bytes, _Backlog] = {}
        self._paired = pairing.Watched()
        self._gate = Gate(context, lambda key: self._paired.pairs.admits(key))
        self._doors: list[zmq.Socket[bytes]] = []
        self._next = 0  # the door to look at first
        admission.listen(self._add(), path)
        self._bound = path.lstat()

    def __repr__(self) -> str:
        return f"<Front {len(self._doors)} sockets, {len(self._backlogs)} slow clients>"

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Those that have something to be received."""
        return [self._gate.socket, *self._doors]

    def listen(self, address: str, keys: doors.Keys) -> None:
        """Let paired machines in, at one address. Raises CannotListen, also where a stranger would be let in, or where
        that is not known."""
        endpoint = f"tcp://{pairing.own_address(address)}"
        door = self._add()
        admission.guard(door, REMOTE)
        door.setsockopt(zmq.IPV6, int(address.startswith("[")))
        door.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        door.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        doors.prove(door, keys)
        try:
            door.bind(endpoint)
        except zmq.ZMQError as error:
            raise CannotListen(f"The engine cannot listen at {address}: {error.strerror}.") from error
        refuses = self._gate.refuses_strangers(endpoint, keys.public)
        if refuses is None:
            unsure = (
                f"Whether strangers are refused at {address} is not known: nobody said so within {TRIAL_S:g} seconds."
            )
            raise CannotListen(f"{unsure} The engine does not listen; try again when the machine has less to do.")
        if not refuses:
            raise CannotListen(f"A stranger was not refused at {address}, so the engine does not listen; report this.")

    def receive(self) -> Received | None:
        """The next message, if one has arrived."""
        self._gate.answer()
        if (arrived := self._arrived()) is None:
            return None
        door, (name, *frames) = arrived
        peer = bytes([door]) + name.bytes
        if len(frames) != 1:
            return Received(peer, None, b"")
        return Received(peer, self._read(door, frames[0]), frames[0].bytes)

    def paired(self, peer: bytes) -> bool:
        """Whether it is on another machine."""
        return peer[0] > 0

    def send(self, peer: bytes, message: wire.EngineMessage) -> None:
        """Send now, or as soon as the client reads again. A client that is gone is no error: its lease will end."""
        about = message.job if isinstance(message, wire.Locked | wire.Done | wire.Failed | wire.Busy) else type(message)
        self.relay(peer, about, wire.encode(message))

    def relay(self, peer: bytes, about: str | type[wire.EngineMessage], frame: bytes) -> None:
        """Send an encoded message. While the client does not read, only the newest frame `about` a job is kept."""
        if peer not in self._backlogs and self._sent(peer, frame):
            return
        backlog = self._backlogs.setdefault(peer, _Backlog())
        backlog.frames.pop(about, None)
        backlog.frames[about] = frame

    def flush(self, now: float) -> list[bytes]:
        """Send what was kept. Returns the clients that have been slow for too long."""
        stuck = []
        for peer, backlog in list(self._backlogs.items()):
            backlog.since = now if backlog.since is None else backlog.since
            while backlog.frames and self._sent(peer, next(iter(backlog.frames.values()))):
                del backlog.frames[next(iter(backlog.frames))]
            if not backlog.frames:
                del self._backlogs[peer]
            elif now - backlog.since > MAX_SLOW_S or len(backlog.frames) > MAX_BACKLOG:
                stuck.append(peer)
        return stuck

    def forget(self, peer: bytes) -> None:
        self._backlogs.pop(peer, None)

    def close(self) -> None:
        """Unlink the socket, unless another engine has put its own there, and let the last answers out."""
        try:
            found = self._path.lstat()
            if (found.st_ino, found.st_dev) == (self._bound.st_ino, self._bound.st_dev):
                self._path.unlink()
        except FileNotFoundError:
            pass
        for door in self._doors:
            door.close(linger=200)
        self._gate.close()

    def _add(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # say that a client is gone or slow, do not drop in silence
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        socket.setsockopt(zmq.SNDHWM, 256)
        socket.setsockopt(zmq.RCVHWM, 256)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        self._doors.append(socket)
        return socket

    def _arrived(self) -> tuple[int, list[zmq.Frame]] | None:
        """From one door after another, so that a flood at one does not keep the other waiting."""
        for _ in self._doors:
            door, self._next = self._next, (self._next + 1) % len(self._doors)
            with contextlib.suppress(zmq.Again):
                return door, self._doors[door].recv_multipart(zmq.NOBLOCK, copy=False)
        return None

    def _read(self, door: int, frame: zmq.Frame) -> wire.ClientMessage | None:
        """Another machine may not stop the engine, and one that is no longer paired says nothing but goodbye."""
        if door and not self._paired.pairs.admits(str(frame.get("User-Id"))):
            return BYE
        try:
            message = wire.decode_client(frame.bytes)
        except msgspec.DecodeError:
            return None
        return None if door and isinstance(message, wire.Stop) else message

    def _sent(self, peer: bytes, frame: bytes) -> bool:
        try:
            self._doors[peer[0]].send_multipart([peer[1:], frame], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        return True
