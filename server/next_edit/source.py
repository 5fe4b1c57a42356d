"""A document as the rules see it: its rows, its tree and what it declares."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import tree_sitter

from caesura.server.context.scopes import Code, Extent, Scopes
from caesura.server.languages import Language, query
from caesura.server.text import repair


class EditedSource:
    """`tree` is that of the text, or None. Rows end at `\\n`; `rows` has them without line breaks."""

    def __init__(self, text: str, tree: tree_sitter.Tree | None, language: Language) -> None:
        self.text, self.tree, self.language = text, tree, language
        self._whole = text.split("\n")
        self._faults: dict[tuple[int, int], int | None] = {}  # of rows that are parsed on their own
        self.rows: Sequence[str] = [row.removesuffix("\r") for row in self._whole]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(row) + 1 for row in self._whole)]

    @cached_property
    def _start_bytes(self) -> list[int]:
        return [0, *accumulate(len(row.encode()) + 1 for row in self._whole)]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The code points of the rows `first:last`, at least one, without the last line break."""
        return self._starts[first], self._starts[last - 1] + len(self.rows[last - 1])

    def line_break(self, row: int) -> str:
        """The line break after a row, or before the last one."""
        return "\r\n" if self._whole[min(row, max(0, len(self._whole) - 2))].endswith("\r") else "\n"

    def extent(self, first: int, last: int) -> Extent:
        """The bytes of the rows `first:last`, with the last line break; of those that are there, since the place of an
        edit may have been removed."""
        first, last = (min(row, len(self.rows)) for row in (first, last))
        return Extent(self._start_bytes[first], self._start_bytes[last])

    def node_at(self, row: int, column: int) -> tree_sitter.Node | None:
        """The smallest node at a column, in code points, of a row."""
        if self.tree is None:
            return None
        at = self._start_bytes[row] + len(self.rows[row][:column].encode())
        return self.tree.root_node.descendant_for_byte_range(at, at + 1)

    def breaks(self, first: int, last: int, lines: Sequence[str]) -> bool:
        """True if the text has more syntax errors with `lines` in place of the rows `first:last`. Only the outermost
        nodes there are parsed again, if they mean the same on their own: in a long file the whole takes too long."""
        if self.tree is None:
            return False
        top, bottom = self._outermost(first, last)
        before = self._faults_of(top, bottom)
        if before is None:
            top, bottom, before = 0, len(self.rows), repair.faults(self.tree).nodes
        after = _joined((*self.rows[top:first], *lines, *self.rows[last:bottom]))
        tree = repair.parsed(after, self.language.id)
        return tree is not None and repair.faults(tree).nodes > before

    def _outermost(self, first: int, last: int) -> tuple[int, int]:
        """The rows of the outermost nodes that the rows `first:last` touch."""
        touched = self._nodes(first, last)
        starts, ends = (node.start_point[0] for node in touched), (node.end_point for node in touched)
        bottom = max([last, *(row + bool(column) for row, column in ends)])
        return min([first, *starts]), min(len(self.rows), bottom)

    def _nodes(self, first: int, last: int) -> Sequence[tree_sitter.Node]:
        """The outermost nodes that touch the rows `first:last`."""
        begin = bisect_left(self._children, first, key=lambda node: node.end_point[0])
        end = bisect_left(self._children, last, key=lambda node: node.start_point[0])
        return self._children[begin:end]

    @cached_property
    def _children(self) -> Sequence[tree_sitter.Node]:
        return self.tree.root_node.children if self.tree else ()

    def _faults_of(self, top: int, bottom: int) -> int | None:
        """The syntax errors of rows that are parsed on their own; None if these are other nodes then."""
        if (top, bottom) not in self._faults:
            alone = repair.parsed(_joined(self.rows[top:bottom]), self.language.id)
            kinds = [node.type for node in self._nodes(top, bottom)]
            same = alone is not None and [node.type for node in alone.root_node.children] == kinds
            self._faults[top, bottom] = repair.faults(alone).nodes if alone and same else None
        return self._faults[top, bottom]

    @cached_property
    def code(self) -> Code | None:
        """None if the language's definitions are not known."""
        known = self.tree is not None and self.language.names is not None and query(self.language) is not None
        return Code(self.text.encode(), self.tree, self.language) if known and self.tree else None

    @cached_property
    def scopes(self) -> Scopes | None:
        return Scopes(self.code, Extent(0, len(self.code.source))) if self.code else None

    @cached_property
    def leaves(self) -> dict[str, list[tree_sitter.Node]]:
        """The identifiers of the tree by their text, in order: none in a string or a comment."""
        found: dict[str, list[tree_sitter.Node]] = {}
        for node in _leaves(self.tree) if self.tree else ():
            if node.text and node.type.endswith(("identifier", "identifier_pattern")):
                found.setdefault(node.text.decode(errors="replace"), []).append(node)
        return found


def _joined(rows: Sequence[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _leaves(tree: tree_sitter.Tree) -> Iterator[tree_sitter.Node]:
    cursor = tree.walk()
    while True:
        if cursor.goto_first_child():
            continue
        if cursor.node:
            yield cursor.node
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return
