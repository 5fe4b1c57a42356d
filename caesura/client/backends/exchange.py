"""The exchange with a service for one job: its gap, the pieces of the answer, and the events made of them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Literal

from caesura import wire
from caesura.client.backend import EngineFailed
from caesura.client.backends.answer import HoleText, is_one_line
from caesura.client.backends.api import AnswerEnd, Api, ServiceGap, TextPiece
from caesura.client.backends.background import Background
from caesura.client.backends.http import Http, RequestFailed

DRAIN_S = 1.0  # for the end of a stream after its last event: then its connection serves the next job
MAX_MS = 600_000.0  # on the wire


@dataclass
class LiveJob:
    """A job under way. `end` stops it from outside, with a code of wire.Failed."""

    job: wire.Infill
    code: str = ""
    waiting: asyncio.Timeout | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, code: str) -> None:
        self.code = code
        if self.waiting:
            self.waiting.reschedule(0.0)


class ServiceExchange:
    """Asks `api` to fill the job's hole. `describe` makes sure that the model is known; `began` is when the job came,
    in seconds of the monotonic clock."""

    def __init__(
        self,
        live: LiveJob,
        api: Api,
        http: Http,
        describe: Callable[[], Awaitable[None]],
        background: Background,
        began: float,
    ) -> None:
        self._live = live
        self._api = api
        self._http = http
        self._describe = describe
        self._background = background
        self._began = began
        self._deadline = began + live.job.deadline_ms / 1000
        self._gap = _gap(live.job, self._deadline)
        self._answer = HoleText(self._gap, api.markers)
        self._first_s = 0.0  # time to the first text
        self._seq = 0  # events sent
        self._last: AnswerEnd | Literal["deadline"] | None = None  # how it ended

    def __repr__(self) -> str:
        return f"<ServiceExchange {self._http.name} for {self._live.job.job} {self._seq} events>"

    async def events(self) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """The events, the last a Done. Raises EngineFailed if the job was ended from outside, RequestFailed if the
        service fails."""
        job, answer = self._live.job, self._answer
        pieces = self._pieces()
        try:
            while self._last is None and not answer.ended:
                piece = await self._next(pieces)
                if not isinstance(piece, TextPiece):
                    self._last = piece
                    continue
                self._add(piece)
                if not answer.ended:
                    of = max(self._gap.max_tokens, answer.tokens)
                    yield wire.Locked(job.job, self._seq, (answer.fill(done=False),), answer.tokens, of)
                    self._seq += 1
            if self._last == "deadline" or (self._last and self._last.limit):
                answer.interrupt()
            if self._last == "deadline" and not answer.text:
                raise RequestFailed(f"{self._http.name} did not begin to answer in {job.deadline_ms / 1000:g} seconds.")
            yield self._done()
        finally:
            if isinstance(self._last, AnswerEnd) and not self._background.closed:
                self._background.run(_drain(pieces))
            else:
                await pieces.aclose()

    def _add(self, piece: TextPiece) -> None:
        self._answer.add(piece)
        self._first_s = self._first_s or time.monotonic() - self._began
        if self._answer.too_long:
            raise RequestFailed(f"{self._http.name} goes on after the limit that was asked for; nothing of it is kept.")

    async def _pieces(self) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        await self._describe()
        async with aclosing(self._api.answer(self._http, self._gap)) as pieces:
            async for piece in pieces:
                yield piece

    async def _next(
        self, pieces: AsyncGenerator[TextPiece | AnswerEnd, None]
    ) -> TextPiece | AnswerEnd | Literal["deadline"]:
        live = self._live
        try:
            if live.code:
                raise TimeoutError
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())) as live.waiting:
                return await anext(pieces)
        except StopAsyncIteration:
            raise RequestFailed(f"{self._http.name} ended in the middle of an answer; see its log.") from None
        except TimeoutError:
            if live.code:
                raise EngineFailed(live.code) from None
            return "deadline"
        finally:
            live.waiting = None

    def _done(self) -> wire.Done:
        answer = self._answer
        end = self._last if isinstance(self._last, AnswerEnd) else AnswerEnd()
        tokens = min(end.tokens or answer.tokens, wire.MAX_TOKENS)
        return wire.Done(
            job=self._live.job.job,
            seq=self._seq,
            holes=(answer.fill(done=True),),
            steps=end.steps or tokens,
            tokens=wire.Tokens(canvas=tokens) if self._api.canvas else wire.Tokens(left_to_right=tokens),
            timings=wire.Timings(
                prefill_ms=_milliseconds(end.prefill_ms / 1000),
                denoise_ms=_milliseconds(end.denoise_ms / 1000),
                first_lock_ms=_milliseconds(self._first_s) if self._first_s else None,
                total_ms=_milliseconds(time.monotonic() - self._began),
            ),
            stop="deadline" if self._last == "deadline" else "steps" if end.limit and not answer.ended else "complete",
        )


async def _drain(pieces: AsyncGenerator[TextPiece | AnswerEnd, None]) -> None:
    """Read a stream to its end, so that its connection can be used again."""
    with suppress(RequestFailed, TimeoutError):
        async with aclosing(pieces), asyncio.timeout(DRAIN_S):
            async for _ in pieces:
                pass


def _gap(job: wire.Infill, deadline: float) -> ServiceGap:
    """The one hole of a job; fixed text around it is context."""
    at = next(i for i, segment in enumerate(job.segments) if isinstance(segment, wire.Hole))
    hole = job.segments[at]
    assert isinstance(hole, wire.Hole)
    fixed = [segment.text if isinstance(segment, wire.Text) else "" for segment in job.segments]
    prefix, suffix = job.prefix + "".join(fixed[:at]), "".join(fixed[at + 1 :]) + job.suffix
    return ServiceGap(
        document=job.document,
        prefix=prefix,
        suffix=suffix,
        neighbours=job.neighbours,
        max_tokens=hole.max_tokens,
        one_line=is_one_line(hole, suffix),
        seed=job.seed,
        left_ms=max(0.0, (deadline - time.monotonic()) * 1000),
    )


def _milliseconds(seconds: float) -> float:
    return min(max(seconds * 1000, 0.0), MAX_MS)
