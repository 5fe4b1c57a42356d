"""One editor's session: what its handlers share, and all that is kept of its documents."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caesura import __version__
from caesura.client import choose
from caesura.client.backend import Backend
from caesura.ipc.consent import Consented
from caesura.server.context.project import Project
from caesura.server.fills.fills import Fills
from caesura.server.fills.history import LastFills
from caesura.server.fills.structured import StructuredEdits
from caesura.server.ghost.panes import Panes
from caesura.server.options import Options, Settings, parse
from caesura.server.records.stats import Stats
from caesura.server.records.trace import SessionRecord, Trace
from caesura.server.text.document import Encoding
from caesura.server.text.workspace import ContentChange, OpenDocument, Workspace

CLOSE_S = 1.0
AT_START = ("model", "device", "popup")  # settings that are read when the server starts

MakeEngine = Callable[[Options, str, Consented | None], Backend]
"""(settings, a name for the client, the engine elsewhere that the user has named for the workspace) -> an engine."""


@dataclass(frozen=True)
class EditorInfo:
    """What an editor says about itself at the start: `abilities` by their names in the protocol, `folders` as paths,
    `settings` as JSON."""

    name: str
    encoding: Encoding
    folders: Sequence[str]
    abilities: tuple[str, ...]
    settings: Mapping[str, Any]


class Session:
    """`open` and `close` are the only ones for everything that is kept of a document."""

    def __init__(self, editor: EditorInfo, make_engine: MakeEngine) -> None:
        self._editor = editor
        self.problems: set[str] = set()  # with its settings and its projects' rules, as sentences that were logged
        self.settings = Settings(parse(editor.settings)[0])
        self.workspace = Workspace(editor.encoding, list(editor.folders))
        found = choose.agreement(self.workspace.folders)
        self.project = Project(self.workspace, self.settings, found)
        self.engine = make_engine(self.settings.options, editor.name, found.engine if found else None)
        self._stats, self._trace = Stats(), Trace()
        self.panes = Panes(self.engine, self.settings, self.project, self._stats, self._trace)
        self._last = LastFills()
        self.fills = Fills(self.engine, self.settings, self._last, self.project.surround)
        self.edits = StructuredEdits(self.engine, self.settings, self._last, self.project.surround)
        self.engine.on_job = self._trace.job

    def __repr__(self) -> str:
        return f"<Session of {self._editor.name} {self.workspace}>"

    # Documents

    def open(self, uri: str, language: str, version: int, text: str) -> None:
        """Also of a document that is open: its text is this from now on."""
        self.panes.close(uri)
        self.workspace.open(uri, language, version, text)
        if opened := self.workspace.get(uri):
            self.project.opened(opened)

    def change(self, uri: str, version: int, changes: Sequence[ContentChange | str]) -> None:
        edits = self.workspace.edit(uri, version, changes)
        opened = self.workspace.get(uri)
        if opened is None or edits is None:
            self.panes.replaced(uri)
        elif edits:
            self.project.edited(opened, edits)
            self.panes.edited(opened, edits)

    def lose(self, uri: str) -> None:
        """Our text of a document may differ from the editor's."""
        self.workspace.lose(uri)
        self.panes.replaced(uri)

    def close(self, uri: str) -> None:
        self.panes.close(uri)
        self.project.closed(uri)
        self._last.close(uri)
        self.workspace.close(uri)

    def fillable(self, uri: str) -> OpenDocument | None:
        """A document that a user may have filled. Languages that are off are so for what comes without being asked."""
        opened = self.workspace.get(uri)
        enabled = self.settings.options.enable
        return opened if opened and enabled and not self.project.hidden(opened) else None

    # Settings

    def configure(self, settings: Mapping[str, Any]) -> list[str]:
        """Take settings on top of those that came at the start, instead of later ones; a sentence for each problem."""
        before = self.settings.options
        self.settings.options, problems = parse({**self._editor.settings, **settings})
        options = self.settings.options
        if any(getattr(before, name) != getattr(options, name) for name in AT_START):
            problems.append(
                "The settings 'model', 'device' and 'popup' count when the server starts: restart it to use them."
            )
        self._stats.enable(options.stats)
        self._trace.enable(options.stats)
        self.project.changed()
        if not options.enable:
            self.panes.close_all()
        return [*problems, *self.project.problems]

    def set_folders(self, folders: Sequence[str]) -> None:
        self.workspace.folders[:] = folders
        self.project.changed()

    def record(self) -> None:
        """Note in the trace what this session is."""
        found, editor = self.engine.condition, self._editor
        self._trace.session(
            SessionRecord(
                client=editor.name,
                server=__version__,
                encoding=editor.encoding,
                capabilities=editor.abilities,
                model=found.model,
                device=found.device,
                problems=tuple(sorted(self.problems)),
            )
        )

    async def end(self) -> None:
        """Free everything. An engine that does not answer is not waited for."""
        self.panes.close_all()
        await self._stats.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.engine.close(), CLOSE_S)
        await self._trace.close()
