"""The next edit of each open document: the best of what the rules propose, if the engine finds it likelier than what
stands there and the user has not dismissed it. The other files of this folder are pure.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from caesura import wire
from caesura.client.backend import Backend, EngineError, job_id
from caesura.server.infill.job import Ask, question
from caesura.server.next_edit.history import EditHistory, PastEdit
from caesura.server.next_edit.proposals import EditProposal, proposals
from caesura.server.options import Settings
from caesura.server.text.document import Edit, Span
from caesura.server.text.workspace import OpenDocument

MAX_DOCUMENTS = 16  # documents with a history; a new one replaces the least recently used
LIKELY = {"quiet": 0.95, "eager": 0.5, "manual": 0.5}  # least probability of a shown edit, by the setting
DEADLINE_MS = 2000.0


@dataclass(frozen=True)
class NextEdit:
    """The code points `span` of a document become `text`; `why` is a sentence for the user."""

    id: str
    span: Span
    text: str
    why: str


@dataclass
class _Known:
    """What is known of a document: its last edits, what was proposed, by id, and the rows and lines of what the user
    has dismissed."""

    history: EditHistory
    key: str = field(default_factory=job_id)  # names the document to the engine without its path
    proposed: dict[str, Sequence[EditProposal]] = field(default_factory=dict)
    dismissed: set[tuple[int, tuple[str, ...], tuple[str, ...]]] = field(default_factory=set)
    judging: asyncio.Task[Sequence[float]] | None = None

    def edited(self, edit: Edit) -> None:
        self.history.edited(edit)
        self.proposed.clear()
        if self.judging:
            self.judging.cancel()  # the engine is free for the text as it is now
        last, moved = edit.old_end_point[0], edit.new_end_point[0] - edit.old_end_point[0]
        if moved:
            self.dismissed = {(row + moved if row > last else row, old, new) for row, old, new in self.dismissed}

    def wanted(self, found: Sequence[EditProposal]) -> list[EditProposal]:
        return [one for one in found if (one.row, one.old, one.new) not in self.dismissed]


class NextEdits:
    """The next edits of a session."""

    def __init__(self, engine: Backend, settings: Settings) -> None:
        self._engine, self._settings = engine, settings
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def __repr__(self) -> str:
        return f"<NextEdits of {len(self._known)} documents>"

    # What the user does

    def opened(self, opened: OpenDocument) -> None:
        """Begin a history with this text: a document was opened, or its text replaced as a whole."""
        self._known[opened.document.uri] = _Known(EditHistory(opened.document.text))
        if len(self._known) > MAX_DOCUMENTS:
            self._known.popitem(last=False)

    def edited(self, opened: OpenDocument, edits: Sequence[Edit]) -> None:
        uri = opened.document.uri
        if uri not in self._known:
            return self.opened(opened)
        for edit in edits:
            self._known[uri].edited(edit)
        self._known.move_to_end(uri)

    def closed(self, uri: str) -> None:
        self._known.pop(uri, None)

    def pause(self) -> None:
        """What the user has typed so far is an edit of its own."""
        for known in self._known.values():
            known.history.pause()

    def dismissed(self, id: str) -> None:
        """The user does not want an edit; it is not proposed again in this place."""
        for known in self._known.values():
            for one in known.proposed.pop(id, ()):
                known.dismissed.add((one.row, one.old, one.new))

    # What is shown

    async def next(self, opened: OpenDocument, *, invoked: bool) -> NextEdit | None:
        """The next edit of a document as it is now; None if there is none, or if the text changes meanwhile."""
        level, known = self._settings.options.next_edit, self._known.get(opened.document.uri)
        if known is None or level == "off" or (level == "manual" and not invoked):
            return None
        known.history.pause()
        document, past = opened.document, known.history.edits
        version, text = document.version, document.text
        opened.tree.parse(text)  # else it is wrong near the newest edit
        tree = opened.tree.tree.copy() if opened.tree.tree else None  # edits move the other one meanwhile
        found = known.wanted(await asyncio.to_thread(proposals, text, tree, opened.language, past))
        if found and found[0].kind == "repeat":  # renamings follow from the scopes
            found = await self._likeliest(opened, known, past, found, invoked=invoked)
        if not found or document.version != version:
            return None
        proposed = _as_one(text, found)
        known.proposed[proposed.id] = found
        return proposed

    async def _likeliest(
        self,
        opened: OpenDocument,
        known: _Known,
        past: Sequence[PastEdit],
        found: Sequence[EditProposal],
        *,
        invoked: bool,
    ) -> list[EditProposal]:
        """The likeliest proposal, if it is likely enough; none without an engine that can judge. One that would have to
        be started for it, next to a service, is asked only if the user asked. Ghost text goes first."""
        if "judge" in self._engine.condition.lacks and not invoked:
            return []
        ask = Ask("invoked" if invoked else "speculative", document=known.key, deadline_ms=DEADLINE_MS)
        places = [(one.old, one.new) for one in found]
        job = question(opened.language, [(edit.old, edit.new) for edit in past], places, ask)
        task = known.judging = asyncio.create_task(self._judged(job))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        chances = () if task.cancelled() else task.result()
        if not chances:
            return []
        chance, best = max(zip(chances, found, strict=True), key=lambda pair: pair[0])
        return [best] if chance >= LIKELY[self._settings.options.next_edit] else []

    async def _judged(self, job: wire.Infill) -> Sequence[float]:
        """How likely the engine finds each edit; nothing if it gives no answer."""
        try:
            async with aclosing(self._engine.infill(job)) as events:
                *_, answer = [event async for event in events]
        except EngineError:
            return ()
        return [fill.confidence for fill in answer.holes]


def _as_one(text: str, found: Sequence[EditProposal]) -> NextEdit:
    """The proposals as one edit of all text from the first to the last."""
    ordered = sorted(found, key=lambda one: one.start)
    parts, at = list[str](), ordered[0].start
    for one in ordered:
        parts += text[at : one.start], one.text
        at = one.end
    return NextEdit(job_id(), (ordered[0].start, at), "".join(parts), ordered[0].why)
