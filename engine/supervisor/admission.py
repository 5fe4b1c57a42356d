"""Who may connect: libzmq announces each connection here, by ZAP (ZeroMQ RFC 27), before it reads its first message.

Through the sockets of this machine, those of clients and of the worker, a process of our own user; through the one for
other machines whoever proves, by CURVE, to hold a key that was paired. Everybody else is refused, also when nobody
answers here.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from caesura import doors
from caesura.doors import Door, new_keys

log = logging.getLogger("caesura.engine")

LOCAL, REMOTE = "local", "remote"  # ZAP's domains: which door
ADDRESS = "inproc://zeromq.zap.01"
TRIAL_S = 2.5  # while nobody is heard: less than it takes a client to find that the engine hangs
BURST = 64  # who waits is judged in turns, between which the engine does its work
MAX_NAMED = 16  # keys that are named in the log: a stranger can make any number

_OVER = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)  # not FAILED_NO_DETAIL: somebody hung up, for lack of time perhaps, and is asked again


def guard(socket: zmq.Socket[bytes], domain: str) -> None:
    """Before `socket` is bound: nobody gets in unasked. Without `ZAP_ENFORCE_DOMAIN` libzmq would let everybody in as
    soon as nothing answers at its context's gate."""
    socket.setsockopt_string(zmq.ZAP_DOMAIN, domain)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def listen(socket: zmq.Socket[bytes], path: Path) -> None:
    """Bind `socket` where processes of our own user find it by `path`, and nobody else gets in."""
    guest = None if doors.UNIX else new_keys()
    guard(socket, f"{LOCAL} {guest.public.hex()}" if guest else LOCAL)  # behind a port the domain names the key
    doors.listen(socket, path, guest)


class Gate:
    """`admits` says whether a public key, in hexadecimal digits, is paired."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], admits: Callable[[str], bool]) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ADDRESS)
        self._context = context
        self._admits = admits
        self._named: set[str] = set()

    def __repr__(self) -> str:
        return f"<Gate {len(self._named)} refused>"

    def answer(self) -> None:
        """Judge those who wait. A message's `User-Id` is then the key that its sender has proved."""
        for _ in range(BURST):
            if not self.socket.poll(0):
                return
            version, request, domain, address, _, mechanism, *credentials = self.socket.recv_multipart()
            user = self._judge(domain.decode(), address.decode(), mechanism, credentials)
            code = b"400" if user is None else b"200"
            self.socket.send_multipart([version, request, code, b"", (user or "").encode(), b""])

    def refuses_strangers(self, endpoint: str, server: bytes) -> bool | None:
        """Knock at `endpoint`, whose public key is `server`, with a key that nobody has paired. None where nobody says
        yes or no within TRIAL_S."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        stranger = new_keys()
        self._named.add(stranger.public.hex())  # no news
        monitor = socket.get_monitor_socket(_OVER)
        try:
            doors.connect(socket, Door(endpoint, server, stranger))
            deadline = time.monotonic() + TRIAL_S
            while time.monotonic() < deadline:
                self.answer()
                if monitor.poll(5):
                    return bool(recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH)
            return None
        finally:
            socket.disable_monitor()
            socket.close()

    def close(self) -> None:
        self.socket.close(0)

    def _judge(self, domain: str, address: str, mechanism: bytes, credentials: list[bytes]) -> str | None:
        """The name of who may come in, or None."""
        door, _, guest = domain.partition(" ")
        if door == LOCAL and guest:
            return "own" if mechanism == b"CURVE" and credentials == [bytes.fromhex(guest)] else None
        if sys.platform != "win32" and door == LOCAL and mechanism == b"NULL":
            _, _, ids = address.partition(":")  # localhost:uid:gid:pid, as the kernel knows the other end
            return "own" if ids.partition(":")[0] == str(os.getuid()) else None
        if domain == REMOTE and mechanism == b"CURVE" and len(credentials) == 1:
            key = credentials[0].hex()
            if self._admits(key):
                return key
            if key not in self._named and len(self._named) < MAX_NAMED:
                self._named.add(key)
                log.warning("%s was refused. If it is your other machine: caesura pair allow %s", address, key)
        return None
