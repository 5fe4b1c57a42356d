"""Automata of ECMA-262 patterns with the u flag: the tree of a pattern becomes a nondeterministic automaton, then a
deterministic one (subset construction: Rabin and Scott 1959).

It is built from the end of the pattern to its start, so that the rest of the pattern is known at each lookahead: the
lookahead becomes an intersection with the rest, or a difference.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

from caesura.automata.dfa import (
    ANY,
    CACHED,
    MAX_WORK,
    Dfa,
    TooLarge,
    Unsupported,
    both,
    characters,
    explore,
    letters,
    weight,
    without,
)
from caesura.automata.regex_syntax import (
    EVERY,
    Alternatives,
    Anchor,
    Characters,
    Concatenation,
    Lookahead,
    RegexTree,
    Repeated,
    parse,
)
from caesura.recent import remembered

When = Literal["always", "start", "inside", "end"]  # of an empty edge; `inside` is any position but the start
_START: frozenset[When] = frozenset({"always", "start"})
_INSIDE: frozenset[When] = frozenset({"always", "inside"})
_Subset = tuple[bool, frozenset[int]]  # true before the first byte; the states that the text may be in
VISITS = 300_000  # of states while an automaton is built: some tenths of a second
AHEADS = 16  # lookaheads of a pattern, after its repetitions are written out


@remembered(CACHED, weight)
def matching(pattern: str, *, whole: bool = False) -> Dfa:
    """The texts that contain a match of the pattern; with `whole`, those that it matches from end to end.

    Raises `Unsupported` and `TooLarge`.
    """
    tree = parse(pattern)
    edges = _Edges()
    if whole:
        return edges.automaton(edges.build(tree, edges.final), at_start=True)
    start = edges.state()
    edges.join(start, edges.build(tree, edges.anything))
    edges.join(start, edges.embed(characters(EVERY), start))
    return edges.automaton(start, at_start=True)


class _Edges:
    """States, with edges that read a byte and empty edges."""

    def __init__(self) -> None:
        self.bytes: list[list[tuple[int, int]]] = []
        self.empty: list[list[tuple[When, int]]] = []
        self.work = 0  # parts built
        self.aheads = 0
        self.visits = 0  # of states, while subsets are made
        self.looping = 0  # unbounded repetitions around what is built
        self.final = self.state()
        self.anything = self.embed(ANY, self.final)

    def __repr__(self) -> str:
        return f"<_Edges between {len(self.bytes)} states>"

    def state(self) -> int:
        if len(self.bytes) > 2 * MAX_WORK:
            raise TooLarge
        self.bytes.append([])
        self.empty.append([])
        return len(self.bytes) - 1

    def join(self, source: int, target: int, when: When = "always") -> None:
        self.empty[source].append((when, target))

    def embed(self, dfa: Dfa, after: int) -> int:
        """Add a copy of the automaton that continues at `after`. Returns its start."""
        first = len(self.bytes)
        for _ in dfa.rows:
            self.state()
        for number, row in enumerate(dfa.rows, first):
            self.bytes[number] = [(mask, first + target) for mask, target in row]
        for number in dfa.accepting:
            self.join(first + number, after)
        return first

    def build(self, tree: RegexTree, after: int) -> int:
        """The state that reads the tree and continues at `after`."""
        self.work += 1
        if self.work > 2 * MAX_WORK:
            raise TooLarge
        match tree:
            case Characters(ranges):
                return self.embed(characters(ranges), after)
            case Concatenation(parts):
                for part in reversed(parts):
                    after = self.build(part, after)
                return after
            case Alternatives(parts):
                start = self.state()
                for part in parts:
                    self.join(start, self.build(part, after))
                return start
            case Anchor(side):
                start = self.state()
                self.join(start, after, side)
                return start
            case Lookahead(part, wanted):
                return self.ahead(part, wanted, after)
            case Repeated(part, least, most):
                return self.repeat(part, least, most, after)

    def repeat(self, part: RegexTree, least: int, most: int | None, after: int) -> int:
        state = after
        if most is None:
            state = self.state()
            self.join(state, after)
            self.looping += 1
            self.join(state, self.build(part, state))
            self.looping -= 1
        else:
            for _ in range(most - least):
                start = self.state()
                self.join(start, after)
                self.join(start, self.build(part, state))
                state = start
        for _ in range(least):
            state = self.build(part, state)
        return state

    def ahead(self, part: RegexTree, wanted: bool, after: int) -> int:
        self.aheads += 1
        if self.looping:
            raise Unsupported("The pattern has a lookahead inside an unbounded repetition, which is not supported.")
        if self.aheads > AHEADS:
            raise TooLarge
        condition = self.build(part, self.anything)
        start = self.state()
        cases: tuple[tuple[When, bool], ...] = (("start", True), ("inside", False))
        for when, at_start in cases:
            operation = both if wanted else without
            follow = operation(self.automaton(after, at_start=at_start), self.automaton(condition, at_start=at_start))
            self.join(start, self.embed(follow, self.final), when)
        return start

    def automaton(self, start: int, *, at_start: bool) -> Dfa:
        """The texts that lead from `start` to the final state; `at_start` if `start` is the start of the whole text."""
        parts = letters(mask for row in self.bytes for mask, _ in row)
        closures: dict[int, frozenset[int]] = {}
        ends: dict[int, bool] = {}

        def closure(state: int) -> frozenset[int]:
            """The states reached without reading that can read or end the text."""
            if state not in closures:
                reached = self.reach(state, _INSIDE)
                closures[state] = frozenset(one for one in reached if self.bytes[one] or ended(one))
            return closures[state]

        def ended(state: int) -> bool:
            if state not in ends:
                ends[state] = self.final in self.reach(state, _INSIDE | {"end"})
            return ends[state]

        def settled(states: frozenset[int]) -> frozenset[int]:
            return closure(self.anything) if self.anything in states else states  # which accepts every rest

        def edges(key: _Subset) -> Iterator[tuple[int, _Subset]]:
            targets: dict[int, set[int]] = defaultdict(set)
            self.visits += len(key[1])
            if self.visits > VISITS:
                raise TooLarge
            for state in key[1]:
                for mask, target in self.bytes[state]:
                    for letter in parts[mask]:
                        targets[letter].add(target)
            masks: dict[frozenset[int], int] = defaultdict(int)
            for letter, states in targets.items():
                masks[frozenset(states)] |= letter
            joined: dict[frozenset[int], int] = defaultdict(int)
            for raw, mask in masks.items():
                joined[settled(frozenset().union(*map(closure, raw)))] |= mask
            for subset, mask in joined.items():
                yield mask, (False, subset)

        def accepts(key: _Subset) -> bool:
            if key[0]:
                return self.final in self.reach(start, here | {"end"})
            return any(map(ended, key[1]))

        here = _START if at_start else _INSIDE
        return explore((True, settled(frozenset(self.reach(start, here)))), edges, accepts)

    def reach(self, start: int, when: frozenset[When]) -> set[int]:
        """The states that empty edges lead to."""
        seen = {start}
        stack = [start]
        while stack:
            self.visits += 1
            if self.visits > VISITS:
                raise TooLarge
            for condition, target in self.empty[stack.pop()]:
                if condition in when and target not in seen:
                    seen.add(target)
                    stack.append(target)
        return seen
