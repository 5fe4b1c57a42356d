"""The warm canvas: what begins a job, what needs none, and what is shown of it. The engine is a dozen lines."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from caesura import wire
from caesura.server import typing
from caesura.server.document import Document
from caesura.server.engine import EngineUnavailable
from caesura.server.options import Options
from caesura.server.typing import Place, Proposal, Superseded, WarmCanvases


class FakeEngine:
    def __init__(self) -> None:
        self.jobs: list[wire.Infill] = []
        self.live: dict[str, asyncio.Queue[wire.Locked | wire.Done | Exception]] = {}

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
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

    async def say(self, text: str, locked: int | None = None) -> None:
        """An event of the newest job: its answer, or with `locked`, a state on the way."""
        whole = ((0, len(text) if locked is None else locked),)
        fill = wire.Fill(text, whole, confidence=0.5, open=0 if locked is None else 1)
        job = self.jobs[-1].job
        done = wire.Done(
            job=job, seq=9, holes=(fill,), steps=1, tokens=wire.Tokens(), timings=wire.Timings(), stop="complete"
        )
        await self.tell(done if locked is None else wire.Locked(job=job, seq=0, holes=(fill,), step=1, of=8))

    async def tell(self, event: wire.Locked | wire.Done | Exception) -> None:
        self.live[self.jobs[-1].job].put_nowait(event)
        await turns()


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


class Editor:
    """A document and its cursor, as a user moves them."""

    def __init__(self, text: str, deadline_ms: float = 10_000, **options: object) -> None:
        self.engine = FakeEngine()
        self.canvases = WarmCanvases(self.engine, Options(deadline_ms=deadline_ms, **options))  # type: ignore[arg-type]
        self.document = Document("file:///a.py", "python", 0, text.replace("|", ""), "utf-32")
        self.cursor = text.index("|")

    async def type(self, text: str, *, at: int | None = None, erase: int = 0, cursor: int | None = None) -> None:
        start = self.cursor - erase if at is None else at
        edit = self.document.edit(self.document.position(start), self.document.position(start + erase), text)
        self.document.version += 1
        self.cursor = start + len(text) if cursor is None else cursor
        self.canvases.edited(self.document, [edit], None)
        await turns()

    async def ask(self) -> "asyncio.Task[Proposal | Superseded]":
        task = asyncio.create_task(self.canvases.propose(self.document, self.cursor, None, invoked=False))
        await turns()
        return task

    async def shown(self) -> str:
        answer = await (await self.ask())
        assert isinstance(answer, Proposal)
        return answer.insert


async def test_typing_begins_a_job_and_the_request_joins_it() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    assert not request.done()
    await editor.engine.say("compute()")
    assert await request == Proposal("compute()")
    [job] = editor.engine.jobs
    assert (job.prefix, job.suffix, job.kind) == ("x = ", "", "complete")
    assert "file" not in job.document


async def test_typed_through_until_nothing_is_left() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc")
    for key, left in (("a", "bc"), ("b", "c")):
        await editor.type(key)
        assert await editor.shown() == left
    await editor.type("", erase=1)
    assert await editor.shown() == "bc"
    assert len(editor.engine.jobs) == 1
    await editor.type("bc")
    assert len(editor.engine.jobs) == 2


async def test_a_mismatch_begins_a_job_from_what_is_left() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc + 1")
    await editor.type("z")
    assert editor.engine.jobs[-1].draft == ("bc + 1",)
    assert len(editor.engine.live) == 1


async def test_a_running_job_is_kept_while_its_draft_agrees() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc + 1", locked=2)
    await editor.type("abc")
    assert len(editor.engine.jobs) == 1
    request = await editor.ask()
    await editor.engine.say("abd + 1", locked=7)  # the draft has changed its mind
    await turns()
    assert len(editor.engine.jobs) == 2
    await editor.engine.say("(1)")
    assert await request == Proposal("(1)")


async def test_a_draft_that_changes_its_mind_while_nobody_asks_begins_a_job() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc + 1", locked=2)
    await editor.type("abc")
    await editor.engine.say("abd + 1", locked=2)
    assert [job.prefix for job in editor.engine.jobs] == ["x = ", "x = abc"]
    assert list(editor.engine.live) == [editor.engine.jobs[-1].job]
    await editor.engine.say("(1)")
    assert await editor.shown() == "(1)"
    assert len(editor.engine.jobs) == 2


async def test_an_answer_that_was_typed_already_begins_a_job() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc", locked=2)
    await editor.type("abc")
    await editor.engine.say("abc")
    assert [job.prefix for job in editor.engine.jobs] == ["x = ", "x = abc"]


async def test_nothing_begins_where_the_cursor_is_unknown() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc", locked=2)
    edits = [editor.document.edit((0, 4), (0, 4), text) for text in ("a", "z")]
    editor.canvases.edited(editor.document, edits, None)
    await editor.engine.say("abd", locked=2)
    assert len(editor.engine.jobs) == 1


async def test_a_job_without_an_event_is_superseded_by_typing() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.type("y")
    assert [job.prefix for job in editor.engine.jobs] == ["x = ", "x = y"]
    assert list(editor.engine.live) == [editor.engine.jobs[-1].job]


async def test_an_edit_elsewhere_drops_the_canvas() -> None:
    editor = Editor("a = 1\nx = |")
    await editor.type("y")
    await editor.engine.say(" + 1")
    cursor = editor.cursor + 1
    await editor.type("b", at=0, cursor=cursor)
    request = await editor.ask()
    assert editor.engine.jobs[-1].prefix == "ba = 1\nx = y"
    await editor.engine.say(" + 2")
    assert await request == Proposal(" + 2")


async def test_many_edits_at_once_begin_nothing() -> None:
    editor = Editor("a\nb|")
    edits = [editor.document.edit((line, 1), (line, 1), "x") for line in (0, 1)]
    editor.canvases.edited(editor.document, edits, None)
    await turns()
    assert editor.engine.jobs == []


@pytest.mark.parametrize(
    ("fill", "expected"),
    [("(a, b)", Proposal("a, b")), ("(a, b) + 1", Proposal("a, b) + 1", eat=1))],
)
async def test_an_auto_closed_bracket(fill: str, expected: Proposal) -> None:
    editor = Editor("|")
    await editor.type("f")
    await editor.engine.say(fill)
    await editor.type("()", cursor=2)
    assert await (await editor.ask()) == expected
    assert len(editor.engine.jobs) == 1


async def test_the_first_locked_line_answers_and_the_rest_follows() -> None:
    editor = Editor("def f():\n   |\n")
    await editor.type(" ")
    request = await editor.ask()
    await editor.engine.say("a = 1\n    b = 2", locked=5)
    assert not request.done()
    await editor.engine.say("a = 1\n    b = 2", locked=6)
    assert await request == Proposal("a = 1")
    assert len(editor.engine.live) == 1
    await editor.engine.say("a = 1\n    b = 2")
    assert await editor.shown() == "a = 1\n    b = 2"


@pytest.mark.parametrize(
    ("text", "locked", "shown"),
    [
        ("alpha + beta(c)", 0, ""),
        ("alpha + beta(c)", 5, ""),
        ("alpha + beta(c)", 8, ""),
        ("alpha + beta(c)", 10, ""),
        ("alpha + beta(c)", 12, "alpha + beta"),
        ("alphabeta(c)", 9, "alphabeta"),
    ],
)
async def test_at_the_deadline_whole_locked_words_that_are_worth_showing(text: str, locked: int, shown: str) -> None:
    editor = Editor("x =|", deadline_ms=1)
    await editor.type(" ")
    await editor.engine.say(text, locked=locked)
    assert await editor.shown() == shown


async def test_a_newer_request_supersedes_the_older() -> None:
    editor = Editor("x = |")
    older, newer = await editor.ask(), await editor.ask()
    assert await older == Superseded(shown_fits=True)
    await editor.engine.say("1")
    assert await newer == Proposal("1")
    assert len(editor.engine.jobs) == 1


async def test_an_edit_supersedes_what_waits() -> None:
    editor = Editor("def f():\n   |\n")
    await editor.type(" ")
    await editor.engine.say("a = 1\n    b = 2", locked=7)
    assert await editor.shown() == "a = 1"
    await editor.type("a = 1")
    waiting = await editor.ask()
    await editor.type("0")
    assert await waiting == Superseded(shown_fits=False)
    waiting = await editor.ask()
    await editor.type("0")
    assert await waiting == Superseded(shown_fits=True)  # the empty answer has cleared it


def test_what_is_shown_fits_while_it_is_typed() -> None:
    document = Document("file:///a.py", "python", 0, "x = ", "utf-32")
    place = Place()
    assert place.shown_fits
    for text, at, fits in (("a", 4, True), ("b", 5, True), ("x", 6, False)):
        place.show(4, "abc") if text == "a" else None
        place.follow(document.edit((0, at), (0, at), text))
        assert place.shown_fits is fits
    place.show(7, "abc")
    place.follow(document.edit((0, 0), (0, 0), "#"))
    assert not place.shown_fits


async def test_low_confidence_is_nothing_to_propose() -> None:
    editor = Editor("x =|", min_confidence=0.6)
    await editor.type(" ")
    await editor.engine.say("1")
    assert await editor.shown() == ""


async def test_no_engine_is_nothing_to_propose_and_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    editor = Editor("x =|")
    for _ in range(3):
        await editor.type(" ")
        await editor.engine.tell(EngineUnavailable("There is no engine here."))
    request = await editor.ask()
    await editor.engine.tell(EngineUnavailable("There is no engine here."))
    assert await request == Proposal("")
    assert [record.message for record in caplog.records] == ["No completion: There is no engine here."]


async def test_a_lost_engine_leaves_no_draft_on_the_screen() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("alpha + beta", locked=5)
    await editor.engine.tell(EngineUnavailable("gone"))
    assert await editor.shown() == ""


async def test_closing_frees_everything() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    editor.canvases.close(editor.document.uri)
    assert isinstance(await request, Superseded)
    await turns()
    assert editor.engine.live == {}
    assert editor.canvases._places == {}


async def test_canvases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing, "MAX_DOCUMENTS", 2)
    editor = Editor("x =|")
    for name in "abc":
        editor.document.uri = f"file:///{name}.py"
        await editor.type(" ")
    assert list(editor.canvases._places) == ["file:///b.py", "file:///c.py"]
    assert len(editor.engine.live) == 2
