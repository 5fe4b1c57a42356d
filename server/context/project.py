"""The project around a document: its notebook's other cells, related files of the workspace, and hidden documents.

This module adds files and the clock to the pure parts in notebooks.py, neighbours.py and secrets.py.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from sys import getsizeof

from caesura import wire
from caesura.ipc.consent import Agreement
from caesura.recent import Recent
from caesura.schema.dialects import SchemaError
from caesura.schema.document import Schema
from caesura.server.context.context import Budget, Context, window_after, window_before
from caesura.server.context.files import Files
from caesura.server.context.neighbours import History, Snapshot, Target, choose
from caesura.server.context.outline import index
from caesura.server.context.schema_files import SchemaFiles
from caesura.server.languages import JSON, UNKNOWN
from caesura.server.options import Settings
from caesura.server.text.document import Document, Edit
from caesura.server.text.workspace import OpenDocument, Workspace

MOST_OPEN = 24  # open documents that may be neighbours, the last opened first
IMPORTED = 20 << 20  # bytes of cached files that open documents import; dropped ones are read again
LOOK_S = 5.0  # time between two checks of `.caesuraignore`, or of a document's schema, for changes


def _nothing() -> None:
    pass


def _bytes(uri: str, imported: Sequence[Snapshot]) -> int:
    return sum(getsizeof(one.text) for one in imported)


@dataclass
class _Known:
    """The state of an open document: its schema, if one was found, the time to look for it again, and the task that
    reads its imports."""

    schema: Schema | None = None
    due_s: float = 0.0
    reading: asyncio.Task[None] | None = None


class Project:
    """The neighbours, schemas and hidden documents of `workspace`. Other files are read only in a trusted workspace.
    `agreement`: the engine is on another machine, and the documents that it covers may be sent there. `on_problems` is
    called after the ignore rules were read again."""

    def __init__(self, workspace: Workspace, settings: Settings, agreement: Agreement | None = None) -> None:
        self._workspace = workspace
        self._settings = settings
        self._agreement = agreement
        self._files = Files()
        self.schema_files = SchemaFiles()
        self._known: dict[str, _Known] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._history = History()
        self._imported = Recent[str, tuple[Snapshot, ...]](IMPORTED, _bytes)
        self._edited = ""  # URI of the last edited document
        self._look_s = 0.0  # time to check the ignore rules again
        self.on_problems: Callable[[], None] = _nothing
        self.generation = 0  # counts up when chosen neighbours may be out of date
        self.changed()

    def __repr__(self) -> str:
        return f"<Project {self._files} {len(self._imported)} with imports>"

    @property
    def problems(self) -> list[str]:
        return self._files.problems + self.schema_files.problems

    # What changes

    def changed(self) -> None:
        """Apply a change of the workspace's folders or the settings."""
        options = self._settings.options
        folders, trusted = self._workspace.folders, options.trusted
        self._files = Files(folders, options.ignore, trusted=trusted, agreement=self._agreement)
        self.schema_files = SchemaFiles(folders, options.schemas, trusted=trusted, withholds=self._files.withholds)
        self._imported.clear()
        self._known.clear()  # drops what is read by the old rules
        self.generation += 1
        for opened in self._workspace.all():
            self.opened(opened)

    def opened(self, opened: OpenDocument) -> None:
        """Read a document's imports and schema in the background, before the user types in it."""
        self.generation += 1
        self._refresh(opened)
        self.schema(opened)

    def edited(self, opened: OpenDocument, edits: Sequence[Edit]) -> None:
        self.generation += self._edited != opened.document.uri
        self._edited = opened.document.uri
        if name := self._workspace.label(opened.document.uri):
            for edit in edits:
                self._history.edited(name, edit, time.monotonic())

    def closed(self, uri: str) -> None:
        self._imported.drop(uri)
        self._known.pop(uri, None)
        self.generation += 1
        if name := self._workspace.label(uri):
            self._history.forget(name)

    # Queries

    def hidden(self, opened: OpenDocument) -> bool:
        """True if a document gets no proposals and is no neighbour."""
        return self.hidden_by(opened) is not None

    def hidden_by(self, opened: OpenDocument) -> str | None:
        """The rule that hides a document, in words; None if none does."""
        now = time.monotonic()
        if now > self._look_s:
            self._look_s = now + LOOK_S
            if self._files.outdated:
                self.changed()
                self.on_problems()
        return self._files.rule(opened.document.uri)

    def frame(self, opened: OpenDocument, around: Context, budget: Budget) -> Context:
        """The context, extended by the cells around it if the document is a notebook's cell."""
        above, below = self._workspace.notebooks.around(opened.document, self._document, opened.language.comment)
        if not above and not below:
            return around
        prefix = window_before(above + around.prefix, budget.before)
        return replace(around, prefix=prefix, suffix=window_after(around.suffix + below, budget.after))

    def neighbours(
        self, opened: OpenDocument, around: Context, kept: tuple[wire.Neighbour, ...]
    ) -> tuple[wire.Neighbour, ...]:
        """Related parts of other files; `kept` are the neighbours of the place before."""
        name, snapshots = self.others(opened)
        if not name:
            return ()
        self._refresh(opened)  # changed imports are ready for the next place
        target = Target(name, around.language, around.prefix, around.suffix)
        return choose(target, snapshots, self._history.recent(time.monotonic()), kept=kept)

    def others(self, opened: OpenDocument) -> tuple[str, list[Snapshot]]:
        """The path of a document within its folder, and the files that are open or that it imports, the last opened
        first; both empty where no other file may be read."""
        uri = opened.document.uri
        name = self._workspace.label(uri)
        if name is None or not self._wanted:
            return "", []
        latest = reversed(self._workspace.all()[-MOST_OPEN:])
        found = [snapshot for other in latest if (snapshot := self._snapshot(other, uri))]
        return name, [*found, *(self._imported.get(uri) or ())]

    def surround(
        self, document: Document, around: Context, budget: Budget
    ) -> tuple[Context, tuple[wire.Neighbour, ...]]:
        """The context of a place that the user asks to fill, with its neighbours."""
        opened = self._workspace.get(document.uri)
        if opened is None:
            return around, ()
        return self.frame(opened, around, budget), self.neighbours(opened, around, ())

    def schema(self, opened: OpenDocument) -> Schema | None:
        """The schema of a document as last found. Looks for it again in the background after `LOOK_S`."""
        document, now = opened.document, time.monotonic()
        known = self._known.setdefault(document.uri, _Known())
        wanted = self._settings.options.structured and document.language in JSON
        if wanted and now > known.due_s:
            known.due_s = now + LOOK_S
            self._soon(self._look(document, known))
        return known.schema

    async def _look(self, document: Document, known: _Known) -> None:
        try:
            known.schema = (await asyncio.to_thread(self.schema_files.find, document.uri, document.text)).schema
        except SchemaError:
            known.schema = None  # a structured edit reports the error

    def _refresh(self, opened: OpenDocument) -> None:
        """Read a document's imports again, unless a read is in progress."""
        known = self._known.setdefault(opened.document.uri, _Known())
        busy = known.reading is not None and not known.reading.done()
        if self._wanted and not busy and not self._files.hides(opened.document.uri):
            known.reading = self._soon(self._read(opened.document, known))

    def _soon(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def _wanted(self) -> bool:
        options = self._settings.options
        return options.enable and options.neighbours and options.trusted

    async def _read(self, document: Document, known: _Known) -> None:
        await asyncio.to_thread(index, document.text, document.language)  # cached: it may be a neighbour later
        found = await self._files.imported(document.uri, document.text, document.language)
        if self._known.get(document.uri) is known and found != self._imported.get(document.uri):
            self._imported.put(document.uri, found)
            self.generation += 1

    def _document(self, uri: str) -> Document | None:
        opened = self._workspace.get(uri)
        return None if opened is None or self._files.hides(uri) else opened.document

    def _snapshot(self, other: OpenDocument, uri: str) -> Snapshot | None:
        name = self._workspace.label(other.document.uri)
        if name is None or other.document.uri == uri or other.language is UNKNOWN or self.hidden(other):
            return None
        return Snapshot(name, other.document.language, other.document.text)
