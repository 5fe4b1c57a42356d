"""The socket that clients connect to: typed messages in and out, and one slow client never holds up the rest."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from caesura import wire

MAX_BACKLOG = 64  # events kept for a client that does not read
MAX_SLOW_S = 5.0


@dataclass
class _Backlog:
    """What a slow client has not taken yet: the newest event of each job, for they are cumulative, and the newest of
    each other kind of message."""

    since: float
    frames: dict[str | type[wire.EngineMessage], bytes] = field(default_factory=dict)


class Front:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> None:
        self.dropped = 0  # messages that nobody could have meant
        self._path = path
        self._backlogs: dict[bytes, _Backlog] = {}
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # say that a client is gone or slow, do not drop in silence
        self.socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        self.socket.setsockopt(zmq.SNDHWM, 256)
        self.socket.setsockopt(zmq.RCVHWM, 256)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        self.socket.bind(f"ipc://{path}")
        self._bound = path.lstat()

    def receive(self) -> tuple[bytes, wire.ClientMessage] | None:
        """The next well-formed message, if one has arrived; the others are counted."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(frames) == 2:
                try:
                    return frames[0], wire.decode_client(frames[1])
                except msgspec.DecodeError:
                    pass
            self.dropped += 1

    def send(self, peer: bytes, message: wire.EngineMessage) -> None:
        """Send now, or as soon as the client reads again. A client that is gone is no error: its lease will end."""
        frame = wire.encode(message)
        if peer not in self._backlogs and self._sent(peer, frame):
            return
        backlog = self._backlogs.setdefault(peer, _Backlog(time.monotonic()))
        key = message.job if isinstance(message, wire.Locked | wire.Done | wire.Failed | wire.Busy) else type(message)
        backlog.frames.pop(key, None)
        backlog.frames[key] = frame

    def flush(self, now: float) -> list[bytes]:
        """Send what was kept. Returns the clients that have been slow for too long."""
        stuck = []
        for peer, backlog in list(self._backlogs.items()):
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
        self.socket.close(linger=200)

    def _sent(self, peer: bytes, frame: bytes) -> bool:
        try:
            self.socket.send_multipart([peer, frame], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        return True
