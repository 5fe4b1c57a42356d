"""Machines of a user, each a home on this one, and how one reaches another."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils import z85

from caesura import cli
from caesura.client.shared import Engine
from caesura.ipc import pairing
from caesura.ipc.keys import Keys, own_keys


@dataclass(frozen=True)
class Machine:
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        folders = {"CAESURA_RUNTIME": "run", "XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state"}
        return {name: str(self.home / folder) for name, folder in folders.items()} | {"XDG_DATA_HOME": str(self.home)}

    @property
    def keys(self) -> Path:
        return self.home / "config" / "caesura" / "keys"

    @property
    def recorded(self) -> bytes:
        """Every job that its engine's model got."""
        path = self.home / "run" / "recorded"
        return path.read_bytes() if path.exists() else b""

    def at(self) -> Any:
        """Be this machine inside `with`."""
        patch = pytest.MonkeyPatch.context()

        class Being:
            def __enter__(self) -> None:
                found = patch.__enter__()
                for name, value in machine.environment.items():
                    found.setenv(name, value)

            def __exit__(self, *error: Any) -> None:
                patch.__exit__(*error)

        machine = self
        return Being()

    def run(self, *arguments: str) -> int:
        with self.at():
            return cli.main(arguments)

    def key(self) -> str:
        with self.at():
            return own_keys().public.hex()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as found:
        return found.connect_ex((host, int(port))) == 0


def client(name: str = "test") -> Engine:
    (paired,) = pairing.pairs().engines
    return Engine(client=name, spawn=False, remote=paired)


def dealer(address: str, server: str = "", keys: Keys | None = None) -> zmq.Socket[bytes]:
    found: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    found.setsockopt(zmq.LINGER, 0)
    if server:
        public, secret = (keys.public, keys.secret) if keys else map(z85.decode, zmq.curve_keypair())
        found.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(server))
        found.setsockopt(zmq.CURVE_PUBLICKEY, public)
        found.setsockopt(zmq.CURVE_SECRETKEY, secret)
    found.connect(address if "://" in address else f"tcp://{address}")
    return found
