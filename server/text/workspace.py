"""The editor's open documents with their trees, its notebooks and its folders. No protocol, no I/O."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from caesura.characters import shown
from caesura.server.languages import UNKNOWN, Language, language
from caesura.server.text.document import Document, Edit, Encoding, InvertedRange, Position
from caesura.server.text.notebooks import Notebooks
from caesura.server.text.trees import SyntaxTree

MAX_LANGUAGE = 64  # characters of the id of a language that we do not know
MAX_DOCUMENT = 8_000_000  # code points; a larger document is not kept and gets empty answers

ContentChange = tuple[Position, Position, str]  # a range (start, end) and its new text

log = logging.getLogger(__name__)


@dataclass
class OpenDocument:
    """An open document. `lost`: an edit could not be applied, so our text may differ from the editor's."""

    document: Document
    tree: SyntaxTree
    language: Language
    lost: bool = False


@dataclass
class Workspace:
    """`folders` are the paths of the workspace's folders; `encoding` is the client's."""

    encoding: Encoding = "utf-16"
    folders: list[str] = field(default_factory=list)
    notebooks: Notebooks = field(default_factory=Notebooks)
    _open: dict[str, OpenDocument] = field(default_factory=dict)

    def __contains__(self, uri: str) -> bool:
        return uri in self._open

    def get(self, uri: str) -> OpenDocument | None:
        """An open document; None if it is not open or its text may differ from the editor's."""
        found = self._open.get(uri)
        return None if found is None or found.lost else found

    def all(self) -> Sequence[OpenDocument]:
        """Every such document, in the order of opening."""
        return [found for found in self._open.values() if not found.lost]

    def open(self, uri: str, language_id: str, version: int, text: str) -> None:
        self.close(uri)
        if len(text) > MAX_DOCUMENT:
            log.warning("A document of %d characters gets no completions.", len(text))
            return
        row = language(language_id, uri)
        name = shown(language_id, MAX_LANGUAGE) if row is UNKNOWN else row.id
        document = Document(uri, name, version, text, self.encoding)
        opened = self._open[uri] = OpenDocument(document, SyntaxTree(row), row)
        opened.tree.schedule(lambda: document.text)

    def edit(self, uri: str, version: int, changes: Sequence[ContentChange | str]) -> list[Edit] | None:
        """Apply changes in order, each a range and its text, or the whole text. Returns the edits, or None if the
        document is not open or its text is no longer known."""
        opened = self._open.get(uri)
        if opened is None:
            return None
        document, edits = opened.document, list[Edit]()
        document.version = version
        for change in changes:
            if isinstance(change, str):
                opened.lost = False
            elif opened.lost:
                continue
            try:
                edit = document.replace(change) if isinstance(change, str) else document.edit(*change)
            except InvertedRange:
                self.lose(uri)
            else:
                if edit.text or edit.start < edit.end:  # some editors send an unchanged text again
                    opened.tree.edit(edit)
                    edits.append(edit)
        if len(document) > MAX_DOCUMENT:
            self.close(uri)
            log.warning("A document has grown too large and gets no completions.")
            return None
        if opened.lost:
            return None
        opened.tree.schedule(lambda: document.text)
        return edits

    def lose(self, uri: str) -> None:
        """Answer nothing for this document until the editor sends it whole or opens it again."""
        if opened := self._open.get(uri):
            log.warning("An edit could not be applied; waiting for the whole text.")
            opened.lost = True

    def close(self, uri: str) -> None:
        if opened := self._open.pop(uri, None):
            opened.tree.close()

    def label(self, uri: str) -> str | None:
        """A document's path within the workspace, for the model and for ignore rules; None outside the workspace."""
        path = PurePosixPath(path_of(uri))
        inside = [folder for folder in self.folders if path.is_relative_to(folder) and ".." not in path.parts]
        return str(path.relative_to(max(inside, key=len))) if inside else None


def path_of(uri: str) -> str:
    """The decoded path of a `file:` or notebook cell URI; empty for any other text."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    if parts.scheme not in ("file", "vscode-notebook-cell"):
        return ""
    path = unquote(parts.path)
    return path[1:] if len(path) > 2 and path[0] == "/" and path[2] == ":" else path  # /c:/... of Windows
