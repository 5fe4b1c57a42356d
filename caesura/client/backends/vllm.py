"""DiffusionGemma on vLLM 0.32 or later: our canvas on its GPU, by `vllm_xargs` of `POST /v1/completions` as vLLM's own
source has them. No server with these weights has confirmed it.

A canvas is noise for the hole, then the start of the suffix, pinned. The model has no token for "nothing here", so the
hole is denoised at several lengths at once, as requests that share their prompt in vLLM's cache, and the text that fits
best wins. No state on the way comes back: the answer is one piece.
"""

import asyncio
import math
import random
import re
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from caesura.client.backend import Feature
from caesura.client.backends.api import AnswerEnd, ServiceGap, TextPiece
from caesura.client.backends.fim import first_model
from caesura.client.backends.http import Http, RequestFailed

CANVAS = 64  # rows, as a server for completions is started with: --diffusion-config '{"canvas_length": 64}'
STEPS = 8
VOCABULARY = 262_144
PINNED = 48  # code points of the suffix at most that are pinned
LINE, BLOCK = (3, 6, 12, 24), (8, 16, 32, 48)  # tokens tried for a hole
KEPT = 64  # texts whose tokens are remembered

FOLLOWS, BESIDE = "The text behind the cursor:\n", "Related text of other files:\n\n"  # as engine/canvas/prompts.py
TASK = (
    "Write the text that stands before the cursor, and go on to where the text behind the cursor begins."
    " Answer with text of the file alone."
)

_Answer = TypeVar("_Answer")


class TokenIds(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


class CanvasChances(msgspec.Struct, frozen=True):
    token_logprobs: tuple[float | None, ...]


class CanvasChoice(msgspec.Struct, frozen=True):
    text: str
    logprobs: CanvasChances


class CanvasAnswer(msgspec.Struct, frozen=True):
    choices: tuple[CanvasChoice, ...]


@dataclass(frozen=True)
class Tried:
    """The text of a hole of `size` tokens; `score` says how well it fits, in nats a token."""

    text: str
    size: int
    probability: float
    score: float


class Vllm:
    lacks: frozenset[Feature] = frozenset({"candidates", "drafts", "grammars", "holes", "judge"})
    canvas = True
    markers: tuple[str, ...] = ()

    def __init__(self, model: str) -> None:
        self._given = self._model = model
        self._ids: dict[str, tuple[int, ...]] = {}

    async def describe(self, http: Http) -> str:
        self._model = self._given or await first_model(http)
        self._ids.clear()  # another model may have other tokens
        return self._model

    async def answer(self, http: Http, gap: ServiceGap) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        pins = _pins(gap.suffix)
        asked, before, pinned = await _all(
            self._opening(http, _asked(gap)), self._tokens(http, gap.prefix), self._tokens(http, pins)
        )
        sizes = _sizes(gap, CANVAS - len(pinned))
        if not sizes:
            raise RequestFailed(
                f"The text after the gap has too many tokens for the canvas of {http.name}.", 0.0, job=True
            )
        one = partial(self._denoised, http, gap, (*asked, *before), pins, pinned)
        best = max(await _all(*map(one, sizes)), key=lambda found: found.score)
        yield TextPiece(best.text, best.probability, best.size)
        yield AnswerEnd(steps=STEPS)

    async def _opening(self, http: Http, question: str) -> tuple[int, ...]:
        """A user's turn, an empty thought and the start of the model's turn, by the chat template of the server."""
        return await self._ids_of(
            http,
            question,
            messages=[{"role": "user", "content": question}],
            add_generation_prompt=True,
            chat_template_kwargs={"enable_thinking": False},
        )

    async def _tokens(self, http: Http, text: str) -> tuple[int, ...]:
        return await self._ids_of(http, text, prompt=text, add_special_tokens=False) if text else ()

    async def _ids_of(self, http: Http, text: str, **body: Any) -> tuple[int, ...]:
        """While somebody types, only the prefix is a new text."""
        key = "".join((*body, text))
        if key not in self._ids:
            self._ids[key] = (await http.ask("tokenize", {"model": self._model, **body}, TokenIds)).tokens
            if len(self._ids) > KEPT:
                self._ids.pop(next(iter(self._ids)))
        return self._ids[key]

    async def _denoised(
        self, http: Http, gap: ServiceGap, prompt: Sequence[int], pins: str, pinned: Sequence[int], size: int
    ) -> Tried:
        """The hole filled with `size` tokens."""
        noise = random.Random(f"{gap.seed} {size}").choices(range(VOCABULARY), k=size)
        rows = size + len(pinned)
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": rows,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
            "vllm_xargs": {
                "diffusion_seed_canvas": [*noise, *pinned],
                "diffusion_canvas_length": rows,
                "diffusion_max_steps": STEPS,
                "diffusion_read_only": 1,
                **({"diffusion_pinned": list(range(size, rows))} if pinned else {}),
            },
        }
        (choice, *_) = (await http.ask("v1/completions", body, CanvasAnswer)).choices or (None,)
        chances = [min(0.0, one or 0.0) for one in choice.logprobs.token_logprobs] if choice else []
        if choice is None or len(chances) != rows or not choice.text.endswith(pins):
            raise RequestFailed(
                f"{http.name} does not keep to the canvas that was sent; check that it is vLLM 0.32 or later."
            )
        text = choice.text.removesuffix(pins)
        return Tried(text, size, math.exp(sum(chances[:size])), _score(chances[:size], chances[size:]))


async def _all(*requests: Coroutine[Any, Any, _Answer]) -> list[_Answer]:
    """Their answers. Where one fails or the job ends, the others have ended too. Raises the first failure."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _score(hole: Sequence[float], pins: Sequence[float]) -> float:
    """As the race of lengths of our own engine: an unlikely pin shows that the hole before it has the wrong length."""
    return sum(hole) / len(hole) + (sum(pins) / len(pins) if pins else 0.0)


def _sizes(gap: ServiceGap, room: int) -> list[int]:
    most = min(gap.max_tokens, room)
    return sorted({min(size, most) for size in (LINE if gap.one_line else BLOCK)}) if most > 0 else []


def _pins(suffix: str) -> str:
    """The start of the suffix, up to the end of a word."""
    start = suffix[:PINNED]
    return start if len(suffix) <= PINNED else re.sub(r"(?<=\W)\w+\Z", "", start)


def _asked(gap: ServiceGap) -> str:
    beside = "".join(f"{one.line}\n{one.text}\n\n" for one in gap.neighbours)
    return f"{FOLLOWS}{gap.suffix}\n\n{BESIDE + beside if beside else ''}{TASK}"
