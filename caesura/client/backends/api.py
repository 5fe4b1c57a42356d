"""What a kind of service is: how a gap is put to it, and what comes back."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from caesura import wire
from caesura.client.backend import Feature
from caesura.client.backends.http import Http


@dataclass(frozen=True)
class Gap:
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
class Piece:
    """Text that continues the answer. `probability` is that of all its tokens, given what stands before them."""

    text: str
    probability: float | None = None
    tokens: int = 1


@dataclass(frozen=True)
class End:
    """The service has said all, or has reached the limit of tokens. Times are the service's own; `steps` is the number
    of its forwards, 0 for one a token."""

    limit: bool = False
    steps: int = 0
    prefill_ms: float = 0.0
    denoise_ms: float = 0.0


class Api(Protocol):
    """A kind. `canvas`: its tokens come from a canvas, not from left to right."""

    lacks: frozenset[Feature]
    canvas: bool

    async def describe(self, http: Http) -> str:
        """The name of the model, once the service can answer. Raises Refused."""

    def answer(self, http: Http, gap: Gap) -> AsyncGenerator[Piece | End, None]:
        """The answer piece by piece, and its End; without that it counts as broken. Raises Refused."""
