"""Notebooks: the cells above and below a cell, which are part of its context. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from caesura.server.languages import language
from caesura.server.text.document import Document

MOST = 65_536  # code points of cells on each side, the nearest first

FindDocument = Callable[[str], Document | None]


@dataclass
class Notebooks:
    """The order of the cells (document URIs) of every open notebook."""

    _cells: dict[str, list[str]] = field(default_factory=dict)

    def open(self, notebook: str, cells: Iterable[str]) -> None:
        self._cells[notebook] = list(cells)

    def splice(self, notebook: str, start: int, deleted: int, cells: Iterable[str]) -> None:
        """Replace `deleted` cells from index `start`."""
        self._cells.get(notebook, [])[start : start + deleted] = cells

    def close(self, notebook: str) -> None:
        self._cells.pop(notebook, None)

    def cells(self, notebook: str) -> Sequence[str]:
        return self._cells.get(notebook, ())

    def around(self, cell: Document, read: FindDocument, comment: str | None) -> tuple[str, str]:
        """The text before and after `cell`: its notebook's cells in the same language, separated by empty lines. Both
        are empty outside a notebook. `read` returns a cell's document; `comment` begins a comment in its language.

        Markdown above a code cell is included as comments, since it often describes the next cell. Markdown below and
        cells in other languages are left out."""
        for cells in self._cells.values():
            if cell.uri in cells:
                at = cells.index(cell.uri)
                above = _nearest(_texts(cell, reversed(cells[:at]), read, comment))
                below = _nearest(_texts(cell, cells[at + 1 :], read, None))
                return "".join(f"{text}\n\n" for text in reversed(above)), "".join(f"\n\n{text}" for text in below)
        return "", ""


def _texts(cell: Document, others: Iterable[str], read: FindDocument, comment: str | None) -> Iterator[str]:
    for uri in others:
        other = read(uri)
        text = other.text.strip("\r\n").rstrip() if other else ""
        if other is None or not text:
            continue
        if other.language == cell.language:
            yield text
        elif language(other.language).prose and comment:
            yield "\n".join(f"{comment} {line}".rstrip() for line in text.splitlines())


def _nearest(texts: Iterable[str]) -> list[str]:
    found, size = list[str](), 0
    for text in texts:
        found.append(text)
        size += len(text)
        if size >= MOST:
            break
    return found
