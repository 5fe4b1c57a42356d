"""The next edits to propose after the user's last ones: the uses of a renamed name, or else the last edits carried over
to lines like those that they changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Literal

import tree_sitter

from caesura.server.languages import Language
from caesura.server.next_edit.gates import GATES
from caesura.server.next_edit.history import PastEdit
from caesura.server.next_edit.rename import Renaming, Use, renaming
from caesura.server.next_edit.source import EditedSource
from caesura.server.next_edit.transfer import Transfer, transfers

MAX_PROPOSALS = 6  # edits carried over; a judge takes 50 to 100 rows for each
MAX_CANDIDATES = 64  # that the gates look at, the most similar ones
MAX_TEXT = 400_000  # characters; a longer document gets no proposals


@dataclass(frozen=True)
class EditProposal:
    """One edit: the code points `start:end` of the document become `text`. It changes the lines `old`, from row `row`
    on, into `new`, both without line breaks; a judge compares these. `why` is a sentence for the user. All proposals of
    kind "rename" belong to one renaming."""

    start: int
    end: int
    text: str
    row: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    kind: Literal["rename", "repeat"]
    why: str


def proposals(
    text: str, tree: tree_sitter.Tree | None, language: Language, history: Sequence[PastEdit]
) -> Sequence[EditProposal]:
    """The proposals for a document with these last edits, oldest first: a renaming alone, in the order of its places,
    or else others, the most similar place first. No two touch the same line. `tree` is the tree of `text`; without one,
    there are no renamings."""
    if not history or len(text) > MAX_TEXT:
        return ()
    source = EditedSource(text, tree, language)
    for edit in reversed(history):
        if found := renaming(edit, source, history):
            return tuple(_renames(found, source))
    return tuple(islice(_repeats(source, history), MAX_PROPOSALS))


def _renames(found: Renaming, source: EditedSource) -> Iterator[EditProposal]:
    why = f"`{found.old}` is now `{found.new}`, by your edit in line {found.edit.at + 1}."
    for row, uses in groupby(found.uses, key=lambda use: use.row):
        old = source.rows[row]
        yield _proposal(source, row, (old,), (_renamed(old, list(uses)),), "rename", why)


def _renamed(line: str, uses: Sequence[Use]) -> str:
    data = line.encode()
    for use in reversed(uses):
        data = data[: use.start] + use.text.encode() + data[use.end :]
    return data.decode()


def _repeats(source: EditedSource, history: Sequence[PastEdit]) -> Iterator[EditProposal]:
    taken: set[int] = set()
    for found in islice(transfers(source.rows, history), MAX_CANDIDATES):
        rows = set(range(found.row, found.end))
        if rows & taken or not _is_uniform(source, found):
            continue
        if not any(gate(found, source, history) for gate in GATES):
            taken |= rows
            why = f"Like your edit in line {found.edit.at + 1}."
            yield _proposal(source, found.row, found.old, found.new, "repeat", why)


def _is_uniform(source: EditedSource, found: Transfer) -> bool:
    """True if the lines of a place have the same line breaks, so that the others stay as they are."""
    start, end = source.span(found.row, found.end)
    return source.text[start:end] == source.line_break(found.row).join(found.old)


def _proposal(
    source: EditedSource,
    row: int,
    old: tuple[str, ...],
    new: tuple[str, ...],
    kind: Literal["rename", "repeat"],
    why: str,
) -> EditProposal:
    """The proposal whose span leaves out what stays at its start and at its end."""
    start, end = source.span(row, row + len(old))
    before, after = source.text[start:end], source.line_break(row).join(new)
    most = min(len(before), len(after))
    head = next((at for at in range(most) if before[at] != after[at]), most)
    tail = next((at for at in range(most - head) if before[-1 - at] != after[-1 - at]), most - head)
    return EditProposal(start + head, end - tail, after[head : len(after) - tail], row, old, new, kind, why)
