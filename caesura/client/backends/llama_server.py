"""llama-server's `POST /infill` (llama.cpp, tools/server/README.md). It puts the prompt together from the model's own
tokens, and reads no such token out of prefix and suffix.

Typing within a line costs one token: each document has a slot of the server, whose KV cache holds its context, and what
stands before the cursor on its line comes after the suffix, as the start of the answer.
"""

import re
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import exp

import msgspec

from caesura.client.backend import Feature
from caesura.client.backends.api import AnswerEnd, ServiceGap, TextPiece
from caesura.client.backends.http import Http

TEMPERATURE = 0.7  # of another plausible answer
_MARKER = re.compile(r"[<\[]\S*[>\]]")


class Props(msgspec.Struct, frozen=True):
    total_slots: int = 1
    model_alias: str = ""
    model_path: str = ""


class TokenChance(msgspec.Struct, frozen=True):
    logprob: float


class InfillTimings(msgspec.Struct, frozen=True):
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0


class InfillEvent(msgspec.Struct, frozen=True):
    """A part of the text, or the end."""

    content: str
    stop: bool
    stop_type: str = ""
    timings: InfillTimings = InfillTimings()
    completion_probabilities: list[TokenChance] = []

    @property
    def probability(self) -> float | None:
        """That of its tokens; None where the server does not say it."""
        found = self.completion_probabilities
        return exp(min(0.0, sum(one.logprob for one in found))) if found else None


class LlamaServer:
    lacks: frozenset[Feature] = frozenset({"candidates", "drafts", "grammars", "holes"})
    canvas = False

    def __init__(self) -> None:
        self._slots = 1

    async def describe(self, http: Http) -> str:
        found = await http.get("props", Props)
        self._slots = max(1, found.total_slots)
        path = (found.model_alias or found.model_path).replace("\\", "/")
        return path.rpartition("/")[2].removesuffix(".gguf") or "a model"

    async def answer(self, http: Http, gap: ServiceGap) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        above, line = _split(gap.prefix)
        body = {
            "input_prefix": above,
            "prompt": line,
            "input_suffix": gap.suffix,
            "input_extra": [{"filename": one.name, "text": one.text} for one in gap.neighbours],
            "n_predict": gap.max_tokens,
            "t_max_predict_ms": max(1, int(gap.left_ms)),
            "stop": ["\n"] if gap.one_line else [],
            "stream": True,
            "cache_prompt": True,
            "id_slot": zlib.crc32(gap.document.encode()) % self._slots,
            "n_probs": 1,
            "response_fields": InfillEvent.__struct_fields__,  # the last event has the prompt too
            **({"seed": gap.seed % 2**32, "temperature": TEMPERATURE} if gap.seed else {"temperature": 0.0}),
        }
        async with aclosing(http.post("infill", body, InfillEvent)) as events:
            async for event in events:
                if event.content:
                    yield TextPiece(event.content, event.probability)
                if event.stop:
                    ms = event.timings
                    yield AnswerEnd(event.stop_type == "limit", prefill_ms=ms.prompt_ms, denoise_ms=ms.predicted_ms)


def _split(prefix: str) -> tuple[str, str]:
    """The lines above and the cursor's own. The server reads tokens out of the latter, so a line that might hold one
    stays with those above."""
    at = prefix.rfind("\n") + 1
    return (prefix, "") if _MARKER.search(prefix, at) else (prefix[:at], prefix[at:])
