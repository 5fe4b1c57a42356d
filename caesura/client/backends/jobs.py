"""Jobs on a service over HTTP, by the contract of the wire: a job is any number of `Locked` and one `Done`, or an
EngineError. A newer job of a document ends the older one, a cancelled one closes its connection, and a service that has
failed is left alone for a while.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from caesura import wire
from caesura.client.backend import (
    Condition,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    Feature,
    FinishedJob,
    needs,
)
from caesura.client.backends.api import Api
from caesura.client.backends.background import Background
from caesura.client.backends.exchange import LiveJob, ServiceExchange
from caesura.client.backends.health import ServiceHealth
from caesura.client.backends.http import Http, RequestFailed

MOST_JOBS = 8  # at once, as on the wire
NO_SERVICE: frozenset[Feature] = frozenset({"priorities"})
SPECULATION: frozenset[Feature] = frozenset({"speculation"})
CANNOT: dict[Feature, str] = {
    "grammars": "keep to a grammar",
    "holes": "fill several holes together",
    "judge": "judge edits",
}


class HttpBackend:
    """`host` is shown to the user after the service's name. With `metered`, work ahead of the user is refused, for it
    may cost money."""

    def __init__(self, api: Api, http: Http, host: str, *, metered: bool = False) -> None:
        self._api = api
        self._http = http
        self._host = host
        self._lacks = api.lacks | NO_SERVICE | (SPECULATION if metered else frozenset())
        self._background = Background()
        self._health = ServiceHealth(api, http, self._background)
        self._health.on_change = lambda: self.on_change()
        self._live: dict[str, LiveJob] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.on_job: Callable[[FinishedJob], None] = lambda job: None

    def __repr__(self) -> str:
        return f"<HttpBackend {len(self._live)} jobs {self._health}>"

    @property
    def condition(self) -> Condition:
        device, health = f"{self._http.name} ({self._host})", self._health
        return Condition(health.state, health.model, device, health.trouble, bool(self._live), self._lacks)

    async def start(self) -> None:
        """Open the connection and ask for the model, in the background."""
        self._background.run(self._health.greet())

    async def described(self) -> None:
        """Ask for the model. Raises EngineUnavailable."""
        await self._health.described()

    async def close(self) -> None:
        """End all jobs. One whose consumer is not waiting for its next event hears of it when it asks for that."""
        self._background.closed, self.on_change = True, lambda: None
        asking = [live for live in self._live.values() if live.waiting]
        for live in self._live.values():
            live.end("cancelled")
        for live in asking:
            await live.over.wait()
        await self._background.close()
        await self._http.close()

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """The events of a job, the last a Done. Raises EngineFailed, EngineBusy or EngineUnavailable."""
        began = time.monotonic()
        self._admit(job)
        live, end = LiveJob(job), "cancelled"
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
        if self._background.closed:
            raise EngineUnavailable(f"{name} is closed; start the server again.")
        if lacking := sorted(needs(job) & self._lacks):
            raise EngineFailed("invalid", f"{name} cannot {' or '.join(CANNOT[feature] for feature in lacking)}.")
        if job.priority == "speculative" and "speculation" in self._lacks:
            raise EngineBusy(f"{name} is not asked ahead of time, since that may cost money.")
        if self._health.rests:
            raise EngineUnavailable(self._health.trouble)
        for live in self._live.values():
            if (live.job.document, live.job.kind) == (job.document, job.kind):
                live.end("superseded")
            elif live.job.priority == "speculative" != job.priority:
                live.end("cancelled")
        others = sum(not live.code for live in self._live.values())
        if others >= MOST_JOBS or (others and job.priority == "speculative"):
            raise EngineBusy(f"{name} has too much to do.")

    async def _events(self, live: LiveJob, began: float) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        try:
            exchange = ServiceExchange(live, self._api, self._http, self._health.describe, self._background, began)
            async with aclosing(exchange.events()) as events:
                async for event in events:
                    if isinstance(event, wire.Done):
                        self._health.recover()
                    yield event
        except RequestFailed as error:
            raise self._health.failed(error) from error


def _record(job: wire.Infill, end: str, last: wire.Locked | wire.Done | None, total_ms: float) -> FinishedJob:
    ms = {"total": total_ms}
    if isinstance(last, wire.Done):
        stages = {"prefill": last.timings.prefill_ms, "denoise": last.timings.denoise_ms}
        ms = {name: taken for name, taken in stages.items() if taken} | ms
        return FinishedJob(job.job, end, job.priority, last.steps, ms)
    return FinishedJob(job.job, end, job.priority, last.step if last else 0, ms)
