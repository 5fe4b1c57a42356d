"""A language server for one client on a loopback port, for editors that cannot use pipes. Never the default.

A client must first send the token that we print on stdout. The first one that does is served; all other connections
(web pages, scanners, other users of the machine) are closed without an answer.
"""

import asyncio
import hmac
import json
import secrets
import socket
from contextlib import closing
from functools import partial

from caesura.server.lsp.transport import CHUNK, Server

HOST = "127.0.0.1"
TOKEN_BYTES = 32
GREETING_S = 5.0  # timeout of a connection's token
CLIENT_S = 60.0  # timeout of the client's connection
MAX_GUESTS = 16  # connections without a token yet; one more replaces the oldest
GRACE_S = 0.1  # for which a connection keeps its place; the next ones wait in the system's queue
RETRY_S = 0.1  # pause after a failed accept


class NoClient(Exception):
    """No client can be served; the message is a sentence for the user."""


def serve(server: Server, port: int) -> int:
    """Print host, port and token, wait for the client and serve it. Returns the exit code. Port 0 takes a free port."""
    token = secrets.token_hex(TOKEN_BYTES)
    with closing(asyncio.run(_client(port, token))) as client:
        client.setblocking(True)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server.serve(lambda: client.recv(CHUNK), client.sendall)


async def _client(port: int, token: str) -> socket.socket:
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise NoClient(f"Port {port} cannot be used: {error.strerror}. Omit it to use a free port.") from None
    with listener:  # closed once the client is known
        listener.setblocking(False)
        print(json.dumps({"host": HOST, "port": listener.getsockname()[1], "token": token}), flush=True)
        try:
            return await asyncio.wait_for(admit(listener, token), CLIENT_S)
        except TimeoutError:
            raise NoClient(f"No client connected within {CLIENT_S:g} seconds.") from None


async def admit(listener: socket.socket, token: str) -> socket.socket:
    """The first connection that sends the token and a line break. Each connection has its own timeout."""
    loop = asyncio.get_running_loop()
    admitted: asyncio.Future[socket.socket] = loop.create_future()
    guests: dict[asyncio.Task[None], float] = {}  # when each came, by the loop's clock; the oldest first

    async def greet(guest: socket.socket) -> None:
        if await _says(guest, f"{token}\n".encode()) and not admitted.done():
            admitted.set_result(guest)

    def gone(guest: socket.socket, task: asyncio.Task[None]) -> None:
        guests.pop(task, None)
        if not admitted.done() or admitted.cancelled() or admitted.result() is not guest:
            guest.close()

    async def listen() -> None:
        while True:
            if len(guests) >= MAX_GUESTS:
                await asyncio.sleep(next(iter(guests.values())) + GRACE_S - loop.time())
            try:
                guest, _ = await loop.sock_accept(listener)
            except OSError:  # this connection failed, or there are too many open files
                await asyncio.sleep(RETRY_S)
                continue
            guest.setblocking(False)
            if len(guests) >= MAX_GUESTS:
                oldest = next(iter(guests))
                del guests[oldest]
                oldest.cancel()
            task = asyncio.create_task(greet(guest))
            guests[task] = loop.time()
            task.add_done_callback(partial(gone, guest))
            await asyncio.sleep(0)  # read a token that has already arrived before the next accept

    listening = asyncio.create_task(listen())
    try:
        return await admitted
    finally:
        left = (listening, *guests)
        for task in left:
            task.cancel()
        await asyncio.wait(left)


async def _says(guest: socket.socket, greeting: bytes) -> bool:
    """True if `guest` sends `greeting`. Reads at most its length, and stops at the first line break, as HTTP's."""
    said = b""
    try:
        async with asyncio.timeout(GREETING_S):
            while len(said) < len(greeting) and b"\n" not in said:
                more = await asyncio.get_running_loop().sock_recv(guest, len(greeting) - len(said))
                if not more:
                    return False
                said += more
    except OSError:  # TimeoutError too
        return False
    return hmac.compare_digest(said, greeting)
