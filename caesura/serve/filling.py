"""A gap that a client describes, and its fill by the shared engine: pieces of text as they are locked, then the answer.

As in the language server, fills are cut to fit the text around them, and the engine reads no secrets. Parsing runs in a
thread of its own, so that the streams of other clients go on.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import PureWindowsPath
from typing import Literal

from caesura import wire
from caesura.client.backend import Infiller
from caesura.serve.guess import guessed
from caesura.server.context.context import Budget, hole, window_after, window_before
from caesura.server.context.recall import recall
from caesura.server.context.secrets import Ignore, masked
from caesura.server.infill.choose import proposals
from caesura.server.infill.job import Ask
from caesura.server.infill.site import Site, bare_site
from caesura.server.languages import language
from caesura.server.options import Options

HIDDEN = Ignore()
MAX_NAME = 200  # code points at the end of a file's name that the model sees
MAX_CANDIDATES = 8  # as in wire.Infill

Finish = Literal["stop", "length"]  # the text ends by itself or at a stop string; a limit ends it

_parsing = ThreadPoolExecutor(1, "parsing")  # one thread: parsers are shared and not safe for several


@dataclass(frozen=True)
class FillQuery:
    """The request of a client. `files` are (name, text), the most useful first. After `patience_ms` the locked text is
    the answer, as soon as there is any. With `stream`, pieces of the first text precede the answer."""

    prefix: str
    suffix: str
    language: str = ""
    files: tuple[tuple[str, str], ...] = ()
    max_tokens: int | None = None
    candidates: int = 1
    stop: tuple[str, ...] = ()
    patience_ms: float = math.inf
    stream: bool = False

    @property
    def early(self) -> bool:
        """True if locked text is of use before the answer."""
        return self.stream or bool(self.stop) or self.patience_ms < math.inf


@dataclass(frozen=True)
class AnswerText:
    """A candidate. `stopped_by` is the stop string that followed it."""

    text: str
    finish: Finish
    stopped_by: str = ""


@dataclass(frozen=True)
class FillAnswer:
    """The candidates, best first; `tokens` are those of the engine's answer."""

    texts: tuple[AnswerText, ...]
    tokens: int = 0
    timings: wire.Timings = field(default_factory=wire.Timings)


async def fill(engine: Infiller, wanted: FillQuery) -> AsyncGenerator[str | FillAnswer, None]:
    """Pieces of the first text, then the FillAnswer. Closing it cancels the job. Raises EngineError."""
    if wanted.max_tokens == 0:
        yield FillAnswer((AnswerText("", "length"),))
        return
    loop = asyncio.get_running_loop()
    asked = await loop.run_in_executor(_parsing, _site, wanted)
    sent, began = "", time.monotonic()
    async with contextlib.aclosing(engine.infill(asked.job(_ask(wanted)))) as events:
        async for event in events:
            if isinstance(event, wire.Done):
                answer = await loop.run_in_executor(_parsing, _answer, asked, wanted, event, sent)
            elif wanted.early:
                fitted = await loop.run_in_executor(_parsing, _locked, asked, event)
                now = _shown(asked, fitted, wanted.stop)
                late = (time.monotonic() - began) * 1000 > wanted.patience_ms
                if now.stopped_by or (late and now.text):
                    answer = _early(now, event, began)
                    break
                if wanted.stream and (piece := _piece(sent, now.text, wanted.stop)):
                    sent += piece
                    yield piece
    if wanted.stream and (piece := _piece(sent, answer.texts[0].text, ())):
        yield piece
    yield answer


def _site(wanted: FillQuery) -> Site:
    """The place in the text that the engine reads: a body of 2 MiB would take seconds to parse."""
    prefix, suffix = window_before(wanted.prefix, Budget().before), window_after(wanted.suffix, Budget().after)
    name = language(wanted.language or guessed(wanted.prefix, suffix)).id
    found = bare_site(prefix + suffix, len(prefix), len(prefix), name)
    to_fill = hole(found.context, min(wanted.max_tokens or Options().max_tokens, wire.MAX_SLOTS))
    passage = recall(wanted.prefix + wanted.suffix, len(wanted.prefix), len(wanted.prefix), name)
    near = (*((passage.neighbour,) if passage else ()), *_neighbours(wanted, name))
    return replace(found, hole=to_fill, neighbours=near, finished=False)


def _ask(wanted: FillQuery) -> Ask:
    candidates = wanted.candidates if wanted.stream else max(wanted.candidates, Options().candidates)
    return Ask("automatic", candidates=candidates, effort="ghost" if wanted.early else "full")


def _locked(asked: Site, event: wire.Locked) -> str:
    """The text that could be inserted by now."""
    return asked.sound_start(asked.fitted(event.holes[0].locked_start))


def _shown(asked: Site, text: str, stop: tuple[str, ...]) -> AnswerText:
    """The text up to the first stop string; empty if it would show the mask of a secret."""
    text = "" if asked.reveals(text) else text
    found = min(((at, one) for one in stop if (at := text.find(one)) >= 0), default=None)
    return AnswerText(text[: found[0]], "stop", found[1]) if found else AnswerText(text, "stop")


def _piece(sent: str, text: str, stop: tuple[str, ...]) -> str:
    """The part of `text` to send after `sent`; text that may begin a stop string waits."""
    held = max((n for one in stop for n in range(1, len(one)) if text.endswith(one[:n])), default=0)
    text = text[: len(text) - held]
    return text[len(sent) :] if text.startswith(sent) else ""


def _answer(asked: Site, wanted: FillQuery, done: wire.Done, sent: str) -> FillAnswer:
    """The first text starts with what was sent, and is just that if no candidate continues it."""
    tokens = done.tokens.canvas + done.tokens.lookup + done.tokens.left_to_right
    ended = done.stop == "complete" and tokens < asked.hole.max_tokens
    found = list(dict.fromkeys(_shown(asked, text, wanted.stop) for text, _ in proposals(asked, done)))
    going_on = [one for one in found if one.text.startswith(sent)]
    first = next((one for one in going_on if one.text), going_on[0] if going_on else AnswerText(sent, "stop"))
    texts = [first, *(one for one in found if one.text and one != first)][: wanted.candidates]
    ends = (one if ended or one.stopped_by else replace(one, finish="length") for one in texts)
    return FillAnswer(tuple(ends), tokens, done.timings)


def _early(text: AnswerText, event: wire.Locked, began: float) -> FillAnswer:
    """The answer of a job that is still running."""
    spent = (time.monotonic() - began) * 1000
    finish: Finish = "stop" if text.stopped_by else "length"
    timings = wire.Timings(denoise_ms=spent, total_ms=spent)
    return FillAnswer((AnswerText(text.text, finish, text.stopped_by),), len(event.holes[0].probabilities), timings)


def _neighbours(wanted: FillQuery, name: str) -> Iterator[wire.Neighbour]:
    """The client's other files, but for hidden ones. Only the file's name is sent, of POSIX and Windows paths: the
    folders may lie outside of any project."""
    comment = language(name).comment or "#"
    for path, text in wanted.files:
        if text.strip() and len(text) <= wire.MAX_NEIGHBOUR and not HIDDEN.hides(path):
            yield wire.Neighbour(f"{comment} {PureWindowsPath(path).name[-MAX_NAME:]}", masked(text))
