"""The project around a document: its notebook's other cells, the files that it imports, its schema, and hidden
documents.

This module adds files and the clock to the pure parts in notebooks.py and secrets.py.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from sys import getsizeof

from caesura.ipc.consent import Agreement
from caesura.recent import Recent
from caesura.schema.dialects import SchemaError
from caesura.schema.document import Schema
from caesura.server.context.context import Budget, Context, Snapshot, window_after, window_before
from caesura.server.context.files import Files
from caesura.server.context.schema_files import SchemaFiles
from caesura.server.languages import JSON, UNKNOWN
from caesura.server.options import Settings
from caesura.server.text.document import Document
from caesura.server.text.workspace import OpenDocument, Workspace

MOST_OPEN = 24  # open documents whose names and imports are known, the last opened first
IMPORTED = 20 << 20  # bytes of cached files that open documents import; dropped ones are read again
LOOK_S = 5.0  # time between two checks of `.caesuraignore`, or of a document's schema or imports, for changes


def _nothing() -> None:
    pass


def _bytes(uri: str, imported: Sequence[Snapshot]) -> int:
    return sum(getsizeof(one.text) for one in imported)


@dataclass
class _Known:
    """The state of an open document: its schema, if one was found, the times to look for it and to read the imports
    again, and the task that reads them."""

    schema: Schema | None = None
    due_s: float = 0.0
    imports_due_s: float = 0.0
    reading: asyncio.Task[None] | None = None


class Project:
    """The other files, schemas and hidden documents of `workspace`. Other files are read only in a trusted workspace.
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
        self._imported = Recent[str, tuple[Snapshot, ...]](IMPORTED, _bytes)
        self._look_s = 0.0  # time to check the ignore rules again
        self.on_problems: Callable[[], None] = _nothing
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
        for opened in self._workspace.all():
            self.opened(opened)

    def opened(self, opened: OpenDocument) -> None:
        """Read a document's imports and schema in the background, before the user types in it."""
        self._refresh(opened)
        self.schema(opened)

    def closed(self, uri: str) -> None:
        self._imported.drop(uri)
        self._known.pop(uri, None)

    # Queries

    def hidden(self, opened: OpenDocument) -> bool:
        """True if a document gets no proposals and nothing of it is read."""
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

    def others(self, opened: OpenDocument) -> tuple[str, list[Snapshot]]:
        """The path of a document within its folder, and the files that are open or that it imports, the last opened
        first; both empty where no other file may be read. Reads the imports again in the background after `LOOK_S`."""
        uri = opened.document.uri
        name = self._workspace.label(uri)
        if name is None or not self._wanted:
            return "", []
        self._refresh(opened)
        latest = reversed(self._workspace.all()[-MOST_OPEN:])
        found = [snapshot for other in latest if (snapshot := self._snapshot(other, uri))]
        return name, [*found, *(self._imported.get(uri) or ())]

    def surround(self, document: Document, around: Context, budget: Budget) -> Context:
        """The context of a place that the user asks to fill, as `frame` extends it."""
        opened = self._workspace.get(document.uri)
        return around if opened is None else self.frame(opened, around, budget)

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
        """Read a document's imports, unless a read is in progress or not long ago."""
        known, now = self._known.setdefault(opened.document.uri, _Known()), time.monotonic()
        busy = known.reading is not None and not known.reading.done()
        if self._wanted and not busy and now > known.imports_due_s and not self._files.hides(opened.document.uri):
            known.imports_due_s = now + LOOK_S
            known.reading = self._soon(self._read(opened.document, known))

    def _soon(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def _wanted(self) -> bool:
        options = self._settings.options
        return options.enable and options.trusted

    async def _read(self, document: Document, known: _Known) -> None:
        found = await self._files.imported(document.uri, document.text, document.language)
        if self._known.get(document.uri) is known and found != self._imported.get(document.uri):
            self._imported.put(document.uri, found)

    def _document(self, uri: str) -> Document | None:
        opened = self._workspace.get(uri)
        return None if opened is None or self._files.hides(uri) else opened.document

    def _snapshot(self, other: OpenDocument, uri: str) -> Snapshot | None:
        name = self._workspace.label(other.document.uri)
        if name is None or other.document.uri == uri or other.language is UNKNOWN or self.hidden(other):
            return None
        return Snapshot(name, other.document.language, other.document.text)
