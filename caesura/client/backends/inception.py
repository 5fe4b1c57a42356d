"""Inception's Mercury: `POST /v1/fim/completions`, by its published OpenAPI description. No call of ours has confirmed
it.

Its defaults are for prose: it stops at blank lines and punishes tokens that are in the text already, as names of a
program are. Temperature and seed are not in the description, so another answer cannot be asked for.
"""

from collections.abc import AsyncGenerator

from caesura.client.backend import Feature
from caesura.client.backends.api import AnswerEnd, ServiceGap, TextPiece
from caesura.client.backends.fim import completed, fim_files
from caesura.client.backends.http import Http
from caesura.fim_formats import with_files

MODEL = "mercury-edit-2"
LAST_STOP = "\n\n\n"  # of a block, since an empty list might mean the default


class Inception:
    lacks: frozenset[Feature] = frozenset({"candidates", "drafts", "grammars", "holes", "judge"})
    canvas = True
    markers: tuple[str, ...] = ()

    def __init__(self, model: str) -> None:
        self._model = model or MODEL

    async def describe(self, http: Http) -> str:
        return self._model

    def answer(self, http: Http, gap: ServiceGap) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        body = {
            "model": self._model,
            "prompt": with_files(gap.prefix, fim_files(gap)),
            "suffix": gap.suffix,
            "max_tokens": gap.max_tokens,
            "stop": ["\n"] if gap.one_line else [LAST_STOP],
            "presence_penalty": 0.0,
            "stream": True,
        }
        return completed(http, "v1/fim/completions", body)
