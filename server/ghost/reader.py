"""Prefill for a resting cursor: the engine reads its context, so that the first key finds it in the KV cache."""

import asyncio
from contextlib import aclosing, suppress

from caesura import wire
from caesura.client.backend import EngineError, Infiller, job_id


class ContextReader:
    """Runs one prefill at a time for all documents: all have the key `document`, so a new one ends the one before it in
    the engine too. `count` is the number of prefills begun."""

    def __init__(self, engine: Infiller) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self.document = job_id()
        self.count = 0

    def read(self, job: wire.Infill) -> None:
        self.end()
        self.count += 1
        self._task = asyncio.create_task(self._prefill(job))

    def end(self) -> None:
        """Cancel the prefill. To be called before another job begins, which then finds what was read so far."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _prefill(self, job: wire.Infill) -> None:
        """Run a job until its first event: then the KV cache has the context. A failure is ignored: no request waits
        yet."""
        with suppress(EngineError):
            async with aclosing(self._engine.infill(job)) as events:
                await anext(events, None)
