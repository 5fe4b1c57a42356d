"""The scopes, definitions and reads of names in a text, as its language's query (server/queries) finds them. Pure.

A query captures `local.scope`, with `.function` if it runs later than its place and `.class` if no function inside sees
its names; `local.definition` with a kind, which is `wide` if the whole function owns it; `local.reference`; `block`, a
node of statements; `other`, code in which an identifier is no read; and `error`, code that the grammar does not know.
For structured/imports.py it captures `import.read`, a name that an import may bring, and `import.bound`, a definition
that is none of the others.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import re2
import tree_sitter

from caesura.server.languages import Language, query

_CODE = re.compile(rb"\S")
_WORD = re.compile(r"[\w$]+")
_OWN = ("function", "type")  # kinds of definitions that may name the scope which they are in
READS = ("local.reference", "other", "error", "block")  # captures that only a search for reads needs


@dataclass(frozen=True)
class Extent:
    """Half-open, in bytes of UTF-8."""

    start: int
    end: int

    def __contains__(self, other: "Extent") -> bool:
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, eq=False)
class LexicalScope(Extent):
    """`path` leads from the scope to the whole text. The `head` of a function or a class holds its own name, which
    belongs to the scope outside."""

    kind: str
    head: Extent | None
    outer: "tuple[LexicalScope, ...]"
    __eq__, __hash__ = object.__eq__, object.__hash__  # two scopes may have one extent

    @property
    def path(self) -> "tuple[LexicalScope, ...]":
        return (self, *self.outer)


@dataclass(frozen=True)
class Read(Extent):
    name: str


@dataclass(frozen=True)
class Definition(Extent):
    kind: str
    owner: LexicalScope


@dataclass(frozen=True)
class Code:
    """A text and its tree. The row of `language` has `names`."""

    source: bytes
    tree: tree_sitter.Tree
    language: Language

    def captures(self, span: Extent, *without: str) -> dict[str, list[tree_sitter.Node]]:
        """The captures of the language's query in a part of the text, `without` some."""
        rules = query(self.language, *without)
        assert rules is not None
        cursor = tree_sitter.QueryCursor(rules)
        cursor.set_byte_range(span.start, span.end)
        return cursor.captures(self.tree.root_node)

    @property
    def has_wildcard(self) -> bool:
        """True if the text imports names which it does not show."""
        wildcard = self.language.names.wildcard if self.language.names else ""
        return bool(wildcard and re2.search(wildcard.encode(), self.source))

    def text(self, node: tree_sitter.Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def block(self, span: Extent) -> Extent | None:
        """The block that has the first statement of a part of the text. None if the part does not begin with one."""
        blocks, start = self.captures(span).get("block", ()), span.start
        while code := _CODE.search(self.source, start, span.end):
            node = self.tree.root_node.named_descendant_for_byte_range(code.start(), code.end())
            if node is None or not node.is_extra or node.start_byte < code.start():
                break
            start = node.end_byte  # of a comment above the statement
        while code and node and node.start_byte == code.start():
            node = node.parent
            if node and node in blocks:
                return _extent(node)
        return None

    def is_broken(self, span: Extent) -> bool:
        return "error" in self.captures(span)

    def reads(self, span: Extent) -> Iterator[Read]:
        """The names that are read in a part of the text, in their order."""
        found = self.captures(span)
        others = [
            _extent(node) for capture in ("other", "error", "local.definition") for _, node in _of(found, capture)
        ]
        for node in sorted(found.get("local.reference", ()), key=lambda node: node.start_byte):
            read = Read(node.start_byte, node.end_byte, self.text(node))
            if read in span and not any(read in other for other in others):
                yield read


class Scopes:
    """The scopes and definitions in a part of a text."""

    def __init__(self, code: Code, span: Extent) -> None:
        found = code.captures(span, *READS)
        end = max(len(code.source), code.tree.root_node.end_byte)  # a moved tree may be longer than the text
        self._scopes = [LexicalScope(0, end, "", None, ())]
        for kind, node in sorted(_of(found, "local.scope"), key=lambda one: (one[1].start_byte, -one[1].end_byte)):
            head = node.child_by_field_name("name") or node.child_by_field_name("declarator")
            here = _extent(node)
            self._scopes.append(
                LexicalScope(here.start, here.end, kind, _extent(head) if head else None, self.around(here))
            )
        self._definitions: dict[str, list[tuple[str, Extent]]] = {}
        for kind, node in _of(found, "local.definition"):
            for word in _WORD.findall(code.text(node)):  # an import or a pattern has many
                self._definitions.setdefault(word, []).append((kind, _extent(node)))

    def around(self, span: Extent) -> tuple[LexicalScope, ...]:
        """The scopes around a span, the innermost first."""
        before = self._scopes[bisect_right(self._scopes, span.start, key=lambda scope: scope.start) - 1]
        path = before.path
        while span not in path[0]:
            path = path[1:]
        return path

    def definitions(self, name: str) -> Iterator[Definition]:
        for kind, span in self._definitions.get(name, ()):
            path = self.around(span)
            if kind in _OWN and path[0].head is not None and span in path[0].head:
                path = path[1:]
            elif kind == "wide":
                path = path[next((at for at, scope in enumerate(path) if scope.kind == "function"), -1) :]
            yield Definition(span.start, span.end, kind, path[0])


def _extent(node: tree_sitter.Node) -> Extent:
    return Extent(node.start_byte, node.end_byte)


def _of(captures: dict[str, list[tree_sitter.Node]], capture: str) -> Iterator[tuple[str, tree_sitter.Node]]:
    """The nodes of a capture, each with its kind."""
    for name, nodes in captures.items():
        if name.startswith(capture):
            yield from ((name.removeprefix(capture).lstrip("."), node) for node in nodes)
