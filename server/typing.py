"""The warm canvas of each document: a job begun when the text changes, so that a request finds it under way.

Typing what the canvas proposes costs no new job; typing anything else starts one from what is left of the old. A
newer edit or request supersedes the older requests of its document. State here; the engine is passed in.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import tree_sitter

from caesura import wire
from caesura.server.completion import finish
from caesura.server.context import Budget, Context, context
from caesura.server.document import Document, Edit
from caesura.server.engine import EngineError, job_id
from caesura.server.languages import Language, language
from caesura.server.options import Options

LEAST_PART = 8  # code points of a line that are worth showing before all of it is locked
MAX_DOCUMENTS = 16  # canvases kept; the longest untouched one is freed for a new one
LINE_TOKENS = 32  # of a line or a span; a block may take Options.max_tokens
_AUTO_CLOSED = frozenset(")]}>\"'`")

log = logging.getLogger(__name__)


class Infiller(Protocol):
    """What we need of engine.Engine."""

    def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]: ...


@dataclass(frozen=True)
class Proposal:
    """`insert` at the cursor replaces `eat` code points after it; an empty `insert` means nothing to propose."""

    insert: str
    eat: int = 0


@dataclass(frozen=True)
class Superseded:
    """A newer edit or request came first. `shown_fits`: what the editor shows still agrees with the text."""

    shown_fits: bool


class Typed:
    """What has been typed at `origin` since something was computed for that place."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.text = ""

    def follow(self, edit: Edit) -> bool:
        """Take an edit into account; False when it changed text elsewhere."""
        start, end = edit.start - self.origin, edit.end - self.origin
        if not 0 <= start <= end <= len(self.text):
            return False
        self.text = self.text[:start] + edit.text + self.text[end:]
        return True


class Canvas:
    """One job and the newest state of its hole."""

    def __init__(self, origin: int, hole: Context) -> None:
        self.typed = Typed(origin)
        self.context = hole
        self.fill: wire.Fill | None = None
        self.done = False  # `fill` is the answer
        self.over = False  # no more events will come
        self.task: asyncio.Task[None] | None = None
        self._finish = lru_cache(maxsize=4)(partial(finish, context=hole))

    def __repr__(self) -> str:
        return f"<Canvas {self.context.kind} at {self.typed.origin} typed {len(self.typed.text)} over={self.over}>"

    def agrees(self, cursor: int) -> bool:
        """Whether this canvas still answers for `cursor`: nothing was typed, or just what it proposes."""
        if self.fill is None:
            return not self.over and not self.typed.text and cursor == self.typed.origin
        proposal = self._after_typed(self.fill.text, cursor)
        return proposal is not None and bool(proposal.insert or not self.over or not self.typed.text)

    def ready(self, cursor: int) -> bool:
        """Whether there is a locked boundary past the cursor, or nothing to wait for."""
        return self.over or bool(self._at_boundary(cursor).insert)

    def best(self, cursor: int) -> Proposal:
        """Up to the last locked boundary; without one, the whole words that are locked, where they are long enough not
        to look like a line cut off."""
        found = self._at_boundary(cursor)
        if found.insert or self.over or self.fill is None:
            return found
        part = self._after_typed(_whole_words(self.fill), cursor)
        return part if part and len(part.insert.strip()) >= LEAST_PART else Proposal("")

    def draft(self) -> tuple[str] | None:
        """What a job that follows this one may start from."""
        rest = self.fill.text[len(self.typed.text) :] if self.fill else ""
        return (rest,) if rest else None

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _at_boundary(self, cursor: int) -> Proposal:
        settled = _settled(self.fill, self.done) if self.fill else None
        return (self._after_typed(settled, cursor) if settled is not None else None) or Proposal("")

    def _after_typed(self, fill: str, cursor: int) -> Proposal | None:
        """What is left to insert at `cursor`; None when the typed text disagrees.

        Typed text after the cursor was put there by the editor: a bracket it closed by itself."""
        insert, size = self._finish(fill), cursor - self.typed.origin
        before, after = self.typed.text[: max(0, size)], self.typed.text[max(0, size) :]
        if not 0 <= size <= len(self.typed.text) or not insert.startswith(before):
            return None
        rest = insert[len(before) :]
        if not after:
            return Proposal(rest)
        if not _AUTO_CLOSED.issuperset(after) or after not in rest:
            return None
        return Proposal(rest.removesuffix(after)) if rest.endswith(after) else Proposal(rest, len(after))


class Place:
    """The state of one document: its canvas, its newest request, and what the editor shows."""

    def __init__(self) -> None:
        self.key = job_id()  # names the document to the engine without its path
        self.canvas: Canvas | None = None
        self.cursor = 0  # at the newest edit or request
        self.restart: Callable[[], Canvas] | None = None  # a new canvas for that cursor; None where nobody knows it
        self.ticket = 0
        self.changed = asyncio.Event()
        self._shown: tuple[Typed, str] | None = None
        self._shown_moved = False

    @property
    def shown_fits(self) -> bool:
        """Whether the item that the editor shows, if any, still agrees with the text."""
        return self._shown is None or (not self._shown_moved and self._shown[1].startswith(self._shown[0].text))

    def show(self, cursor: int, insert: str) -> None:
        self._shown = (Typed(cursor), insert) if insert else None
        self._shown_moved = False

    def take_ticket(self) -> int:
        """Supersede all requests so far."""
        self.ticket += 1
        self.wake()
        return self.ticket

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def follow(self, edit: Edit) -> None:
        if self.canvas and not self.canvas.typed.follow(edit):
            self.drop()
        if self._shown and not self._shown[0].follow(edit):
            self._shown_moved = True

    def lose(self) -> None:
        """The text was replaced as a whole: nothing computed for it holds."""
        self.drop()
        self._shown_moved = True

    def drop(self) -> None:
        if self.canvas:
            self.canvas.stop()
        self.canvas = None


class WarmCanvases:
    """All documents. `options` may be replaced at any time."""

    def __init__(self, engine: Infiller, options: Options) -> None:
        self.options = options
        self._engine = engine
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._trouble = ""

    def __repr__(self) -> str:
        return f"<WarmCanvases {[place.canvas for place in self._places.values()]}>"

    def edited(self, document: Document, edits: Sequence[Edit], tree: tree_sitter.Tree | None) -> None:
        """The text has changed: keep the canvas if the user typed what it proposes, else begin a new one."""
        place = self._place(document.uri)
        place.take_ticket()
        for edit in edits:
            place.follow(edit)
        cursor = _cursor_after(edits, language(document.language))
        if cursor is None:
            place.restart = None
        else:
            self._follow(place, document, cursor, tree, False)

    def replaced(self, document: Document) -> None:
        """The whole text was replaced. Where the cursor is now, nobody knows: the next request begins a canvas."""
        place = self._place(document.uri)
        place.take_ticket()
        place.lose()

    def propose(
        self, document: Document, cursor: int, tree: tree_sitter.Tree | None, *, invoked: bool
    ) -> Coroutine[None, None, Proposal | Superseded]:
        """Answer at the first locked boundary or at the deadline; the canvas goes on after that.

        The text is read at the call, before an edit that may come while the answer waits for its turn."""
        place = self._place(document.uri)
        ticket = place.take_ticket()
        return self._wait(place, ticket, self._follow(place, document, cursor, tree, invoked), cursor)

    async def _wait(self, place: Place, ticket: int, canvas: Canvas, cursor: int) -> Proposal | Superseded:
        try:
            async with asyncio.timeout(self.options.deadline_ms / 1000):
                while place.ticket == ticket and not canvas.ready(cursor):
                    await place.changed.wait()
                    canvas = place.canvas or canvas  # `_run` begins another when this one has drifted away
        except TimeoutError:
            pass
        if place.ticket != ticket:
            return self._superseded(place, cursor)
        proposal = canvas.best(cursor)
        if canvas.fill is None or canvas.fill.confidence < self.options.min_confidence:
            proposal = Proposal("")
        place.show(cursor, proposal.insert)
        return proposal

    def _superseded(self, place: Place, cursor: int) -> Superseded:
        fits = place.shown_fits
        if not fits:
            place.show(cursor, "")  # the empty answer clears it
        return Superseded(fits)

    def close(self, uri: str) -> None:
        """Free what belongs to a document; its job is cancelled."""
        if place := self._places.pop(uri, None):
            place.take_ticket()
            place.drop()

    def close_all(self) -> None:
        for uri in list(self._places):
            self.close(uri)

    def _place(self, uri: str) -> Place:
        if uri not in self._places:
            self._places[uri] = Place()
            if len(self._places) > MAX_DOCUMENTS:
                self.close(next(iter(self._places)))
        self._places.move_to_end(uri)
        return self._places[uri]

    def _follow(
        self, place: Place, document: Document, cursor: int, tree: tree_sitter.Tree | None, invoked: bool
    ) -> Canvas:
        """The canvas for `cursor`: the one there is while it agrees, else a new one."""
        canvas = place.canvas
        if canvas is None or not canvas.agrees(cursor):
            canvas = self._start(place, document, cursor, tree, invoked)
        place.cursor, place.restart = cursor, lambda: self._start(place, document, cursor, tree, invoked)
        return canvas

    def _start(
        self, place: Place, document: Document, cursor: int, tree: tree_sitter.Tree | None, invoked: bool
    ) -> Canvas:
        budget = Budget(self.options.context_before, self.options.context_after)
        hole = context(document.text, cursor, cursor, language=document.language, tree=tree, budget=budget)
        tokens = self.options.max_tokens if hole.kind == "block" else min(LINE_TOKENS, self.options.max_tokens)
        job = wire.Infill(
            job=job_id(),
            document=place.key,
            version=max(0, document.version),
            priority="invoked" if invoked else "automatic",
            prefix=hole.prefix,
            suffix=hole.suffix,
            language=hole.language,
            segments=(wire.Hole(tokens, hole.kind),),
            draft=place.canvas.draft() if place.canvas else None,
        )
        place.drop()
        canvas = place.canvas = Canvas(cursor, hole)
        canvas.task = asyncio.create_task(self._run(place, canvas, job))
        return canvas

    async def _run(self, place: Place, canvas: Canvas, job: wire.Infill) -> None:
        try:
            async with aclosing(self._engine.infill(job)) as events:
                async for event in events:
                    canvas.fill = event.holes[0]
                    canvas.done = canvas.over = isinstance(event, wire.Done)
                    if place.canvas is canvas and place.restart and not canvas.agrees(place.cursor):
                        place.restart()  # it says something else than was typed, or nothing beyond it
                    place.wake()
            self._trouble = ""
        except EngineError as error:
            self._report(str(error))
        finally:
            canvas.over = True
            place.wake()

    def _report(self, trouble: str) -> None:
        """Log a trouble once, not at every keystroke."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("No completion: %s", trouble)


def _cursor_after(edits: Sequence[Edit], row: Language) -> int | None:
    """Where the cursor is after typing; None for what no single cursor types. An auto-closed pair leaves it inside."""
    if len(edits) != 1:
        return None
    start, text = edits[0].start, edits[0].text
    if len(text) == 2 and ((text[0], text[1]) in row.pairs or (text[0] == text[1] and text[0] in row.quotes)):
        return start + 1
    return start + len(text)


def _settled(fill: wire.Fill, done: bool) -> str | None:
    """The text up to the last locked boundary: all of a whole fill, else the whole lines that are locked."""
    run = _locked_run(fill)
    if done or (run == fill.text and not fill.open):
        return fill.text
    lines, line_break, _ = run.rpartition("\n")
    return lines if line_break else None


def _whole_words(fill: wire.Fill) -> str:
    """The locked text from the left, without a word whose end is not locked."""
    run = _locked_run(fill)
    following = fill.text[len(run) : len(run) + 1]
    if following and not _is_word(following):
        return run
    end = len(run)
    while end and _is_word(run[end - 1]):
        end -= 1
    return run[:end]


def _locked_run(fill: wire.Fill) -> str:
    end = 0
    for first, last in fill.locked:
        if first > end:
            break
        end = max(end, last)
    return fill.text[:end]


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
