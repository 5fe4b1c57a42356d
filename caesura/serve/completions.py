"""`/v1/completions` as OpenAI defines it: a prompt and a suffix, or a prompt with a code model's markers at the gap.

Answers have the fields that clients need. The number of prompt tokens and the time of creation are unknown here: both
are 0. Sampling parameters (temperature, top_p, seed and the like) are ignored: the answer is the most probable text.
"""

import contextlib
from collections.abc import AsyncGenerator, Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from caesura import fim_formats
from caesura.client.backend import Backend, job_id
from caesura.serve.bodies import StopField, decoded, last, stops, streamed
from caesura.serve.filling import MAX_CANDIDATES, FillAnswer, FillQuery, Finish, fill
from caesura.serve.hosting import RequestRefused, json_response

TokenLimit = Annotated[int, Meta(ge=0)]
CandidateCount = Annotated[int, Meta(ge=1, le=MAX_CANDIDATES)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class CompletionRequest(msgspec.Struct, frozen=True):
    """`language` is our own field: the id of the text's language, for clients that know it."""

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=1)]
    suffix: str = ""
    max_tokens: TokenLimit | None = None
    n: CandidateCount = 1
    stop: StopField = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    echo: bool = False
    logprobs: int = 0
    language: str = ""


async def completions(engine: Backend, request: Request) -> Response:
    asked = decoded(await request.body(), CompletionRequest)
    if asked.echo or asked.logprobs:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "caesura serve supports neither `echo` nor `logprobs`; omit them.")
    found = fill(engine, completion_query(asked))
    head = partial(_head, engine, f"cmpl-{job_id()}")
    if asked.stream:
        return await streamed(_chunks(found, head, asked.stream_options.include_usage), b"data: [DONE]\n\n")
    answer = await last(found)
    choices = [_choice(text.text, n, text.finish) for n, text in enumerate(answer.texts)]
    return json_response({**head(), "choices": choices, "usage": _usage(answer)})


def completion_query(asked: CompletionRequest) -> FillQuery:
    (prompt,) = asked.prompt if isinstance(asked.prompt, list) else [asked.prompt]
    marked = fim_formats.undo(prompt) if not asked.suffix else None
    return FillQuery(
        marked.prefix if marked else prompt,
        marked.suffix if marked else asked.suffix,
        asked.language,
        tuple((file.name, file.text) for file in marked.files) if marked else (),
        asked.max_tokens,
        asked.n,
        stops(asked.stop),
        stream=asked.stream,
    )


def _head(engine: Backend, id: str) -> dict[str, Any]:
    """The model's name is read late: while the engine starts, it has none."""
    return {"id": id, "object": "text_completion", "created": 0, "model": engine.condition.model}


async def _chunks(
    found: AsyncGenerator[str | FillAnswer, None], head: Callable[[], dict[str, Any]], with_usage: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """The first candidate in pieces, then each of the others whole."""
    async with contextlib.aclosing(found):
        async for item in found:
            if isinstance(item, str):
                yield {**head(), "choices": [_choice(item, 0, None)]}
                continue
            for n, text in enumerate(item.texts):
                yield {**head(), "choices": [_choice(text.text if n else "", n, text.finish)]}
            if with_usage:
                yield {**head(), "choices": [], "usage": _usage(item)}


def _choice(text: str, index: int, finish: Finish | None) -> dict[str, object]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish}


def _usage(answer: FillAnswer) -> dict[str, int]:
    return {"prompt_tokens": 0, "completion_tokens": answer.tokens, "total_tokens": answer.tokens}
