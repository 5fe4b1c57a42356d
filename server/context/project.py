"""What lies around a document: the notebook's other cells, related files of the workspace, and what is kept hidden.

The pure parts are in notebooks.py, neighbours.py and secrets.py; here they meet the files and the clock.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from sys import getsizeof

from caesura import wire
from caesura.ipc.pairing import Agreement
from caesura.recent import Recent
from caesura.schema.dialects import SchemaError
from caesura.schema.document import Schema
from caesura.server.context.context import Budget, Context, window_after, window_before
from caesura.server.context.files import Files
from caesura.server.context.neighbours import History, Snapshot, Target, choose
from caesura.server.context.outline import index
from caesura.server.context.schema_files import SchemaFiles
from caesura.server.languages import JSON, UNKNOWN
from caesura.server.options import Options
from caesura.server.text.document import Document, Edit
from caesura.server.text.workspace import Open, Workspace

MOST_OPEN = 24  # documents that are looked at, those opened last
IMPORTED = 20 << 20  # bytes of what open documents import; a document whose imports were dropped has them read again
LOOK_S = 5.0  # until a change of `.caesuraignore` or of a schema counts


def _bytes(uri: str, imported: Sequence[Snapshot]) -> int:
    return sum(getsizeof(one.text) for one in imported)


class Surroundings:
    """`options` gives the settings as they are. Other files are looked at in a trusted workspace only."""

    def __init__(self, workspace: Workspace, options: Callable[[], Options]) -> None:
        self._workspace = workspace
        self._options = options
        self._agreement: Agreement | None = None
        self._files = Files()
        self.schema_files = SchemaFiles()
        self._schema_of: dict[str, Schema | None] = {}  # of the documents where one was looked for
        self._due_s: dict[str, float] = {}  # when to look for it again
        self._looking: set[asyncio.Task[None]] = set()
        self._history = History()
        self._imported = Recent[str, tuple[Snapshot, ...]](IMPORTED, _bytes)
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._edited = ""  # the document that was edited last
        self._look_s = 0.0  # when to look at the projects' own rules again
        self.on_problems: Callable[[], None] = lambda: None  # called when the projects' own rules were read again
        self.generation = 0  # what was chosen as neighbours before this counted up may be out of date

    def __repr__(self) -> str:
        return f"<Surroundings {self._files} {len(self._imported)} with imports>"

    @property
    def problems(self) -> list[str]:
        return self._files.problems + self.schema_files.problems

    # What changes

    def agree(self, agreement: Agreement | None) -> None:
        """The engine is on another machine, and this is what may be sent there; None where it is on this one."""
        self._agreement = agreement
        self.changed()

    def changed(self) -> None:
        """The workspace's folders or the settings have changed."""
        options = self._options()
        folders, trusted = self._workspace.folders, options.trusted
        self._files = Files(folders, options.ignore, trusted=trusted, agreement=self._agreement)
        self.schema_files = SchemaFiles(folders, options.schemas, trusted=trusted, withholds=self._files.withholds)
        self._imported.clear()
        self._schema_of.clear()
        self._due_s.clear()
        self.generation += 1
        for opened in self._workspace.all():
            self.opened(opened.document.uri)

    def opened(self, uri: str) -> None:
        """Read what a document imports, for the time when somebody types in it."""
        self.generation += 1
        self._refresh(uri)
        if opened := self._workspace.get(uri):
            self.schema(opened)

    def _refresh(self, uri: str) -> None:
        opened = self._workspace.get(uri)
        if opened is None or not self._wanted or uri in self._reading or self._files.hides(uri):
            return
        task = self._reading[uri] = asyncio.create_task(self._read(opened.document))
        task.add_done_callback(lambda _: self._reading.pop(uri, None))

    def edited(self, opened: Open, edits: Sequence[Edit]) -> None:
        self.generation += self._edited != opened.document.uri
        self._edited = opened.document.uri
        if name := self._workspace.label(opened.document.uri):
            for edit in edits:
                self._history.edited(name, edit, time.monotonic())

    def closed(self, uri: str) -> None:
        self._imported.drop(uri)
        self._schema_of.pop(uri, None)
        self._due_s.pop(uri, None)
        self.generation += 1
        if name := self._workspace.label(uri):
            self._history.forget(name)

    # What is asked

    def hidden(self, opened: Open) -> bool:
        """Whether a document gets no proposals and is nobody's neighbour."""
        now = time.monotonic()
        if now > self._look_s:
            self._look_s = now + LOOK_S
            if self._files.outdated:
                self.changed()
                self.on_problems()
        return self._files.hides(opened.document.uri)

    def frame(self, opened: Open, place: Context, budget: Budget) -> Context:
        """The context of a place in a notebook's cell, with the cells around it."""
        above, below = self._workspace.notebooks.around(opened.document, self._document, opened.language.comment)
        if not above and not below:
            return place
        prefix = window_before(above + place.prefix, budget.before)
        return replace(place, prefix=prefix, suffix=window_after(place.suffix + below, budget.after))

    def neighbours(self, opened: Open, place: Context, kept: tuple[wire.Neighbour, ...]) -> tuple[wire.Neighbour, ...]:
        """Related parts of other files; `kept` are those of the place before."""
        uri = opened.document.uri
        name = self._workspace.label(uri)
        if name is None or not self._wanted:
            return ()
        self._refresh(uri)  # its imports may have changed; they are ready for the next place
        latest = reversed(self._workspace.all()[-MOST_OPEN:])
        others = [found for other in latest if (found := self._snapshot(other, uri))]
        snapshots = [*others, *(self._imported.get(uri) or ())]
        target = Target(name, place.language, place.prefix, place.suffix)
        return choose(target, snapshots, self._history.recent(time.monotonic()), kept=kept)

    def schema(self, opened: Open) -> Schema | None:
        """The schema of a document as it was found last; it is looked for meanwhile."""
        document, now = opened.document, time.monotonic()
        wanted = self._options().structured and document.language in JSON
        if wanted and now > self._due_s.get(document.uri, 0.0):
            self._due_s[document.uri] = now + LOOK_S
            task = asyncio.create_task(self._look(document))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
        return self._schema_of.get(document.uri)

    async def _look(self, document: Document) -> None:
        try:
            found = (await asyncio.to_thread(self.schema_files.find, document.uri, document.text)).schema
        except SchemaError:
            found = None  # those who ask for an edit are told
        if document.uri in self._due_s:
            self._schema_of[document.uri] = found

    @property
    def _wanted(self) -> bool:
        options = self._options()
        return options.enable and options.neighbours and options.trusted

    async def _read(self, document: Document) -> None:
        await asyncio.to_thread(index, document.text, document.language)  # kept, for when it is a neighbour itself
        found = await self._files.imported(document.uri, document.text, document.language)
        opened = self._workspace.get(document.uri)
        if opened is not None and opened.document is document and found != self._imported.get(document.uri):
            self._imported.put(document.uri, found)
            self.generation += 1

    def _document(self, uri: str) -> Document | None:
        opened = self._workspace.get(uri)
        return None if opened is None or self._files.hides(uri) else opened.document

    def _snapshot(self, other: Open, uri: str) -> Snapshot | None:
        name = self._workspace.label(other.document.uri)
        if name is None or other.document.uri == uri or other.language is UNKNOWN or self.hidden(other):
            return None
        return Snapshot(name, other.document.language, other.document.text)
