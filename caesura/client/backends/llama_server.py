"""llama-server's `POST /infill` (llama.cpp, tools/server/README.md). It puts the prompt together from the model's own
tokens, and reads no such token out of prefix and suffix.

A job gets the slot of the server whose KV cache has most of its context. The suffix comes after the prefix in the
prompt, also after the request's `prompt`, which the server's README has last: each key reads the suffix again.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import exp

import msgspec

from caesura.client.backend import Feature
from caesura.client.backends.api import TEMPERATURE, AnswerEnd, ServiceGap, TextPiece
from caesura.client.backends.http import Http

MOST_SLOTS = 64


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


class SlotChoice:
    """The contexts of the server's slots. A job goes where half of its context is already, else to the slot that was
    idle for longest. The server would choose so by itself, but not a slot that is still busy with a job that we
    ended."""

    def __init__(self, count: int) -> None:
        self._texts = dict.fromkeys(range(count), "")  # of each slot's newest job, the one in use last at the end

    def __repr__(self) -> str:
        return f"<SlotChoice {list(self._texts)}>"

    def of(self, text: str) -> int:
        best = max(self._texts, key=lambda slot: _shared(self._texts[slot], text))
        found = best if 2 * _shared(self._texts[best], text) >= len(text) else next(iter(self._texts))
        del self._texts[found]
        self._texts[found] = text
        return found


class LlamaServer:
    lacks: frozenset[Feature] = frozenset({"candidates", "drafts", "grammars", "holes", "judge"})
    canvas = False
    markers: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._slots = SlotChoice(1)

    async def describe(self, http: Http) -> str:
        found = await http.get("props", Props)
        self._slots = SlotChoice(min(max(1, found.total_slots), MOST_SLOTS))
        path = (found.model_alias or found.model_path).replace("\\", "/")
        return path.rpartition("/")[2].removesuffix(".gguf") or "a model"

    async def answer(self, http: Http, gap: ServiceGap) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        body = {
            "input_prefix": gap.prefix,
            "input_suffix": gap.suffix,
            "input_extra": [{"filename": one.line, "text": one.text} for one in gap.neighbours],
            "n_predict": gap.max_tokens,
            "t_max_predict_ms": max(1, int(gap.left_ms)),
            "stop": ["\n"] if gap.one_line else [],
            "stream": True,
            "cache_prompt": True,
            "id_slot": self._slots.of("".join((*(one.text for one in gap.neighbours), gap.prefix))),
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


def _shared(one: str, other: str) -> int:
    """How many code points two texts begin with alike."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if one[:middle] == other[:middle] else (least, middle - 1)
    return least
