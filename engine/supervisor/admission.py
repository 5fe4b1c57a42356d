"""Admission: libzmq asks here about each connection, by ZAP (ZeroMQ RFC 27), before it reads the first message.

The sockets of this machine, for clients and for the worker, admit processes of our own user; the socket for other
machines admits those that prove, by CURVE, that they hold a key that was paired or invited. Everything else is refused,
even when nothing answers here.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from caesura.ipc import endpoints
from caesura.ipc.endpoints import Endpoint
from caesura.ipc.keys import new_keys

log = logging.getLogger("caesura.engine")

LOCAL, REMOTE = "local", "remote"  # ZAP's domains: which door
ADDRESS = "inproc://zeromq.zap.01"
TRIAL_S = 2.5  # blocks the supervisor: less than a client waits before it takes the engine for hung
BURST = 64  # connections judged in one turn of the supervisor
MAX_NAMED = 16  # refused keys named in the log: a stranger can generate any number

_OVER = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)  # not FAILED_NO_DETAIL: the other end hung up, perhaps for lack of time; libzmq connects again


def guard(socket: zmq.Socket[bytes], domain: str) -> None:
    """Require admission, before `socket` is bound. Without `ZAP_ENFORCE_DOMAIN` libzmq admits everybody while nothing
    answers ZAP in its context."""
    socket.setsockopt_string(zmq.ZAP_DOMAIN, domain)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def listen(socket: zmq.Socket[bytes], path: Path) -> None:
    """Bind `socket` at `path` for processes of our own user alone."""
    guest = None if endpoints.UNIX else new_keys()
    guard(socket, f"{LOCAL} {guest.public.hex()}" if guest else LOCAL)  # a port's domain names the key
    endpoints.listen(socket, path, guest)


class Gate:
    """`admits` says whether a public key, in hexadecimal digits, may come in. `unknown` is the log's advice on one that
    may not, and ends before that key."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], admits: Callable[[str], bool], unknown: str = ""
    ) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ADDRESS)
        self._context = context
        self._admits = admits
        self._unknown = unknown
        self._named: set[str] = set()

    def __repr__(self) -> str:
        return f"<Gate {len(self._named)} refused>"

    def answer(self) -> None:
        """Judge the connections that wait. From then on a message's `User-Id` is the key that its sender has proved."""
        for _ in range(BURST):
            if not self.socket.poll(0):
                return
            version, request, domain, address, _, mechanism, *credentials = self.socket.recv_multipart()
            user = self._judge(domain.decode(), address.decode(), mechanism, credentials)
            code = b"400" if user is None else b"200"
            self.socket.send_multipart([version, request, code, b"", (user or "").encode(), b""])

    def refuses_strangers(self, endpoint: str, server: bytes) -> bool | None:
        """Connect to `endpoint`, whose public key is `server`, with a key that is not paired. None without an answer
        within TRIAL_S."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        stranger = new_keys()
        self._named.add(stranger.public.hex())  # keep it out of the log
        monitor = socket.get_monitor_socket(_OVER)
        try:
            endpoints.connect(socket, Endpoint(endpoint, server, stranger))
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
        """The user name of an admitted connection, or None."""
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
                log.warning("%s was refused. %s %s", address, self._unknown, key)
        return None
