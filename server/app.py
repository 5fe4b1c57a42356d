"""Every LSP handler. On an edit: update the document and its tree, keep a canvas warm. On a request: answer from it.

Nothing here computes: documents, trees, contexts and canvases are plain objects of their own files.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lsprotocol import types

from caesura import __version__
from caesura.server.document import Document, Edit, Encoding, InvertedRange
from caesura.server.engine import Engine
from caesura.server.languages import UNKNOWN, language
from caesura.server.options import Options, parse
from caesura.server.transport import Server
from caesura.server.trees import SyntaxTree
from caesura.server.typing import Proposal, Superseded, WarmCanvases

MAX_DOCUMENT = 8_000_000  # code points; a larger document is not kept and gets empty answers
CLOSE_S = 1.0
NOTHING = types.InlineCompletionList(items=[])

log = logging.getLogger(__name__)


@dataclass
class Open:
    """An open document and its tree. `lost`: an edit could not be applied, so our text may differ from the editor's."""

    document: Document
    tree: SyntaxTree
    lost: bool = False


class App:
    """The language server. `make_engine` gets the options and a name for the client."""

    def __init__(self, make_engine: Callable[[Options, str], Engine]) -> None:
        self.server = Server("caesura", __version__, {"caesura": {"stream": False}})
        self.server.on_malformed = self.malformed
        self.server.on_exit = self.exit
        self._make_engine = make_engine
        self._settings: dict[str, Any] = {}
        self._encoding: Encoding = "utf-16"
        self._open: dict[str, Open] = {}
        self._reported: set[str] = set()
        self._register()

    def _register(self) -> None:
        on = self.server.on
        on(types.INITIALIZE, self.initialize)
        on(types.INITIALIZED, self.initialized)
        on(types.WORKSPACE_DID_CHANGE_CONFIGURATION, self.did_change_configuration)
        on(types.TEXT_DOCUMENT_DID_OPEN, self.did_open)
        on(types.TEXT_DOCUMENT_DID_CHANGE, self.did_change)
        on(types.TEXT_DOCUMENT_DID_CLOSE, self.did_close)
        on(types.TEXT_DOCUMENT_INLINE_COMPLETION, self.inline_completion, types.InlineCompletionOptions())

    # Lifecycle

    def initialize(self, params: types.InitializeParams) -> None:
        self._encoding = types.PositionEncodingKind(self.server.workspace.position_encoding).value
        self._settings = _object(params.initialization_options)
        client = params.client_info
        name = f"{client.name} {client.version or ''}".strip() if client else "an editor"
        options, _ = parse(self._settings)
        self._engine = self._make_engine(options, name)
        self._canvases = WarmCanvases(self._engine, options)

    async def initialized(self, params: types.InitializedParams) -> None:
        self._configure({})
        await self._engine.start()
        await self._pull_settings()

    async def exit(self) -> None:
        """Free everything; an engine that does not answer is left behind."""
        if hasattr(self, "_engine"):
            self._canvases.close_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._engine.close(), CLOSE_S)

    # Settings

    def did_change_configuration(self, params: types.DidChangeConfigurationParams) -> None:
        if isinstance(params.settings, Mapping) and "caesura" in params.settings:
            self._configure(_object(params.settings["caesura"]))
        else:
            self._pulling = asyncio.create_task(self._pull_settings())

    async def _pull_settings(self) -> None:
        workspace = self.server.client_capabilities.workspace
        if workspace and workspace.configuration:
            items = [types.ConfigurationItem(section="caesura")]
            found = await self.server.workspace_configuration_async(types.ConfigurationParams(items=items))
            self._configure(_object(found[0] if found else None))

    def _configure(self, settings: dict[str, Any]) -> None:
        """Take settings on top of those we have; what is wrong with them is said once, in one message."""
        self._settings |= settings
        self._canvases.options, problems = parse(self._settings)
        if not self._canvases.options.enable:
            self._canvases.close_all()
        new = [problem for problem in problems if problem not in self._reported]
        if new:
            self._reported.update(new)
            self.server.window_log_message(types.LogMessageParams(types.MessageType.Warning, " ".join(new)))

    # Documents

    def did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        self._close(item.uri)
        if len(item.text) > MAX_DOCUMENT:
            log.warning("A document of %d characters gets no completions.", len(item.text))
            return
        row = language(item.language_id, item.uri)
        name = item.language_id if row is UNKNOWN else row.id
        document = Document(item.uri, name, item.version, item.text, self._encoding)
        opened = self._open[item.uri] = Open(document, SyntaxTree(row))
        opened.tree.schedule(lambda: document.text)

    def did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        opened = self._open.get(params.text_document.uri)
        if opened is None:
            return
        document = opened.document
        document.version = params.text_document.version
        edits: list[Edit] = []
        for change in params.content_changes:
            if isinstance(change, types.TextDocumentContentChangeWholeDocument):
                self._replace(opened, change.text)
                edits.clear()
            elif not opened.lost:
                edits += self._edit(opened, change)
        if not opened.lost:
            opened.tree.schedule(lambda: document.text)
            if self._canvases.options.enable:
                self._canvases.edited(document, edits, opened.tree.tree)

    def did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._close(params.text_document.uri)

    def malformed(self, method: str, params: object) -> None:
        """An edit that cannot be read is an edit we do not have."""
        document = params.get("textDocument") if isinstance(params, dict) else None
        uri = document.get("uri") if isinstance(document, dict) else None
        if method == types.TEXT_DOCUMENT_DID_CHANGE and (opened := self._open.get(str(uri))):
            self._lose(opened)

    def _edit(self, opened: Open, change: types.TextDocumentContentChangePartial) -> list[Edit]:
        start, end = change.range.start, change.range.end
        try:
            edit = opened.document.edit((start.line, start.character), (end.line, end.character), change.text)
        except InvertedRange:
            self._lose(opened)
            return []
        opened.tree.edit(edit)
        return [edit]

    def _replace(self, opened: Open, text: str) -> None:
        opened.document.replace(text)
        opened.lost = False
        opened.tree.forget()
        self._canvases.replaced(opened.document)

    def _lose(self, opened: Open) -> None:
        """No answers for this document until the editor sends it whole or opens it again."""
        log.warning("An edit could not be applied; waiting for the whole text.")
        opened.lost = True
        self._canvases.replaced(opened.document)

    def _close(self, uri: str) -> None:
        self._canvases.close(uri)
        if opened := self._open.pop(uri, None):
            opened.tree.close()

    # Completion

    def inline_completion(
        self, params: types.InlineCompletionParams
    ) -> types.InlineCompletionList | Awaitable[types.InlineCompletionList | None]:
        """Items, an empty list for nothing to propose, or None to leave what the editor shows; never an error.

        A request names no version: its position is meant for the text as it is when the request arrives."""
        opened = self._open.get(params.text_document.uri)
        if opened is None or opened.lost or not self._canvases.options.enable:
            return NOTHING
        document = opened.document
        cursor = document.offset((params.position.line, params.position.character))
        invoked = params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
        answer = self._canvases.propose(document, cursor, opened.tree.tree, invoked=invoked)
        return _completion(document, cursor, answer, params.context.selected_completion_info)


async def _completion(
    document: Document,
    cursor: int,
    waiting: Awaitable[Proposal | Superseded],
    selected: types.SelectedCompletionInfo | None,
) -> types.InlineCompletionList | None:
    match await waiting:
        case Superseded(shown_fits):
            return None if shown_fits else NOTHING
        case Proposal("", _):
            return NOTHING
        case Proposal() as proposal:
            return types.InlineCompletionList(_items(document, cursor, proposal, selected))


def _items(
    document: Document, cursor: int, proposal: Proposal, selected: types.SelectedCompletionInfo | None
) -> list[types.InlineCompletionItem]:
    """One item with its range. Where a completion popup has an item selected, ours must go on from it."""
    start, insert = cursor, proposal.insert
    if selected is not None:
        start = document.offset((selected.range.start.line, selected.range.start.character))
        insert = document.text[start:cursor] + insert
        if not insert.startswith(selected.text):
            return []
    whole = types.Range(_lsp_position(document, start), _lsp_position(document, cursor + proposal.eat))
    return [types.InlineCompletionItem(insert_text=insert, range=whole)]


def _lsp_position(document: Document, offset: int) -> types.Position:
    line, character = document.position(offset)
    return types.Position(line, character)


def _object(settings: object) -> dict[str, Any]:
    return dict(settings) if isinstance(settings, Mapping) else {}


def main() -> int:
    """Serve stdio; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="caesura: %(message)s")
    app = App(lambda options, client: Engine(client=client, model=options.model, device=options.device))
    return app.server.serve()
