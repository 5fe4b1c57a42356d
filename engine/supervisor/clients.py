"""The sockets that clients connect to: typed messages in and out. A slow client never delays the others.

There is always a socket for this machine's clients, and one for paired machines if the user asks for it. The first byte
of a peer's name tells them apart, so that names that clients choose cannot collide.
"""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from caesura import wire
from caesura.engine.supervisor import admission
from caesura.engine.supervisor.admission import REMOTE, TRIAL_S, Gate
from caesura.engine.supervisor.guests import PairedMachines, TeamUsers
from caesura.ipc import endpoints, pairing
from caesura.ipc.keys import Keys

MAX_BACKLOG = 64  # events kept for a client that does not read
MAX_SLOW_S = 5.0
HEARTBEAT_MS = 5000  # three without an answer end the connection of a machine that has vanished
LIBZMQ = (4, 3, 5)  # the tested version; before 4.3.3, clients without a key can reach known vulnerabilities
BYE = wire.Bye()


class CannotListen(Exception):
    """The engine cannot listen safely, for other machines or at all; the message is a sentence for the user."""


@dataclass
class _Backlog:
    """Frames that a slow client has not read: the newest event of each job, since events are cumulative, and the
    newest message of each other type. `since` is the time of the first retry."""

    since: float | None = None
    frames: dict[str | type[wire.EngineMessage], bytes] = field(default_factory=dict)


class Received(NamedTuple):
    """A client's message, None if it is invalid, and the frame that it came in."""

    peer: bytes
    message: wire.ClientMessage | None
    frame: bytes


class Front:
    """The sockets, and the messages in and out of them. From other machines come paired ones, at a `team`'s door its
    users. Raises CannotListen if libzmq is too old."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path, *, team: bool = False) -> None:
        if zmq.zmq_version_info() < LIBZMQ:
            oldest = ".".join(map(str, LIBZMQ))
            raise CannotListen(
                f"libzmq {zmq.zmq_version()} is too old; install pyzmq with libzmq {oldest} or a later one."
            )
        self._context = context
        self._path = path
        self._backlogs: dict[bytes, _Backlog] = {}
        self.guests = TeamUsers() if team else PairedMachines()
        self._gate = Gate(context, self.guests.admits, self.guests.unknown)
        self._doors: list[zmq.Socket[bytes]] = []
        self._next = 0  # the socket to read first
        self.user = ""  # the key of the machine that the message received last came from; empty for this machine
        admission.listen(self._add(), path)
        self._bound = path.lstat()

    def __repr__(self) -> str:
        return f"<Front {len(self._doors)} sockets, {len(self._backlogs)} slow clients>"

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The sockets to poll for input."""
        return [self._gate.socket, *self._doors]

    def listen(self, address: str, keys: Keys) -> None:
        """Listen for paired machines at one address. Raises CannotListen, also if a stranger is admitted or if that
        cannot be told."""
        endpoint = f"tcp://{pairing.own_address(address)}"
        door = self._add()
        admission.guard(door, REMOTE)
        door.setsockopt(zmq.IPV6, int(address.startswith("[")))
        door.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        door.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        endpoints.prove(door, keys)
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
        self.user = str(frames[0].get("User-Id")) if door and frames else ""
        if len(frames) != 1:
            return Received(peer, None, b"")
        return Received(peer, self._read(door, frames[0]), frames[0].bytes)

    def send(self, peer: bytes, message: wire.EngineMessage) -> None:
        """Send now, or once the client reads again. A client that is gone is no error: its lease will end."""
        about = message.job if isinstance(message, wire.Locked | wire.Done | wire.Failed | wire.Busy) else type(message)
        self.relay(peer, about, wire.encode(message))

    def relay(self, peer: bytes, about: str | type[wire.EngineMessage], frame: bytes) -> None:
        """Send an encoded message. While the client does not read, keep only the newest frame `about` each job."""
        if peer not in self._backlogs and self._sent(peer, frame):
            return
        backlog = self._backlogs.setdefault(peer, _Backlog())
        backlog.frames.pop(about, None)
        backlog.frames[about] = frame

    def flush(self, now: float) -> list[bytes]:
        """Retry the kept frames. Returns the clients that have been slow for too long."""
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
        """Unlink the socket, unless another engine has put its own there, and send the last answers."""
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
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # report a client that is gone or slow, never drop silently
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        socket.setsockopt(zmq.SNDHWM, 256)
        socket.setsockopt(zmq.RCVHWM, 256)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        self._doors.append(socket)
        return socket

    def _arrived(self) -> tuple[int, list[zmq.Frame]] | None:
        """The next frames, from each socket in turn, so that a flood at one does not delay the other."""
        for _ in self._doors:
            door, self._next = self._next, (self._next + 1) % len(self._doors)
            with contextlib.suppress(zmq.Again):
                return door, self._doors[door].recv_multipart(zmq.NOBLOCK, copy=False)
        return None

    def _read(self, door: int, frame: zmq.Frame) -> wire.ClientMessage | None:
        """Decode a message. Another machine may not stop the engine; one that is no longer paired only leaves."""
        if door and not self.guests.admits(str(frame.get("User-Id"))):
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
