"""The language server: an editor initializes it, and gets a session with its handlers."""

import asyncio
import logging

from lsprotocol import types

from caesura import __version__, logs
from caesura.client import choose
from caesura.server.lsp import client, loopback
from caesura.server.lsp.actions import Actions
from caesura.server.lsp.commands import Commands
from caesura.server.lsp.completion import CURSOR, STREAM, GhostText
from caesura.server.lsp.configuration import EditorSettings
from caesura.server.lsp.documents import SYNC, Cells, Documents
from caesura.server.lsp.next_edit import NextEditRequests
from caesura.server.lsp.popup import Popup
from caesura.server.lsp.status import StatusReporter
from caesura.server.lsp.transport import Server
from caesura.server.session import MakeEngine, Session

EXPERIMENTAL = {"caesura": {"stream": STREAM, "cursor": CURSOR, "nextEdit": True}}


class App:
    """The language server of one editor."""

    def __init__(self, make_engine: MakeEngine) -> None:
        self.server = Server("caesura", __version__, EXPERIMENTAL, SYNC)
        self.server.on(types.INITIALIZE, self.initialize)
        self._make_engine = make_engine

    def initialize(self, params: types.InitializeParams) -> None:
        """All other messages come after this one."""
        editor = client.about(params, self.server.workspace.position_encoding)
        Handlers(self.server, Session(editor, self._make_engine), params).register()


class Handlers:
    """The handlers of a session."""

    def __init__(self, server: Server, session: Session, params: types.InitializeParams) -> None:
        window = params.capabilities.window
        draws = bool(window and window.work_done_progress)
        self._server = server
        self._session = session
        self._status = StatusReporter(server, session.engine, wanted=client.wants_status(params), progress=draws)
        self._configuration = EditorSettings(server, session, self._status)
        self._documents, self._cells = Documents(session), Cells(session)
        self._popup = Popup(session, params.capabilities)
        self._starting: asyncio.Task[None] | None = None

    def register(self) -> None:
        server, session = self._server, self._session
        completion = GhostText(server, session, self._popup)
        others = completion, NextEditRequests(session), self._popup, Actions(server, session), Commands(server, session)
        for handlers in (self._configuration, self._documents, self._cells, *others):
            handlers.register(server.on)
        server.on(types.INITIALIZED, self.initialized)
        server.on_malformed, server.on_exit = self.malformed, session.end
        session.panes.on_trouble = self._status.trouble
        session.engine.on_change, session.project.on_problems = self.engine_changed, self.rules_changed

    def initialized(self, params: types.InitializedParams) -> None:
        self._configuration.configure({})  # before the next message, which may bring settings
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        await self._session.engine.start()
        await asyncio.gather(client.watch_settings(self._server), self._configuration.pull())

    def engine_changed(self) -> None:
        self._session.obey()
        self._status.changed()
        self._session.record()

    def rules_changed(self) -> None:
        self._configuration.tell(self._session.project.problems)

    def malformed(self, method: str, params: object) -> None:
        self._documents.malformed(method, params)
        self._cells.malformed(method, params)


def main(port: int | None = None) -> int:
    """Serve stdio, or the one client of a loopback port; the exit code. Raises loopback.NoClient."""
    logs.begin(logging.WARNING, "caesura: %(message)s")
    app = App(
        lambda options, client, agreed: choose.engine(agreed, client=client, model=options.model, device=options.device)
    )
    return app.server.serve() if port is None else loopback.serve(app.server, port)
