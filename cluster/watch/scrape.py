"""The HTTP port of a door, `/metrics` and `/health`: in a thread of its own, so that the door's loop waits for nobody.

All who can reach it may read: the figures are of nobody in particular.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from caesura.cluster.watch.metrics import Metrics
from caesura.engine.supervisor.clients import CannotListen
from caesura.serve import hosting

PAUSE_S = 0.02  # between two answers, however many ask: they take time from the door's loop
END_S = 2.0


def application(metrics: Metrics) -> Starlette:
    turn = asyncio.Lock()

    def paced(answer: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(_: Request) -> Response:
            async with turn:
                await asyncio.sleep(PAUSE_S)
                return answer()

        return answered

    def figures() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def health() -> Response:
        trouble = metrics.trouble
        return PlainTextResponse(trouble or "ok", HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK)

    return Starlette(routes=[Route("/metrics", paced(figures)), Route("/health", paced(health))])


@contextlib.contextmanager
def answering(metrics: Metrics, address: str) -> Iterator[None]:
    """Answer at `address` inside of the context. Raises CannotListen."""
    listener = _bound(address)
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with hosting.serving(listener, application(metrics), "the door"):
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="scrape", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(END_S)


def _bound(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except OSError as error:
        raise CannotListen(f"Metrics cannot be answered at {address}: {error.strerror}.") from error
