"""One editor's session: the state that its handlers share, and all state of its documents."""

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
from caesura.server.next_edit.asking import NextEdits
from caesura.server.options import Options, Settings, parse, without
from caesura.server.records.stats import Stats
from caesura.server.records.trace import SessionRecord, Trace
from caesura.server.text.document import Encoding
from caesura.server.text.workspace import ContentChange, OpenDocument, Workspace

CLOSE_S = 1.0  # longest wait for the engine's client to close
AT_START = ("model", "device", "popup")  # settings that are read only when the server starts

MakeEngine = Callable[[Options, str, Consented | None], Backend]
"""(settings, the client's name, the engine that the user has named for the workspace, if any) -> an engine."""


@dataclass(frozen=True)
class EditorInfo:
    """The editor's description of itself at the start: `abilities` by their names in the protocol, `folders` as paths,
    `settings` as JSON."""

    name: str
    encoding: Encoding
    folders: Sequence[str]
    abilities: tuple[str, ...]
    settings: Mapping[str, Any]


class Session:
    """`open`, `change`, `lose` and `close` act on all state of a document together."""

    def __init__(self, editor: EditorInfo, make_engine: MakeEngine) -> None:
        self._editor = editor
        self.problems: set[str] = set()  # sentences on its settings and ignore rules, logged already
        self.settings = Settings(parse(editor.settings)[0])
        self.workspace = Workspace(editor.encoding, list(editor.folders))
        found = choose.agreement(self.workspace.folders)
        self._agreement = found
        self._off: tuple[str, ...] = ()  # settings, by the policy of the engine's administrator
        self.project = Project(self.workspace, self.settings, found)
        self.engine = make_engine(self.settings.options, editor.name, found.engine if found else None)
        self._stats, self._trace = Stats(), Trace()
        self.panes = Panes(self.engine, self.settings, self.project, self._stats, self._trace)
        self._last = LastFills()
        self.fills = Fills(self.engine, self.settings, self._last, self.project.surround)
        self.edits = StructuredEdits(self.engine, self.settings, self._last, self.project.surround)
        self.next_edits = NextEdits(self.engine, self.settings)
        self.engine.on_job = self._trace.job

    def __repr__(self) -> str:
        return f"<Session of {self._editor.name} {self.workspace}>"

    # Documents

    def open(self, uri: str, language: str, version: int, text: str) -> None:
        """Open a document; if it is open already, replace its text."""
        self.close(uri)
        self.workspace.open(uri, language, version, text)
        if opened := self.workspace.get(uri):
            self.project.opened(opened)
            self.next_edits.opened(opened)

    def change(self, uri: str, version: int, changes: Sequence[ContentChange | str]) -> None:
        edits = self.workspace.edit(uri, version, changes)
        opened = self.workspace.get(uri)
        if uri not in self.workspace:  # it has grown too large
            self.close(uri)
        elif opened is None or edits is None:
            self.panes.replaced(uri)
            self.next_edits.closed(uri)
        elif edits:
            self.panes.edited(opened, edits)
            self.next_edits.edited(opened, edits)

    def lose(self, uri: str) -> None:
        """Stop using our text of a document, which may differ from the editor's."""
        self.workspace.lose(uri)
        self.panes.replaced(uri)
        self.next_edits.closed(uri)

    def close(self, uri: str) -> None:
        self.panes.close(uri)
        self.next_edits.closed(uri)
        self.project.closed(uri)
        self._last.close(uri)
        self.workspace.close(uri)

    def fillable(self, uri: str) -> OpenDocument | None:
        """The document, if fills may be asked for in it. A language that is off gets fills, only no ghost text."""
        opened = self.workspace.get(uri)
        enabled = self.settings.options.enable
        return opened if opened and enabled and not self.project.hidden(opened) else None

    # Settings

    def configure(self, settings: Mapping[str, Any]) -> list[str]:
        """Apply settings on top of those from the start, instead of any that came later. Returns a sentence for each
        problem."""
        before = self.settings.options
        wanted, problems = parse({**self._editor.settings, **settings})
        self.settings.options = without(wanted, self._off)
        options = self.settings.options
        if any(getattr(before, name) != getattr(options, name) for name in AT_START):
            problems.append(
                "The settings 'model', 'device' and 'popup' take effect when the server starts; restart it."
            )
        self._stats.enable(options.stats)
        self._trace.enable(options.stats)
        self.project.changed()
        if not options.enable:
            self.panes.close_all()
        return [*problems, *self.project.problems]

    def obey(self) -> None:
        """Take over the policy of the engine's administrator, before another job is made."""
        policy, agreed = self.engine.condition.policy, self._agreement
        if agreed and (policy.never, policy.off) != (agreed.never, self._off):
            agreed.never, self._off = policy.never, policy.off
            self.settings.options = without(self.settings.options, self._off)
            self.panes.close_all()
            self.project.changed()

    def set_folders(self, folders: Sequence[str]) -> None:
        self.workspace.folders[:] = folders
        self.project.changed()

    def record(self) -> None:
        """Write a record of this session to the trace."""
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
        """End all jobs, and close the files and the engine. A hanging engine is left after `CLOSE_S`."""
        self.panes.close_all()
        await self._stats.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.engine.close(), CLOSE_S)
        await self._trace.close()
