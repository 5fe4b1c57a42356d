"""The editor's changes to settings and workspace folders."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lsprotocol import types

from caesura.server.lsp import client
from caesura.server.lsp.protocol import describe
from caesura.server.lsp.status import StatusReporter
from caesura.server.lsp.transport import Server
from caesura.server.session import Session

log = logging.getLogger(__name__)


class EditorSettings:
    """Handles changes of settings and workspace folders."""

    def __init__(self, server: Server, session: Session, status: StatusReporter) -> None:
        self._server = server
        self._session = session
        self._status = status
        self._pulling: set[asyncio.Task[None]] = set()

    def register(self, on: Callable[..., None]) -> None:
        on(types.WORKSPACE_DID_CHANGE_CONFIGURATION, self.did_change_configuration)
        on(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, self.did_change_folders)

    def did_change_configuration(self, params: types.DidChangeConfigurationParams) -> None:
        if isinstance(params.settings, Mapping) and "caesura" in params.settings:
            self.configure(client.as_object(params.settings["caesura"]))
        else:
            task = asyncio.create_task(self.pull())
            self._pulling.add(task)
            task.add_done_callback(self._pulling.discard)

    def did_change_folders(self, params: types.DidChangeWorkspaceFoldersParams) -> None:
        self._session.set_folders(client.folders_after(self._session.workspace.folders, params.event))
        self.tell(self._session.project.problems)

    async def pull(self) -> None:
        """Request the settings from the editor, if it supports that."""
        workspace = self._server.client_capabilities.workspace
        if workspace and workspace.configuration:
            items = [types.ConfigurationItem(section="caesura")]
            try:
                found = await self._server.workspace_configuration_async(types.ConfigurationParams(items=items))
            except Exception as error:  # any answer of the client: the settings stay as they are
                return log.warning("The editor does not answer with its settings: %s", describe(error))
            self.configure(client.as_object(found[0] if found else None))

    def configure(self, settings: Mapping[str, Any]) -> None:
        problems = self._session.configure(settings)
        self._status.enable(self._session.settings.options.enable)
        self.tell(problems)

    def tell(self, problems: Iterable[str]) -> None:
        """Log, in one message, the sentences that were not logged yet."""
        if new := [problem for problem in problems if problem not in self._session.problems]:
            self._session.problems.update(new)
            self._server.window_log_message(types.LogMessageParams(types.MessageType.Warning, " ".join(new)))
