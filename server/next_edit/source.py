"""A document as the rules see it: its rows, its tree and what it declares."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import tree_sitter

from caesura.server.context.scopes import Code, Extent, Scopes
from caesura.server.languages import Language, query
from caesura.server.text import repair


class Source:
    """`tree` is that of the text, or None. Rows end at `\\n`; `rows` has them without line breaks."""

    def __init__(self, text: str, tree: tree_sitter.Tree | None, language: Language) -> None:
        self.text, self.tree, self.language = text, tree, language
        self._whole = text.split("\n")
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
        """The bytes of the rows `first:last`, with the last line break."""
        return Extent(self._start_bytes[first], self._start_bytes[last])

    def node_at(self, row: int, column: int) -> tree_sitter.Node | None:
        """The smallest node at a column, in code points, of a row."""
        if self.tree is None:
            return None
        at = self._start_bytes[row] + len(self.rows[row][:column].encode())
        return self.tree.root_node.descendant_for_byte_range(at, at + 1)

    @cached_property
    def faults(self) -> int:
        """The number of ERROR and MISSING nodes."""
        return repair.faults(self.tree).nodes if self.tree else 0

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
