"""The editor's name, capabilities and workspace folders, from its `initialize` request."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from lsprotocol import types

from caesura.characters import shown
from caesura.server.lsp.protocol import describe
from caesura.server.lsp.transport import Server
from caesura.server.session import EditorInfo
from caesura.server.text.workspace import path_of

MAX_NAME = 100  # characters of an editor's name and version

log = logging.getLogger(__name__)

_Abilities = types.ClientCapabilities
_ABILITIES: Mapping[str, Callable[[_Abilities], object]] = {
    "inlineCompletion": lambda can: can.text_document and can.text_document.inline_completion,
    "notebookDocument": lambda can: can.notebook_document,
    "applyEdit": lambda can: can.workspace and can.workspace.apply_edit,
    "documentChanges": lambda can: (
        can.workspace and can.workspace.workspace_edit and can.workspace.workspace_edit.document_changes
    ),
    "workspaceFolders": lambda can: can.workspace and can.workspace.workspace_folders,
    "configuration": lambda can: can.workspace and can.workspace.configuration,
    "didChangeConfiguration.dynamicRegistration": lambda can: (
        can.workspace
        and can.workspace.did_change_configuration
        and can.workspace.did_change_configuration.dynamic_registration
    ),
    "workDoneProgress": lambda can: can.window and can.window.work_done_progress,
}


def about(params: types.InitializeParams, encoding: types.PositionEncodingKind | str | None) -> EditorInfo:
    return EditorInfo(
        name(params),
        types.PositionEncodingKind(encoding).value,
        folders(params),
        abilities(params.capabilities),
        as_object(params.initialization_options),
    )


def as_object(settings: object) -> dict[str, Any]:
    """Settings as an editor sends them; anything but an object is empty."""
    return dict(settings) if isinstance(settings, Mapping) else {}


def name(params: types.InitializeParams) -> str:
    client = params.client_info
    return shown(f"{client.name} {client.version or ''}".strip(), MAX_NAME) if client else "an editor"


def abilities(can: types.ClientCapabilities) -> tuple[str, ...]:
    """The capabilities that we use, by their names in the protocol."""
    return tuple(ability for ability, announced in _ABILITIES.items() if announced(can))


def wants_status(params: types.InitializeParams) -> bool:
    """True if the editor handles our status notifications: it says so (`experimental.caesura.status`), or runs a plugin
    for Copilot's server. Others get none, since lsp-mode warns about every unknown notification."""
    options = params.initialization_options
    experimental = params.capabilities.experimental
    ours = experimental.get("caesura") if isinstance(experimental, Mapping) else None
    asked = isinstance(ours, Mapping) and bool(ours.get("status"))
    return asked or (isinstance(options, Mapping) and "editorPluginInfo" in options)


def folders(params: types.InitializeParams) -> list[str]:
    """The paths of the workspace's folders, or of the root folder that older clients send."""
    if params.workspace_folders is not None:
        found = [path_of(folder.uri) for folder in params.workspace_folders]
    elif params.root_uri is not None:
        found = [path_of(params.root_uri)]
    else:
        found = [params.root_path or ""]
    return [path for path in found if path]


def folders_after(before: list[str], event: types.WorkspaceFoldersChangeEvent) -> list[str]:
    removed = {path_of(folder.uri) for folder in event.removed}
    added = [path_of(folder.uri) for folder in event.added]
    kept = [path for path in before if path not in removed and path not in added]
    return kept + [path for path in added if path]


async def watch_settings(server: Server) -> None:
    """Register for `workspace/didChangeConfiguration` if the editor requires it. Inline completion is registered only
    statically: some clients support nothing else, and both ways would make two providers."""
    if "didChangeConfiguration.dynamicRegistration" not in abilities(server.client_capabilities):
        return
    method = types.WORKSPACE_DID_CHANGE_CONFIGURATION
    registration = types.Registration("caesura-settings", method, {"section": "caesura"})
    try:
        await server.client_register_capability_async(types.RegistrationParams([registration]))
    except Exception as error:  # any answer of the client: changed settings count from the next start
        log.warning("The editor does not report changed settings; restart it to apply them: %s", describe(error))
