"""Every LSP handler but those of actions.py. On an edit: update the document and its tree, keep a canvas warm. On a
request: answer from it.

Nothing here computes: documents, trees, contexts and canvases are plain objects of their own files.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from lsprotocol import types

from caesura import __version__, logs, wire
from caesura.client.backend import Backend
from caesura.client.shared import Engine
from caesura.ipc.pairing import Remote, agreement
from caesura.server.context.project import Surroundings
from caesura.server.ghost.canvas import Proposal
from caesura.server.ghost.canvases import Selected
from caesura.server.ghost.typing import Kept, Typing
from caesura.server.lsp import client, loopback
from caesura.server.lsp.actions import Actions
from caesura.server.lsp.cells import SYNC, Cells
from caesura.server.lsp.popup import ACCEPTED, Popup
from caesura.server.lsp.status import Status
from caesura.server.lsp.streaming import Stream
from caesura.server.lsp.transport import Server
from caesura.server.options import Options, parse
from caesura.server.records.stats import Stats
from caesura.server.records.trace import Session, Trace
from caesura.server.text.document import Position
from caesura.server.text.workspace import Open, Workspace

CLOSE_S = 1.0
STREAM, CURSOR = "caesura/inlineCompletionStream", "caesura/cursor"  # see docs/protocol.md
NOTHING = types.InlineCompletionList(items=[])

log = logging.getLogger(__name__)


class App:
    """The language server. `make_engine` gets the options, a name for the client, and the engine on another machine
    that the user has named for this workspace, if any."""

    def __init__(self, make_engine: Callable[[Options, str, Remote | None], Backend]) -> None:
        self.server = Server("caesura", __version__, {"caesura": {"stream": STREAM, "cursor": CURSOR}}, SYNC)
        self.server.on_malformed = self.malformed
        self.server.on_exit = self.exit
        self.workspace = Workspace()
        self.options = Options()
        self._make_engine = make_engine
        self._settings: dict[str, Any] = {}
        self._reported: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tally, self._trace = Stats(), Trace()
        self._around = Surroundings(self.workspace, lambda: self.options)
        self._around.on_problems = lambda: self._tell(self._around.problems)
        self._cells = Cells(self.workspace.notebooks, self)
        self._actions = Actions(self.server, self.workspace, self, lambda: self.options, self._around)
        self._actions.commands[ACCEPTED] = self.accepted
        self._register()

    def _register(self) -> None:
        on = self.server.on
        on(types.INITIALIZE, self.initialize)
        on(types.INITIALIZED, self.initialized)
        on(types.WORKSPACE_DID_CHANGE_CONFIGURATION, self.did_change_configuration)
        on(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, self.did_change_folders)
        on(types.TEXT_DOCUMENT_DID_OPEN, self.did_open)
        on(types.TEXT_DOCUMENT_DID_CHANGE, self.did_change)
        on(types.TEXT_DOCUMENT_DID_CLOSE, self.did_close)
        on(types.TEXT_DOCUMENT_INLINE_COMPLETION, self.inline_completion, types.InlineCompletionOptions())
        on(STREAM, self.stream)
        on(CURSOR, self.cursor)
        on("textDocument/didShowCompletion", self.did_show)
        on("textDocument/didPartiallyAcceptCompletion", self.did_accept_a_part)
        self._cells.register(on)
        self._actions.register(on)

    # Lifecycle

    def initialize(self, params: types.InitializeParams) -> None:
        self.workspace.encoding = types.PositionEncodingKind(self.server.workspace.position_encoding).value
        self.workspace.folders[:] = client.folders(params)
        self._settings = _object(params.initialization_options)
        self.options, _ = parse(self._settings)
        self._client = client.name(params)
        found = agreement(self.workspace.folders)
        self._around.agree(found)  # before any document is looked at
        self._engine = self._make_engine(self.options, self._client, found.remote if found else None)
        self._typing = Typing(self, lambda: self.options, self._around, self._tally, self._trace)
        self._popup = Popup(self.workspace, lambda: self.options, self._typing)
        self._popup.register(self.server.on, params.capabilities)
        window = params.capabilities.window
        draws = bool(window and window.work_done_progress)
        self._status = Status(self.server, self._engine, wanted=client.wants_status(params), progress=draws)
        self._engine.on_change, self._engine.on_job = self._changed, self._trace.job

    def initialized(self, params: types.InitializedParams) -> None:
        self._configure({})  # before the message behind this one, which may bring settings
        self._soon(self._start())

    async def _start(self) -> None:
        await self._engine.start()
        self._soon(client.watch_settings(self.server))
        await self._pull_settings()

    def _changed(self) -> None:
        """The engine's condition may have changed."""
        self._status.changed()
        found = self._engine.condition
        abilities = client.abilities(self.server.client_capabilities)
        problems = tuple(sorted(self._reported))
        self._trace.session(
            Session(self._client, __version__, self.workspace.encoding, abilities, found.model, found.device, problems)
        )

    def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """Ask the engine, which is made only when the editor has said how."""
        return self._engine.infill(job)

    async def exit(self) -> None:
        """Free everything; an engine that does not answer is left behind."""
        if hasattr(self, "_engine"):
            self._typing.close_all()
            await self._tally.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._engine.close(), CLOSE_S)
            await self._trace.close()

    # Settings

    def did_change_configuration(self, params: types.DidChangeConfigurationParams) -> None:
        if isinstance(params.settings, Mapping) and "caesura" in params.settings:
            self._configure(_object(params.settings["caesura"]))
        else:
            self._soon(self._pull_settings())

    def did_change_folders(self, params: types.DidChangeWorkspaceFoldersParams) -> None:
        self.workspace.folders[:] = client.folders_after(self.workspace.folders, params.event)
        self._around.changed()

    async def _pull_settings(self) -> None:
        workspace = self.server.client_capabilities.workspace
        if workspace and workspace.configuration:
            items = [types.ConfigurationItem(section="caesura")]
            found = await self.server.workspace_configuration_async(types.ConfigurationParams(items=items))
            self._configure(_object(found[0] if found else None))

    def _configure(self, settings: dict[str, Any]) -> None:
        """Take settings on top of those we were started with, in the place of others that came since; what is wrong
        with them is said once, in one message."""
        before = self.options
        self.options, problems = parse(self._settings | settings)
        if any(getattr(before, name) != getattr(self.options, name) for name in ("model", "device", "popup")):
            problems.append(
                "The settings 'model', 'device' and 'popup' count when the server starts: restart it to use them."
            )
        self._tally.enable(self.options.stats)
        self._trace.enable(self.options.stats)
        self._status.enable(self.options.enable)
        self._around.changed()
        if not self.options.enable:
            self._typing.close_all()
        self._tell((*problems, *self._around.problems))

    def _tell(self, problems: Iterable[str]) -> None:
        """Log what was not said before."""
        if new := [problem for problem in problems if problem not in self._reported]:
            self._reported.update(new)
            self.server.window_log_message(types.LogMessageParams(types.MessageType.Warning, " ".join(new)))

    # Documents

    def did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        self._typing.close(item.uri)
        self.workspace.open(item.uri, item.language_id, item.version, item.text)
        self._around.opened(item.uri)

    def did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        changes = [_change(change) for change in params.content_changes]
        edits = self.workspace.edit(uri, params.text_document.version, changes)
        opened = self.workspace.get(uri)
        if opened is None or edits is None:
            self._typing.replaced(uri)
        if opened is not None and edits:
            self._around.edited(opened, edits)
            self._typing.edited(opened, edits)

    def did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        self._typing.close(uri)
        self._around.closed(uri)
        self._actions.fills.close(uri)
        self.workspace.close(uri)

    def lose(self, uri: str) -> None:
        """Our text of a document may differ from the editor's."""
        self.workspace.lose(uri)
        self._typing.replaced(uri)

    def malformed(self, method: str, params: object) -> None:
        """An edit that cannot be read is an edit we do not have: of any document, if it does not say of which."""
        self._cells.malformed(method, params)
        document = params.get("textDocument") if isinstance(params, dict) else None
        uri = document.get("uri") if isinstance(document, dict) else None
        if method == types.TEXT_DOCUMENT_DID_CHANGE:
            for lost in [uri] if isinstance(uri, str) else [opened.document.uri for opened in self.workspace.all()]:
                self.lose(lost)

    # Completion

    def inline_completion(
        self, params: types.InlineCompletionParams
    ) -> types.InlineCompletionList | Awaitable[types.InlineCompletionList | None]:
        """Items, an empty list for nothing to propose, or None to leave what the editor shows; never an error.

        A request names no version: its position is meant for the text as it is when the request arrives."""
        self._popup.ghost = True
        opened = self.workspace.get(params.text_document.uri)
        if opened is None:
            return NOTHING
        cursor = opened.document.offset((params.position.line, params.position.character))
        invoked = params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
        selected = _selected(opened, params.context.selected_completion_info)
        answer = self._typing.propose(opened, cursor, invoked=invoked, selected=selected)
        return _completion(opened, cursor, answer)

    def stream(self, params: Any) -> Any:
        """The same, with what is known on the way as `$/progress` for the request's `partialResultToken`."""
        self._popup.ghost = True
        try:
            uri, token = str(params.textDocument.uri), params.partialResultToken
            position = int(params.position.line), int(params.position.character)
            invoked = params.context.triggerKind == types.InlineCompletionTriggerKind.Invoked.value
        except (AttributeError, TypeError, ValueError):
            return NOTHING
        opened = self.workspace.get(uri)
        if opened is None:
            return NOTHING
        document = opened.document
        cursor = document.offset(position)
        stream = Stream(
            lambda value: self.server.progress(types.ProgressParams(token, value)),
            document.version,
            lambda eat: _range(opened, cursor, Proposal("", eat)),
            document.encoding,
            asyncio.get_running_loop().time,
        )
        answer = self._typing.propose(opened, cursor, invoked=invoked, on_draft=stream.draft)
        return _completion(opened, cursor, answer, stream.done)

    def cursor(self, params: Any) -> None:
        """The cursor has come to rest somewhere, and nothing is asked for yet."""
        try:
            uri, position = str(params.textDocument.uri), (int(params.position.line), int(params.position.character))
        except (AttributeError, TypeError, ValueError):
            return
        if opened := self.workspace.get(uri):
            self._typing.rested(opened, opened.document.offset(position))

    # What became of an item, as Copilot's clients tell it

    def did_show(self, params: Any) -> None:
        if id := _id(params):
            self._typing.seen(id)

    def did_accept_a_part(self, params: Any) -> None:
        length = getattr(params, "acceptedLength", None)
        if (id := _id(params)) and isinstance(length, int):
            self._typing.accepted(id, units=max(0, length))

    def accepted(self, params: types.ExecuteCommandParams) -> None:
        """The command of an item: the editor has inserted it."""
        for id in params.arguments or ():
            self._typing.accepted(str(id))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _completion(
    opened: Open,
    cursor: int,
    answering: Callable[[], Awaitable[Proposal | Kept]],
    on_done: Callable[[Proposal], None] = lambda proposal: None,
) -> types.InlineCompletionList | None:
    answer = await answering()
    if isinstance(answer, Kept):
        return None if answer.shown_fits else NOTHING
    on_done(answer)
    where = _range(opened, cursor, answer)
    command = types.Command("Accepted", ACCEPTED, arguments=[answer.id])
    texts = (answer.insert, *answer.others) if answer.insert else ()
    return types.InlineCompletionList(
        [types.InlineCompletionItem(text, range=where, command=command) for text in texts]
    )


def _range(opened: Open, cursor: int, proposal: Proposal) -> types.Range:
    """What a proposal replaces, in the document as it is when it is asked for."""
    start, end = map(opened.document.position, (cursor - proposal.back, cursor + proposal.eat))
    return types.Range(types.Position(*start), types.Position(*end))


def _change(change: types.TextDocumentContentChangeEvent) -> tuple[Position, Position, str] | str:
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        return change.text
    start, end = change.range.start, change.range.end
    return (start.line, start.character), (end.line, end.character), change.text


def _selected(opened: Open, item: types.SelectedCompletionInfo | None) -> Selected | None:
    if item is None:
        return None
    start = item.range.start
    return Selected(opened.document.offset((start.line, start.character)), item.text)


def _id(params: Any) -> str:
    """The id that an item's command carries."""
    arguments = getattr(getattr(getattr(params, "item", None), "command", None), "arguments", None)
    return str(arguments[0]) if arguments else ""


def _object(settings: object) -> dict[str, Any]:
    return dict(settings) if isinstance(settings, Mapping) else {}


def main(port: int | None = None) -> int:
    """Serve stdio, or the one client of a loopback port; the exit code. Raises loopback.NoClient."""
    logs.begin(logging.WARNING, "caesura: %(message)s")
    app = App(
        lambda options, client, remote: Engine(client=client, model=options.model, device=options.device, remote=remote)
    )
    return app.server.serve() if port is None else loopback.serve(app.server, port)
