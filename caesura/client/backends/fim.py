"""Any service with `POST /v1/completions` as OpenAI had it (vLLM, LM Studio, Ollama, llama-server): with a `suffix`, or
with a prompt in a code model's own format."""

import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from caesura.client.backend import Feature
from caesura.client.backends.api import TEMPERATURE, AnswerEnd, ServiceGap, TextPiece
from caesura.client.backends.http import HOPELESS_S, Http, RequestFailed
from caesura.fim_formats import FORMATS, FimFile, MarkedText, plain, render

MOST_STOPS = 4  # that OpenAI-like services take; the answer ends at every marker all the same


class ListedModel(msgspec.Struct, frozen=True):
    id: str


class ListedModels(msgspec.Struct, frozen=True):
    data: tuple[ListedModel, ...]


class TokenLogprob(msgspec.Struct, frozen=True):
    logprob: float | None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Those of a piece's tokens: `token_logprobs` by OpenAI's description, `content` from llama-server. Some services
    have neither."""

    token_logprobs: tuple[float | None, ...] | None = None
    content: tuple[TokenLogprob, ...] | None = None

    @property
    def all(self) -> list[float | None]:
        return [*(self.token_logprobs or ()), *(one.logprob for one in self.content or ())]

    @property
    def probability(self) -> float | None:
        """None unless all are known."""
        known = [one for one in self.all if one is not None]
        return math.exp(min(0.0, sum(known))) if known and len(known) == len(self.all) else None


class CompletionChoice(msgspec.Struct, frozen=True):
    text: str = ""
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None

    @property
    def piece(self) -> TextPiece:
        if self.logprobs is None:
            return TextPiece(self.text)
        return TextPiece(self.text, self.logprobs.probability, max(1, len(self.logprobs.all)))


class CompletionUsage(msgspec.Struct, frozen=True):
    completion_tokens: int = 0


class CompletionEvent(msgspec.Struct, frozen=True):
    choices: tuple[CompletionChoice, ...]
    usage: CompletionUsage | None = None


class Fim:
    """Without a `model` the first one that the service lists is used. `format` is a row of FORMATS, or empty."""

    lacks: frozenset[Feature] = frozenset({"candidates", "drafts", "grammars", "holes", "judge"})
    canvas = False

    def __init__(self, model: str, format: str) -> None:
        self._given = self._model = model
        self._format = FORMATS[format] if format else None
        self.markers = self._format.markers if self._format else ()

    async def describe(self, http: Http) -> str:
        self._model = self._given or await first_model(http)
        return self._model

    def answer(self, http: Http, gap: ServiceGap) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        stops = (*(("\n",) if gap.one_line else ()), *self.markers)
        body = {
            "model": self._model,
            **self._shown(http, gap),
            "max_tokens": gap.max_tokens,
            "stop": stops[:MOST_STOPS],
            "logprobs": 1,
            "stream": True,
            **({"seed": gap.seed, "temperature": TEMPERATURE} if gap.seed else {"temperature": 0.0}),
        }
        return completed(http, "v1/completions", body)

    def _shown(self, http: Http, gap: ServiceGap) -> dict[str, str]:
        """Prompt, and the suffix where the service takes it by itself."""
        files = fim_files(gap)
        try:
            if self._format is None:
                return {"prompt": plain(gap.prefix, gap.suffix, files), "suffix": gap.suffix}
            return {"prompt": render(self._format, gap.prefix, gap.suffix, files)}
        except MarkedText as error:
            raise RequestFailed(
                f"{http.name} is not asked here: {str(error)[0].lower()}{str(error)[1:]}", 0.0, job=True
            ) from error


async def first_model(http: Http) -> str:
    found = await http.get("v1/models", ListedModels)
    if not found.data:
        raise RequestFailed(f"{http.name} has no model; load one there.", HOPELESS_S)
    return found.data[0].id


def fim_files(gap: ServiceGap) -> tuple[FimFile, ...]:
    return tuple(FimFile(one.line, one.text) for one in gap.neighbours)


async def completed(http: Http, path: str, body: Mapping[str, Any]) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
    """The pieces of a text completion, streamed or whole. Some services count the tokens after the end."""
    tokens, end = 0, ""
    async with aclosing(http.post(path, body, CompletionEvent)) as events:
        async for event in events:
            tokens = event.usage.completion_tokens if event.usage else tokens
            for choice in event.choices[:1]:
                end = choice.finish_reason or end
                if choice.text:
                    yield choice.piece
            if end and tokens:
                yield AnswerEnd(end == "length", tokens)
    if end and not tokens:
        yield AnswerEnd(end == "length")
