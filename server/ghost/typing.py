"""Typing: what an edit and a request do to the canvases of a document, and what becomes of what was shown.

Denoising starts at the edit, so that a request finds it under way. Typing what the canvas proposes costs nothing; what
is typed otherwise starts from what is left of it. A newer edit or request supersedes the older requests of its
document. State here; the engine, and what lies around a document, are passed in.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Literal, Protocol

from caesura import wire
from caesura.client.backend import Infiller, job_id
from caesura.server.answers.worth import Bar
from caesura.server.context.context import Context
from caesura.server.ghost.backoff import Restraint
from caesura.server.ghost.canvas import Draft, Proposal, Typed, WarmCanvas
from caesura.server.ghost.canvases import Around, Canvases, Selected
from caesura.server.ghost.cursor import Cursor
from caesura.server.ghost.shown import TAKEN, Outcome, Shown, Tally
from caesura.server.languages import Language
from caesura.server.options import MODES, Options
from caesura.server.records.trace import Answer, Request
from caesura.server.text.document import Edit
from caesura.server.text.workspace import Open

MAX_DOCUMENTS = 16  # whose canvases are kept; the longest untouched one is freed for a new one
NOTHING = Proposal("")


class Recorder(Protocol):
    """What we need of trace.Trace."""

    def record(self, request: Request) -> None: ...


@dataclass(frozen=True)
class Kept:
    """Nothing new to show: a newer edit or request came first, or the engine was lost. `shown_fits`: what the editor
    shows still agrees with the text."""

    shown_fits: bool


@dataclass(frozen=True)
class _Asked:
    """One request: for the text as it was when it came. `began` is in seconds of perf_counter; from `late` on, in those
    of the loop, a part will do."""

    cursor: Cursor
    ticket: int
    opened: Open
    at: int
    whole: bool
    began: float
    late: float
    on_draft: Callable[[Draft], None] | None
    ms: dict[str, float] = field(default_factory=dict)  # by stage, for the trace

    @property
    def current(self) -> bool:
        return self.cursor.ticket == self.ticket


class Typing:
    """All documents. `options` gives the settings as they are; `tally` and `trace` are told what became of requests."""

    def __init__(
        self, engine: Infiller, options: Callable[[], Options], around: Around, tally: Tally, trace: Recorder
    ) -> None:
        self._options = options
        self._around = around
        self._tally = tally
        self._trace = trace
        self._canvases = Canvases(engine, options, around)
        self._cursors: OrderedDict[str, Cursor] = OrderedDict()
        self._restraint = Restraint()

    def __repr__(self) -> str:
        return f"<Typing {list(self._cursors.values())}>"

    # What the editor tells and asks

    def edited(self, opened: Open, edits: Sequence[Edit]) -> None:
        """The text has changed: keep the canvas if the user typed what it proposes, else begin a new one."""
        cursor = self._cursor(opened.document.uri)
        cursor.take_ticket()
        self._canvases.end_reading()
        now = asyncio.get_running_loop().time()
        for edit in edits:
            cursor.follow(edit)
            if cursor.shown:
                self._judge(cursor.shown, cursor.shown.follow(edit, now))
        at = _cursor_after(edits, opened.language)
        cursor.restart = None
        if at is None or not self._options().warm or self._off(opened, invoked=False):
            return
        canvas, how = self._canvases.follow(cursor, opened, at, "automatic", self._bar(invoked=False))
        if how != "cold" and len(edits[0].text.strip()) >= TAKEN:
            self._canvases.refine(cursor, opened, canvas)

    def replaced(self, uri: str) -> None:
        """The whole text was replaced. Where the cursor is now, nobody knows: the next request begins a canvas."""
        self._canvases.end_reading()
        if cursor := self._cursors.get(uri):
            cursor.take_ticket()
            cursor.drop()
            if cursor.shown:
                cursor.shown.moved = True

    def rested(self, opened: Open, at: int) -> None:
        """The cursor has come to rest: have the engine read what lies around it before the first key. A document that
        is only looked at takes no other's place."""
        cursor = self._cursors.get(opened.document.uri) or Cursor(job_id())
        if self._options().warm and not self._off(opened, invoked=False):
            self._canvases.read(cursor, opened, at)

    def propose(
        self,
        opened: Open,
        at: int,
        *,
        invoked: bool,
        selected: Selected | None = None,
        on_draft: Callable[[Draft], None] | None = None,
    ) -> Callable[[], Awaitable[Proposal | Kept]]:
        """What answers when it is called: at the first locked boundary, or with a part from the deadline on; the canvas
        goes on after that. With `on_draft`, tell each state and answer when the canvas is done.

        The text is read now, before an edit that may come while the answer waits for its turn."""
        cursor = self._cursor(opened.document.uri)
        self._canvases.end_reading()
        late = asyncio.get_running_loop().time() + self._options().deadline_ms / 1000
        asked = _Asked(cursor, cursor.take_ticket(), opened, at, selected is not None, perf_counter(), late, on_draft)
        shown = cursor.canvas is not None and bool(cursor.canvas.shown) and cursor.canvas.agrees(at)
        invoked = invoked or (shown and not MODES[self._options().mode].automatic)  # what was asked for stays
        if self._off(opened, invoked=invoked):
            return partial(self._refuse, asked)
        priority: Literal["invoked", "automatic"] = "invoked" if invoked else "automatic"
        canvas, how = self._canvases.follow(cursor, opened, at, priority, self._bar(invoked=invoked), selected)
        return partial(self._answer, asked, canvas, how)

    def close(self, uri: str) -> None:
        """Free what belongs to a document; its jobs are cancelled."""
        self._canvases.end_reading()
        if cursor := self._cursors.pop(uri, None):
            cursor.take_ticket()
            cursor.drop()

    def close_all(self) -> None:
        for uri in list(self._cursors):
            self.close(uri)

    # A request's way

    async def _refuse(self, asked: _Asked) -> Proposal:
        self._record(asked, None, "off", NOTHING)
        return NOTHING

    async def _answer(self, asked: _Asked, canvas: WarmCanvas, how: Answer) -> Proposal | Kept:
        canvas, proposal = await self._found(asked, canvas)
        if asked.current and canvas.broken and self._canvases.mend(asked.cursor, asked.opened, canvas, proposal):
            canvas, proposal = await self._found(asked, canvas)
        if not asked.current:
            self._record(asked, canvas, "superseded", NOTHING)
            return self._superseded(asked)
        self._record(asked, canvas, how if proposal.insert else "nothing", proposal)
        if canvas.lost and not proposal.insert and asked.cursor.shown and asked.cursor.shown.stands(asked.at):
            return Kept(shown_fits=True)
        return self._show(asked, canvas, proposal)

    async def _found(self, asked: _Asked, canvas: WarmCanvas) -> tuple[WarmCanvas, Proposal]:
        """The canvas that has something to show or nothing more to say, and what it proposes."""
        while True:
            canvas = await self._ready(asked, canvas)
            proposal = self._choose(asked, canvas) if asked.current else NOTHING
            if proposal.insert or canvas.over or not asked.current:
                return canvas, proposal
            await asked.cursor.changed.wait()  # nothing of it is sound yet

    async def _ready(self, asked: _Asked, canvas: WarmCanvas) -> WarmCanvas:
        """Wait until there is something to show, or nothing to wait for; the canvas that has it."""
        cursor, clock = asked.cursor, asyncio.get_running_loop().time
        while asked.current:
            canvas = cursor.canvas or canvas  # `_run` begins another when this one has drifted away
            if asked.on_draft:
                asked.on_draft(self._draft(asked, canvas))
            mending = cursor.ahead is not None and canvas.broken and not cursor.ahead.over
            part = clock() >= asked.late
            if (canvas.over if asked.on_draft else canvas.ready(asked.at, part=part, whole=asked.whole)) and (
                part or not mending
            ):
                break
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if part else asked.late):
                    await cursor.changed.wait()
        return canvas

    def _draft(self, asked: _Asked, canvas: WarmCanvas) -> Draft:
        """A state for a streaming editor, which shows at once as much of it as is ready."""
        draft = canvas.draft(asked.at, self._canvases.gate(asked.cursor, asked.opened, canvas))
        part = asyncio.get_running_loop().time() >= asked.late
        if not canvas.ready(asked.at, part=part):
            return draft
        proposal = self._choose(asked, canvas)
        begins = draft.text.startswith(proposal.insert) and proposal.eat == draft.eat
        if canvas.over:  # the answer comes next, which may be another one behind what is sound of this
            draft = replace(draft, locked=min(draft.locked, len(proposal.insert) if begins else 0))
        if not begins:
            return draft
        shown = asked.cursor.shown
        if proposal.insert and not (shown and shown.fits and shown.insert.endswith(proposal.insert)):
            self._show(asked, canvas, proposal)
        return replace(draft, ready=len(proposal.insert))

    def _choose(self, asked: _Asked, canvas: WarmCanvas) -> Proposal:
        began = perf_counter()
        gate = self._canvases.gate(asked.cursor, asked.opened, canvas)
        proposal = canvas.propose(asked.at, gate, part=True, whole=asked.whole)
        asked.ms["gate"] = asked.ms.get("gate", 0.0) + (perf_counter() - began) * 1000
        return proposal

    def _superseded(self, asked: _Asked) -> Kept:
        shown = asked.cursor.shown
        if shown is None or shown.fits:
            return Kept(shown_fits=True)
        asked.cursor.shown = None  # the empty answer clears it
        return Kept(shown_fits=False)

    def _show(self, asked: _Asked, canvas: WarmCanvas, proposal: Proposal) -> Proposal:
        """Remember what the editor shows from now on, and compute what may come after it."""
        cursor, language = asked.cursor, asked.opened.document.language
        before, cursor.shown = cursor.shown, None
        if not proposal.insert:
            return proposal
        proposal = replace(proposal, id=job_id())
        now = asyncio.get_running_loop().time()
        if proposal.back:
            return proposal  # the popup draws it over what is typed, and its edits are not those of our text
        eaten = asked.opened.document.text[asked.at : asked.at + proposal.eat]
        cursor.shown = Shown(proposal.id, language, Typed(asked.at, closing=eaten), proposal.insert, now)
        if before and before.goes_on(asked.at, proposal.insert):
            cursor.shown.since = before.since
            if (more := len(proposal.insert) - before.left) > 0:
                self._tally.grown(language, more)
        else:
            self._tally.shown(language, len(proposal.insert))
        canvas.give(proposal, asked.at)
        self._canvases.speculate(cursor, asked.opened, canvas, proposal)
        return proposal

    def accepted(self, id: str, units: int | None = None) -> None:
        """The editor says that it has inserted a proposal: all of it, or so many UTF-16 units from its start."""
        for cursor in self._cursors.values():
            if (shown := cursor.shown) and shown.id == id:
                taken = shown.insert.encode("utf-16-le")[: None if units is None else 2 * units]
                self._judge(shown, shown.told(len(taken.decode("utf-16-le", "ignore"))))

    def seen(self, id: str) -> None:
        """The editor says that it has drawn a proposal only now."""
        for cursor in self._cursors.values():
            if cursor.shown and cursor.shown.id == id:
                cursor.shown.since = asyncio.get_running_loop().time()

    def _judge(self, shown: Shown, outcome: tuple[Outcome, int] | None) -> None:
        """Count what became of a suggestion, and be more or less forward after it."""
        now = asyncio.get_running_loop().time()
        match outcome:
            case ("accepted", size):
                self._tally.accepted(shown.language, size)
                self._restraint.accepted(now)
            case ("partly", size):
                self._tally.partly(shown.language, size)
            case ("rejected", size):
                self._tally.rejected(shown.language, size)
                if MODES[self._options().mode].backs_off:
                    self._restraint.rejected(now)

    def _record(self, asked: _Asked, canvas: WarmCanvas | None, how: Answer, proposal: Proposal) -> None:
        ms = asked.ms | {"wait": (perf_counter() - asked.began) * 1000}
        if canvas is not None and not canvas.shown:
            ms["context"] = canvas.context_ms
        if canvas is not None and canvas.answer is not None and not canvas.shown:
            ms |= _stages(canvas.answer.timings)
        self._trace.record(
            Request(
                language=asked.opened.document.language,
                kind=_kind(canvas.context) if canvas else "",
                answer=how,
                ms=ms,
                steps=canvas.steps if canvas else 0,
                shown=len(proposal.insert),
                confidence=proposal.confidence,
                job=canvas.job if canvas else "",
            )
        )

    # The state of a document

    def _cursor(self, uri: str) -> Cursor:
        if uri not in self._cursors:
            self._cursors[uri] = Cursor(job_id())
            if len(self._cursors) > MAX_DOCUMENTS:
                self.close(next(iter(self._cursors)))
        self._cursors.move_to_end(uri)
        return self._cursors[uri]

    def _off(self, opened: Open, *, invoked: bool) -> bool:
        """True if nothing is to be computed for a document."""
        options = self._options()
        asked = invoked or MODES[options.mode].automatic
        language = opened.document.language
        return not (options.enable and asked and options.allows(language)) or self._around.hidden(opened)

    def _bar(self, *, invoked: bool) -> Bar:
        """What a suggestion must reach to be shown. Who asks for one gets a short one too."""
        options = self._options()
        if invoked:
            return Bar(min(options.chance, MODES["manual"].chance))
        now = asyncio.get_running_loop().time()
        return Bar(self._restraint.chance(options.chance, now), options.least_keys)


def _cursor_after(edits: Sequence[Edit], row: Language) -> int | None:
    """Where the cursor is after typing; None for what no single cursor types. An auto-closed pair leaves it inside."""
    if len(edits) != 1:
        return None
    start, text = edits[0].start, edits[0].text
    if len(text) == 2 and ((text[0], text[1]) in row.pairs or (text[0] == text[1] and text[0] in row.quotes)):
        return start + 1
    return start + len(text)


def _kind(place: Context) -> str:
    """The kind of a hole, for the trace: what it lies in, or its extent where that is plain code."""
    return place.kind if place.scope == "code" else place.scope


def _stages(times: wire.Timings) -> dict[str, float]:
    """Milliseconds by stage, as the engine tells them."""
    found = {"queue": times.queue_ms, "prefill": times.prefill_ms, "denoise": times.denoise_ms}
    return found if times.first_lock_ms is None else found | {"first_lock": times.first_lock_ms}
