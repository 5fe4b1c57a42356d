"""A remote engine, and the local one for jobs that the remote one cannot do: the first of these starts it. With
`fallback` it also answers while the remote one does not, in the time that is left; then the condition is the local
one's, and says so. A job that both had is reported once.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import msgspec

from caesura import wire
from caesura.client.backend import Backend, Condition, EngineUnavailable, FinishedJob, needs


class Routed:
    def __init__(self, name: str, remote: Backend, local: Backend, *, fallback: bool) -> None:
        self._name = name
        self._remote = remote
        self._local = local
        self._fallback = fallback
        self._started = False  # the local engine
        self._finished: dict[str, FinishedJob] = {}  # jobs that an engine has reported and we have not
        self.on_job: Callable[[FinishedJob], None] = lambda job: None
        remote.on_job = local.on_job = self._keep

    def __repr__(self) -> str:
        return f"<Routed {self._remote} {self._local if self._started else 'alone'}>"

    @property
    def on_change(self) -> Callable[[], None]:
        return self._remote.on_change

    @on_change.setter
    def on_change(self, told: Callable[[], None]) -> None:
        self._remote.on_change = self._local.on_change = told

    @property
    def condition(self) -> Condition:
        remote, local = self._remote.condition, self._local.condition
        busy = remote.busy or (self._started and local.busy)
        if self._fallback and self._started and remote.state == "unavailable":
            return replace(local, device=f"{local.device}, while {self._name} does not answer", busy=busy)
        return replace(remote, busy=busy)

    async def start(self) -> None:
        await self._remote.start()

    async def close(self) -> None:
        await self._remote.close()
        await self._local.close()

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """The events of a job, the last a Done. Raises EngineError."""
        began = time.monotonic()
        try:
            async with aclosing(self._events(job, began)) as events:
                async for event in events:
                    yield event
        finally:
            if last := self._finished.pop(job.job, None):
                self.on_job(replace(last, ms={**last.ms, "total": (time.monotonic() - began) * 1000}))

    def _keep(self, job: FinishedJob) -> None:
        self._finished[job.job] = job

    async def _events(self, job: wire.Infill, began: float) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        if not needs(job) & self._remote.condition.lacks:
            heard = False
            try:
                async with aclosing(self._remote.infill(job)) as events:
                    async for event in events:
                        heard = True
                        yield event
                return
            except EngineUnavailable:
                if heard or not self._fallback:
                    raise
        await self._start_local()
        left_ms = max(0.0, job.deadline_ms - (time.monotonic() - began) * 1000)
        async with aclosing(self._local.infill(msgspec.structs.replace(job, deadline_ms=left_ms))) as events:
            async for event in events:
                yield event

    async def _start_local(self) -> None:
        if not self._started:
            self._started = True
            await self._local.start()
