"""The best whole fill of a hole: the most probable tokens, slot by slot, among the texts of a grammar.

Slots are independent of each other given the canvas, so dynamic programming finds the best path through
(slot, configuration) exactly (Viterbi; for regular languages DINGO, 2025). An open slot takes one token, or the null,
which writes nothing; a decided one keeps its token. Above `BEAM` configurations a slot keeps only the best, and always
those of a known path: so an answer exists if such a path does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caesura.engine.grammar.automaton import Configuration
from caesura.engine.grammar.tokens import Ints, Walker, distinct, doubled, spread
from caesura.engine.scores import Floats, Scores, told

GrammarState = tuple[int, ...]  # the numbers of all possible configurations, ascending

BEAM = 256
CONFIG = 1000  # bytes of a configuration with all that is cached for it, without token sets


class Graph:
    """The configurations of an automaton, numbered as they are found, and where one token leads from each."""

    def __init__(self, walker: Walker, accepts: Callable[[Configuration], bool]) -> None:
        self.walker = walker
        self.configs: list[Configuration] = []
        self._accepts = accepts
        self._numbers: dict[Configuration, int] = {}
        self._ends: dict[int, bool] = {}
        self._first = np.zeros(64, np.int64)  # first edge of each configuration; -1 while unknown
        self._count = np.zeros(64, np.int64)
        self.lengths = np.zeros(64, np.int64)  # bytes to the end
        self._sets, self._targets = np.zeros(256, np.int64), np.zeros(256, np.int64)
        self._used = 0
        self._holding: dict[tuple[int, int], bool] = {}

    def __repr__(self) -> str:
        return f"<Graph {len(self.configs)} configurations {self._used} edges>"

    @property
    def nbytes(self) -> int:
        return self.walker.nbytes + CONFIG * len(self.configs) + self._sets.nbytes + self._targets.nbytes

    def number(self, config: Configuration) -> int:
        known = self._numbers.get(config)
        if known is None:
            known = self._numbers[config] = len(self.configs)
            self.configs.append(config)
            if known >= len(self._first):
                self._first, self._count, self.lengths = map(doubled, (self._first, self._count, self.lengths))
            self._first[known] = -1
            self.lengths[known] = self.walker.automaton.length(config)
        return known

    def edges(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """(position in `numbers`, token set, target) of all edges that leave these configurations."""
        for number in numbers[self._first[numbers] < 0].tolist():
            self._explore(number)
        counts = self._count[numbers]
        at = spread(self._first[numbers], counts)
        return np.repeat(np.arange(len(numbers)), counts), self._sets[at], self._targets[at]

    def _explore(self, number: int) -> None:
        found = [(tokens, self.number(to)) for tokens, to in self.walker.edges(self.configs[number])]
        while self._used + len(found) > len(self._sets):
            self._sets, self._targets = map(doubled, (self._sets, self._targets))
        end = self._used + len(found)
        self._first[number], self._count[number] = self._used, len(found)
        if found:
            self._sets[self._used : end], self._targets[self._used : end] = zip(*found, strict=True)
        self._used = end

    def holds(self, sets: Ints, token: int) -> NDArray[np.bool_]:
        """True for each token set that has the token."""
        used, back = np.unique(sets, return_inverse=True)
        return np.array([self._holds(number, token) for number in used.tolist()], bool)[back]

    def _holds(self, number: int, token: int) -> bool:
        known = self._holding.get((number, token))
        if known is None:
            tokens = self.walker.sets[number]
            at = int(np.searchsorted(tokens, token))
            known = self._holding[number, token] = at < len(tokens) and int(tokens[at]) == token
        return known

    def after(self, state: GrammarState, token: int) -> GrammarState:
        """The state after one more token."""
        _, sets, targets = self.edges(np.array(state, np.int64))
        return tuple(distinct(targets[self.holds(sets, token)]).tolist()) if len(sets) else ()

    def tokens(self, state: GrammarState, leads: Callable[[int], bool]) -> Ints:
        """All tokens that may come next, if their configuration `leads` to an end."""
        _, sets, targets = self.edges(np.array(state, np.int64))
        good = [number for number in distinct(targets).tolist() if leads(number)]
        found = [self.walker.sets[number] for number in distinct(sets[np.isin(targets, good)]).tolist()]
        return distinct(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def ends(self, number: int) -> bool:
        """True if the hole may end here."""
        if number not in self._ends:
            self._ends[number] = self._accepts(self.configs[number])
        return self._ends[number]


class Gains:
    """The value of a token set in each slot: its greatest log-probability in `scores`, which have a row a slot."""

    def __init__(self, scores: Scores, sets: Sequence[Ints]) -> None:
        self.scores, self._sets = scores, sets
        self._known = np.zeros((0, scores.rows), np.float32)  # [sets, slots]
        self._have = np.zeros(0, bool)
        self.banned: dict[int, set[int]] = {}  # tokens by slot
        self._left: dict[tuple[int, int, int], float] = {}

    def of(self, slot: int, sets: Ints) -> Floats:
        """[len(sets)]"""
        if len(self._have) < len(self._sets):
            more = 2 * len(self._sets) - len(self._have)
            self._known = np.concatenate((self._known, np.zeros((more, self._known.shape[1]), np.float32)))
            self._have = np.concatenate((self._have, np.zeros(more, bool)))
        missing = distinct(sets[~self._have[sets]])
        if len(missing):
            (self._known[missing],) = told(self.scores.greatest([self._sets[number] for number in missing.tolist()]))
            self._have[missing] = True
        gains: Floats = self._known[sets, slot]
        if banned := sorted(self.banned.get(slot, ())):
            (lost,) = told(self.scores.logp([slot] * len(banned), banned))
            for number in distinct(sets[np.isin(gains, lost)]).tolist():  # the best token of all others is not banned
                gains[sets == number] = self._allowed(slot, number, len(banned))
        return gains

    def of_token(self, token: int) -> Floats:
        """The log-probability of a token in each slot."""
        slots = range(self.scores.rows)
        (found,) = told(self.scores.logp(slots, [token] * len(slots)))
        values: Floats = found
        return values

    def _allowed(self, slot: int, number: int, count: int) -> float:
        """The value of a set without the `count` tokens banned so far; a banned token stays banned."""
        key = slot, number, count
        if key not in self._left:
            self._left[key] = self.best(slot, number)[1]
        return self._left[key]

    def best(self, slot: int, number: int) -> tuple[int, float]:
        """The best token of a set, and its value."""
        tokens = self._sets[number]
        if slot in self.banned:
            tokens = tokens[~np.isin(tokens, list(self.banned[slot]))]
            if not len(tokens):
                return -1, -np.inf
        (best,) = told(self.scores.part(slot, slot + 1).best(1, among=tokens))
        return int(best.ids[0, 0]), float(best.logp[0, 0])


@dataclass(eq=False)
class Trellis:
    """A hole being solved: the tokens that slots `held`, and the layers known from the left: before each slot, the
    reachable configurations and their scores. A change to a slot costs only the layers after it."""

    graph: Graph
    start: GrammarState
    gains: Gains
    held: Sequence[int | None]
    known: Sequence[int]  # a path to keep: a token for every slot
    null: int | None
    layers: list[tuple[Ints, Floats]] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = [self.start]
        for token in self.known:
            path.append(path[-1] if token == self.null else self.graph.after(path[-1], token))
        self._path = path
        self._empty = None if self.null is None else self.gains.of_token(self.null)
        first = np.array(self.start, np.int64)
        self.layers.append((first, np.zeros(len(first), np.float32)))

    def ban(self, slot: int, token: int, *, on: bool = False) -> None:
        """Ban a token in a slot; with `on`, in all slots after it too."""
        for number in range(slot, len(self.held) if on else slot + 1):
            self.gains.banned.setdefault(number, set()).add(token)
        del self.layers[slot + 1 :]

    def solve(self) -> list[int] | None:
        """The best token for every slot; None if no whole text fits."""
        while len(self.layers) <= len(self.held):
            numbers, scores = self._next(len(self.layers) - 1)
            if not len(numbers):
                return None
            self.layers.append((numbers, scores))
        numbers, scores = self.layers[-1]
        ending = np.array([self.graph.ends(number) for number in numbers.tolist()])
        if not ending.any():
            return None
        target = int(numbers[np.where(ending, scores, -np.inf).argmax()])
        tokens = []
        for slot in reversed(range(len(self.held))):
            token, target = self._back(slot, target)
            tokens.append(token)
        return tokens[::-1]

    def _moves(self, slot: int) -> tuple[Ints, Ints, Ints, Floats]:
        """All moves of a slot: (source, token set or -1 for the null, target, score)."""
        numbers, scores = self.layers[slot]
        held = self.held[slot]
        if held is not None and held == self.null:
            return numbers, np.full(len(numbers), -1), numbers, scores
        source, sets, targets = self.graph.edges(numbers)
        if held is not None:
            kept = self.graph.holds(sets, held)
            source, sets, targets = source[kept], sets[kept], targets[kept]
            return numbers[source], sets, targets, scores[source]
        gained = scores[source] + self.gains.of(slot, sets)
        if self._empty is None:
            return numbers[source], sets, targets, gained
        empty = scores + self._empty[slot]
        return (
            np.concatenate((numbers[source], numbers)),
            np.concatenate((sets, np.full(len(numbers), -1))),
            np.concatenate((targets, numbers)),
            np.concatenate((gained, empty)),
        )

    def _next(self, slot: int) -> tuple[Ints, Floats]:
        _, _, targets, scores = self._moves(slot)
        best = np.full(len(self.graph.configs), -np.inf, np.float32)
        np.maximum.at(best, targets, scores)
        numbers = np.flatnonzero(best > -np.inf)
        if len(numbers) > BEAM:
            numbers = self._cut(numbers, best[numbers], slot + 1)
        return numbers, best[numbers]

    def _cut(self, numbers: Ints, scores: Floats, slot: int) -> Ints:
        """The best configurations, first those that can reach the end in time; the best of every distance to the end;
        and those of the known path."""
        lengths = self.graph.lengths[numbers]
        far = lengths > 2 * (len(self.held) - slot) + 2
        best = np.lexsort((-scores, far))[: BEAM * 3 // 4]
        by_length = np.lexsort((-scores, lengths))
        group = lengths[by_length]
        first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
        rank = np.arange(len(group)) - np.repeat(first, np.diff(np.append(first, len(group))))
        spread_out = by_length[np.argsort(rank, kind="stable")[: BEAM // 4]]
        kept = np.union1d(numbers[best], numbers[spread_out])
        if slot >= len(self._path):
            return kept
        return np.union1d(kept, np.intersect1d(numbers, np.array(self._path[slot], np.int64)))

    def _back(self, slot: int, target: int) -> tuple[int, int]:
        """The token on the best way to a configuration, and its source."""
        source, sets, targets, scores = self._moves(slot)
        at = int(np.where(targets == target, scores, -np.inf).argmax())
        held = self.held[slot]
        if held is not None:
            return held, int(source[at])
        if sets[at] < 0:
            assert self.null is not None
            return self.null, int(source[at])
        return self.gains.best(slot, int(sets[at]))[0], int(source[at])
