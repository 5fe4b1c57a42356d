"""The interface of a kind of service: the request for a gap, and the pieces of its answer."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from caesura import wire
from caesura.client.backend import Feature
from caesura.client.backends.http import Http

TEMPERATURE = 0.7  # of another plausible answer


@dataclass(frozen=True)
class ServiceGap:
    """One hole with the text around it. `seed` 0 asks for the best answer, another for another plausible one; `left_ms`
    remain until the deadline."""

    document: str
    prefix: str
    suffix: str
    neighbours: tuple[wire.Neighbour, ...]
    max_tokens: int
    one_line: bool
    seed: int
    left_ms: float


@dataclass(frozen=True)
class TextPiece:
    """Text that continues the answer. `probability` is that of all its tokens, given what stands before them."""

    text: str
    probability: float | None = None
    tokens: int = 1


@dataclass(frozen=True)
class AnswerEnd:
    """The service has said all, or has reached the limit of tokens. `tokens` of the whole answer, 0 where the pieces
    count them; `steps` are the service's forwards, 0 for one a token; times are its own."""

    limit: bool = False
    tokens: int = 0
    steps: int = 0
    prefill_ms: float = 0.0
    denoise_ms: float = 0.0


class Api(Protocol):
    """A kind. `canvas`: its tokens come from a canvas, not from left to right. An answer ends before the first of its
    `markers`."""

    lacks: frozenset[Feature]
    canvas: bool
    markers: tuple[str, ...]

    async def describe(self, http: Http) -> str:
        """The name of the model, once the service can answer. Raises RequestFailed."""

    def answer(self, http: Http, gap: ServiceGap) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        """The answer piece by piece, and its AnswerEnd; without that it counts as broken. Raises RequestFailed."""
