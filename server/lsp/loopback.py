"""A language server for one client on a port of this machine, for editors that cannot keep a pipe. Never by default.

Whoever connects has to say the token first, which stands on our stdout. The first who does is served, and nobody else
is from then on. All others are closed without a word: pages of a browser, scanners, other users of the machine.
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
GREETING_S = 5.0  # to say the token in
CLIENT_S = 60.0  # for the client to come
MAX_GUESTS = 16  # that have not said it yet; one more takes the place of the oldest
RETRY_S = 0.1  # after a connection that could not be taken


class NoClient(Exception):
    """The message is a sentence for the user."""


def serve(server: Server, port: int) -> int:
    """Say on stdout how to connect, wait for the client, serve it; the exit code. Port 0 takes a free one."""
    token = secrets.token_hex(TOKEN_BYTES)
    with closing(asyncio.run(_client(port, token))) as client:
        client.setblocking(True)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server.serve(lambda: client.recv(CHUNK), client.sendall)


async def _client(port: int, token: str) -> socket.socket:
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise NoClient(f"Port {port} cannot be used: {error.strerror}. Leave it out for one that is free.") from None
    with listener:  # it closes as soon as the client is known
        listener.setblocking(False)
        print(json.dumps({"host": HOST, "port": listener.getsockname()[1], "token": token}), flush=True)
        try:
            return await asyncio.wait_for(admit(listener, token), CLIENT_S)
        except TimeoutError:
            raise NoClient(f"No client came within {CLIENT_S:g} seconds.") from None


async def admit(listener: socket.socket, token: str) -> socket.socket:
    """The first connection that begins with the token and a line break. Each has its own time to say so."""
    loop = asyncio.get_running_loop()
    admitted: asyncio.Future[socket.socket] = loop.create_future()
    guests: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def greet(guest: socket.socket) -> None:
        if await _says(guest, f"{token}\n".encode()) and not admitted.done():
            admitted.set_result(guest)

    def gone(guest: socket.socket, task: asyncio.Task[None]) -> None:
        guests.pop(task, None)
        if not admitted.done() or admitted.cancelled() or admitted.result() is not guest:
            guest.close()

    async def listen() -> None:
        while True:
            try:
                guest, _ = await loop.sock_accept(listener)
            except OSError:  # of that connection, or there are too many open files
                await asyncio.sleep(RETRY_S)
                continue
            guest.setblocking(False)
            if len(guests) >= MAX_GUESTS:
                oldest = next(iter(guests))
                del guests[oldest]
                oldest.cancel()
            task = asyncio.create_task(greet(guest))
            guests[task] = None
            task.add_done_callback(partial(gone, guest))
            await asyncio.sleep(0)  # whoever has said it already is heard before the next one comes

    listening = asyncio.create_task(listen())
    try:
        return await admitted
    finally:
        left = (listening, *guests)
        for task in left:
            task.cancel()
        await asyncio.wait(left)


async def _says(guest: socket.socket, greeting: bytes) -> bool:
    """Reads no byte more than the greeting has, and stops at the first line break: HTTP has one early."""
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
