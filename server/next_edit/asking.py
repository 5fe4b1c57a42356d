"""The next edit of each open document: the best of what the rules propose, if the engine finds it likelier than what
stands there and the user has not dismissed it. The other files of this folder are pure.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import tree_sitter

from caesura import wire
from caesura.client.backend import Backend, EngineError, job_id
from caesura.server.context import secrets
from caesura.server.infill.job import Ask, question
from caesura.server.languages import Language
from caesura.server.next_edit.history import EditHistory, PastEdit
from caesura.server.next_edit.proposals import EditProposal, proposals
from caesura.server.options import MODES, Settings
from caesura.server.text.document import Document, Edit, Span
from caesura.server.text.workspace import OpenDocument

MAX_DOCUMENTS = 64  # documents with a history; a new one replaces the least recently used
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
    """What is known of a document: its last edits, what was proposed last, by id, and the dismissed edits, each by its
    row, old lines and new lines."""

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
        end, moved = edit.old_end_point, edit.new_end_point[0] - edit.old_end_point[0]
        if moved:
            self.dismissed = {(row + moved if (row, 0) >= end else row, old, new) for row, old, new in self.dismissed}

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
        self.closed(opened.document.uri)  # so that it counts as the latest
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
        document, known = opened.document, self._known.get(opened.document.uri)
        if known is None or not self._is_wanted(document, invoked=invoked):
            return None
        known.history.pause()
        past, version, text = known.history.edits, document.version, document.text
        if not past:
            return None
        opened.tree.parse(text)  # else it is wrong near the newest edit
        tree = opened.tree.tree.copy() if opened.tree.tree else None  # edits move the other one meanwhile
        shown, found = await asyncio.to_thread(_proposed, text, tree, opened.language, past)
        found = known.wanted(found)
        if found and found[0].kind == "repeat":  # renamings follow from the scopes
            found = await self._likely(opened, known, shown, found, invoked=invoked)
        if not found or document.version != version or self._known.get(document.uri) is not known:
            return None
        proposed = _as_one(text, found)
        known.proposed = {proposed.id: found}
        return proposed

    def _is_wanted(self, document: Document, *, invoked: bool) -> bool:
        options = self._settings.options
        automatic = MODES[options.mode].automatic and options.next_edit != "manual"
        return options.next_edit != "off" and options.allows(document.language) and (invoked or automatic)

    async def _likely(
        self,
        opened: OpenDocument,
        known: _Known,
        past: Sequence[PastEdit],
        found: Sequence[EditProposal],
        *,
        invoked: bool,
    ) -> list[EditProposal]:
        """The likeliest proposal, if it is likely enough; none without an engine that can judge. If a service is in
        use, our engine is started to judge only when the user asks. Ghost text goes first."""
        level = self._settings.options.next_edit
        if level == "off" or not found or ("judge" in self._engine.condition.lacks and not invoked):
            return []
        ask = Ask("invoked" if invoked else "speculative", document=known.key, deadline_ms=DEADLINE_MS)
        places = [(one.old, one.new) for one in found]
        job = question(opened.language, [(edit.old, edit.new) for edit in past], places, ask)
        task = known.judging = asyncio.create_task(self._judged(job))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        chances = task.result() if not task.cancelled() else ()
        if not chances:
            return []
        chance, best = max(zip(chances, found, strict=True), key=lambda pair: pair[0])
        return [best] if chance >= LIKELY[level] else []

    async def _judged(self, job: wire.Infill) -> Sequence[float]:
        """How likely the engine finds each edit; nothing if it gives no answer."""
        try:
            async with aclosing(self._engine.infill(job)) as events:
                *_, answer = [event async for event in events]
        except EngineError:
            return ()
        return [fill.confidence for fill in answer.holes]


def _proposed(
    text: str, tree: tree_sitter.Tree | None, row: Language, past: Sequence[PastEdit]
) -> tuple[Sequence[PastEdit], Sequence[EditProposal]]:
    """The edits of the history and the proposals, without those that hold a secret: the model gets these lines alone,
    and masking needs the lines around them. Renamings are shown to no model."""
    found = proposals(text, tree, row, past)
    if not found or found[0].kind == "rename":
        return past, found
    rows = [line.removesuffix("\r") for line in secrets.masked(text).split("\n")]
    shown = [one for one in past if tuple(rows[one.at : one.end]) == one.new]
    return shown, [one for one in found if tuple(rows[one.row : one.row + len(one.old)]) == one.old] if shown else []


def _as_one(text: str, found: Sequence[EditProposal]) -> NextEdit:
    """The proposals as one edit of all text from the first to the last."""
    ordered = sorted(found, key=lambda one: one.start)
    parts, at = list[str](), ordered[0].start
    for one in ordered:
        parts += text[at : one.start], one.text
        at = one.end
    return NextEdit(job_id(), (ordered[0].start, at), "".join(parts), ordered[0].why)
