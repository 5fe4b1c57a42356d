"""Where processes meet: a Unix socket of the private runtime folder, or a port where both ends prove a key (CURVE).

A port is what paired machines have. Processes of one user have one of 127.0.0.1, which any user can reach, where libzmq
knows no Unix sockets (Windows) or perhaps not who is at the other end of one (macOS). There a file in the place of the
socket says which port it is, and has a key for the other end: who can read it is our own user.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from caesura import paths

UNIX = zmq.has("ipc") and sys.platform == "linux"


@dataclass(frozen=True)
class Keys:
    """One end's pair of CURVE keys, 32 bytes each. Only `public` is for others."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class Door:
    """Where the other end listens. Behind a port it has to prove that it holds `server`, a public key of 32 bytes, and
    we that we hold ours."""

    endpoint: str
    server: bytes = b""
    keys: Keys | None = None


class _Port(msgspec.Struct, frozen=True):
    """The file in the place of a Unix socket."""

    port: int
    server: bytes
    public: bytes
    secret: bytes


def new_keys() -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(z85.decode(public), z85.decode(secret))


def listen(socket: zmq.Socket[bytes], path: Path, guest: Keys | None) -> None:
    """Bind `socket` for processes of our own user, who find it by `path`; behind a port as the `guest`."""
    if guest is None:
        socket.bind(f"ipc://{path}")
        return
    ours = new_keys()
    prove(socket, ours)
    socket.bind("tcp://127.0.0.1:*")
    port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    paths.write(path, msgspec.json.encode(_Port(port, ours.public, guest.public, guest.secret)))


def at(path: Path) -> Door:
    """The door that was opened by `listen`. Raises OSError where there is none, and msgspec.DecodeError for a
    damaged one."""
    if UNIX:
        return Door(f"ipc://{path}")
    found = msgspec.json.decode(path.read_bytes(), type=_Port)
    return Door(f"tcp://127.0.0.1:{found.port}", found.server, Keys(found.public, found.secret))


def prove(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Whoever comes to `socket` learns by these keys who listens, and has to prove a key too."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def connect(socket: zmq.Socket[Any], door: Door) -> None:
    if door.keys:
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.CURVE_SERVERKEY, door.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, door.keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, door.keys.secret)
    socket.connect(door.endpoint)
