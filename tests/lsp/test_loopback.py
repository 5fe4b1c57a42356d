"""`caesura lsp --tcp`: one client, the one with the token, and nobody else."""

import asyncio
import contextlib
import errno
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from caesura.server.lsp import loopback

TOKEN = "a" * 64
SOON_S = 20.0


class Listening:
    """A server's process, and what it has said on stdout."""

    def __init__(self, process: asyncio.subprocess.Process, said: dict[str, Any]) -> None:
        self.process = process
        self.port: int = said["port"]
        self.token: str = said["token"]
        self.host: str = said["host"]

    async def connect(self, greeting: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(greeting)
        return reader, writer


@asynccontextmanager
async def listening(*arguments: str) -> AsyncIterator[Listening]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "caesura", "lsp", "--tcp", *arguments), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout
        yield Listening(process, json.loads(await asyncio.wait_for(process.stdout.readline(), 20)))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def message(**content: Any) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **content}).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


HELLO = message(id=1, method="initialize", params={"processId": None, "capabilities": {}})


async def test_one_client_with_the_token_is_served_while_strangers_get_nothing() -> None:
    async with listening() as server:
        assert server.host == "127.0.0.1"
        assert len(server.token) == 64
        for greeting in (
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HELLO,
            b"b" * 64 + b"\n" + HELLO,
            server.token.encode() + b"!" + HELLO,
            HELLO,
        ):
            reader, writer = await server.connect(greeting)
            assert await asyncio.wait_for(said(reader), 20) == b""
            writer.close()
        reader, writer = await server.connect(f"{server.token}\n".encode() + HELLO)
        assert b"Content-Length" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        with pytest.raises(ConnectionRefusedError):
            await server.connect(f"{server.token}\n".encode())
        writer.write(message(id=2, method="shutdown") + message(method="exit"))
        assert await asyncio.wait_for(server.process.wait(), 20) == 0
        assert server.process.stdout
        assert await server.process.stdout.read() == b""


async def said(reader: asyncio.StreamReader) -> bytes:
    """What comes before the other side hangs up, however it does."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def hung_up(reader: asyncio.StreamReader) -> bool:
    """Soon, and without a word."""
    try:
        return await asyncio.wait_for(said(reader), SOON_S) == b""
    except TimeoutError:
        return False


async def test_it_ends_with_its_client_at_the_port_that_the_editor_chose() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with listening(str(port)) as server:
        assert server.port == port
        _, writer = await server.connect(f"{server.token}\n".encode() + HELLO)
        writer.close()
        assert await asyncio.wait_for(server.process.wait(), 20) == 1


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = sys.executable, "-P", "-m", "caesura", "lsp", "--tcp", str(taken.getsockname()[1])
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, error = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out) == (1, b"")
    assert error.startswith(b"caesura: Port ")
    assert error.count(b"\n") == 1


@pytest.fixture
def listener() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


async def test_who_says_nothing_keeps_nobody_waiting_and_is_closed(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "GREETING_S", 0.1)
    admitting = asyncio.create_task(loopback.admit(listener, TOKEN))
    address = listener.getsockname()
    silent, _ = await asyncio.open_connection(*address)
    slow, writer = await asyncio.open_connection(*address)
    writer.write(TOKEN[:63].encode())
    assert await hung_up(silent)
    assert await hung_up(slow)
    assert not admitting.done()
    _, writer = await asyncio.open_connection(*address)
    writer.write(f"{TOKEN}\n".encode())
    with await asyncio.wait_for(admitting, 20) as client:
        assert client.getsockname() == address


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "MAX_GUESTS", 2)
    monkeypatch.setattr(loopback, "GRACE_S", 0.01)


async def test_a_crowd_of_silent_ones_is_bounded_and_keeps_nobody_out(listener: socket.socket, few: None) -> None:
    admitting = asyncio.create_task(loopback.admit(listener, TOKEN))
    crowd = [await asyncio.open_connection(*listener.getsockname()) for _ in range(20)]
    for stranger, _ in crowd[:-2]:
        assert await hung_up(stranger)
    for stranger, _ in crowd[-2:]:
        with pytest.raises(TimeoutError):  # nobody has hung up
            await asyncio.wait_for(said(stranger), 0.1)
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"{TOKEN}\n".encode())
    (await asyncio.wait_for(admitting, 20)).close()


async def test_a_crowd_that_comes_back_at_once_keeps_no_slow_editor_out(listener: socket.socket) -> None:
    async def stranger() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                await reader.read()
                writer.close()

    admitting = asyncio.create_task(loopback.admit(listener, TOKEN))
    crowd = [asyncio.create_task(stranger()) for _ in range(64)]
    _, writer = await asyncio.open_connection(*listener.getsockname())
    await asyncio.sleep(0.02)  # as an editor may need to say its token
    writer.write(f"{TOKEN}\n".encode())
    (await asyncio.wait_for(admitting, 20)).close()
    for one in crowd:
        one.cancel()


async def test_whoever_has_said_the_token_is_heard_before_a_crowd_behind_it(listener: socket.socket, few: None) -> None:
    with socket.create_connection(listener.getsockname()) as client:
        client.sendall(f"{TOKEN}\n".encode())
        crowd = [socket.create_connection(listener.getsockname()) for _ in range(20)]  # all wait to be accepted
        with await asyncio.wait_for(loopback.admit(listener, TOKEN), 20) as admitted:
            assert admitted.getpeername() == client.getsockname()
    for stranger in crowd:
        stranger.close()


async def test_when_the_client_is_there_all_others_are_closed(
    listener: socket.socket, recwarn: pytest.WarningsRecorder
) -> None:
    admitting = asyncio.create_task(loopback.admit(listener, TOKEN))
    silent, _ = await asyncio.open_connection(*listener.getsockname())
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"{TOKEN}\n".encode())
    with await asyncio.wait_for(admitting, 20):
        assert await asyncio.wait_for(said(silent), 20) == b""
    assert f"laddr={listener.getsockname()}" not in " ".join(str(warning.message) for warning in recwarn)  # unclosed


async def test_a_connection_that_cannot_be_taken_ends_nothing(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    accept, faults = loop.sock_accept, iter([ConnectionAbortedError(), OSError(errno.EMFILE, "Too many open files")])

    async def faulty(listener: socket.socket) -> Any:
        if fault := next(faults, None):
            raise fault
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", faulty)
    admitting = asyncio.create_task(loopback.admit(listener, TOKEN))
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"{TOKEN}\n".encode())
    (await asyncio.wait_for(admitting, 20)).close()


async def test_nobody_comes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(loopback, "CLIENT_S", 0.05)
    with pytest.raises(loopback.NoClient, match="No client connected"):
        await loopback._client(0, TOKEN)
    assert json.loads(capsys.readouterr().out)["token"] == TOKEN
