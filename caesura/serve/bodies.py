"""The parts that both endpoints share: decoding, stop strings, server-sent events."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from caesura.serve.errors import described, status_and_sentence
from caesura.serve.filling import FillAnswer
from caesura.serve.hosting import RequestRefused, Stream

_StopString = Annotated[str, Meta(min_length=1, max_length=256)]
StopField = _StopString | Annotated[list[_StopString], Meta(max_length=32)]
Body = TypeVar("Body")


def decoded(body: bytes, type: type[Body]) -> Body:
    """A field that is null counts as absent, as in llama-server and OpenAI's API. Raises RequestRefused."""
    try:
        return msgspec.convert(_given(msgspec.json.decode(body)), type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, f"caesura serve does not understand this request: {error}."
        ) from error


def _given(value: object) -> object:
    """`value` without the fields that are null, at any depth."""
    match value:
        case dict():
            return {name: _given(one) for name, one in value.items() if one is not None}
        case list():
            return [_given(one) for one in value]
    return value


def stops(stop: str | list[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


async def last(found: AsyncGenerator[str | FillAnswer, None]) -> FillAnswer:
    items = [item async for item in found]
    assert isinstance(items[-1], FillAnswer), "a generator without an answer raises an error"
    return items[-1]


async def streamed(values: AsyncGenerator[Mapping[str, object], None], end: bytes = b"") -> Stream:
    """Server-sent events, then `end`. An error before the first event is raised and gets its own status; a later one is
    the last event."""
    pieces = _events(values, end)
    first = await anext(pieces)
    return Stream(pieces, "text/event-stream", first)


async def _events(values: AsyncGenerator[Mapping[str, object], None], end: bytes) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(values):
        yield _event(await anext(values))
        try:
            async for value in values:
                yield _event(value)
            yield end
        except Exception as error:  # too late for a status
            yield _event(described(*status_and_sentence(error)))


def _event(value: Mapping[str, object]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
