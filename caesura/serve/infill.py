"""`/infill` as llama-server defines it: the text before and after the cursor, and chunks of other files.

Fields for sampling and slots (samplers, id_slot, cache_prompt, n_indent and the like) are ignored: the engine decides
these itself. Fields whose absence would change the answer are refused.
"""

import contextlib
import math
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from caesura.client.backend import Infiller
from caesura.serve.bodies import StopField, decoded, last, stops, streamed
from caesura.serve.filling import MAX_CANDIDATES, AnswerText, FillAnswer, FillQuery, fill
from caesura.serve.hosting import RequestRefused, json_response


class Chunk(msgspec.Struct, frozen=True):
    """A part of another file."""

    text: str
    filename: str = ""


class LlamaInfill(msgspec.Struct, frozen=True):
    """`prompt` is the start of the line, after `input_prefix`. Negative numbers mean no limit; `n_predict` 0 only
    warms a cache. `language` is our own field: the id of the text's language, for clients that know it."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    input_extra: Annotated[list[Chunk], Meta(max_length=256)] = []
    n_predict: int = -1
    n_cmpl: int = 1
    t_max_prompt_ms: float = -1
    t_max_predict_ms: float = -1
    stop: StopField = []
    stream: bool = False
    response_fields: Annotated[list[str], Meta(max_length=64)] = []
    json_schema: Any = None
    grammar: str = ""
    language: str = ""


async def infill(engine: Infiller, request: Request) -> Response:
    asked = decoded(await request.body(), LlamaInfill)
    if not 1 <= asked.n_cmpl <= MAX_CANDIDATES:
        sentence = f"Field 'n_cmpl': Value must be between 1 <= value <= {MAX_CANDIDATES}, but got {asked.n_cmpl}."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, sentence)
    if asked.json_schema or asked.grammar:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, "caesura serve supports neither `json_schema` nor `grammar`; omit them."
        )
    found = fill(engine, infill_query(asked))
    if asked.stream:
        return await streamed(_chunks(found, asked))
    answer = await last(found)
    results = [_fields(_result(text, n, answer, asked), asked) for n, text in enumerate(answer.texts)]
    return json_response(results[0] if asked.n_cmpl == 1 else results)


def infill_query(asked: LlamaInfill) -> FillQuery:
    """llama-server puts the newest chunk last. Its two time limits are for the prompt and for the generated text."""
    limits = [ms for ms in (asked.t_max_prompt_ms, asked.t_max_predict_ms) if ms > 0]
    return FillQuery(
        asked.input_prefix + asked.prompt,
        asked.input_suffix,
        asked.language,
        tuple((chunk.filename, chunk.text) for chunk in reversed(asked.input_extra)),
        asked.n_predict if asked.n_predict >= 0 else None,
        asked.n_cmpl,
        stops(asked.stop),
        sum(limits) if asked.t_max_predict_ms > 0 else math.inf,
        asked.stream,
    )


async def _chunks(
    found: AsyncGenerator[str | FillAnswer, None], asked: LlamaInfill
) -> AsyncGenerator[dict[str, Any], None]:
    async with contextlib.aclosing(found):
        async for item in found:
            if isinstance(item, str):
                yield {"index": 0, "content": item, "tokens": [], "stop": False}
                continue
            for n, text in enumerate(item.texts):
                rest = text if n else AnswerText("", text.finish, text.stopped_by)
                yield _fields(_result(rest, n, item, asked), asked)


def _result(text: AnswerText, index: int, answer: FillAnswer, asked: LlamaInfill) -> dict[str, Any]:
    reading, writing = answer.timings.prefill_ms, answer.timings.denoise_ms
    return {
        "index": index,
        "content": text.text,
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "tokens_predicted": answer.tokens,
        "tokens_evaluated": 0,
        "generation_settings": {"n_predict": asked.n_predict},
        "prompt": "",
        "has_new_line": "\n" in text.text,
        "truncated": False,
        "stop_type": "word" if text.stopped_by else "limit" if text.finish == "length" else "eos",
        "stopping_word": text.stopped_by,
        "tokens_cached": 0,
        "timings": {**_timings("prompt", 0, reading), **_timings("predicted", answer.tokens, writing)},
    }


def _timings(stage: str, tokens: int, ms: float) -> dict[str, float]:
    return {
        f"{stage}_n": tokens,
        f"{stage}_ms": ms,
        f"{stage}_per_token_ms": ms / tokens if tokens else 0.0,
        f"{stage}_per_second": 1000 * tokens / ms if ms else 0.0,
    }


def _fields(result: dict[str, Any], asked: LlamaInfill) -> dict[str, Any]:
    """The requested fields, each by its path, such as `timings/prompt_n`; all of them without a request."""
    if not asked.response_fields:
        return result
    found = {}
    for path in asked.response_fields:
        value: Any = result
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
