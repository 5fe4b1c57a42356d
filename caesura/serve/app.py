"""`caesura serve`: its routes, its start and its end."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from caesura.client.backend import Backend
from caesura.client.shared import Engine
from caesura.serve import errors, guard, hosting
from caesura.serve.completions import completions
from caesura.serve.guard import TokenGuard
from caesura.serve.hosting import json_response
from caesura.serve.infill import infill


def application(engine: Backend) -> Starlette:
    """The routes without their guard."""

    def route(path: str, endpoint: Callable[[Backend, Request], Awaitable[Response]]) -> Route:
        async def answered(request: Request) -> Response:
            return await endpoint(engine, request)

        return Route(path, answered, methods=["POST"])

    async def models(_: Request) -> Response:
        model = {"id": engine.condition.model or "caesura", "object": "model", "created": 0, "owned_by": "caesura"}
        return json_response({"object": "list", "data": [model]})

    async def health(_: Request) -> Response:
        condition = engine.condition
        if condition.state == "ready":
            return json_response({"status": "ok"})
        return errors.failure(HTTPStatus.SERVICE_UNAVAILABLE, condition.message or "The engine is starting.")

    return Starlette(
        routes=[
            route("/v1/completions", completions),
            route("/infill", infill),
            Route("/v1/models", models),
            Route("/health", health),
        ],
        exception_handlers=dict.fromkeys(errors.KINDS, errors.answered),
    )


@contextlib.asynccontextmanager
async def listening(engine: Backend, token: str, port: int) -> AsyncIterator[int]:
    """Answer requests inside of the context, whose value is the port. `port` 0 chooses a free one."""
    with hosting.bound(port) as listener:
        found = listener.getsockname()[1]
        app = TokenGuard(application(engine), token, found)
        async with hosting.serving(listener, app, "caesura serve", app.knows):
            yield found


async def serve(port: int, model: str, device: str) -> None:
    """Answer requests until the process is interrupted."""
    ended = hosting.interruption()
    token = guard.token()
    engine = Engine(client="serve", model=model, device=device)
    try:
        await engine.start()
        async with listening(engine, token, port) as found:
            print(f"Caesura answers at http://{hosting.ADDRESS}:{found}: /v1/completions, /infill, /v1/models, /health")
            print(f"Its token is in {guard.token_file()}\nCtrl-C ends it.", flush=True)
            await ended.wait()
    finally:
        await engine.close()
