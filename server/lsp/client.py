"""What the editor says of itself when it starts us: its name, what it can do, and the folders of its workspace."""

import logging
from collections.abc import Callable, Mapping

from lsprotocol import types

from caesura.server.lsp.protocol import describe
from caesura.server.lsp.transport import Server
from caesura.server.text.workspace import path_of

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


def name(params: types.InitializeParams) -> str:
    client = params.client_info
    return f"{client.name} {client.version or ''}".strip() if client else "an editor"


def abilities(can: types.ClientCapabilities) -> tuple[str, ...]:
    """Those that matter to us, by their names in the protocol."""
    return tuple(ability for ability, announced in _ABILITIES.items() if announced(can))


def wants_status(params: types.InitializeParams) -> bool:
    """Whether the editor knows our notifications of status: it says so (`experimental.caesura.status`), or a plugin
    made for Copilot's server runs in it. Others get none, as lsp-mode warns of every notification it does not know."""
    options = params.initialization_options
    experimental = params.capabilities.experimental
    ours = experimental.get("caesura") if isinstance(experimental, Mapping) else None
    asked = isinstance(ours, Mapping) and bool(ours.get("status"))
    return asked or (isinstance(options, Mapping) and "editorPluginInfo" in options)


def folders(params: types.InitializeParams) -> list[str]:
    """The paths of the workspace's folders, or of the one folder that older clients tell of."""
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
    """Ask for `workspace/didChangeConfiguration` where the editor sends it only to those who do. Inline completion is
    announced statically and only so: some clients read nothing else, and both ways at once are two providers."""
    if "didChangeConfiguration.dynamicRegistration" not in abilities(server.client_capabilities):
        return
    method = types.WORKSPACE_DID_CHANGE_CONFIGURATION
    registration = types.Registration("caesura-settings", method, {"section": "caesura"})
    try:
        await server.client_register_capability_async(types.RegistrationParams([registration]))
    except Exception as error:  # whatever the client answers: settings that change are then read at the next start
        log.warning("The editor will not tell of settings that change: %s", describe(error))
