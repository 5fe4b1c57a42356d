"""What both endpoints read and write: JSON, stop strings, server-sent events."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from starlette.responses import Response

from caesura.client.backend import EngineError
from caesura.serve.errors import described, status_of
from caesura.serve.filling import FillAnswer
from caesura.serve.hosting import RequestRefused, Stream

_StopString = Annotated[str, Meta(min_length=1, max_length=256)]
StopField = _StopString | Annotated[list[_StopString], Meta(max_length=32)] | None
Body = TypeVar("Body")


def decoded(body: bytes, type: type[Body]) -> Body:
    """Raises RequestRefused."""
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, f"This is not a request that caesura serve knows: {error}."
        ) from error


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def last(found: AsyncGenerator[str | FillAnswer, None]) -> FillAnswer:
    items = [item async for item in found]
    assert isinstance(items[-1], FillAnswer), "the last item is one, or an error is raised"
    return items[-1]


async def streamed(values: AsyncGenerator[Mapping[str, object], None], end: bytes = b"") -> Stream:
    """Server-sent events. An error before the first one is raised, for a status of its own; a later one is an event."""
    first = await anext(values)

    async def events() -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(values):
            yield _event(first)
            try:
                async for value in values:
                    yield _event(value)
            except EngineError as error:
                yield _event(described(status_of(error), str(error)))
            yield end

    return Stream(events(), "text/event-stream")


def _event(value: Mapping[str, object]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
