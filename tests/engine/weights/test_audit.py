"""That a call to another machine would be noticed, whichever process of the suite makes it."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

CALL = "import socket; s = socket.socket(); s.settimeout(0.1); s.connect_ex(('192.0.2.1', 9))"
ASK = "import socket\ntry: socket.getaddrinfo('example.invalid', 9)\nexcept OSError: pass"
SEND = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'.', ('192.0.2.1', 9))"
SEND_MESSAGE = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'.'], [], 0, ('192.0.2.1', 9))"
ZMQ = (
    "import os, time, zmq; s = zmq.Context().socket(zmq.DEALER); s.linger = 0; s.connect('tcp://192.0.2.1:9')\n"
    "while not os.path.exists(os.environ['CAESURA_TEST_CONNECTIONS']): time.sleep(0.01)"
)
LOCAL = "import socket as s; to = s.create_server(('localhost', 0)); s.create_connection(to.getsockname())"
NODE = "require('net').connect(9, '192.0.2.1').on('error', () => 0); setTimeout(process.exit, 100)"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where calls are written to in the place of the suite's own record."""
    monkeypatch.setenv("CAESURA_TEST_CONNECTIONS", str(tmp_path / "record"))
    return tmp_path / "record"


def test_a_call_of_this_process_is_noticed(record: Path) -> None:
    with socket.socket() as caller:
        caller.settimeout(0.1)
        caller.connect_ex(("192.0.2.1", 9))
    assert "socket.connect 192.0.2.1" in record.read_text()


@pytest.mark.parametrize("context", [zmq.Context, zmq.asyncio.Context])
@pytest.mark.parametrize(
    ("method", "address", "host"),
    [
        ("connect", "tcp://192.0.2.1:9", "192.0.2.1"),
        ("connect", "tcp://127.0.0.1:0;192.0.2.1:9", "192.0.2.1"),
        ("connect", "tcp://[2001:db8::1]:9", "2001:db8::1"),
        ("bind", "tcp://0.0.0.0:*", "0.0.0.0"),
        ("bind", "tcp://*:*", "*"),
    ],
)
async def test_what_libzmq_is_told_in_this_process_is_noticed(
    record: Path, context: type[zmq.Context[zmq.Socket[bytes]]], method: str, address: str, host: str
) -> None:
    with context() as found, found.socket(zmq.DEALER) as caller:
        caller.linger, caller.ipv6 = 0, True
        getattr(caller, method)(address)
    assert record.read_text().startswith(f"zmq.{method} {host} by the suite: tests/engine/weights/test_audit.py::")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are heard by LD_PRELOAD")
@pytest.mark.parametrize("options", [(), ("-P",)])  # -P: as the engine is started
@pytest.mark.parametrize("program", [CALL, ASK, SEND, SEND_MESSAGE, ZMQ])
def test_a_call_of_a_process_that_a_test_starts_is_noticed(
    record: Path, program: str, options: tuple[str, ...]
) -> None:
    subprocess.run([sys.executable, *options, "-c", program], check=True, env=dict(os.environ), timeout=20)
    assert ("example.invalid" if program == ASK else "192.0.2.1") in record.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are heard by LD_PRELOAD")
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_a_call_of_node_is_noticed(record: Path) -> None:
    subprocess.run(["node", "-e", NODE], check=True, env=dict(os.environ), timeout=20)
    assert "192.0.2.1 by node" in record.read_text()


def test_calls_on_this_machine_are_none(record: Path, tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "127.0.0.2"):
        with socket.create_server((host, 0)) as server, socket.create_connection(server.getsockname()):
            pass
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as caller:
        server.bind(str(tmp_path / "s"))
        server.listen()
        caller.connect(str(tmp_path / "s"))
    subprocess.run([sys.executable, "-c", LOCAL], check=True, env=dict(os.environ))
    with zmq.Context() as context, context.socket(zmq.DEALER) as caller:
        caller.linger, caller.ipv6 = 0, True
        for address in ("tcp://127.0.0.1:*", "tcp://[::1]:9", f"ipc://{tmp_path}/x", "inproc://x", "tcp://localhost:9"):
            (caller.bind if "*" in address else caller.connect)(address)
    assert not record.exists()
