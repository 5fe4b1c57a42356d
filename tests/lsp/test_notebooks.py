"""Notebooks as an editor sends them: their cells are documents, and each is the context of the others."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from lsprotocol import converters, types

from caesura.server.lsp.documents import SYNC, Cells
from caesura.server.text import notebooks
from caesura.server.text.workspace import ContentChange, Workspace

BOOK = "file:///project/book.ipynb"
CONVERTER = converters.get_converter()


class Editor:
    """Sends messages to `Cells`, whose session is a workspace."""

    def __init__(self) -> None:
        self.workspace = Workspace()
        self.cells = Cells(self)  # type: ignore[arg-type]
        self.handlers: dict[str, Any] = {}
        self.cells.register(self.handlers.__setitem__)

    def send(self, method: str, **params: Any) -> None:
        kind = types.METHOD_TO_TYPES[method][0]
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self.handlers[method](CONVERTER.structure(message, kind).params)

    def tell(self, **cells: Any) -> None:
        self.send("notebookDocument/didChange", notebookDocument={"uri": BOOK, "version": 2}, change={"cells": cells})

    def around(self, name: str, comment: str | None = "#") -> tuple[str, str] | None:
        if opened := self.workspace.get(uri(name)):
            read = lambda cell: found.document if (found := self.workspace.get(cell)) else None  # noqa: E731
            return self.workspace.notebooks.around(opened.document, read, comment)
        return None

    # What it asks of a session

    def open(self, uri: str, language: str, version: int, text: str) -> None:
        self.workspace.open(uri, language, version, text)

    def change(self, uri: str, version: int, changes: Sequence[ContentChange | str]) -> None:
        self.workspace.edit(uri, version, changes)

    def close(self, uri: str) -> None:
        self.workspace.close(uri)

    def lose(self, uri: str) -> None:
        self.workspace.lose(uri)


def uri(name: str) -> str:
    return f"vscode-notebook-cell:/project/book.ipynb#{name}"


def cell(name: str) -> dict[str, Any]:
    return {"kind": 2, "document": uri(name)}


def item(name: str, text: str, language: str = "python") -> dict[str, Any]:
    return {"uri": uri(name), "languageId": language, "version": 1, "text": text}


@pytest.fixture
async def editor() -> AsyncIterator[Editor]:
    """With a notebook of four cells: Markdown, code, code, Markdown."""
    editor = Editor()
    editor.send(
        "notebookDocument/didOpen",
        notebookDocument={
            "uri": BOOK,
            "notebookType": "jupyter-notebook",
            "version": 1,
            "cells": [cell(name) for name in "abcd"],
        },
        cellTextDocuments=[
            item("a", "# Load\nall rows\n", "markdown"),
            item("b", "import csv\n"),
            item("c", "rows = []"),
            item("d", "Then plot them.", "markdown"),
        ],
    )
    yield editor
    for name in "abcdxyz":
        editor.workspace.close(uri(name))


async def test_cells_above_and_below_are_context_and_markdown_above_is_a_comment(editor: Editor) -> None:
    assert editor.around("b") == ("# # Load\n# all rows\n\n", "\n\nrows = []")
    assert editor.around("c") == ("# # Load\n# all rows\n\nimport csv\n\n", "")


async def test_markdown_is_left_out_where_the_language_has_no_comments(editor: Editor) -> None:
    assert editor.around("b", None) == ("", "\n\nrows = []")


async def test_a_markdown_cell_has_the_other_markdown_cells(editor: Editor) -> None:
    assert editor.around("d", None) == ("# Load\nall rows\n\n", "")


async def test_a_document_outside_notebooks_has_nothing_around_it(editor: Editor) -> None:
    editor.workspace.open(uri("x"), "python", 1, "x")
    assert editor.around("x") == ("", "")


async def test_an_edit_of_a_cell_is_an_edit_of_its_document(editor: Editor) -> None:
    where = {"start": {"line": 0, "character": 7}, "end": {"line": 0, "character": 10}}
    changes = [{"range": where, "text": "json"}]
    editor.tell(textContent=[{"document": {"uri": uri("b"), "version": 2}, "changes": changes}])
    assert editor.around("c") == ("# # Load\n# all rows\n\nimport json\n\n", "")


async def test_cells_come_go_and_move(editor: Editor) -> None:
    editor.tell(
        structure={
            "array": {"start": 1, "deleteCount": 1, "cells": [cell("x"), cell("y")]},
            "didOpen": [item("x", "import json"), item("y", "path = 1")],
            "didClose": [{"uri": uri("b")}],
        }
    )
    assert editor.workspace.get(uri("b")) is None
    assert editor.around("c") == ("# # Load\n# all rows\n\nimport json\n\npath = 1\n\n", "")
    editor.tell(structure={"array": {"start": 2, "deleteCount": 2, "cells": [cell("c"), cell("y")]}})
    assert editor.around("c") == ("# # Load\n# all rows\n\nimport json\n\n", "\n\npath = 1")


async def test_a_change_of_metadata_changes_nothing(editor: Editor) -> None:
    editor.send(
        "notebookDocument/didChange",
        notebookDocument={"uri": BOOK, "version": 2},
        change={"metadata": {"kernel": "other"}},
    )
    assert editor.around("b") == ("# # Load\n# all rows\n\n", "\n\nrows = []")


async def test_closing_a_notebook_closes_its_cells(editor: Editor) -> None:
    editor.send("notebookDocument/didClose", notebookDocument={"uri": BOOK}, cellTextDocuments=[{"uri": uri("a")}])
    assert not editor.workspace.all()
    editor.workspace.open(uri("b"), "python", 1, "x")
    assert editor.around("b") == ("", "")


async def test_a_change_that_cannot_be_read_silences_the_cells_until_they_come_whole(editor: Editor) -> None:
    editor.cells.malformed("notebookDocument/didChange", {"notebookDocument": {"uri": BOOK}, "change": 1})
    assert not editor.workspace.all()
    editor.tell(textContent=[{"document": {"uri": uri("b"), "version": 3}, "changes": [{"text": "import os"}]}])
    assert [opened.document.text for opened in editor.workspace.all()] == ["import os"]


async def test_a_long_notebook_costs_no_more_than_the_engine_takes(editor: Editor) -> None:
    names = [f"n{number}" for number in range(40)]
    editor.tell(
        structure={
            "array": {"start": 0, "deleteCount": 0, "cells": [cell(name) for name in names]},
            "didOpen": [item(name, "x" * 10_000) for name in names],
        }
    )
    found = editor.around("b")
    assert found
    assert notebooks.MOST <= len(found[0]) <= notebooks.MOST + 20_000
    for name in names:
        editor.workspace.close(uri(name))


def test_all_cells_of_all_notebooks_are_asked_for() -> None:
    assert CONVERTER.unstructure(SYNC) == {"notebookSelector": [{"notebook": "*"}]}
