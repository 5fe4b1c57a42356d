"""The warm canvas: what begins a job, what needs none, and what is shown of it. The engine is a dozen lines."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from caesura import wire
from caesura.client.backend import EngineBusy, EngineError, EngineFailed, EngineUnavailable
from caesura.schema.document import Schema
from caesura.schema.reader import read_schema
from caesura.server.context.context import Budget, Context
from caesura.server.ghost import panes
from caesura.server.ghost.backoff import Backoff
from caesura.server.ghost.pane import Selected
from caesura.server.ghost.panes import Panes
from caesura.server.ghost.requests import NothingNew
from caesura.server.ghost.typed import Draft, Proposal
from caesura.server.options import Options, Settings
from caesura.server.records.trace import RequestRecord
from caesura.server.text.workspace import ContentChange, OpenDocument, Workspace


class FakeEngine:
    def __init__(self) -> None:
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
        whole = ((0, len(text) if locked is None else locked),)
        fill = wire.Fill(text, whole, confidence=0.9, open=0 if locked is None else 1, probabilities=sure)
        job = job or self.jobs[-1]
        done = wire.Done(
            job=job.job,
            seq=9,
            holes=(fill,),
            alternatives=tuple((wire.Fill(other, ((0, len(other)),), 0.8),) for other in others),
            steps=1,
            tokens=wire.Tokens(),
            timings=wire.Timings(),
            stop="complete",
        )
        way = wire.Locked(job=job.job, seq=0, holes=(fill,), step=1, of=8)
        await self.tell(done if locked is None else way, job)

    async def tell(self, event: wire.Locked | wire.Done | Exception, job: wire.Infill | None = None) -> None:
        self.live[(job or self.jobs[-1]).job].put_nowait(event)
        await turns()


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

    generation = 0
    known: tuple[wire.Neighbour, ...] = ()
    rules: Schema | None = None

    def hidden(self, opened: OpenDocument) -> bool:
        return "secret" in opened.document.uri

    def frame(self, opened: OpenDocument, place: Context, budget: Budget) -> Context:
        return place

    def neighbours(
        self, opened: OpenDocument, place: Context, kept: tuple[wire.Neighbour, ...]
    ) -> tuple[wire.Neighbour, ...]:
        return self.known

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


async def test_typing_begins_a_job_and_the_request_joins_it() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    assert not request.done()
    await editor.engine.say("compute()")
    assert (await proposed(request)).insert == "compute()"
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


@pytest.mark.parametrize(("text", "language"), [("x = |", "python"), ('{"a": |}\n', "json")], ids=["text", "grammar"])
async def test_no_text_is_followed_that_is_far_less_likely_than_what_is_shown(text: str, language: str) -> None:
    editor = Editor(text, language=language, mode="balanced")
    await editor.type("1")
    assert editor.engine.jobs[-1].least == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("marked", "key", "language", "text", "sure", "shown"),
    [
        ('{\n|\n  "b": 2\n}\n', "  ", "json", '"home": "a/b"', ((1, 0.9), (7, 0.9), (8, 0.9), (13, 0.1)), '"home": '),
        ('{\n|\n  "b": 2\n}\n', "  ", "json", '"home": "a/b"', ((1, 0.9), (7, 0.1), (8, 0.9), (13, 0.9)), ""),
        ('{"a": "x|"}\n', "y", "json", "yz and more of it", ((3, 0.9), (9, 0.9), (17, 0.1)), "yz and"),
        ('{"a": |}\n', " ", "json", '"x y z"', ((4, 0.9), (7, 0.1)), ""),  # nothing ends the string
        ("- one\n-|\n", " ", "markdown", "a long item", ((6, 0.9), (11, 0.2)), "a long"),
    ],
    ids=[
        "the key of a member",
        "no key that is unsure",
        "words of a string",
        "no half of a string",
        "words of an item",
    ],
)
async def test_where_a_grammar_holds_what_is_sure_is_shown_if_it_may_stand_alone_and_all_of_it_on_request(
    marked: str, key: str, language: str, text: str, sure: tuple[tuple[int, float], ...], shown: str
) -> None:
    editor = written(marked, language, min_confidence=0.5)
    await editor.type(key)
    await editor.engine.say(text, sure=sure)
    assert await editor.shown() == shown
    request = await editor.ask(invoked=True)
    assert editor.engine.jobs[-1].least == 0.0
    await editor.engine.say(text, sure=sure)
    assert (await proposed(request)).insert.rstrip(",") == text


@pytest.mark.parametrize(("text", "language"), [("x =|", "python"), ('{"a": |}\n', "json")])
async def test_who_asks_gets_no_empty_answer_of_a_canvas_that_had_nothing(text: str, language: str) -> None:
    editor = written(text, language)
    await editor.type(" ")
    await editor.engine.say(" ")
    assert await editor.shown() == ""
    for said in (" ", '"b"'):  # the first request finds nothing again
        request = await editor.ask(invoked=True)
        await editor.engine.say(said)
        assert (await proposed(request)).insert == said.strip()
    assert editor.engine.jobs[-1].seed > editor.engine.jobs[-2].seed  # the same draw would find the same


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
    assert (await proposed(request)).insert == "(1)"


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


async def test_a_request_that_comes_with_such_an_answer_waits_for_the_next_job() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc", locked=2)
    await editor.type("abc")
    said = asyncio.create_task(editor.engine.say("abc"))
    await asyncio.sleep(0)  # the answer is on its way
    request = await editor.ask()
    await said
    assert not request.done()
    await editor.engine.say("(1)")
    assert (await proposed(request)).insert == "(1)"


async def test_nothing_begins_where_the_cursor_is_unknown() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc", locked=2)
    await editor.change(((0, 4), (0, 4), "a"), ((0, 4), (0, 4), "z"))
    await editor.engine.say("abd", locked=2)
    assert len(editor.engine.jobs) == 1


async def test_where_the_cursor_rests_the_engine_reads_what_lies_around_and_no_more() -> None:
    editor = Editor("a = 1\nx =|\nb = 2\n")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    [job] = editor.engine.jobs
    assert (job.prefix, job.suffix, job.priority) == ("a = 1\nx =", "\nb = 2\n", "speculative")
    await editor.engine.say("compute()", locked=2)
    assert not editor.engine.live
    await editor.type(" ")
    assert [(job.prefix, job.priority) for job in editor.engine.jobs[1:]] == [("a = 1\nx = ", "automatic")]


@pytest.mark.parametrize("then", ["type", "ask", "rest"])
async def test_what_is_read_ends_before_another_job_begins(then: str) -> None:
    """So that the engine has what was read so far for it."""
    editor = Editor("x =|")
    editor.typing.rested(editor.opened, 0)
    await turns()
    [reading] = editor.engine.jobs
    lives: list[bool] = []
    editor.engine.on_job = lambda job: lives.append(reading.job in editor.engine.live)
    if then == "type":
        await editor.type(" ")
    elif then == "ask":
        await editor.ask()
    else:
        editor.typing.rested(editor.opened, editor.cursor)
        await turns()
    assert lives == [False]


@pytest.mark.parametrize("options", [{"warm": False}, {"enable": False}, {"mode": "manual"}, {"in_comments": False}])
async def test_nothing_is_read_where_nothing_would_be_suggested(options: dict[str, object]) -> None:
    editor = Editor("# x|", **options)
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    assert not editor.engine.jobs


async def test_nothing_is_read_where_a_canvas_is_known() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    assert len(editor.engine.jobs) == 1


async def test_a_known_place_is_read_again_when_something_else_was_read_meanwhile() -> None:
    """Which may have taken its place in the engine's cache."""
    editor = Editor("y = 1\nx =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    for at in (0, editor.cursor, editor.cursor):
        editor.typing.rested(editor.opened, at)
        await turns()
    assert [job.prefix for job in editor.engine.jobs[1:]] == ["", "y = 1\nx = "]
    assert await editor.shown() == "compute()"


@pytest.mark.parametrize("end", ["closed", "replaced", "known"])
async def test_reading_ends_with_its_document_and_with_the_next_rest(end: str) -> None:
    editor = Editor("x = 1  # why|", in_comments=False)
    editor.typing.rested(editor.opened, 4)
    await turns()
    assert len(editor.engine.live) == 1
    if end == "known":
        editor.typing.rested(editor.opened, editor.cursor)  # where nothing is wanted
    else:
        (editor.typing.close if end == "closed" else editor.typing.replaced)(editor.uri)
    await turns()
    assert not editor.engine.live


async def test_a_hidden_document_is_not_read() -> None:
    editor = Editor("x =|", uri="file:///secret.py")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    assert not editor.engine.jobs


async def test_documents_that_are_only_looked_at_take_nobodys_place() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    for number in range(panes.MAX_DOCUMENTS + 1):
        uri = f"file:///{number}.py"
        editor.workspace.open(uri, "python", 0, "y = ")
        opened = editor.workspace.get(uri)
        assert opened
        editor.typing.rested(opened, 4)
        await turns()
    assert len(editor.engine.live) == 1
    assert await editor.shown() == "compute()"


async def test_an_engine_that_fails_while_it_reads_is_no_trouble() -> None:
    editor = Editor("x =|")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    await editor.engine.tell(EngineUnavailable("gone"))
    await editor.type(" ")
    await editor.engine.say("compute()")
    assert await editor.shown() == "compute()"


@pytest.mark.parametrize(("draft", "jobs"), [("yes", ["x = "]), ("no", ["x = ", "x = y"])])
async def test_a_job_that_has_said_nothing_yet_goes_on_until_it_says_something_else(
    draft: str, jobs: list[str]
) -> None:
    """A cancel would free the engine no sooner."""
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.type("y")
    assert [job.prefix for job in editor.engine.jobs] == ["x = "]
    await editor.engine.say(draft, locked=0)
    assert [job.prefix for job in editor.engine.jobs] == jobs
    assert list(editor.engine.live) == [editor.engine.jobs[-1].job]


@pytest.mark.parametrize(
    ("trouble", "prefixes"), [(EngineFailed("engine_lost"), ["x = ", "x = y"]), (EngineBusy("full"), ["x = "])]
)
async def test_a_job_that_outlives_its_key_and_is_lost_is_begun_once_more_unless_the_engine_has_too_much_to_do(
    trouble: EngineError, prefixes: list[str]
) -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.type("y")
    request = await editor.ask()
    for _ in prefixes:
        assert not request.done()
        await editor.engine.tell(trouble)
    assert [job.prefix for job in editor.engine.jobs] == prefixes
    assert (await proposed(request)).insert == ""


async def test_many_edits_at_once_begin_nothing() -> None:
    editor = Editor("a\nb|")
    await editor.change(((0, 1), (0, 1), "x"), ((1, 1), (1, 1), "x"))
    assert editor.engine.jobs == []


@pytest.mark.parametrize(
    ("fill", "expected"),
    [("(a, b)", ("a, b", 0)), ("(a, b) + 1", ("a, b) + 1", 1))],
)
async def test_an_auto_closed_bracket(fill: str, expected: tuple[str, int]) -> None:
    editor = Editor("|")
    await editor.type("f")
    await editor.engine.say(fill)
    await editor.type("()", cursor=2)
    answer = await editor.answer()
    assert (answer.insert, answer.eat) == expected
    assert len(editor.engine.jobs) == 1


async def test_the_first_locked_line_answers_and_the_rest_follows() -> None:
    editor = Editor("def f():\n   |\n")
    await editor.type(" ")
    request = await editor.ask()
    await editor.engine.say("a = 1\n    b = 2", locked=5)
    assert not request.done()
    await editor.engine.say("a = 1\n    b = 2", locked=6)
    assert (await proposed(request)).insert == "a = 1"
    assert len(editor.engine.live) == 1
    await editor.engine.say("a = 1\n    b = 2")
    assert await editor.shown() == "a = 1\n    b = 2"


@pytest.mark.parametrize(
    ("text", "locked", "shown"),
    [
        ("alpha + beta(c)", 0, None),
        ("alpha + beta(c)", 5, None),
        ("alpha + beta(c)", 10, None),
        ("alpha + beta(c)", 12, "alpha + beta"),
        ("alphabeta(c)", 9, "alphabeta"),
    ],
)
async def test_from_the_deadline_on_whole_locked_words_that_are_worth_showing(
    text: str, locked: int, shown: str | None
) -> None:
    editor = Editor("x =|", deadline_ms=1)
    await editor.type(" ")
    await editor.engine.say(text, locked=locked)
    request = await editor.ask()
    await asyncio.sleep(0.01)  # past the deadline
    assert request.done() is (shown is not None)
    await editor.engine.say(text)
    assert (await proposed(request)).insert == (shown or text)


async def test_a_newer_request_supersedes_the_older() -> None:
    editor = Editor("x = |")
    older, newer = await editor.ask(), await editor.ask()
    assert await older == NothingNew(shown_fits=True)
    await editor.engine.say("1")
    assert (await proposed(newer)).insert == "1"
    assert len(editor.engine.jobs) == 1


async def test_an_edit_supersedes_what_waits() -> None:
    editor = Editor("def f():\n   |\n")
    await editor.type(" ")
    await editor.engine.say("a = 1\n    b = 2", locked=7)
    assert await editor.shown() == "a = 1"
    await editor.type("a = 1")
    waiting = await editor.ask()
    await editor.type("0")
    assert await waiting == NothingNew(shown_fits=False)
    waiting = await editor.ask()
    await editor.type("0")
    assert await waiting == NothingNew(shown_fits=True)  # the empty answer has cleared it


async def test_low_confidence_is_nothing_to_propose() -> None:
    editor = Editor("x =|", min_confidence=0.95)
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
    assert (await proposed(request)).insert == ""
    assert [record.message for record in caplog.records] == ["No completion: There is no engine here."]


async def test_a_lost_engine_leaves_no_draft_on_the_screen() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("alpha + beta", locked=5)
    await editor.engine.tell(EngineUnavailable("gone"))
    assert await editor.shown() == ""


async def test_a_lost_engine_takes_nothing_away_that_is_shown() -> None:
    """Asked for anew by hand, since what was refused before made it want more than is asked for now."""
    editor = Editor("x =|", mode="eager", min_confidence=0.0)
    editor.typing._feedback._backoff.rejected(asyncio.get_running_loop().time())
    await editor.type(" ")
    await editor.engine.say("abc")
    assert await editor.shown() == "abc"
    request = await editor.ask(invoked=True)
    assert len(editor.engine.jobs) == 2
    await editor.engine.tell(EngineUnavailable("gone"))
    assert await request == NothingNew(shown_fits=True)


async def test_closing_frees_everything() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    editor.typing.close(editor.uri)
    assert isinstance(await request, NothingNew)
    await turns()
    assert editor.engine.live == {}
    assert editor.typing._panes == {}


async def test_canvases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "MAX_DOCUMENTS", 2)
    editor = Editor("x =|")
    for name in "abc":
        editor.uri = f"file:///{name}.py"
        editor.workspace.open(editor.uri, "python", 0, "x =")
        await editor.type(" ", at=3)
    assert list(editor.typing._panes) == ["file:///b.py", "file:///c.py"]
    assert len(editor.engine.live) == 2


# Edits elsewhere, and places that the cursor comes back to


async def test_an_edit_elsewhere_keeps_what_was_computed_as_a_draft() -> None:
    editor = Editor("a = 1\nx = |")
    await editor.type("y")
    await editor.engine.say(" + 1")
    await editor.type("b", at=0, cursor=editor.cursor + 1)
    request = await editor.ask()
    assert (editor.engine.jobs[-1].prefix, editor.engine.jobs[-1].draft) == ("ba = 1\nx = y", (" + 1",))
    await editor.engine.say(" + 2")
    assert (await proposed(request)).insert == " + 2"


async def test_an_edit_behind_that_the_model_does_not_see_costs_nothing() -> None:
    editor = Editor("x = |\n" + "y = 1\n" * 1000)
    await editor.type("a")
    await editor.engine.say(" + 1")
    end = len(editor.opened.document.text)
    await editor.type("z", at=end, cursor=editor.cursor)
    await editor.engine.say("nothing")
    assert await editor.shown() == " + 1"
    assert len(editor.engine.jobs) == 2  # one for each place typed at, none for the request


async def test_a_typo_taken_back_finds_its_canvas_again() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute(1)")
    await editor.type("d")
    assert len(editor.engine.jobs) == 2
    await editor.type("", erase=1)
    assert await editor.shown() == "compute(1)"
    assert len(editor.engine.jobs) == 2
    assert editor.engine.live == {}


# Accepting


async def test_accepting_a_word_fixes_it_and_denoises_the_rest_again() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute(first)")
    assert await editor.shown() == "compute(first)"
    await editor.type("compute")
    refined = editor.engine.jobs[-1]
    assert (refined.prefix, refined.draft) == ("x = compute", ("(first)",))
    assert await editor.shown() == "(first)"  # at once
    await editor.engine.say("(first, second)")
    assert await editor.shown() == "(first)"  # what is shown never jumps
    assert editor.counted.counts == [("shown", 14), ("partly", 7)]


async def test_the_rest_of_an_accepted_part_may_grow() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute(first)")
    assert await editor.shown() == "compute(first)"
    await editor.type("compute")
    await editor.engine.say("(first) + 1")
    assert await editor.shown() == "(first) + 1"
    assert editor.counted.counts == [("shown", 14), ("partly", 7), ("grown", 4)]


async def test_what_becomes_of_suggestions_is_counted() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    answer = await editor.answer()
    await editor.type("compute()")
    editor.typing.accepted(answer.id)  # told twice, counted once
    assert editor.counted.counts == [("shown", 9), ("accepted", 9)]


async def test_an_editor_may_tell_what_it_took() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    answer = await editor.answer()
    editor.typing.accepted(answer.id, 3)
    editor.typing.accepted(answer.id)
    editor.typing.accepted("another")
    assert editor.counted.counts == [("shown", 9), ("partly", 3), ("accepted", 6)]


async def test_refused_suggestions_make_the_next_ones_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.server.ghost.feedback.SEEN_S", 0.0)
    editor = Editor("x =|", mode="balanced")
    for _ in range(5):
        await editor.type(" ")
        await editor.engine.say("compute()", sure=((9, 0.6),))
        assert await editor.shown() in ("compute()", "")
        await editor.type("?")
        await editor.engine.say("")
    await editor.type(" ")
    await editor.engine.say("compute()", sure=((9, 0.6),))
    assert await editor.shown() == ""
    assert (await editor.answer(invoked=True)).insert == "compute()"  # who asks is answered


def test_restraint_fades() -> None:
    restraint = Backoff()
    for _ in range(9):
        restraint.rejected(0.0)
    assert restraint.chance(0.2, 0.0) == 0.6
    restraint.accepted(0.0)
    assert restraint.chance(0.2, 0.0) == pytest.approx(1 - 0.8 / 1.4)
    assert restraint.chance(0.2, 1e6) == pytest.approx(0.2)


# Ahead


async def test_in_idle_time_what_comes_after_the_suggestion_is_computed() -> None:
    editor = Editor("def f(a):\n   |\n", speculate=True)
    await editor.type(" ")
    await editor.engine.say("if a:")
    assert len(editor.engine.jobs) == 1  # nobody has seen it yet
    assert await editor.shown() == "if a:"
    ahead = editor.engine.jobs[-1]
    assert (ahead.priority, ahead.prefix) == ("speculative", "def f(a):\n    if a:\n        ")
    await editor.engine.say("return a")
    assert await editor.shown() == "if a:"  # not before its time
    await editor.type("if a:")
    assert await editor.shown() == "\n        return a"
    await editor.type("\n        ")
    assert await editor.shown() == "return a"
    assert [job.priority for job in editor.engine.jobs].count("automatic") == 1
    assert "speculated" in editor.counted.answers


async def test_typing_something_else_ends_the_speculation() -> None:
    editor = Editor("x =|", speculate=True)
    await editor.type(" ")
    await editor.engine.say("compute()")
    await editor.shown()
    assert [job.priority for job in editor.engine.jobs] == ["automatic", "speculative"]
    await editor.type("y")
    assert list(editor.engine.live) == [editor.engine.jobs[-1].job]


# What is shown, and how much of it


async def test_an_unsure_suggestion_is_cut_where_it_becomes_unsure() -> None:
    editor = Editor("x =|", min_confidence=0.5)
    await editor.type(" ")
    await editor.engine.say("first(a) + second", sure=((5, 0.9), (8, 0.8), (11, 0.3), (17, 0.9)))
    assert await editor.shown() == "first(a)"
    await editor.type("first(a) + ")  # what was unsure is typed: now the rest is sure
    assert await editor.shown() == "second"
    assert len([job for job in editor.engine.jobs if job.prefix == "x = "]) == 1


async def test_a_line_brings_along_the_lines_that_follow_it_as_far_as_they_are_likely() -> None:
    """The first line is there as soon as it is locked; the rest only adds to it."""
    editor = Editor("def f(a, b, c):\n    self.a = a\n   |\n\nx = 1\n", mode="balanced")
    await editor.type(" ")
    text = "self.b = b\n    self.c = c\n    log()"
    likely = ((11, 0.9), (25, 0.9), (33, 0.1))  # a token that goes over the end of the line
    await editor.engine.say(text, locked=11, sure=likely)
    assert await editor.shown() == "self.b = b"
    await editor.engine.say(text, sure=likely)
    assert await editor.shown() == "self.b = b\n    self.c = c"


@pytest.mark.parametrize(
    ("insert", "keys", "shown"), [("abc", 4, ""), ("abcd", 4, "abcd"), ("ab", 0, "ab")], ids=["short", "long", "all"]
)
async def test_what_saves_too_few_keys_is_not_shown_unless_it_is_asked_for(insert: str, keys: int, shown: str) -> None:
    editor = Editor("x = f(|, 1)\n", least_keys=keys)
    await editor.type(" ")
    await editor.engine.say(insert)
    assert await editor.shown() == shown
    assert (await editor.answer(invoked=True)).insert == insert


async def test_what_is_shown_stays_while_it_is_typed_through_however_short_it_gets() -> None:
    editor = Editor("x = f(|, 1)\n", least_keys=4)
    await editor.type(" ")
    await editor.engine.say("abcde")
    for key, left in zip("abcd", ("bcde", "cde", "de", "e"), strict=True):
        await editor.shown()
        await editor.type(key)
        assert await editor.shown() == left


async def test_of_several_candidates_all_that_are_sound_are_shown() -> None:
    editor = Editor("x = 1|")
    await editor.type(" ")
    await editor.engine.say("def first", None, "+ second", "+ third", "+ second")
    answer = await editor.answer()
    assert (answer.insert, answer.others) == ("+ second", ("+ third",))


@pytest.mark.parametrize(
    ("fill", "inserted", "eaten"),
    [
        ("value: int) -> None:", "value: int) -> None:", 1),  # it goes on after the bracket
        ("value)", "value", 0),
        ("value: dict[str, int])", "value: dict[str, int]", 0),
        ("value) -> g(int)", "value) -> g(int)", 1),  # its last bracket is another one
        ("value", "value", 0),
        ("v.g(a)", "v.g(a)", 0),  # only its own bracket
        ("v + '(' + g(a))", "v + '(' + g(a)", 0),
        ("v, 'a)'", "v, 'a)'", 0),  # a bracket in a string
    ],
)
async def test_a_fill_says_what_becomes_of_a_bracket_that_the_editor_closed(
    fill: str, inserted: str, eaten: int
) -> None:
    editor = Editor("def f|\n    pass\n")
    await editor.type("()", cursor=editor.cursor + 1)
    await editor.engine.say("x", job=editor.engine.jobs[-1])  # says nothing of the brackets
    await editor.type("v")
    assert [(job.prefix, job.suffix) for job in editor.engine.jobs[1:]] == [("def f(v", "\n    pass\n")]
    await editor.engine.say(fill.removeprefix("v"))
    found = await editor.answer()
    assert (found.insert, found.eat) == (inserted.removeprefix("v"), eaten)
    document = editor.opened.document
    await editor.change((document.position(editor.cursor), document.position(editor.cursor + eaten), found.insert))
    assert editor.counted.counts[-1] == ("accepted", len(found.insert))


@pytest.mark.parametrize(("marked", "inserted", "eaten"), [("foo|\n", "a, b);", 1), ("foo|;\n", "a, b", 0)])
async def test_a_semicolon_after_such_a_bracket_stands_there_once(marked: str, inserted: str, eaten: int) -> None:
    editor = written(marked, "typescript")
    await editor.type("()", cursor=editor.cursor + 1)
    await editor.engine.say("a, b);")
    found = await editor.answer()
    assert (found.insert, found.eat) == (inserted, eaten)


async def test_typing_over_a_closed_bracket_goes_on_with_the_fill() -> None:
    editor = Editor("x = f(|)\n")
    await editor.type("a")
    await editor.engine.say(") + g(b)")
    assert (await editor.answer()).insert == ") + g(b)"
    editor.cursor += 1  # the text stays as it is
    assert (await editor.answer()).insert == " + g(b)"
    assert len(editor.engine.jobs) == 1


async def test_a_fill_that_breaks_the_syntax_is_denoised_again_behind_its_sound_part() -> None:
    editor = Editor("x =|\ny = 2\n")
    await editor.type(" ")
    await editor.engine.say("first + second, def third")
    request = await editor.ask()
    again = editor.engine.jobs[-1]
    assert (again.prefix, again.seed) == ("x = first + second", 1)
    await editor.engine.say(" + third")
    assert (await proposed(request)).insert == "first + second + third"


async def test_where_that_does_not_help_the_sound_part_is_shown() -> None:
    editor = Editor("x =|\ny = 2\n")
    await editor.type(" ")
    await editor.engine.say("first + second, def third")
    request = await editor.ask()
    await editor.engine.say(" def")
    assert (await proposed(request)).insert == "first + second"
    assert await editor.shown() == "first + second"
    assert len(editor.engine.jobs) == 2


async def test_typing_past_the_sound_part_never_shows_it_again() -> None:
    editor = Editor("x =|\ny = 2\n", deadline_ms=1)
    await editor.type(" ")
    await editor.engine.say("first + second, def third")
    request = await editor.ask()
    await editor.engine.say("))")
    assert (await proposed(request)).insert == "first + second"
    await editor.type("first + second, ")
    assert await editor.shown() == ""


async def test_without_the_gate_it_is_shown_as_it_is() -> None:
    editor = Editor("x =|\ny = 2\n", syntax_gate=False)
    await editor.type(" ")
    await editor.engine.say("first + + +")
    assert await editor.shown() == "first + + +"


async def test_the_item_of_a_popup_is_part_of_the_canvas() -> None:
    editor = Editor("os.pa|")
    selected = Selected(3, "path")
    request = await editor.ask(selected=selected)
    assert editor.engine.jobs[-1].prefix == "os.path"
    await editor.engine.say(".join(a)")
    answer = await proposed(request)
    assert (answer.insert, answer.back) == ("path.join(a)", 2)
    await editor.type("t")  # the popup is still open
    assert len(editor.engine.jobs) == 1
    answer = await editor.answer(selected=selected)
    assert (answer.insert, answer.back) == ("path.join(a)", 3)
    assert await editor.shown() == "h.join(a)"  # it was closed


async def test_the_item_of_a_popup_when_the_cursor_moves_in_its_word() -> None:
    editor = Editor("os.pa|")
    request = await editor.ask(selected=Selected(3, "path"))
    await editor.engine.say(".join(a)")
    await proposed(request)
    editor.cursor -= 1
    await editor.ask(selected=Selected(3, "path"))
    assert [job.suffix for job in editor.engine.jobs] == ["", "a"]


async def test_an_item_that_replaces_what_is_typed() -> None:
    editor = Editor("os.ptj|")
    request = await editor.ask(selected=Selected(3, "path.join"))
    await editor.engine.say("(a)", locked=1)
    await editor.engine.say("(a)")
    answer = await proposed(request)
    assert (answer.insert, answer.back) == ("path.join(a)", 3)
    assert len(editor.engine.jobs) == 1


async def test_a_streaming_editor_is_told_each_state_and_the_answer() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    drafts: list[Draft] = []
    request = await editor.ask(on_draft=drafts.append)
    await editor.engine.say("alpha + beta", locked=5)
    await editor.engine.say("alpha * gamma", locked=8)
    assert not request.done()
    await editor.engine.say("alpha * gamma")
    assert (await proposed(request)).insert == "alpha * gamma"
    assert [(d.text, d.locked) for d in drafts if d.text] == [
        ("alpha + beta", 5),
        ("alpha * gamma", 7),
        ("alpha * gamma", 13),
    ]


async def test_a_streaming_editor_is_told_how_much_it_may_show_already() -> None:
    editor = Editor("def f():\n    |")
    drafts: list[Draft] = []
    request = await editor.ask(on_draft=drafts.append)
    await editor.engine.say("a = 1\n    b", locked=3)
    await editor.engine.say("a = 1\n    b", locked=8)
    await editor.engine.say("a = 1\n    b = 2")
    assert (await proposed(request)).insert == "a = 1\n    b = 2"
    assert [d.ready for d in drafts if d.text] == [0, 5, 15]  # it never falls
    assert editor.counted.counts == [("shown", 5), ("grown", 10)]


async def test_no_draft_shows_what_is_not_sound() -> None:
    editor = Editor("x =|\ny = 2\n")
    await editor.type(" ")
    drafts: list[Draft] = []
    request = await editor.ask(on_draft=drafts.append)
    await editor.engine.say("first + second, def third")
    assert {(d.text, d.locked) for d in drafts if d.text} == {("first + second", len("first + second"))}
    await editor.engine.say(" + third")
    assert (await proposed(request)).insert == "first + second + third"


async def test_what_is_shown_is_not_exchanged_for_a_better_candidate() -> None:
    editor = Editor("x = f(|)\n")
    request = await editor.ask()
    await editor.engine.say("a:\nb = 2", locked=3)
    shown = (await proposed(request)).insert
    assert shown == "a"
    await editor.engine.say("a:\nb = 2", None, "other")
    assert await editor.shown() == shown


async def test_the_other_candidates_are_there_when_the_shown_one_is_asked_for_again() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    await editor.engine.say("alpha", None, "beta")
    first = await proposed(request)
    assert (first.insert, first.others) == ("alpha", ("beta",))
    again = await editor.answer()
    assert (again.insert, again.others) == ("alpha", ("beta",))


async def test_what_goes_on_is_counted_as_shown() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("alpha\n", locked=6)
    assert await editor.shown() == "alpha"
    await editor.type("alpha")  # taken, undone and taken again
    await editor.type("", erase=5)
    assert await editor.shown() == "alpha"
    await editor.type("alpha")
    assert editor.counted.counts == [("shown", 5), ("accepted", 5)] * 2


# When


async def test_a_manual_mode_waits_to_be_asked() -> None:
    editor = Editor("x =|", mode="manual")
    await editor.type(" ")
    assert await editor.shown() == ""
    assert editor.engine.jobs == []
    request = await editor.ask(invoked=True)
    await editor.engine.say("1")
    assert (await proposed(request)).insert == "1"
    assert editor.engine.jobs[0].priority == "invoked"


async def test_in_manual_mode_what_was_asked_for_stays_while_it_is_typed() -> None:
    editor = Editor("x =|", mode="manual")
    await editor.type(" ")
    request = await editor.ask(invoked=True)
    await editor.engine.say("compute()")
    assert (await proposed(request)).insert == "compute()"
    await editor.type("c")
    assert await editor.shown() == "ompute()"
    await editor.type("?")
    assert await editor.shown() == ""
    assert len(editor.engine.jobs) == 1


async def test_without_warmth_denoising_begins_at_the_request() -> None:
    editor = Editor("x =|", warm=False)
    await editor.type(" ")
    assert editor.engine.jobs == []
    await editor.ask()
    assert len(editor.engine.jobs) == 1


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x = 1  # a|", {"in_comments": False}),
        ("x = 'a|'", {"in_strings": False}),
        ("x =|", {"languages": {"python": False}}),
        ("x =|", {"languages": {"*": False}}),
        ("x =|", {"enable": False}),
        ("x =|", {"uri": "file:///secret.py"}),
    ],
)
async def test_places_that_are_off(text: str, options: dict[str, Any]) -> None:
    editor = Editor(text, **options)
    await editor.type(" ")
    assert await editor.shown() == ""
    assert editor.engine.jobs == []


async def test_neighbours_stay_while_one_types_and_change_with_what_lies_around() -> None:
    editor = Editor("x =|")
    editor.around.known = (wire.Neighbour("# a.py", "a = 1"),)
    await editor.type(" ")
    await editor.engine.say("")
    editor.around.known = ()
    await editor.type("y")
    await editor.engine.say("")
    assert [len(job.neighbours) for job in editor.engine.jobs] == [1, 1]  # other ones would cost the whole prefix
    editor.around.generation += 1  # a file was closed, or the user wants none
    await editor.type("z")
    assert editor.engine.jobs[-1].neighbours == ()


async def test_secrets_stay_here_and_are_not_proposed() -> None:
    editor = Editor('password = "hunter2-Xy9"\nx =|')
    await editor.type(" ")
    [job] = editor.engine.jobs
    assert "hunter2" not in job.prefix
    assert len(job.prefix) == len(editor.opened.document.text)
    await editor.engine.say('"' + job.prefix[12:23] + '"')
    assert await editor.shown() == ""


async def test_every_request_leaves_a_trace() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("ab(1)")
    await editor.shown()
    await editor.type("a")
    await editor.shown()
    await editor.type("?")
    waiting = await editor.ask()
    await editor.type("?")
    await waiting
    request = await editor.ask()
    await editor.engine.say("no")  # not what was typed
    await editor.engine.say(" ")
    await request
    assert editor.counted.answers == ["warm", "typed_through", "superseded", "nothing"]


# What has a grammar


def written(text: str, language: str, **options: object) -> Editor:
    return Editor(text, uri=f"file:///a.{language}", language=language, **options)


async def test_in_markdown_the_hole_of_an_item_has_a_grammar_and_typing_on_keeps_its_canvas() -> None:
    editor = written("- one\n-|\n", "markdown")
    await editor.type(" ")
    [job] = editor.engine.jobs
    [hole] = job.segments
    assert isinstance(hole, wire.Hole)
    assert isinstance(hole.grammar, wire.Pattern)
    await editor.engine.say("two three")
    assert await editor.shown() == "two three"
    await editor.type("tw")
    assert await editor.shown() == "o three"
    assert len(editor.engine.jobs) == 1


async def test_without_the_setting_the_hole_has_none() -> None:
    editor = written("- one\n-|\n", "markdown", structured=False)
    await editor.type(" ")
    assert editor.engine.jobs[-1].segments == (wire.Hole(32, "line"),)


@pytest.mark.parametrize(
    ("marked", "key", "jobs"),
    [
        ("Some words|\n", " ", 0),
        ("Some w|\n", "o", 0),
        ("Some wo|\n", "r", 1),  # the rest of the word
        ("- one of|\n", " ", 0),
        ("# One of|\n", " ", 1),
        ("Run `npm|`\n", " ", 1),
        ("See [this](|)\n", "/", 1),
        ("```sh\nnpm|\n```\n", " ", 1),
        ("```sh\nnpm i\n```\nIt is|\n", " ", 0),
        ("```sh\r\nnpm|\r\n```\r\n", " ", 1),
        ("It is:\n\n    npm|\n", " ", 1),
        ("- It is:\n\n      npm|\n", " ", 1),
        ("---\ntitle:|\n---\n", " ", 1),
        ("---\r\ntitle:|\r\n---\r\n", " ", 1),
        ("---\ntitle: x\n---\nIt is|\n", " ", 0),
    ],
)
async def test_prose_of_markdown_costs_nothing_until_somebody_asks(marked: str, key: str, jobs: int) -> None:
    editor = written(marked, "markdown")
    editor.opened.tree.parse(editor.opened.document.text)  # as it is soon after the document was opened
    editor.typing.rested(editor.opened, editor.cursor)
    await editor.type(key)
    if jobs == 0:
        assert await editor.shown() == ""
    assert len([job for job in editor.engine.jobs if job.priority == "automatic"]) == jobs
    request = await editor.ask(invoked=True)
    await editor.engine.say("words")
    assert (await proposed(request)).insert == "words"


async def test_where_a_grammar_holds_nothing_is_shown_before_the_canvas_is_done() -> None:
    text = "a long item of some words"
    editor = written("- one\n-|\n", "markdown", deadline_ms=1.0, min_confidence=0.85)
    await editor.type(" ")
    request = await editor.ask()
    await editor.engine.say(text, locked=17)
    await asyncio.sleep(0.01)  # past the deadline, when locked words of other text would be shown
    assert not request.done()
    await editor.engine.say(text)
    assert (await proposed(request)).insert == text


async def test_the_rest_of_a_table_row_is_several_holes_and_one_proposal() -> None:
    editor = written("|", "markdown")
    await editor.type("| a | b |\n|---|---|\n| 1 | 2 |\n|")
    await editor.type(" ")
    job = editor.engine.jobs[-1]
    holes = [segment for segment in job.segments if isinstance(segment, wire.Hole)]
    assert len(holes) == 2
    fills = tuple(wire.Fill(text, ((0, 1),), 0.9) for text in "34")
    done = {"job": job.job, "seq": 0, "steps": 1, "stop": "complete"}
    await editor.engine.tell(wire.Done(**done, holes=fills, tokens=wire.Tokens(), timings=wire.Timings()))
    assert await editor.shown() == "3 | 4 |"
    await editor.type("3 ")
    assert await editor.shown() == "| 4 |"
    assert editor.engine.jobs[-1] is job


async def test_in_json_the_hole_goes_on_with_what_is_typed_by_the_documents_schema() -> None:
    editor = written('{"level": "lo|"}\n', "json")
    editor.around.rules = read_schema('{"properties": {"level": {"enum": ["low", "lower", "high"]}}}')
    await editor.type("w")
    [job] = editor.engine.jobs
    [hole] = job.segments
    assert isinstance(hole, wire.Hole)
    assert isinstance(hole.grammar, wire.Json)
    assert (hole.grammar.typed, hole.grammar.then, hole.grammar.schema) == ('"low', '"', 0)
    assert len(job.schemas) == 1
    await editor.engine.say("er")
    assert await editor.shown() == "er"


async def test_secrets_of_a_schema_stay_here() -> None:
    editor = written('{"level": |}\n', "json")
    editor.around.rules = read_schema('{"properties": {"level": {"default": {"password": "hunter2-Xy9"}}}}')
    await editor.type('"')
    [job] = editor.engine.jobs
    assert "password" in job.schemas[0]
    assert "hunter2" not in job.schemas[0]


async def test_a_key_typed_otherwise_begins_a_hole_with_a_grammar_again() -> None:
    editor = written('{"a": 1, |}\n', "json")
    await editor.type('"b')
    await editor.engine.say('ar": 2')
    assert await editor.shown() == 'ar": 2'
    await editor.type("o")
    first, second = (job.segments[0] for job in editor.engine.jobs)
    assert isinstance(first, wire.Hole)
    assert isinstance(second, wire.Hole)
    assert isinstance(first.grammar, wire.Json)
    assert isinstance(second.grammar, wire.Json)
    assert (first.grammar.typed, second.grammar.typed) == ('"b', '"bo')
    assert second.grammar.taken == ("a",)


async def test_a_part_that_is_taken_leaves_the_rest_as_it_is() -> None:
    editor = written('{"a": |}\n', "json")
    await editor.type("[")
    await editor.engine.say("1, 2, 3]")
    assert await editor.shown() == "1, 2, 3]"
    await editor.type("1, ")
    assert await editor.shown() == "2, 3]"
    assert len(editor.engine.jobs) == 1


async def test_invisible_characters_are_not_shown_where_leaving_them_out_may_break_the_grammar() -> None:
    editor = written('{"a": |}\n', "json")
    await editor.type('"')
    await editor.engine.say('x\u200by"', None, 'z"')
    assert await editor.shown() == 'z"'
