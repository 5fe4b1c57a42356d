"""An editor of one document without LSP: its user types, asks and takes. The engine is a dozen lines."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from caesura import wire
from caesura.client.backend import Condition
from caesura.schema.document import Schema
from caesura.server.context.context import Budget, Context, Snapshot
from caesura.server.ghost.panes import Panes
from caesura.server.ghost.requests import NothingNew
from caesura.server.ghost.typed import Proposal
from caesura.server.options import Options, Settings
from caesura.server.records.trace import RequestRecord
from caesura.server.text.workspace import ContentChange, OpenDocument, Workspace


class FakeEngine:
    def __init__(self) -> None:
        self.condition = Condition("ready")
        self.jobs: list[wire.Infill] = []
        self.live: dict[str, asyncio.Queue[wire.Locked | wire.Done | Exception]] = {}
        self.on_job: Callable[[wire.Infill], None] = lambda job: None

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        self.on_job(job)
        self.jobs.append(job)
        events = self.live[job.job] = asyncio.Queue()
        try:
            event = None
            while not isinstance(event, wire.Done):
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            del self.live[job.job]

    async def say(
        self,
        text: str,
        locked: int | None = None,
        *others: str,
        sure: tuple[tuple[int, float], ...] = (),
        job: wire.Infill | None = None,
    ) -> None:
        """An event of the newest job, or of `job`: its answer, or with `locked`, a state on the way."""
        job = job or self.jobs[-1]
        if locked is None:
            await self.tell(answered(job, text, *others, sure=sure), job)
        else:
            fill = wire.Fill(text, ((0, locked),), confidence=0.9, open=1, probabilities=sure)
            await self.tell(wire.Locked(job=job.job, seq=0, holes=(fill,), step=1, of=8), job)

    async def tell(self, event: wire.Locked | wire.Done | Exception, job: wire.Infill | None = None) -> None:
        self.live[(job or self.jobs[-1]).job].put_nowait(event)
        await turns()


def answered(job: wire.Infill, text: str, *others: str, sure: tuple[tuple[int, float], ...] = ()) -> wire.Done:
    return wire.Done(
        job=job.job,
        seq=9,
        holes=(wire.Fill(text, ((0, len(text)),), confidence=0.9, probabilities=sure),),
        alternatives=tuple((wire.Fill(other, ((0, len(other)),), 0.8),) for other in others),
        steps=1,
        tokens=wire.Tokens(),
        timings=wire.Timings(),
        stop="complete",
    )


async def proposed(request: "asyncio.Task[Proposal | NothingNew]") -> Proposal:
    answer = await request
    assert isinstance(answer, Proposal)
    return answer


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


class Alone:
    """A document with nothing around it."""

    rules: Schema | None = None

    def hidden_by(self, opened: OpenDocument) -> str | None:
        return "a rule" if "secret" in opened.document.uri else None

    def frame(self, opened: OpenDocument, place: Context, budget: Budget) -> Context:
        return place

    def others(self, opened: OpenDocument) -> tuple[str, list[Snapshot]]:
        return "", []

    def schema(self, opened: OpenDocument) -> Schema | None:
        return self.rules


class Counted:
    """What was counted of suggestions, and recorded of requests."""

    def __init__(self) -> None:
        self.counts: list[tuple[str, int]] = []
        self.answers: list[str] = []

    def record(self, request: RequestRecord) -> None:
        self.answers.append(request.answer)

    def __getattr__(self, name: str) -> Callable[[str, int], None]:
        return lambda language, characters: self.counts.append((name, characters))


class Editor:
    """A document and its cursor, as a user moves them. Nothing runs ahead in idle time unless a test asks for it."""

    def __init__(self, text: str, *, uri: str = "file:///a.py", language: str = "python", **options: object) -> None:
        self.engine = FakeEngine()
        self.counted = Counted()
        settings = {"deadline_ms": 10_000.0, "speculate": False, "least_keys": 0} | options
        chosen = Options(**settings)  # type: ignore[arg-type]
        self.around = Alone()
        self.typing = Panes(self.engine, Settings(chosen), self.around, self.counted, self.counted)
        self.troubles: list[str] = []
        self.typing.on_trouble = self.troubles.append
        self.workspace = Workspace("utf-32")
        self.workspace.open(uri, language, 0, text.replace("|", ""))
        self.uri = uri
        self.cursor = text.index("|")

    @property
    def opened(self) -> OpenDocument:
        opened = self.workspace.get(self.uri)
        assert opened
        return opened

    async def type(self, text: str, *, at: int | None = None, erase: int = 0, cursor: int | None = None) -> None:
        document, start = self.opened.document, self.cursor - erase if at is None else at
        self.cursor = start + len(text) if cursor is None else cursor
        await self.change((document.position(start), document.position(start + erase), text))

    async def change(self, *changes: ContentChange) -> None:
        edits = self.workspace.edit(self.uri, self.opened.document.version + 1, changes)
        assert edits
        self.typing.edited(self.opened, edits)
        await turns()

    async def ask(self, **how: Any) -> "asyncio.Task[Proposal | NothingNew]":
        answering = self.typing.propose(self.opened, self.cursor, **{"invoked": False, **how})
        task = asyncio.ensure_future(answering())
        await turns()
        return task

    async def answer(self, **how: Any) -> Proposal:
        answer = await (await self.ask(**how))
        assert isinstance(answer, Proposal)
        return answer

    async def shown(self) -> str:
        return (await self.answer()).insert


def written(text: str, language: str, **options: object) -> Editor:
    return Editor(text, uri=f"file:///a.{language}", language=language, **options)
