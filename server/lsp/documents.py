"""The editor's messages about text documents and notebooks. A cell is a document with a place in a notebook."""

from collections.abc import Callable, Sequence

from lsprotocol import types

from caesura.server.session import Session
from caesura.server.text.document import Position

# Synchronize the cells of all notebooks: the server, not the editor, decides which of them are context.
SYNC = types.NotebookDocumentSyncOptions([types.NotebookDocumentFilterWithNotebook(notebook="*")])


class Documents:
    """Handles messages about text documents."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def register(self, on: Callable[..., None]) -> None:
        on(types.TEXT_DOCUMENT_DID_OPEN, self.did_open)
        on(types.TEXT_DOCUMENT_DID_CHANGE, self.did_change)
        on(types.TEXT_DOCUMENT_DID_CLOSE, self.did_close)

    def did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        self._session.open(item.uri, item.language_id, item.version, item.text)

    def did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        changes = [_change(change) for change in params.content_changes]
        self._session.change(params.text_document.uri, params.text_document.version, changes)

    def did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._session.close(params.text_document.uri)

    def malformed(self, method: str, params: object) -> None:
        """Drop our text of the document whose edit cannot be read; of all documents if the message names none."""
        document = params.get("textDocument") if isinstance(params, dict) else None
        uri = document.get("uri") if isinstance(document, dict) else None
        if method == types.TEXT_DOCUMENT_DID_CHANGE:
            every = [opened.document.uri for opened in self._session.workspace.all()]
            for lost in [uri] if isinstance(uri, str) else every:
                self._session.lose(lost)


class Cells:
    """Handles messages about notebooks: the order of their cells, and the cells' text."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._notebooks = session.workspace.notebooks

    def register(self, on: Callable[..., None]) -> None:
        on(types.NOTEBOOK_DOCUMENT_DID_OPEN, self.did_open)
        on(types.NOTEBOOK_DOCUMENT_DID_CHANGE, self.did_change)
        on(types.NOTEBOOK_DOCUMENT_DID_CLOSE, self.did_close)

    def did_open(self, params: types.DidOpenNotebookDocumentParams) -> None:
        notebook = params.notebook_document
        self._notebooks.open(notebook.uri, [cell.document for cell in notebook.cells])
        self._open(params.cell_text_documents)

    def did_change(self, params: types.DidChangeNotebookDocumentParams) -> None:
        cells = params.change.cells
        if cells is None:
            return
        if cells.structure:
            self._restructure(params.notebook_document.uri, cells.structure)
        for content in cells.text_content or ():
            changes = [_change(change) for change in content.changes]
            self._session.change(content.document.uri, content.document.version, changes)

    def did_close(self, params: types.DidCloseNotebookDocumentParams) -> None:
        uri = params.notebook_document.uri
        listed = {document.uri for document in params.cell_text_documents}
        for cell in listed.union(self._notebooks.cells(uri)):
            self._session.close(cell)
        self._notebooks.close(uri)

    def malformed(self, method: str, params: object) -> None:
        """Drop our text of all cells of a notebook whose change cannot be read."""
        notebook = params.get("notebookDocument") if isinstance(params, dict) else None
        if method == types.NOTEBOOK_DOCUMENT_DID_CHANGE and isinstance(notebook, dict):
            for cell in self._notebooks.cells(str(notebook.get("uri"))):
                self._session.lose(cell)

    def _restructure(self, notebook: str, change: types.NotebookDocumentCellChangeStructure) -> None:
        added = [cell.document for cell in change.array.cells or ()]
        self._notebooks.splice(notebook, change.array.start, change.array.delete_count, added)
        for closed in change.did_close or ():
            self._session.close(closed.uri)
        self._open(change.did_open or ())

    def _open(self, cells: Sequence[types.TextDocumentItem]) -> None:
        for cell in cells:
            self._session.open(cell.uri, cell.language_id, cell.version, cell.text)


def _change(change: types.TextDocumentContentChangeEvent) -> tuple[Position, Position, str] | str:
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        return change.text
    start, end = change.range.start, change.range.end
    return (start.line, start.character), (end.line, end.character), change.text
