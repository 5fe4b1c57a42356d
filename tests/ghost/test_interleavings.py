"""Typing under random interleavings: two documents, an engine that says what it likes, dies and comes back, and an
editor that does anything at any moment. What must hold is checked whenever an answer comes and after every step:

1. A request has one answer (`_check`).
2. What is shown is for the text as it is (`_draw`, `_stream`).
3. Nothing is streamed behind a cancel (`_stream`).
4. Nothing comes for a document that was closed (`_draw`, `_stream`: closing ends its requests).
5. A job runs only for a canvas at a cursor or ahead of it (`_check_live`).
6. When the engine dies nobody waits for its jobs, nor for one that is gone longer than a job may take; from a request's
   deadline on nobody waits while there is something to show (`_check_live`, `_check_deadlines`).
7. A place has one job (`_check_live`).
8. What is shown stays: a value of a stream, and the answer, begins with what is left of it, also where a popup opens
   with its beginning, or closes (`_draw`, `_adds_up`).
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from caesura import wire
from caesura.client.backend import EngineFailed, EngineUnavailable
from caesura.server.context.context import Context
from caesura.server.ghost.canvas import WarmCanvas
from caesura.server.ghost.canvases import RESTING
from caesura.server.ghost.pane import Selected
from caesura.server.ghost.panes import Panes
from caesura.server.ghost.requests import NothingNew
from caesura.server.ghost.typed import Proposal
from caesura.server.infill.insert import finish
from caesura.server.lsp.completion import PartialResults
from caesura.server.options import Options, Settings
from caesura.server.records.trace import RequestRecord
from caesura.server.text.workspace import ContentChange, OpenDocument, Workspace

from ..support.editor import Alone, FakeEngine

TEXTS = {
    "file:///a.py": ("python", "def f(a):\n    x = |\n\nprint(1)\n"),
    "file:///b.ts": ("typescript", "function f(a) {\r\n  g(|)\r\n}\r\nlet y = 2\r\n"),
}
KEYS = "abcfx ()=.\n"
PAIRS = ("()", "[]", '""')
CLOSERS = ")]}>\"'`"
FILLS = (
    "",
    " ",
    "ab",
    "abc + 1",
    "abc(a, b)",
    "(a, b)",
    "(a) + 1",
    '"ab" + c',
    "a, b)",
    "a + b, def c",
    "alpha + beta(c)",
    "a = 1\n    b = 2",
    "a = 1\n    b = )",
    "if a:\n        b = 2\n        c()",
    "\n    return a",
    "a ))",
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"warm": False},
    {"speculate": False},
    {"syntax_gate": False},
    {"mode": "eager"},
    {"mode": "manual"},
    {"min_confidence": 0.0},
    {"min_confidence": 0.6},
    {"deadline_ms": 1.0},
    {"in_strings": False},
    {"enable": False},
)
WIDE = {"context_before": 6000, "context_after": 2000, "least_keys": 0, "min_confidence": 0.25}
NARROW = {"context_before": 12, "context_after": 12, "least_keys": 0, "min_confidence": 0.25}
SURE = (0.99, 0.99, 0.9, 0.99, 0.4, 0.8)
JOB_S = 10.0  # what a job may take: the deadline that it has unless somebody says another
RARE = ("close", "replace", "two edits", "error", *SETTINGS)
JOBS = st.integers(0, 3)  # the job that is meant, of those that run
ITEMS = st.tuples(st.integers(0, 3), st.sampled_from(("abc", "x", "")))  # of a popup: see `_selected`
URIS, STEP = st.sampled_from(list(TEXTS)), st.sampled_from((12, 12, 0, 1, 2))  # turns of the loop after a step


class Clock(asyncio.SelectorEventLoop):
    """Its time goes on only where a test says so."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Mortal(FakeEngine):
    """One that may be gone. Its client waits for it until a job's deadline, as engine.Engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.there = asyncio.Event()
        self.there.set()
        self.waiting: set[str] = set()

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        self.waiting.add(job.job)
        try:
            async with asyncio.timeout(job.deadline_ms / 1000):
                await self.there.wait()
        except TimeoutError:
            raise EngineUnavailable("The engine is still starting.") from None
        finally:
            self.waiting.remove(job.job)
        async with aclosing(super().infill(job)) as events:
            async for event in events:
                yield event


@dataclass
class Ghost:
    """A suggestion that an editor draws between `before` and `after`. With a `popup` it covers the typed text there.
    `idle`: since then the user has only typed its text, so it must not shrink."""

    id: str
    insert: str
    eat: int
    before: str
    after: str
    popup: bool
    idle: bool

    def typed(self, text: str) -> str | None:
        """What was typed at it since it was drawn; None where the text has changed elsewhere."""
        fits = text.startswith(self.before) and text.endswith(self.after)
        size = len(text) - len(self.before) - len(self.after)
        return text[len(self.before) : len(self.before) + size] if fits and size >= 0 else None

    def fits(self, text: str) -> bool:
        """Whether an editor may go on to draw it, where no popup decides that."""
        typed = self.typed(text)
        return self.popup or (typed is not None and self.insert.startswith(typed.rstrip(CLOSERS) if typed else ""))

    def stays(self, text: str, cursor: int, selected: Selected | None) -> bool:
        """Whether it is drawn also after a request, which closes a popup, or has an item selected in one."""
        if selected is None:
            return self.stands(text, cursor)
        return not self.eat and (self.before + self.insert).startswith(text[: selected.start] + selected.text)

    def stands(self, text: str, cursor: int) -> bool:
        """Whether it is still drawn at the cursor, also within brackets that the editor closed meanwhile."""
        typed, size = self.typed(text), cursor - len(self.before)
        left = self.insert[max(0, size) :]
        return bool(
            left and typed is not None and self.insert.startswith(typed[: max(0, size)]) and _within(typed[size:], left)
        )

    def rest(self, text: str, cursor: int) -> str:
        """What is left to accept; empty where it has nothing for the cursor."""
        typed = self.typed(text)
        if typed is None or cursor != len(self.before) + len(typed) or not self.insert.startswith(typed):
            return ""
        return self.insert[len(typed) :]


@dataclass
class Asked:
    """A request: `over` once something newer has come. `since` and `late`, its deadline, are in seconds."""

    uri: str
    at: int
    selected: bool
    since: float
    late: float
    stream: PartialResults | None = None
    over: bool = False
    answers: int = 0
    cancelled: bool = False
    values: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Told:
    """What the engine makes of a job: `text` is its answer, of which `locked` code points are promised."""

    text: str
    locked: int = 0
    fills: tuple[str, ...] = ()  # all that it said, also on the way
    over: bool = False  # nothing comes after it


class Interleavings(RuleBasedStateMachine):
    """An editor with two documents, the server's typing, and the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Clock()
        asyncio.set_event_loop(self.loop)
        self.tasks: list[asyncio.Task[Any]] = []
        self.loop.set_task_factory(self._task)
        self.engine = Mortal()
        self.gone = 0.0  # since when the engine is, if it is
        self.told: dict[str, Told] = {}
        self.settings = Settings()
        self.typing = Panes(self.engine, self.settings, Alone(), self, self)
        self.workspace = Workspace("utf-32")
        self.cursors: dict[str, int] = {}
        self.ghosts: dict[str, Ghost] = {}
        self.known: dict[object, str] = {}  # what the newest proposal of a document, and of a canvas, makes of the text
        self.asked: dict[asyncio.Task[None], Asked] = {}
        self.counted = {"shown": 0, "taken": 0}
        self.recorded: RequestRecord | None = None
        self.window = WIDE
        self.sound = True  # no step has failed

    # What is counted and recorded

    def shown(self, language: str, characters: int) -> None:
        self.counted["shown"] += characters

    def grown(self, language: str, characters: int) -> None:
        self.counted["shown"] += characters

    def accepted(self, language: str, characters: int) -> None:
        self.counted["taken"] += characters

    def partly(self, language: str, characters: int) -> None:
        self.counted["taken"] += characters

    def rejected(self, language: str, characters: int) -> None:
        """Not among the sums."""

    def record(self, request: RequestRecord) -> None:
        self.recorded = request

    # Steps

    @initialize(window=st.sampled_from((WIDE, WIDE, NARROW)))
    def begin(self, window: dict[str, Any]) -> None:
        self.window = window
        self.settings.options = Options(**window)
        self._run(self._open(), 12)

    @rule(uri=URIS, key=st.sampled_from(KEYS), turns=STEP)
    def type(self, uri: str, key: str, turns: int) -> None:
        self._run(self._put(uri, self.cursors[uri], self.cursors[uri], key), turns)

    @precondition(lambda self: self._drawn())
    @rule(which=st.integers(0, 1), size=st.integers(1, 3), turns=STEP)
    def type_what_is_shown(self, which: int, size: int, turns: int) -> None:
        uri, rest = self._drawn()[which % len(self._drawn())]
        for key in rest[:size]:
            self._run(self._put(uri, self.cursors[uri], self.cursors[uri], key), turns)

    @rule(uri=URIS, pair=st.sampled_from(PAIRS), turns=STEP)
    def type_a_pair(self, uri: str, pair: str, turns: int) -> None:
        opener = dict(self._drawn()).get(uri, "")[:1]
        pair = next((pair for pair in PAIRS if pair[0] == opener), pair)
        self._run(self._put(uri, self.cursors[uri], self.cursors[uri], pair, back=1), turns)

    @rule(uri=URIS, size=st.integers(1, 3), turns=STEP)
    def erase(self, uri: str, size: int, turns: int) -> None:
        at = self.cursors[uri]
        self._run(self._put(uri, max(0, at - size), at, ""), turns)

    @precondition(lambda self: self._drawn())
    @rule(which=st.integers(0, 1), word=st.booleans(), tells=st.booleans(), turns=STEP)
    def accept(self, which: int, word: bool, tells: bool, turns: int) -> None:
        uri, rest = self._drawn()[which % len(self._drawn())]
        ghost, at = self.ghosts[uri], self.cursors[uri]
        size = len(_word(rest)) if word else len(rest)
        eat = 0 if word else ghost.eat
        self._run(self._put(uri, at, at + eat, rest[:size]), 0)
        if tells:
            self._run(self._tell_accepted(ghost, len(ghost.insert) - len(rest) + size), turns)

    @rule(uri=URIS, where=st.floats(0, 1), size=st.integers(0, 2), text=st.sampled_from(("", "z", "z\n")), turns=STEP)
    def edit_elsewhere(self, uri: str, where: float, size: int, text: str, turns: int) -> None:
        start = int(where * len(self._text(uri)))
        end = min(len(self._text(uri)), start + size)
        self._run(self._put(uri, start, end, text, elsewhere=True), turns)

    @rule(uri=URIS, by=st.integers(-3, 3))
    def move(self, uri: str, by: int) -> None:
        document = self._opened(uri).document
        self.cursors[uri] = document.offset(document.position(self.cursors[uri] + by))
        if uri in self.ghosts:
            self.ghosts[uri].idle = False

    @rule(uri=URIS, invoked=st.booleans(), stream=st.booleans(), turns=STEP)
    def ask(self, uri: str, invoked: bool, stream: bool, turns: int) -> None:
        self._run(self._ask(uri, invoked, stream, None), turns)

    @rule(uri=URIS, item=ITEMS, turns=STEP)
    def ask_with_an_item(self, uri: str, item: tuple[int, str], turns: int) -> None:
        self._run(self._ask(uri, False, False, self._selected(uri, item)), turns)

    @rule(
        uri=URIS,
        item=st.none() | ITEMS,
        stream=st.booleans(),
        text=st.sampled_from(FILLS),
        more=st.integers(1, 40),
        turns=STEP,
    )
    def suggest(self, uri: str, item: tuple[int, str] | None, stream: bool, text: str, more: int, turns: int) -> None:
        """What happens most: the user waits for an answer."""
        selected = self._selected(uri, item) if item else None
        self._run(self._ask(uri, False, stream and not item, selected), 12)
        pane = self.typing._panes.get(uri)
        for job in [job for job in self._live() if pane and job.document == pane._key]:
            told = self.told.setdefault(job.job, Told(text))
            if more < len(told.text):
                self._lock(job, more, "", 12)
            else:
                self._tell(job, self._done(job, text, []), 12)
            self._run(self._nothing(), turns)

    @precondition(lambda self: any(not task.done() for task in self.asked))
    @rule(which=st.integers(0, 5), turns=STEP)
    def cancel(self, which: int, turns: int) -> None:
        waiting = [task for task in self.asked if not task.done()]
        task = waiting[which % len(waiting)]
        self.asked[task].cancelled = task.cancel()
        self._run(self._nothing(), turns)

    @precondition(lambda self: self._live())
    @rule(which=JOBS, text=st.sampled_from(FILLS), more=st.integers(0, 9), tail=st.sampled_from(FILLS), turns=STEP)
    def the_engine_locks(self, which: int, text: str, more: int, tail: str, turns: int) -> None:
        job = self._live()[which % len(self._live())]
        self.told.setdefault(job.job, Told(text))
        self._lock(job, more, tail, turns)

    @precondition(lambda self: self._live())
    @rule(
        which=JOBS,
        text=st.sampled_from(FILLS),
        others=st.lists(st.sampled_from(FILLS), max_size=2),
        breaks=st.booleans(),
        turns=STEP,
    )
    def the_engine_is_done(self, which: int, text: str, others: list[str], breaks: bool, turns: int) -> None:
        """`breaks`: its answer is not what it has locked."""
        job = self._live()[which % len(self._live())]
        if breaks:
            self.told.setdefault(job.job, Told(text)).text = text
        self._tell(job, self._done(job, text, others), turns)

    @precondition(lambda self: self._live())
    @rule(returns=st.booleans(), turns=STEP)
    def the_engine_dies(self, returns: bool, turns: int) -> None:
        if not returns:
            self.gone = self.loop.now
            self.engine.there.clear()
        for job in self._live():
            self.told.setdefault(job.job, Told("")).over = True
            self._tell(job, EngineFailed("engine_lost"), 0)
        self._run(self._nothing(), turns)

    @precondition(lambda self: not self.engine.there.is_set())
    @rule(turns=STEP)
    def the_engine_returns(self, turns: int) -> None:
        self.engine.there.set()
        self._run(self._nothing(), turns)

    @rule(uri=URIS, how=st.sampled_from(RARE), turns=STEP)
    def what_is_rare(self, uri: str, how: dict[str, Any] | str, turns: int) -> None:
        if how == "close":
            self._supersede(uri)
            self.typing.close(uri)
            self.workspace.close(uri)
            self._forget(uri)
            self._run(self._open(uri), turns)
        elif how == "replace":
            text = TEXTS[uri][1]
            self.cursors[uri] = text.index("|")
            self._run(self._change(uri, text.replace("|", "")), turns)
        elif how == "two edits":
            at, document = self.cursors[uri], self._opened(uri).document
            self.cursors[uri] += 2
            self._run(
                self._change(uri, *((document.position(to), document.position(to), "z") for to in (at, 0))), turns
            )
        elif how == "error":
            for job in self._live()[:1]:
                self.told.setdefault(job.job, Told("")).over = True
                self._tell(job, EngineUnavailable("There is no engine."), turns)
        else:
            self._run(self._set(how), turns)

    @rule(seconds=st.sampled_from((0.05, 0.3, 30.0)))
    def wait(self, seconds: float) -> None:
        self.loop.now += seconds
        self._run(self._nothing(), 12)

    # What an editor does

    async def _set(self, chosen: Any) -> None:
        """As app.App does it."""
        self.settings.options = Options(**{**self.window, **chosen})
        for ghost in self.ghosts.values():
            ghost.idle = False
        if not self.settings.options.enable:
            self._supersede(*TEXTS)
            self.typing.close_all()
            self._forget(*TEXTS)  # at the next request, which is refused

    async def _tell_accepted(self, ghost: Ghost, characters: int) -> None:
        self.typing.accepted(ghost.id, characters)

    async def _nothing(self) -> None:
        """Only let the loop turn."""

    async def _open(self, *uris: str) -> None:
        for uri in uris or TEXTS:
            language, text = TEXTS[uri]
            self.cursors[uri] = text.index("|")
            self.workspace.open(uri, language, 0, text.replace("|", ""))

    async def _put(self, uri: str, start: int, end: int, text: str, *, back: int = 0, elsewhere: bool = False) -> None:
        document, cursor = self._opened(uri).document, self.cursors[uri]
        start, end = (document.offset(document.position(at)) for at in (start, end))
        if elsewhere and end <= cursor:
            self.cursors[uri] += len(text) - (end - start)
        elif not elsewhere or start < cursor:
            self.cursors[uri] = start + len(text) - back
        await self._change(uri, (document.position(start), document.position(end), text))

    def _selected(self, uri: str, item: tuple[int, str]) -> Selected:
        """The item of a popup, over so much text before the cursor: this text, or the next word of what is shown."""
        (back, text), at = item, self.cursors[uri]
        typed = re.split("[\r\n]", self._text(uri)[:at])[-1][-back or at :]
        rest = dict(self._drawn()).get(uri, "x")
        return Selected(at - len(typed), text or typed + _word(rest))

    async def _change(self, uri: str, *changes: ContentChange | str) -> None:
        """As app.App.did_change does it."""
        opened = self._opened(uri)
        edits = self.workspace.edit(uri, opened.document.version + 1, changes)
        assert edits is not None
        replaced = any(isinstance(change, str) for change in changes)
        if edits or replaced:  # an edit that leaves the text as it is takes no answer away
            self._supersede(uri)
        if replaced:
            self.known.pop(uri, None)
            self.typing.replaced(uri)
        if edits:
            self.typing.edited(opened, edits)
        if ghost := self.ghosts.get(uri):
            ghost.idle &= not replaced and ghost.stands(self._text(uri), self.cursors[uri])

    async def _ask(self, uri: str, invoked: bool, stream: bool, selected: Selected | None) -> None:
        opened = self._opened(uri)
        at = self.cursors[uri] = opened.document.offset(opened.document.position(self.cursors[uri]))
        self._supersede(uri)
        asked = Asked(
            uri, at, selected is not None, self.loop.now, self.loop.now + self.settings.options.deadline_ms / 1000
        )
        if ghost := self.ghosts.get(uri):
            ghost.idle &= not invoked and ghost.stays(opened.document.text, at, selected)
        if stream:
            asked.stream = PartialResults(0)
        on_part = partial(self._hear, asked) if stream else None
        answer = self.typing.propose(opened, at, invoked=invoked, selected=selected, on_part=on_part)
        task = asyncio.get_running_loop().create_task(self._deliver(asked, answer))
        self.asked[task] = asked

    async def _deliver(self, asked: Asked, waiting: Callable[[], Awaitable[Proposal | NothingNew]]) -> None:
        answer = await waiting()
        asked.answers += 1
        if asked.stream and isinstance(answer, Proposal):  # as completion.py does it
            self._stream(asked, asked.stream.done(answer))
        match answer:
            case NothingNew(shown_fits):
                lost = asked.over or (shown_fits and self._lost(asked.uri))
                assert lost, "only what is newer, or the engine's end, takes an answer away"
                ghost = self.ghosts.get(asked.uri)
                if not shown_fits:
                    self.ghosts.pop(asked.uri, None)  # it may be there again for its item, or after a mistake is erased
                elif ghost and self.workspace.get(asked.uri):
                    assert ghost.fits(self._text(asked.uri)), "a ghost that no longer fits is cleared"
            case Proposal(insert=""):
                ghost = self.ghosts.get(asked.uri)
                self._forget(asked.uri)
                off = self.recorded is not None and self.recorded.answer == "off"
                assert off or not (ghost and ghost.idle), "what is shown does not vanish"
                assert asked.over or off or self._answered(asked.uri), "nobody is sent away while a job runs"
            case Proposal():
                canvas = self._canvas(asked.uri)
                assert self.recorded
                assert canvas
                assert self.recorded.job == (canvas.job.job if canvas.job else ""), "it is recorded as what it is"
                self._draw(asked, answer)

    def _hear(self, asked: Asked, part: Proposal) -> None:
        assert asked.stream
        if value := asked.stream.part(part):
            self._stream(asked, value)
            self._draw(asked, part)

    def _stream(self, asked: Asked, value: dict[str, Any]) -> None:
        assert not asked.over, "a state of another text"
        assert not asked.cancelled, "a state after the cancel"
        asked.values.append(value)
        _adds_up(asked.values)

    def _canvas(self, uri: str) -> WarmCanvas | None:
        return self.typing._panes[uri].canvases.current

    def _lost(self, uri: str) -> bool:
        canvas = self._canvas(uri)
        return canvas is not None and canvas.over and canvas.answer is None

    def _answered(self, uri: str) -> bool:
        canvas = self._canvas(uri)
        return canvas is None or canvas.over or canvas.broken

    def _draw(self, asked: Asked, shown: Proposal) -> None:
        """The editor draws `shown` in the place of what it has drawn."""
        assert not asked.over, "an answer for another text"
        text, at = self._text(asked.uri), asked.at
        start, end = at - shown.back, at + shown.eat
        assert not re.search("[\r\n]", text[start:end]), "the range lies within the line"
        assert set(text[at:end]) <= set(CLOSERS), "only what the editor closed is eaten"
        before, after, ghost = text[:start], text[end:], self.ghosts.get(asked.uri)
        if ghost and ghost.idle:
            assert (before + shown.insert + after).startswith(ghost.before + ghost.insert), "what is shown only grows"
        canvas = self._canvas(asked.uri)
        assert canvas
        for insert in (shown.insert, *shown.others):  # what stays may be of an earlier canvas
            if before + insert + after not in (self.known.get(asked.uri), self.known.get(canvas)):
                self._belongs(canvas, before, insert, after)
        self.known[asked.uri] = self.known[canvas] = before + shown.insert + after
        idle = self.cursors[asked.uri] == at
        self.ghosts[asked.uri] = Ghost(shown.id, shown.insert, shown.eat, before, text[at:], asked.selected, idle)

    def _belongs(self, canvas: WarmCanvas, before: str, insert: str, after: str) -> None:
        """With the proposal in it, the text is what the engine was shown, and in its hole what it said."""
        job, text = canvas.job, before + insert + after
        assert job in self.engine.jobs
        holes = [
            text[start:end]
            for start in range(len(before) + len(insert) + 1)
            if text[:start].endswith(job.prefix) and (self.window is NARROW or start == len(job.prefix))
            for end in range(start, len(text) + 1)
            if text[end:].startswith(job.suffix) and (self.window is NARROW or text[end:] == job.suffix)
        ]
        assert holes, "it was computed for this text"
        said = {part for fill in self.told[job.job].fills for part in _parts(fill, canvas.context)}
        rests = [hole.removeprefix(part) for hole in holes for part in said if hole.startswith(part)]
        assert any(set(rest) <= set(CLOSERS) for rest in rests), "the engine said it"

    def _forget(self, *uris: str) -> None:
        """The editor draws nothing any more."""
        for uri in uris:
            self.known.pop(uri, None)
            self.ghosts.pop(uri, None)

    def _supersede(self, *uris: str) -> None:
        for asked in self.asked.values():
            asked.over |= asked.uri in uris

    def _text(self, uri: str) -> str:
        return self._opened(uri).document.text

    def _opened(self, uri: str) -> OpenDocument:
        opened = self.workspace.get(uri)
        assert opened
        return opened

    def _drawn(self) -> list[tuple[str, str]]:
        """What can be taken of what the editor shows."""
        found = [(uri, ghost.rest(self._text(uri), self.cursors[uri])) for uri, ghost in self.ghosts.items()]
        return [(uri, rest) for uri, rest in found if rest]

    # What the engine does

    def _live(self) -> list[wire.Infill]:
        over = {job for job, told in self.told.items() if told.over}
        return [job for job in self.engine.jobs if job.job in self.engine.live and job.job not in over]

    def _lock(self, job: wire.Infill, more: int, tail: str, turns: int) -> None:
        told = self.told[job.job]
        told.locked += sum(map(len, _tokens(told.text[told.locked :])[:more]))
        fill = _fill(told.text[: told.locked], tail or told.text[told.locked :])
        self._tell(job, wire.Locked(job=job.job, seq=0, holes=(fill,), step=1, of=8), turns)

    def _done(self, job: wire.Infill, text: str, others: list[str]) -> wire.Done:
        told = self.told.setdefault(job.job, Told(text))
        told.over = True
        return wire.Done(
            job=job.job,
            seq=9,
            holes=(_fill(told.text, ""),),
            alternatives=tuple((_fill(other, ""),) for other in others),
            steps=1,
            tokens=wire.Tokens(),
            timings=wire.Timings(),
            stop="complete",
        )

    def _tell(self, job: wire.Infill, event: wire.Locked | wire.Done | Exception, turns: int) -> None:
        if not isinstance(event, Exception):
            alternatives = event.alternatives if isinstance(event, wire.Done) else ()
            self.told[job.job].fills += tuple(holes[0].text for holes in (event.holes, *alternatives))
        self.engine.live[job.job].put_nowait(event)
        self._run(self._nothing(), turns)

    # What holds after every step

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **more)
        self.tasks.append(task)
        return task

    def _run(self, step: Coroutine[Any, Any, None], turns: int) -> None:
        async def run() -> None:
            await step
            for _ in range(turns):
                await asyncio.sleep(0)

        self.sound = False
        self.loop.run_until_complete(run())
        self._check(settled=turns >= 12)
        self.sound = True

    def _check(self, *, settled: bool) -> None:
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if not task.cancelled() and (error := task.exception()):
                raise error
        for task, asked in self.asked.items():
            assert asked.answers == (task.done() and not task.cancelled()), "one answer"
        assert self.counted["taken"] <= self.counted["shown"]
        for pane in self.typing._panes.values():
            assert len(pane.canvases.resting) <= RESTING
            assert all(canvas.over for canvas in pane.canvases.resting)
        if settled:
            self._check_live()

    def _check_live(self) -> None:
        panes = self.typing._panes
        canvases = (c for pane in panes.values() for c in (pane.canvases.current, pane.canvases.ahead))
        wanted = {canvas.job.job for canvas in canvases if canvas and canvas.job}
        running = self.engine.live.keys() | self.engine.waiting
        assert running <= wanted, "no job is left behind"
        places = [(job.document, job.prefix, job.suffix) for job in self._live()]
        assert len(set(places)) == len(places), "a place has one job"
        for task, asked in self.asked.items():
            pane = panes.get(asked.uri)
            canvases = (pane.canvases.current, pane.canvases.ahead) if pane else ()
            waits = any(canvas and canvas.job and canvas.job.job in running for canvas in canvases)
            assert task.done() or waits, "nobody waits for nothing"
            if not task.done():
                self._check_deadlines(asked)

    def _check_deadlines(self, asked: Asked) -> None:
        """Of a request that waits for its answer."""
        if not self.engine.there.is_set():
            assert self.loop.now < max(asked.since, self.gone) + JOB_S, "nobody waits longer for an engine that is gone"
        pane = self.typing._panes[asked.uri]
        canvas = pane.canvases.current
        if canvas and self.loop.now >= asked.late and not asked.stream:
            place = pane.place(canvas)
            late = canvas.propose(asked.at, place, part=True, replacing=asked.selected)
            assert not late.insert, "what can be shown at the deadline is"

    def teardown(self) -> None:
        if self.sound:
            self._supersede(*TEXTS)
            self.typing.close_all()
            self._run(self._nothing(), 12)
            assert self.engine.live == {}
            assert self.typing._panes == {}
            assert all(task.done() for task in self.asked)
            assert self.tasks == []
        for task in self.tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        for uri in TEXTS:
            self.workspace.close(uri)
        asyncio.set_event_loop(None)
        self.loop.close()


def _within(closers: str, text: str) -> bool:
    """Whether the text brings these closing marks along, in their order."""
    rest = iter(text)
    return set(closers) <= set(CLOSERS) and all(mark in rest for mark in closers)


def _word(text: str) -> str:
    """The first word, with the space before it."""
    found = re.match(r"\s*(?:\w+|.)", text)
    return found[0] if found else ""


def _tokens(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|.", text)


def _fill(locked: str, tail: str) -> wire.Fill:
    """The probabilities of what is locked stay what they were."""
    ends, end = list[tuple[int, float]](), 0
    for index, token in enumerate((*_tokens(locked), *_tokens(tail))):
        end += len(token)
        ends.append((end, SURE[index % len(SURE)]))
    spans = ((0, len(locked)),) if locked else ()
    return wire.Fill(locked + tail, spans, 0.7, open=len(_tokens(tail)), probabilities=tuple(ends))


@lru_cache(maxsize=4096)
def _parts(fill: str, context: Context) -> frozenset[str]:
    """What may be shown of a fill: its starts, finished for the file."""
    finished = {finish(fill[:end], context) for end in range(len(fill) + 1)}
    return frozenset(part[:end] for part in finished for end in range(len(part) + 1))


def _adds_up(values: list[dict[str, Any]]) -> None:
    """The newest value of a stream, after those before it."""
    assert [value["seq"] for value in values] == list(range(len(values))), "none is missing"
    *before, newest = values
    assert not any(value["done"] for value in before), "nothing comes after the answer"
    assert newest["done"] or _text(newest), "a part that may be shown has text"
    assert _text(newest).startswith(_text(before[-1]) if before else ""), "what is shown stays"


def _text(value: dict[str, Any]) -> str:
    return "".join(item["insertText"] for item in value["items"])


def interleave(cases: int, steps: int, batch: int = 0, phases: Iterable[Phase] = tuple(Phase)) -> None:
    """`cases` sequences of up to `steps` steps, the same ones for the same `batch`."""

    class Batch(Interleavings):
        """A seed is kept by the class."""

    run_state_machine_as_test(
        seed(batch)(Batch),
        settings=settings(
            max_examples=cases,
            stateful_step_count=steps,
            phases=phases,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_whatever_happens_in_whatever_order() -> None:
    interleave(200, 40)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(1, 101))
def test_whatever_happens_in_a_hundred_thousand_orders(batch: int) -> None:
    interleave(1000, 10, batch)
