"""Whoever calls another machine, or asks a name server for one, is written down: processes that the suite starts by
calls.c, which is preloaded into them, and the suite's own, since it runs already, by Python's audit events and at the
two methods by which libzmq is given an address. Where there is no Linux, only this process is heard.
"""

import ipaddress
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

RECORD = "CAESURA_TEST_CONNECTIONS"  # the file that they are written to
OWN = {"", "localhost", os.uname().nodename}


def listen() -> Path:
    """From now on. Gives the record, which is there once somebody has called. The suite's processes share one."""
    if RECORD not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="caesura-calls-"))
        folder.chmod(0o755)  # the loader of another user's process reads it too
        os.environ[RECORD] = str(folder / "connections")
        if sys.platform == "linux":
            preload(Path(__file__).with_suffix(".c"), folder)
    sys.addaudithook(_heard)
    for method in ("connect", "bind"):
        setattr(zmq.Socket, method, _through(getattr(zmq.Socket, method)))
    return Path(os.environ[RECORD])


def unheard() -> dict[str, str]:
    """The environment of a program of others that calls of itself: an installer, a browser."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def preload(source: Path, folder: Path) -> None:
    """Into the processes that are started from now on. `folder` keeps the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("The suite preloads libraries of its own into what it starts: install a C compiler, gcc say.")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    os.environ["LD_PRELOAD"] = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        host = _other(arguments[1])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = _other((arguments[0],))
    else:
        return
    _write(event, host)


def _through(real: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a socket of libzmq, which asyncio's sockets have from it."""

    def method(self: zmq.Socket[Any], address: str) -> Any:
        transport, _, rest = address.partition("://")
        if transport not in ("inproc", "ipc"):
            host = rest.rpartition(";")[2].rpartition(":")[0].strip("[]")  # behind its own end, which may be given
            _write(f"zmq.{real.__name__}", _other((host,)))
        return real(self, address)

    return method


def _write(event: str, host: str) -> None:
    if host and (record := os.environ.get(RECORD)):
        with Path(record).open("a") as file:
            file.write(f"{event} {host} by the suite: {os.environ.get('PYTEST_CURRENT_TEST')}\n")


def _other(address: object) -> str:
    """The other machine that an address names, or nothing. Paths of sockets are this one's."""
    host = address[0] if isinstance(address, tuple) and address else None
    host = host.decode(errors="replace") if isinstance(host, bytes) else host
    if not isinstance(host, str) or host in OWN:
        return ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:  # a name
        return host
