"""The real language server with a fake engine, whose events the test sends as `test/engine` requests.

Not a test: tests/lsp/test_lsp.py starts it as a process.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any

from caesura import wire
from caesura.client.backend import Condition, EngineFailed, EngineUnavailable
from caesura.server.app import App


class FakeEngine:
    """Remembers its jobs, and says in each what it is told."""

    def __init__(self) -> None:
        self.jobs: list[wire.Infill] = []
        self.cancelled: list[str] = []
        self.told: dict[str, asyncio.Queue[Any]] = {}
        self.condition = Condition("ready", "fake", "cpu")

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        if "--missing" in sys.argv:
            raise EngineUnavailable("There is no engine here.")
        wire.decode_client(wire.encode(job))
        self.jobs.append(job)
        events = self.told[job.job] = asyncio.Queue()
        try:
            while not isinstance(event := await events.get(), wire.Done):
                if isinstance(event, EngineFailed):
                    raise event
                yield event
            yield event
        finally:
            del self.told[job.job]
            self.cancelled.append(job.job)

    async def tell(self, order: Any) -> dict[str, object]:
        """`{text, locked, done}`: an event of the newest job; `{lost}`: it ends without an answer. Answers with what is
        known here, also for `{}`."""
        for _ in range(8):  # turns of the loop: let what was asked before begin or end
            await asyncio.sleep(0)
        if text := getattr(order, "text", None):
            fill = wire.Fill(text, ((0, order.locked),), 0.9, open=len(text) - order.locked)
            job = self.jobs[-1].job
            event = wire.Locked(job=job, seq=0, holes=(fill,), step=1, of=8)
            if order.done:
                times = wire.Timings()
                event = wire.Done(
                    job=job, seq=1, holes=(fill,), steps=1, tokens=wire.Tokens(), timings=times, stop="complete"
                )
            self.told[job].put_nowait(event)
        if choices := getattr(order, "choices", None):
            self.answer(choices, order.done)
        if getattr(order, "lost", False):
            self.told[self.jobs[-1].job].put_nowait(EngineFailed("engine_lost"))
        jobs = [
            {"prefix": j.prefix, "suffix": j.suffix, "kind": kind(j), "id": j.job, "texts": texts(j)} for j in self.jobs
        ]
        return {"jobs": jobs, "live": len(self.told), "cancelled": self.cancelled}

    def answer(self, choices: list[list[str]], done: bool) -> None:
        """The newest job says a text for each hole, the best choice first; or, before it is done, the first holes."""
        job = self.jobs[-1].job
        best, *others = [
            tuple(wire.Fill(text, ((0, len(text)),), 0.9, open=not text) for text in texts) for texts in choices
        ]
        event: wire.Locked | wire.Done = wire.Locked(job=job, seq=0, holes=best, step=1, of=8)
        if done:
            event = wire.Done(
                **{"job": job, "seq": 1, "holes": best, "alternatives": tuple(others), "steps": 1},
                tokens=wire.Tokens(),
                timings=wire.Timings(),
                stop="complete",
                level="valid" if self.jobs[-1].kind == "edit" else "",
            )
        self.told[job].put_nowait(event)


def kind(job: wire.Infill) -> str:
    """Of a job's first hole."""
    return next(segment.kind for segment in job.segments if isinstance(segment, wire.Hole))


def texts(job: wire.Infill) -> list[str | None]:
    """The fixed text of a job's segments, and None for a hole."""
    return [segment.text if isinstance(segment, wire.Text) else None for segment in job.segments]


if __name__ == "__main__":
    engine = FakeEngine()
    app = App(lambda options, client, remote: engine)  # type: ignore[arg-type, return-value]
    app.server.on("test/engine", engine.tell)
    sys.exit(app.server.serve())
