"""The ghost text of all open documents."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from caesura import wire
from caesura.client.backend import Backend
from caesura.server.context.project import Project
from caesura.server.ghost.feedback import Feedback
from caesura.server.ghost.pane import Pane, Selected, Services, Start
from caesura.server.ghost.reader import ContextReader
from caesura.server.ghost.requests import NothingNew, Request
from caesura.server.ghost.sites import Sites
from caesura.server.ghost.typed import Proposal
from caesura.server.ghost.why import Reason, why
from caesura.server.options import MODES, Settings
from caesura.server.records.stats import Stats
from caesura.server.records.trace import Trace
from caesura.server.text.document import Edit
from caesura.server.text.workspace import OpenDocument

MAX_DOCUMENTS = 16  # documents with a pane; a new one replaces the least recently used


class Panes:
    """One Pane for each document in which the user has typed or asked. `stats` counts the outcomes of suggestions,
    `trace` records the requests. `on_trouble` gets the sentence of each error, and an empty text after each answer."""

    def __init__(self, engine: Backend, settings: Settings, project: Project, stats: Stats, trace: Trace) -> None:
        self._settings = settings
        self._trace = trace
        self._feedback = Feedback(settings, stats)
        self._reader = ContextReader(engine)
        self.on_trouble: Callable[[str], None] = lambda sentence: None
        sites = Sites(settings, project)
        self._services = Services(
            engine, settings, project, self._feedback, sites, self._reader, lambda sentence: self.on_trouble(sentence)
        )
        self._panes: OrderedDict[str, Pane] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Panes {list(self._panes.values())}>"

    def edited(self, opened: OpenDocument, edits: Sequence[Edit]) -> None:
        self._pane(opened).edited(edits)

    def replaced(self, uri: str) -> None:
        """The whole text was replaced."""
        self._reader.end()
        if pane := self._panes.get(uri):
            pane.replaced()

    def rested(self, opened: OpenDocument, at: int) -> None:
        """The cursor has come to rest. A document that the user only views does not replace another's pane."""
        pane = self._panes.get(opened.document.uri) or Pane(opened, self._services)
        pane.rested(at)

    def propose(
        self,
        opened: OpenDocument,
        at: int,
        *,
        invoked: bool,
        selected: Selected | None = None,
        on_part: Callable[[Proposal], None] | None = None,
    ) -> Callable[[], Awaitable[Proposal | NothingNew]]:
        """A function that answers the request when it is called; see Request. The text is read now, before an edit that
        may come while the answer waits for its turn."""
        pane = self._pane(opened)
        late = asyncio.get_running_loop().time() + self._settings.options.deadline_ms / 1000
        request = Request(pane, pane.supersede(), at, selected is not None, late, self._trace, on_part)
        shown, manual = pane.shown_at(at, pane.canvases.current), not MODES[self._settings.options.mode].automatic
        asked, invoked = invoked, invoked or (manual and shown is not None)  # it was asked for before: it stays
        if pane.refusal(invoked=invoked):
            return request.refuse
        priority: Literal["invoked", "automatic"] = "invoked" if invoked else "automatic"
        canvas, how = pane.canvas_for(Start(at, priority, self._feedback.threshold(invoked=invoked), selected))
        return partial(replace(request, anew=asked and how == "cold").answer, canvas, how)

    def best(self, opened: OpenDocument, at: int) -> tuple[Proposal, wire.Fill] | None:
        """The best candidate for `at`, as it would be shown if it were likely enough, and its fill; None without an
        answer."""
        pane = self._pane(opened)
        canvas = pane.canvases.current
        return canvas.best(at, pane.place(canvas)) if canvas and canvas.answer else None

    async def why(self, opened: OpenDocument, at: int) -> Reason:
        """Why there is no suggestion at `at`."""
        return await why(self._pane(opened), self._services, at)

    def accepted(self, id: str, units: int | None = None) -> None:
        """The editor has inserted a proposal: all of it, or its first `units` UTF-16 units."""
        for pane in self._panes.values():
            if (suggestion := pane.suggestion) and suggestion.id == id:
                taken = suggestion.insert.encode("utf-16-le")[: None if units is None else 2 * units]
                self._feedback.judge(suggestion, suggestion.told(len(taken.decode("utf-16-le", "ignore"))))

    def seen(self, id: str) -> None:
        """The editor has drawn a proposal only now."""
        for pane in self._panes.values():
            if pane.suggestion and pane.suggestion.id == id:
                pane.suggestion.since = asyncio.get_running_loop().time()

    def close(self, uri: str) -> None:
        """Forget a document, and cancel its jobs."""
        self._reader.end()
        if pane := self._panes.pop(uri, None):
            pane.close()

    def close_all(self) -> None:
        """Forget all documents. Editors clear what they show in them."""
        self._reader.end()
        for uri, pane in list(self._panes.items()):
            pane.withdrawn = True
            self.close(uri)

    def _pane(self, opened: OpenDocument) -> Pane:
        uri = opened.document.uri
        if uri not in self._panes:
            self._panes[uri] = Pane(opened, self._services)
            if len(self._panes) > MAX_DOCUMENTS:
                self.close(next(iter(self._panes)))
        self._panes.move_to_end(uri)
        return self._panes[uri]
