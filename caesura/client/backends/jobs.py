"""Jobs on a service over HTTP, by the contract of the wire: a job is any number of `Locked` and one `Done`, or an
EngineError. A newer job of a document ends the older one, a cancelled one closes its connection, and a service that has
failed is left alone for a while.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from caesura import wire
from caesura.client.backend import (
    Condition,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    Feature,
    FinishedJob,
    State,
    needs,
)
from caesura.client.backends.answer import HoleText, is_one_line
from caesura.client.backends.api import AnswerEnd, Api, ServiceGap, TextPiece
from caesura.client.backends.http import MAX_PAUSE_S, Http, RequestFailed

DESCRIBE_S = 5.0  # for the model's name
DRAIN_S = 1.0  # for the end of a stream after its last event: then its connection serves the next job
UNSAFE = re.compile(r"[^\w.:/+ -]")  # characters of a model's name that a terminal and an editor do not get
MAX_NAME = 64
MOST_JOBS = 8  # at once, as on the wire
MAX_MS = 600_000.0  # on the wire
SPECULATION: frozenset[Feature] = frozenset({"speculation"})
CANNOT: dict[Feature, str] = {"grammars": "keep to a grammar", "holes": "fill several holes together"}


@dataclass
class _Live:
    """A job under way. `end` stops it from outside, with a code of wire.Failed."""

    job: wire.Infill
    code: str = ""
    waiting: asyncio.Timeout | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, code: str) -> None:
        self.code = code
        if self.waiting:
            self.waiting.reschedule(0.0)


@dataclass
class _Heard:
    """Progress of a job: time to its first text, number of events sent, and how it ended."""

    first_s: float = 0.0
    seq: int = 0
    last: AnswerEnd | Literal["deadline"] | None = None


class HttpBackend:
    """`host` is shown to the user after the service's name. With `metered`, work ahead of the user is refused, for it
    may cost money."""

    def __init__(self, api: Api, http: Http, host: str, *, metered: bool = False) -> None:
        self._api = api
        self._http = http
        self._host = host
        self._lacks = api.lacks | SPECULATION if metered else api.lacks
        self._model = ""  # as the service said last
        self._described = False  # since its last failure, after which it may be another one
        self._trouble = ""
        self._loading = False
        self._failures = 0  # in a row
        self._rested = 0.0  # the monotonic time before which nothing is asked
        self._live: dict[str, _Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._describing = asyncio.Lock()
        self._closed = False
        self.on_change: Callable[[], None] = lambda: None
        self.on_job: Callable[[FinishedJob], None] = lambda job: None

    def __repr__(self) -> str:
        return f"<HttpBackend {self._http.name} {self._state} {len(self._live)} jobs {self._trouble!r}>"

    @property
    def condition(self) -> Condition:
        device = f"{self._http.name} ({self._host})"
        return Condition(self._state, self._model, device, self._trouble, bool(self._live), self._lacks)

    @property
    def _state(self) -> State:
        if self._trouble:
            return "loading" if self._loading else "unavailable"
        return "ready" if self._model else "connecting"

    async def start(self) -> None:
        """Open the connection and ask for the model, in the background."""
        self._soon(self._greet())

    async def close(self) -> None:
        """End all jobs. One whose consumer is not waiting for its next event hears of it when it asks for that."""
        self._closed, self.on_change = True, lambda: None
        asking = [live for live in self._live.values() if live.waiting]
        for live in self._live.values():
            live.end("cancelled")
        for live in asking:
            await live.over.wait()
        while self._tasks:  # a job may have begun one as it ended
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """The events of a job, the last a Done. Raises EngineFailed, EngineBusy or EngineUnavailable."""
        began = time.monotonic()
        self._admit(job)
        live, end = _Live(job), "cancelled"
        last: wire.Locked | wire.Done | None = None
        self._live[job.job] = live
        self.on_change()
        try:
            async with aclosing(self._events(live, began)) as events:
                async for last in events:
                    end = "done" if isinstance(last, wire.Done) else end
                    yield last
        except EngineError as error:
            end = error.code if isinstance(error, EngineFailed) else "unavailable"
            raise
        finally:
            del self._live[job.job]
            live.over.set()
            self.on_job(_record(job, end, last, (time.monotonic() - began) * 1000))
            self.on_change()

    def _admit(self, job: wire.Infill) -> None:
        """Make room for a job, or raise why there is none."""
        name = self._http.name
        if self._closed:
            raise EngineUnavailable(f"{name} is closed; start the server again.")
        if lacking := sorted(needs(job) & self._lacks):
            raise EngineFailed("invalid", f"{name} cannot {' or '.join(CANNOT[feature] for feature in lacking)}.")
        if job.priority == "speculative" and "speculation" in self._lacks:
            raise EngineBusy(f"{name} is not asked ahead of time, since that may cost money.")
        if self._trouble and time.monotonic() < self._rested:
            raise EngineUnavailable(self._trouble)
        for live in self._live.values():
            if (live.job.document, live.job.kind) == (job.document, job.kind):
                live.end("superseded")
            elif live.job.priority == "speculative" != job.priority:
                live.end("cancelled")
        others = sum(not live.code for live in self._live.values())
        if others >= MOST_JOBS or (others and job.priority == "speculative"):
            raise EngineBusy(f"{name} has too much to do.")

    async def _events(self, live: _Live, began: float) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        job, deadline = live.job, began + live.job.deadline_ms / 1000
        gap = _gap(job, deadline)
        answer, heard = HoleText(gap, self._api.markers), _Heard()
        pieces = self._pieces(gap)
        try:
            while heard.last is None and not answer.ended:
                piece = await self._next(live, pieces, deadline)
                if not isinstance(piece, TextPiece):
                    heard.last = piece
                    continue
                answer.add(piece)
                heard.first_s = heard.first_s or time.monotonic() - began
                if answer.too_long:
                    raise RequestFailed(
                        f"{self._http.name} goes on after the limit that was asked for; nothing of it is kept."
                    )
                if not answer.ended:
                    of = max(gap.max_tokens, answer.tokens)
                    yield wire.Locked(job.job, heard.seq, (answer.fill(done=False),), answer.tokens, of)
                    heard.seq += 1
            if heard.last == "deadline" or (heard.last and heard.last.limit):
                answer.interrupt()
            if heard.last == "deadline" and not answer.text:
                raise RequestFailed(f"{self._http.name} did not begin to answer in {job.deadline_ms / 1000:g} seconds.")
            self._recover()
            yield self._done(job, answer, heard, time.monotonic() - began)
        except RequestFailed as error:
            raise self._failed(error) from error
        finally:
            if isinstance(heard.last, AnswerEnd) and not self._closed:
                self._soon(_drain(pieces))
            else:
                await pieces.aclose()

    async def _pieces(self, gap: ServiceGap) -> AsyncGenerator[TextPiece | AnswerEnd, None]:
        if not self._described:
            await self._describe()
        async with aclosing(self._api.answer(self._http, gap)) as pieces:
            async for piece in pieces:
                yield piece

    async def _next(
        self, live: _Live, pieces: AsyncGenerator[TextPiece | AnswerEnd, None], deadline: float
    ) -> TextPiece | AnswerEnd | Literal["deadline"]:
        try:
            if live.code:
                raise TimeoutError
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())) as live.waiting:
                return await anext(pieces)
        except StopAsyncIteration:
            raise RequestFailed(f"{self._http.name} ended in the middle of an answer; see its log.") from None
        except TimeoutError:
            if live.code:
                raise EngineFailed(live.code) from None
            return "deadline"
        finally:
            live.waiting = None

    def _done(self, job: wire.Infill, answer: HoleText, heard: _Heard, total_s: float) -> wire.Done:
        end = heard.last if isinstance(heard.last, AnswerEnd) else AnswerEnd()
        tokens = min(end.tokens or answer.tokens, wire.MAX_TOKENS)
        return wire.Done(
            job=job.job,
            seq=heard.seq,
            holes=(answer.fill(done=True),),
            steps=end.steps or tokens,
            tokens=wire.Tokens(canvas=tokens) if self._api.canvas else wire.Tokens(left_to_right=tokens),
            timings=wire.Timings(
                prefill_ms=_milliseconds(end.prefill_ms / 1000),
                denoise_ms=_milliseconds(end.denoise_ms / 1000),
                first_lock_ms=_milliseconds(heard.first_s) if heard.first_s else None,
                total_ms=_milliseconds(total_s),
            ),
            stop="deadline" if heard.last == "deadline" else "steps" if end.limit and not answer.ended else "complete",
        )

    # How the service is

    async def _greet(self) -> None:
        """Learn the model; again and again while it is loaded."""
        with suppress(EngineError):
            await self.described()
        while self._loading:
            await asyncio.sleep(max(0.0, self._rested - time.monotonic()))
            with suppress(EngineError):
                await self.described()

    async def described(self) -> None:
        """Ask for the model. Raises EngineUnavailable."""
        try:
            await self._describe()
        except RequestFailed as error:
            raise self._failed(error) from error

    async def _describe(self) -> None:
        async with self._describing:
            if not self._described:
                try:
                    async with asyncio.timeout(DESCRIBE_S):
                        said = await self._api.describe(self._http)
                except TimeoutError:
                    raise RequestFailed(
                        f"{self._http.name} takes connections but does not answer; see its log."
                    ) from None
                self._model, self._described = UNSAFE.sub("", said)[:MAX_NAME] or "a model", True
                self._recover()
                self.on_change()

    def _recover(self) -> None:
        self._failures, self._rested = 0, 0.0
        self._set("", loading=False)

    def _failed(self, error: RequestFailed) -> EngineError:
        """The error for a job. Marks the service as failed, unless the job is at fault."""
        if error.job:
            return EngineFailed("invalid", str(error))
        pause_s = min(error.pause_s * 2.0 ** min(self._failures, 10), MAX_PAUSE_S)
        self._failures += 1
        self._described = False
        self._rested = time.monotonic() + pause_s
        began = error.loading and not self._loading
        self._set(str(error), loading=error.loading)
        if began:
            self._soon(self._greet())
        return EngineUnavailable(str(error))

    def _set(self, trouble: str, *, loading: bool) -> None:
        changed = (trouble, loading) != (self._trouble, self._loading)
        self._trouble, self._loading = trouble, loading
        if changed:
            self.on_change()

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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


def _record(job: wire.Infill, end: str, last: wire.Locked | wire.Done | None, total_ms: float) -> FinishedJob:
    ms = {"total": total_ms}
    if isinstance(last, wire.Done):
        stages = {"prefill": last.timings.prefill_ms, "denoise": last.timings.denoise_ms}
        ms = {name: taken for name, taken in stages.items() if taken} | ms
        return FinishedJob(job.job, end, job.priority, last.steps, ms)
    return FinishedJob(job.job, end, job.priority, last.step if last else 0, ms)


def _milliseconds(seconds: float) -> float:
    return min(max(seconds * 1000, 0.0), MAX_MS)
