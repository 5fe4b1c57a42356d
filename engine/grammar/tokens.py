"""Walks of a vocabulary's tokens through an automaton. All tokens advance together, along the tree of their bytes, a
byte at a time with whole-array operations; the result for a node is valid for any stack below it.

A token that ends the rule of its node goes on in the caller: such places in the tree are kept, and walked on from there
once the caller is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caesura.engine.grammar.automaton import Automaton, Configuration

Ints = NDArray[np.int64]

ROOT = 0
EVERYWHERE = 0  # the frontier of only the root


class Tree:
    """The tree of the tokens' bytes, breadth first, siblings next to each other; `token` is -1 where none ends."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        spelled = sorted((piece, number) for number, piece in enumerate(pieces) if piece)
        first, count, byte, token = [0], [0], [0], [-1]
        level = [(ROOT, 0, len(spelled))]  # a place, and those of `spelled` that lie below it
        depth = 0
        while level:
            below = []
            for place, start, end in level:
                while start < end and len(spelled[start][0]) == depth:
                    token[place] = spelled[start][1]
                    start += 1
                first[place] = len(byte)
                while start < end:
                    value, stop = spelled[start][0][depth], start
                    while stop < end and spelled[stop][0][depth] == value:
                        stop += 1
                    below.append((len(byte), start, stop))
                    for column, new in ((first, 0), (count, 0), (byte, value), (token, -1)):
                        column.append(new)
                    start = stop
                count[place] = len(byte) - first[place]
            level, depth = below, depth + 1
        self.first, self.count, self.byte, self.token = (np.array(c, np.int64) for c in (first, count, byte, token))

    def __repr__(self) -> str:
        return f"<Tree {len(self.byte)} places>"


@dataclass(frozen=True)
class Walk:
    """A walk from a node: the sets of tokens that end at (target, returns pushed), and the frontier: the places in the
    tree where the node's rule has ended."""

    ends: tuple[tuple[int, tuple[int, ...], int], ...]  # target, pushed, number of the token set
    left: int | None


class Walker:
    """Walks of one automaton over one tree, each made once. Token sets have numbers; each is ascending."""

    def __init__(self, automaton: Automaton, tree: Tree) -> None:
        self.automaton, self.tree = automaton, tree
        self.sets: list[Ints] = []
        self._numbers: dict[bytes, int] = {}
        self._frontiers: list[Ints] = [np.zeros(1, np.int64)]
        self._held = 0  # bytes of the sets, their names and the frontiers
        self._known: dict[tuple[int, int], Walk] = {}
        self._places: dict[tuple[int, tuple[int, ...]], int] = {}  # (node, pushed) -> row of the table
        self._named: list[tuple[int, tuple[int, ...]]] = []
        self._ending = np.zeros(64, bool)
        self._made = np.zeros(64, bool)
        self._table = np.zeros((64, 256), np.int64)  # row, byte -> list of rows, 0 where there is none
        self._lists: list[tuple[int, ...]] = [()]
        self._listed: dict[tuple[int, ...], int] = {(): 0}
        self._only = np.zeros(64, np.int64)  # list -> its one row; -1 where it has several

    def __repr__(self) -> str:
        return f"<Walker {len(self._known)} walks {len(self.sets)} token sets>"

    @property
    def nbytes(self) -> int:
        return self._held + self._table.nbytes

    def edges(self, config: Configuration) -> list[tuple[int, Configuration]]:
        """All edges of one token: (number of a token set, the configuration after it)."""
        (node, stack), found, frontier = config, [], EVERYWHERE
        while True:
            walk = self._walk(frontier, node)
            found += [(tokens, self.automaton.at(to, (*stack, *pushed))) for to, pushed, tokens in walk.ends]
            if walk.left is None or not stack:
                return found
            node, stack, frontier = stack[-1], stack[:-1], walk.left

    def _walk(self, frontier: int, node: int) -> Walk:
        walk = self._known.get((frontier, node))
        if walk is None:
            walk = self._known[frontier, node] = self._walked(self._frontiers[frontier], node)
        return walk

    def _walked(self, at: Ints, node: int) -> Walk:
        tree, rows = self.tree, np.full(len(at), self._row((node, ())), np.int64)
        ended, ends_at, left = [], [], []
        while len(at):
            leaving = self._ending[rows]
            if leaving.any():
                left.append(at[leaving])
            counts = tree.count[at]
            children, rows = spread(tree.first[at], counts), np.repeat(rows, counts)
            lists = self._step(rows, tree.byte[children])
            kept = lists > 0
            at, rows = self._branch(children[kept], lists[kept])
            complete = tree.token[at] >= 0
            ended.append(tree.token[at[complete]])
            ends_at.append(rows[complete])
        tokens, rows = np.concatenate(ended), np.concatenate(ends_at)
        ends = [(*self._named[row], self._set(tokens[rows == row])) for row in set(rows.tolist())]
        return Walk(tuple(ends), self._frontier(distinct(np.concatenate(left))) if left else None)

    def _step(self, rows: Ints, byte: Ints) -> Ints:
        if not self._made[rows].all():
            for row in set(rows[~self._made[rows]].tolist()):
                self._make(row)
        return self._table[rows, byte]

    def _branch(self, at: Ints, lists: Ints) -> tuple[Ints, Ints]:
        """Pair every place with every row of its list, each pair once."""
        rows = self._only[lists]
        several = rows < 0
        if not several.any():
            return at, rows
        more = [
            (place, row)
            for place, number in zip(at[several], lists[several], strict=True)
            for row in self._lists[number]
        ]
        pairs = np.concatenate((np.stack((at[~several], rows[~several]), 1), np.array(more, np.int64)))
        pairs = np.unique(pairs, axis=0)
        return pairs[:, 0], pairs[:, 1]

    def _row(self, place: tuple[int, tuple[int, ...]]) -> int:
        """The row of a place in the table; its bytes are filled in on first use."""
        row = self._places.get(place)
        if row is None:
            row = self._places[place] = len(self._named)
            self._named.append(place)
            if row >= len(self._table):
                self._table, self._ending, self._made = map(doubled, (self._table, self._ending, self._made))
            self._ending[row] = self.automaton.open(*place)[1]
        return row

    def _make(self, row: int) -> None:
        edges, _ = self.automaton.open(*self._named[row])
        before: dict[int, int] = {}  # row -> the bytes that lead there
        for mask, target, pushed in edges:
            to = self._row(self.automaton.at(target, pushed))
            before[to] = before.get(to, 0) | mask
        table, shared, seen = self._table[row], 0, 0
        for mask in before.values():
            shared, seen = shared | seen & mask, seen | mask
        for to, mask in before.items():
            table[_bytes(mask & ~shared)] = self._list((to,))
        for byte in _bytes(shared).tolist():
            table[byte] = self._list(tuple(to for to, mask in before.items() if mask >> byte & 1))
        self._made[row] = True

    def _list(self, rows: tuple[int, ...]) -> int:
        number = self._listed.get(rows)
        if number is None:
            number = self._listed[rows] = len(self._lists)
            self._lists.append(rows)
            if number >= len(self._only):
                self._only = doubled(self._only)
            self._only[number] = rows[0] if len(rows) == 1 else -1
        return number

    def _set(self, tokens: Ints) -> int:
        tokens = distinct(tokens)
        key = tokens.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.sets)
            self.sets.append(tokens)
            self._held += 2 * tokens.nbytes
        return self._numbers[key]

    def _frontier(self, places: Ints) -> int:
        self._frontiers.append(places)
        self._held += places.nbytes
        return len(self._frontiers) - 1


@lru_cache(maxsize=4096)
def _bytes(mask: int) -> Ints:
    """The bytes of a mask, ascending."""
    return np.array([byte for byte in range(256) if mask >> byte & 1], np.int64)


def distinct(values: Ints) -> Ints:
    """The values in ascending order, each once: `np.unique` of numpy 2.3 and later takes 3 to 30 times as long."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def doubled(column: NDArray[Any]) -> NDArray[Any]:
    """The array with its size doubled by zeros."""
    return np.concatenate((column, np.zeros_like(column)))


def spread(starts: Ints, counts: Ints) -> Ints:
    """The numbers of the ranges [start, start + count), one range after another."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - ends + counts, counts)
