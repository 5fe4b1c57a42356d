"""The editor's messages about notebooks, as what they mean for text documents: a cell is one, and has a place."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lsprotocol import types

from caesura.server.text.notebooks import Notebooks

# All cells of all notebooks: which of them are context is decided here, not by the editor.
SYNC = types.NotebookDocumentSyncOptions([types.NotebookDocumentFilterWithNotebook(notebook="*")])


class Documents(Protocol):
    """What takes the messages about text documents."""

    def did_open(self, params: types.DidOpenTextDocumentParams) -> None: ...
    def did_change(self, params: types.DidChangeTextDocumentParams) -> None: ...
    def did_close(self, params: types.DidCloseTextDocumentParams) -> None: ...
    def lose(self, uri: str) -> None: ...


class Cells:
    """Keeps `notebooks` as the editor has them, and passes on to `documents` what is about the text of cells."""

    def __init__(self, notebooks: Notebooks, documents: Documents) -> None:
        self._notebooks = notebooks
        self._documents = documents

    def register(self, on: Callable[[str, Callable[..., Any]], None]) -> None:
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
            self._documents.did_change(types.DidChangeTextDocumentParams(content.document, content.changes))

    def did_close(self, params: types.DidCloseNotebookDocumentParams) -> None:
        uri = params.notebook_document.uri
        listed = {document.uri for document in params.cell_text_documents}
        for cell in listed.union(self._notebooks.cells(uri)):
            self._close(cell)
        self._notebooks.close(uri)

    def malformed(self, method: str, params: object) -> None:
        """A change that cannot be read may have been about any cell of its notebook."""
        notebook = params.get("notebookDocument") if isinstance(params, dict) else None
        if method == types.NOTEBOOK_DOCUMENT_DID_CHANGE and isinstance(notebook, dict):
            for cell in self._notebooks.cells(str(notebook.get("uri"))):
                self._documents.lose(cell)

    def _restructure(self, notebook: str, change: types.NotebookDocumentCellChangeStructure) -> None:
        added = [cell.document for cell in change.array.cells or ()]
        self._notebooks.splice(notebook, change.array.start, change.array.delete_count, added)
        for closed in change.did_close or ():
            self._close(closed.uri)
        self._open(change.did_open or ())

    def _open(self, documents: Sequence[types.TextDocumentItem]) -> None:
        for document in documents:
            self._documents.did_open(types.DidOpenTextDocumentParams(document))

    def _close(self, uri: str) -> None:
        self._documents.did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))
