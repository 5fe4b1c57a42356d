"""The endpoints at which processes meet: a Unix socket in the private runtime folder, or a port where both ends prove a
key (CURVE).

Paired machines use a port. Processes of one user use a port of 127.0.0.1 where libzmq has no Unix sockets (Windows) or
may not know the peer's user (macOS). Any user can connect to that port, so a file at the socket's path holds its number
and a key for the other end: only our own user can read it.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from caesura import paths
from caesura.ipc.keys import Keys, new_keys

UNIX = zmq.has("ipc") and sys.platform == "linux"


@dataclass(frozen=True)
class Endpoint:
    """The address at which the other end listens. At a port, it proves that it holds `server`, a public key of 32
    bytes, and we prove that we hold ours."""

    address: str
    server: bytes = b""
    keys: Keys | None = None


class _Port(msgspec.Struct, frozen=True):
    """The file instead of a Unix socket."""

    port: int
    server: bytes
    public: bytes
    secret: bytes


def listen(socket: zmq.Socket[bytes], path: Path, guest: Keys | None) -> None:
    """Bind `socket` for processes of our own user, which find it by `path`. With `guest` keys it is a port, and only an
    end that holds them may connect."""
    if guest is None:
        socket.bind(f"ipc://{path}")
        return
    ours = new_keys()
    prove(socket, ours)
    socket.bind("tcp://127.0.0.1:*")
    port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    paths.write(path, msgspec.json.encode(_Port(port, ours.public, guest.public, guest.secret)))


def at(path: Path) -> Endpoint:
    """The endpoint that `listen` opened. Raises OSError if there is none, msgspec.DecodeError for a damaged file."""
    if UNIX:
        return Endpoint(f"ipc://{path}")
    found = msgspec.json.decode(path.read_bytes(), type=_Port)
    return Endpoint(f"tcp://127.0.0.1:{found.port}", found.server, Keys(found.public, found.secret))


def prove(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Make `socket` prove that it holds these keys, and ask each peer for a key."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def connect(socket: zmq.Socket[Any], endpoint: Endpoint) -> None:
    if endpoint.keys:
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.CURVE_SERVERKEY, endpoint.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, endpoint.keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, endpoint.keys.secret)
    socket.connect(endpoint.address)
