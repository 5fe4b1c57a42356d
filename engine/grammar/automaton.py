"""A grammar as an automaton over bytes: nodes with byte edges, calls of rules, and a stack of where calls return to.

A configuration is a node and that stack. Several may be possible at once: the automaton is not deterministic. Nothing
is made before it is needed, so a grammar may be recursive and large. Every node knows the shortest way to its end.
"""

import heapq
import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from caesura.automata.dfa import Dfa, TooLarge
from caesura.engine.grammar.expressions import Byte, Chain, Choice, Expression, Regular, Repeat, Rule, RuleSet, Shared

END = 0  # the node after the last byte of every rule
NOWHERE = 1  # a node without edges, for a rule that turned out too large
NEVER = 1 << 40  # length of the way to the end if there is none
MAX_NODES = 300_000
MAX_COPIES = 4_096  # copies of a repeated part
MAX_RULES = 20_000  # a few seconds of work
MAX_STACK = 2_000
MAX_TRIED = 20_000  # configurations tried for a shortest text

Configuration = tuple[int, tuple[int, ...]]  # a node, and the nodes that its calls return to, the innermost last
Edge = tuple[int, int, tuple[int, ...]]  # bytes as a mask, target, and the returns pushed on the way


@dataclass(slots=True)
class Node:
    """Byte edges (mask, target), empty edges, and calls (rule, node to return to); no rule's name is a number. The
    shortest text to the end of the rule has `length` bytes and begins with the edge, jump or call `way`."""

    edges: list[tuple[int, int]] = field(default_factory=list)
    jumps: list[int] = field(default_factory=list)
    calls: list[tuple[Hashable, int]] = field(default_factory=list)
    length: int = NEVER
    way: "tuple[int, int] | int | tuple[Hashable, int] | None" = None


class Automaton:
    """The automaton of a language. Raises TooLarge."""

    def __init__(self, language: RuleSet) -> None:
        self._language = language
        self._nodes = [Node(length=0), Node()]
        self._rules: dict[Hashable, int] = {}
        self._lengths = Lengths(language)
        self._open: dict[Configuration, tuple[tuple[Edge, ...], bool]] = {}
        self.start: Configuration = self.at(self._build(language.start, END), ())

    def __repr__(self) -> str:
        return f"<Automaton {len(self._nodes)} nodes {len(self._rules)} rules>"

    # Construction, from the end of a rule to its start

    def _add(self, node: Node) -> int:
        if len(self._nodes) >= MAX_NODES:
            raise TooLarge("What may stand here is too large for a grammar; use a smaller schema or pattern.")
        self._measure(node)
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _measure(self, node: Node) -> None:
        for edge in node.edges:
            self._shorten(node, 1 + self._nodes[edge[1]].length, edge)
        for jump in node.jumps:
            self._shorten(node, self._nodes[jump].length, jump)
        for call in node.calls:
            self._shorten(node, self._lengths.of(Rule(call[0])) + self._nodes[call[1]].length, call)

    def _shorten(self, node: Node, length: int, way: "tuple[int, int] | int | tuple[Hashable, int]") -> None:
        if length < node.length:
            node.length, node.way = length, way

    def _build(self, part: Expression, after: int) -> int:
        """The node where `part` begins; `part` goes on at `after`."""
        match part:
            case Byte(mask):
                return self._add(Node(edges=[(mask, after)]))
            case Chain(parts):
                for one in reversed(parts):
                    after = self._build(one, after)
                return after
            case Choice(parts):
                return self._add(Node(jumps=[self._build(one, after) for one in parts]))
            case Repeat():
                return self._repeat(part, after)
            case Rule(name):
                return self._add(Node(calls=[(name, after)]))
            case Regular(dfa):
                return self._regular(dfa, after)

    def _repeat(self, part: Repeat, after: int) -> int:
        if max(part.least, part.most or 0) > MAX_COPIES:
            raise TooLarge("What may stand here is repeated too often for a grammar; use smaller bounds.")
        if part.most is None:
            loop = self._add(Node(jumps=[after]))
            self._nodes[loop].jumps.insert(0, self._build(part.part, loop))
            after = loop
        else:
            end = after
            for _ in range(part.most - part.least):
                after = self._add(Node(jumps=[self._build(part.part, after), end]))
        for _ in range(part.least):
            after = self._build(part.part, after)
        return after

    def _regular(self, dfa: Dfa, after: int) -> int:
        """A node for each state, with its shortest way to an accepting one."""
        nodes = [Node(jumps=[after] if state in dfa.accepting else []) for state in range(len(dfa.rows))]
        first = len(self._nodes)
        for node, row in zip(nodes, dfa.rows, strict=True):
            node.edges = [(mask, first + target) for mask, target in row]
        if first + len(nodes) > MAX_NODES:
            raise TooLarge("What may stand here is too large for a grammar; use a smaller schema or pattern.")
        self._nodes += nodes
        sources: dict[int, list[int]] = {}
        for number, node in enumerate(nodes, first):
            for _, target in node.edges:
                sources.setdefault(target, []).append(number)
            for jump in node.jumps:
                self._shorten(node, self._nodes[jump].length, jump)
        waiting = [number for number, node in enumerate(nodes, first) if node.jumps]
        while waiting:  # breadth first: the first way found is the shortest
            found = []
            for target in waiting:
                for source in sources.get(target, ()):
                    if self._nodes[source].length == NEVER:
                        self._measure(self._nodes[source])
                        found.append(source)
            waiting = found
        return first

    def _rule(self, name: Hashable) -> int:
        if name not in self._rules:
            try:
                self._rules[name] = self._build(body(self._language, name), END)
            except TooLarge:  # in the middle of a fill, where `shortest` has another way
                self._rules[name] = NOWHERE
        return self._rules[name]

    # Configurations

    def at(self, node: int, stack: tuple[int, ...]) -> Configuration:
        """The configuration, after nodes that lead to only one other node."""
        while True:
            here = self._nodes[node]
            if node == END and stack:
                node, stack = stack[-1], stack[:-1]
            elif len(here.jumps) == 1 and not here.edges and not here.calls:
                node = here.jumps[0]
            else:
                return node, stack

    def open(self, node: int, pushed: tuple[int, ...]) -> tuple[tuple[Edge, ...], bool]:
        """The byte edges that `node` leads to above a stack of which only `pushed` is known, and whether its rule may
        end here with `pushed` used up."""
        known = self._open.get((node, pushed))
        if known is None:
            known = self._open[node, pushed] = self._opened(node, pushed)
        return known

    def _opened(self, node: int, pushed: tuple[int, ...]) -> tuple[tuple[Edge, ...], bool]:
        edges, ends = list[Edge](), False
        seen, waiting = {(node, pushed)}, [(node, pushed)]
        while waiting:
            number, stack = waiting.pop()
            if len(stack) > MAX_STACK:
                raise TooLarge("What may stand here is nested too deeply for a grammar.")
            here = self._nodes[number]
            edges += [(mask, target, stack) for mask, target in here.edges]
            reached = [(jump, stack) for jump in here.jumps]
            for name, after in here.calls:  # a call whose rule ends ours returns to our caller
                tail = after == END or self.at(after, ())[0] == END
                reached.append((self._rule(name), stack if tail else (*stack, after)))
            if number == END and stack:
                reached.append((stack[-1], stack[:-1]))
            ends = ends or (number == END and not stack)
            for one in reached:
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
        return tuple(edges), ends

    def first(self, raw: bytes, then: Configuration) -> Configuration:
        """The configuration that writes `raw` and then goes on as `then`."""
        node = END
        for byte in reversed(raw):
            node = self._add(Node(edges=[(1 << byte, node)]))
        return self.at(node, (*then[1], then[0]))

    def step(self, configs: Iterable[Configuration], byte: int) -> set[Configuration]:
        """The configurations after one more byte."""
        found = set[Configuration]()
        for node, stack in configs:
            ends = True
            while ends:
                edges, ends = self.open(node, ())
                found |= {self.at(target, (*stack, *more)) for mask, target, more in edges if mask >> byte & 1}
                if not stack:
                    break
                node, stack = stack[-1], stack[:-1]
        return found

    def read(self, configs: Iterable[Configuration], raw: bytes) -> set[Configuration]:
        """The configurations after `raw`; none if it is not allowed."""
        now = set(configs)
        for byte in raw:
            if not now:
                break
            now = self.step(now, byte)
        return now

    def ends(self, config: Configuration) -> bool:
        """True if the text may end here."""
        node, stack = config
        while self.open(node, ())[1]:
            if not stack:
                return True
            node, stack = stack[-1], stack[:-1]
        return False

    # The shortest way to the end

    def length(self, config: Configuration) -> int:
        """Bytes of the shortest text from here to the end, or NEVER."""
        node, stack = config
        return min(NEVER, self._nodes[node].length + sum(self._nodes[n].length for n in stack))

    def shortest(self, config: Configuration) -> bytes | None:
        """The shortest text from here to the end."""
        if self.length(config) >= NEVER:
            return None
        written, (node, stack) = bytearray(), config
        while True:
            node, stack = self.at(node, stack)
            match self._nodes[node].way:
                case None:
                    return bytes(written) if node == END else None
                case int(jump):
                    node = jump
                case (int(mask), target):
                    written.append(_usual(mask))
                    node = target
                case (rule, after):
                    node, stack = self._rule(rule), (*stack, after)

    def shortest_before(self, configs: Iterable[Configuration], then: bytes) -> bytes | None:
        """The shortest text from here that `then` ends; None if it is not found soon."""
        count = itertools.count()
        heap = [(0, next(count), b"", config) for config in configs]
        seen = {config for *_, config in heap}
        while heap and len(seen) < MAX_TRIED:
            _, _, written, config = heapq.heappop(heap)
            if any(map(self.ends, self.read([config], then))):
                return written
            masks = {mask for node, stack in [config] for mask in self._masks(node, stack)}
            for byte in sorted({_usual(mask) for mask in masks} | {b for b in then if any(m >> b & 1 for m in masks)}):
                for reached in self.step([config], byte):
                    if reached not in seen:
                        seen.add(reached)
                        heapq.heappush(heap, (len(written) + 1, next(count), written + bytes([byte]), reached))
        return None

    def _masks(self, node: int, stack: tuple[int, ...]) -> set[int]:
        found, ends = set[int](), True
        while ends:
            edges, ends = self.open(node, ())
            found |= {mask for mask, _, _ in edges}
            if not stack:
                break
            node, stack = stack[-1], stack[:-1]
        return found


class Lengths:
    """The length in bytes of the shortest text of every part of a language. Rules are computed again until none gets
    shorter (Knuth 1977, a generalisation of Dijkstra's algorithm)."""

    def __init__(self, language: RuleSet) -> None:
        self._language = language
        self._bodies: dict[Hashable, Expression] = {}
        self._known: dict[Hashable, int] = {}
        self._settle(language.start)

    def _settle(self, start: Expression) -> None:
        order, waiting = list[Hashable](), list(called(start))
        while waiting:
            name = waiting.pop()
            if name in self._bodies:
                continue
            if len(self._bodies) >= MAX_RULES:
                raise TooLarge("What may stand here is too large for a grammar; use a smaller schema.")
            self._bodies[name] = body(self._language, name)
            order.append(name)
            waiting += called(self._bodies[name])
        self._known |= dict.fromkeys(order, NEVER)
        callers: dict[Hashable, list[Hashable]] = {}
        for name in order:
            for other in called(self._bodies[name]):
                callers.setdefault(other, []).append(name)
        pending = dict.fromkeys(order)
        while pending:
            name, _ = pending.popitem()
            length = self.of(self._bodies[name])
            if length < self._known[name]:
                self._known[name] = length
                pending |= dict.fromkeys(callers.get(name, ()))

    def of(self, part: Expression) -> int:
        match part:
            case Byte():
                return 1
            case Chain(parts):
                return min(NEVER, sum(map(self.of, parts)))
            case Choice(parts):
                return min(map(self.of, parts), default=NEVER)
            case Repeat():
                return min(NEVER, part.least * self.of(part.part)) if part.least else 0
            case Rule(name):
                return self._known[name]
            case Regular(dfa):
                return least(dfa)


def body(language: RuleSet, name: Hashable) -> Expression:
    return name.body if isinstance(name, Shared) else language.rule(name)


def called(part: Expression) -> list[Hashable]:
    """The rules that a part calls."""
    found, waiting = list[Hashable](), [part]
    while waiting:
        match waiting.pop():
            case Chain(parts) | Choice(parts):
                waiting += parts
            case Repeat(inner, _, _):
                waiting.append(inner)
            case Rule(name):
                found.append(name)
            case _:
                pass
    return found


def least(dfa: Dfa) -> int:
    """Bytes of the shortest text that a DFA accepts."""
    if dfa.empty:
        return NEVER
    now, seen, length = {0}, {0}, 0
    while not now & dfa.accepting:
        now = {target for state in now for _, target in dfa.rows[state]} - seen
        seen |= now
        length += 1
    return length


def _usual(mask: int) -> int:
    """The byte of a set that a person would write: a lower-case letter or digit rather than a sign."""
    for usual in _USUAL:
        if both := mask & usual:
            return (both & -both).bit_length() - 1
    return (mask & -mask).bit_length() - 1


def _mask(text: str) -> int:
    return sum(1 << ord(c) for c in text)


_USUAL = (_mask("0123456789"), _mask("abcdefghijklmnopqrstuvwxyz"), _mask("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
