"""Finds the part of a text to refill so that it parses: the broken nodes of its tree, the smallest first. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter

from caesura.server.languages import grammar, language
from caesura.server.text.lexer import indent_of
from caesura.server.text.trees import SyntaxTree

MAX_REGION = 600  # code points that a repair may replace, about what a hole's tokens can hold
MAX_REGIONS = 5  # regions tried, one after another


@dataclass(frozen=True)
class SyntaxFaults:
    """The broken nodes (ERROR or MISSING) of a tree, and how many bytes the ERROR nodes cover."""

    nodes: int
    size: int

    def fewer_than(self, other: "SyntaxFaults") -> bool:
        """True if there are fewer nodes, and not because one has swallowed others."""
        return self.nodes < other.nodes and self.size <= other.size


def parsed(text: str, language_id: str) -> tree_sitter.Tree | None:
    """The tree of `text`; None without a grammar, or if the text is too long."""
    tree = SyntaxTree(language(language_id))
    tree.parse(text)
    return tree.tree


def reparsed(tree: tree_sitter.Tree, old: str, new: str, start: int, tail: int, language_id: str) -> tree_sitter.Tree:
    """The tree of `new`, made from that of `old`. The texts share their first `start` and last `tail` code points."""
    known = grammar(language(language_id))
    assert known is not None, "it has parsed `old`"
    head, before, after = (
        text.encode() for text in (old[:start], old[start : len(old) - tail], new[start : len(new) - tail])
    )
    moved = tree.copy()
    ends = head + before, head + after
    moved.edit(len(head), len(ends[0]), len(ends[1]), _point(head), _point(ends[0]), _point(ends[1]))
    return tree_sitter.Parser(known).parse(new.encode(), moved)


def faults(tree: tree_sitter.Tree) -> SyntaxFaults:
    broken = list(_broken(tree))
    outermost, end = 0, 0
    for node in broken:
        outermost += max(0, node.end_byte - max(node.start_byte, end))
        end = max(end, node.end_byte)
    return SyntaxFaults(len(broken), outermost)


def is_broken(tree: tree_sitter.Tree, text: str, start: int, end: int) -> bool:
    """True if a broken node touches the lines of `start:end`."""
    return bool(_touching(tree, text, *_lines(text, start, end)))


def regions(tree: tree_sitter.Tree, text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Spans to refill around `start:end`, the smallest first: the end of the last line, where something may be missing;
    the broken nodes on these lines and their parents; the lines. Empty if nothing is broken."""
    top, bottom = _lines(text, start, end)
    source, broken = text.encode(), _touching(tree, text, top, bottom)
    if not broken:
        return []
    nodes = [*broken, *(node.parent for node in broken if node.parent)]
    found = {(_characters(source, n.start_byte), _characters(source, n.end_byte)) for n in nodes if n.parent}
    found = {(a, b if a < b else b + len(indent_of(text[b:bottom]))) for a, b in found}  # `: ,` lacks a value
    lines = _trimmed(text, top, bottom)
    found |= {lines, (lines[1], lines[1])}
    near = sorted(found, key=lambda span: (span[1] - span[0], abs(span[0] - start)))
    return [span for span in near if span[1] - span[0] <= MAX_REGION][:MAX_REGIONS]


def _touching(tree: tree_sitter.Tree, text: str, start: int, end: int) -> list[tree_sitter.Node]:
    first, last = len(text[:start].encode()), len(text[:end].encode())
    return [node for node in _broken(tree) if node.start_byte <= last and first <= node.end_byte]


def _broken(tree: tree_sitter.Tree) -> Iterator[tree_sitter.Node]:
    """In text order, parents before children."""
    waiting = [tree.root_node]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            yield node
        if node.has_error:
            waiting += reversed(node.children)


def _lines(text: str, start: int, end: int) -> tuple[int, int]:
    """The span extended to whole lines, without the last line break."""
    below = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if below < 0 else below


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    inner = text[start:end]
    return start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())


def _characters(source: bytes, byte: int) -> int:
    return len(source[:byte].decode())


def _point(source: bytes) -> tuple[int, int]:
    return source.count(b"\n"), len(source) - source.rfind(b"\n") - 1
