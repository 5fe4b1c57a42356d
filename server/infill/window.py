"""The part of a source around a hole that is parsed with each insertion. Pure."""

from bisect import bisect_right
from functools import cache

import tree_sitter

from caesura.server.languages import Language, grammar

MAX_WINDOW = 200_000  # most bytes parsed around the hole; in a larger window every insertion counts as sound
SMALL_WINDOW = 20_000  # bytes; up to this size, parsing is faster than updating the whole tree


class ParseWindow:
    """The bytes `first:last` of a source around the hole `start:end`, parsed. `nested`: errors inside of others
    count."""

    def __init__(
        self, row: Language, source: bytes, start: int, end: int, tree: tree_sitter.Tree | None, *, nested: bool
    ) -> None:
        self._nested = nested
        first, last = _statements(source, start, end, tree)
        self.whole = last - first == len(source)
        self.small = last - first <= SMALL_WINDOW
        if self.small or len(source) > MAX_WINDOW:
            tree = None
        elif tree:
            first, last = 0, len(source)
        self.judges = last - first <= MAX_WINDOW
        self._source, self._start, self._end = source[first:last] if self.judges else b"", start - first, end - first
        self._parser = _parser(row)
        self._parsed = self._parser.parse(self._source, tree) if tree else self._parser.parse(self._source)
        self._strays = _strays(row)
        self._last: tuple[str, tree_sitter.Tree] | None = None  # the last insertion, and the tree with it
        self.errors = self._count(self._parsed)

    def __repr__(self) -> str:
        return f"<Window {len(self._source)} bytes, {self.errors} errors>"

    def errors_with(self, insert: str) -> int:
        """The number of errors with `insert` in the hole."""
        return self._count(self._tree_with(insert))

    def lacks_body(self, insert: str, end: int) -> bool:
        """True if the last code before `insert[end:]` is a header with an empty block, which Python's grammar does not
        report as broken."""
        tree, source = self._tree_with(insert), (self._source[: self._start] + insert[:end].encode()).rstrip()
        while source:
            last = tree.root_node.descendant_for_byte_range(len(source) - 1, len(source))
            if last is None or not last.is_extra:
                around = last.parent.children if last and last.parent and last.type == ":" else []
                return any(node.type == "block" and not node.child_count for node in around)
            source = source[: last.start_byte].rstrip()  # a comment
        return False

    def _tree_with(self, insert: str) -> tree_sitter.Tree:
        if self._last is None or self._last[0] != insert:
            new, head, tree = insert.encode(), self._source[: self._start], self._parsed.copy()
            ends = _point(head), _point(self._source[: self._end]), _point(head + new)
            tree.edit(self._start, self._end, self._start + len(new), *ends)
            self._last = insert, self._parser.parse(head + new + self._source[self._end :], tree)
        return self._last[1]

    def _count(self, tree: tree_sitter.Tree) -> int:
        strays = tree_sitter.QueryCursor(self._strays).captures(tree.root_node) if self._strays else {}
        return _errors(tree.root_node, self._nested) + sum(not _in_error(node) for node in strays.get("stray", ()))


def _statements(source: bytes, start: int, end: int, tree: tree_sitter.Tree | None) -> tuple[int, int]:
    """The bytes of whole lines, from the nearest settled outermost statement before the hole to the one after it; all
    bytes if the tree is missing or has no statements, or if without its first tag the rest is no code."""
    root = tree.root_node if tree else None
    if root is None or root.is_error or not root.child_count or root.children[0].type == "php_tag":
        return 0, len(source)
    statements = root.children  # tree-sitter 0.26 crashes on some siblings, and on a byte after the last
    above = bisect_right(statements, source.rfind(b"\n", 0, start) + 1, key=lambda statement: statement.end_byte) - 1
    below = bisect_right(statements, end, key=lambda statement: statement.end_byte) + 1
    while above >= 0 and _unsettled(statements[above]):
        above -= 1
    while below < len(statements) and _unsettled(statements[below]):
        below += 1
    first = min(start, statements[above].start_byte) if above >= 0 else 0
    line_end = source.find(b"\n", max(end, statements[below].end_byte)) if below < len(statements) else -1
    return source.rfind(b"\n", 0, first) + 1, line_end + 1 if line_end >= 0 else len(source)


def _unsettled(statement: tree_sitter.Node) -> bool:
    """True if a statement may end elsewhere when it is parsed again, or is only a comment in a longer one."""
    return statement.has_changes or statement.is_error or statement.is_extra


def _errors(root: tree_sitter.Node, nested: bool) -> int:
    """The number of ERROR and MISSING nodes; unless `nested` without those inside of an ERROR."""
    errors, waiting = 0, [root] if root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            errors += 1
        if nested or not node.is_error:
            waiting += [child for child in node.children if child.has_error]
    return errors


def _in_error(node: tree_sitter.Node | None) -> bool:
    while node is not None and not node.is_error:
        node = node.parent
    return node is not None


def _point(source: bytes) -> tuple[int, int]:
    return source.count(b"\n"), len(source) - source.rfind(b"\n") - 1


@cache
def _parser(row: Language) -> tree_sitter.Parser:
    known = grammar(row)
    assert known is not None, "the caller has checked that there is a grammar"
    return tree_sitter.Parser(known)


@cache
def _strays(row: Language) -> tree_sitter.Query | None:
    """The query for end tags of elements that are not open, in a grammar that has a node for them: no ERROR."""
    known, kind = grammar(row), "erroneous_end_tag"
    return tree_sitter.Query(known, f"({kind}) @stray") if known and known.id_for_node_kind(kind, True) else None
