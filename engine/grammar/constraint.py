"""A hole's grammar over a vocabulary: a `wire.Json` or `wire.Pattern` becomes a `RuleSet`, that an `Automaton`, and
that, with the tree of the tokens, a `Grammar`.
"""

from collections.abc import Sequence

import numpy as np

from caesura import wire
from caesura.automata import regex
from caesura.engine.draws import Draws, DrawStream
from caesura.engine.grammar import json
from caesura.engine.grammar.automaton import NEVER, Automaton, Configuration
from caesura.engine.grammar.expressions import Regular, RuleSet
from caesura.engine.grammar.solve import Gains, GrammarState, Graph, Trellis
from caesura.engine.grammar.tokens import Tree, Walker
from caesura.engine.scores import Allowed, Scores
from caesura.engine.scores.host import HostScores

SETS = 64  # sets kept of what may come next
SIMPLE = 64  # tokens of a simple text, tried if the shortest is not sound
DUPLICATES = 8  # duplicate keys that are replaced before falling back on a known fill


def load(spec: wire.Json | wire.Pattern, schemas: Sequence[str], tree: Tree) -> "Grammar":
    """The grammar of a hole. Raises wire.Impossible, with one sentence, if no text fits there or it is too large."""
    if isinstance(spec, wire.Pattern):
        return Grammar(RuleSet(Regular(regex.matching(spec.regex, whole=True)), _no_rule), tree)
    return Grammar(_json(spec, schemas), tree, spec)


def _no_rule(name: object) -> "Regular":
    raise KeyError(name)


def _json(spec: wire.Json, schemas: Sequence[str]) -> RuleSet:
    if spec.schema is None:
        return json.language(spec)
    if spec.schema >= len(schemas):
        raise wire.Impossible("The grammar names a schema that the job does not have.")
    from caesura.engine.grammar import schema
    from caesura.schema.reader import read_schema

    return schema.language(spec, read_schema(schemas[spec.schema]))


class Grammar:
    """A language over a vocabulary. A `GrammarState` holds all that is possible after some text of the hole.

    Raises wire.Impossible if no text fits. The text of a hole is sound if no object in it has a duplicate key.
    """

    def __init__(self, language: RuleSet, tree: Tree, spec: wire.Json | None = None) -> None:
        self.exact = language.exact
        self._automaton, self._pieces = Automaton(language), tree.pieces
        self._typed, self._then = (spec.typed, spec.then) if spec else ("", "")
        self._members = spec is not None and spec.start == "members"
        self._json = spec is not None
        self.taken = frozenset(spec.taken if spec else ())
        self.graph = Graph(Walker(self._automaton, tree), self._accepts)
        self._beginning = self._automaton.read([self._automaton.start], self._typed.encode())
        self._starts: dict[bytes, GrammarState] = {}
        self._open: dict[int, bool] = {}
        self._allowed: dict[GrammarState, Allowed] = {}
        self._fills: dict[tuple[bytes, int], list[int] | None] = {}
        if not self._beginning or self.shortest(self.start(b"")) is None:
            raise wire.Impossible("Nothing can stand here that the schema, or the text around it, allows.")

    def __repr__(self) -> str:
        return f"<Grammar {self._automaton} {self.graph}>"

    @property
    def nbytes(self) -> int:
        """Bytes in use, with all that is cached."""
        return self.graph.nbytes + sum(some.nbytes for some in self._allowed.values())

    def _accepts(self, config: Configuration) -> bool:
        return any(map(self._automaton.ends, self._automaton.read([config], self._then.encode())))

    def _leads(self, number: int) -> bool:
        """True if a whole text can be reached from here."""
        if not self._then:
            return bool(self.graph.lengths[number] < NEVER)
        if number not in self._open:
            self._open[number] = self.shortest((number,)) is not None
        return self._open[number]

    # Left to right

    def start(self, forced: bytes) -> GrammarState:
        """The state before a hole that has to write `forced` first (canvas/healing.py)."""
        if forced not in self._starts:
            configs = [self._automaton.first(forced, c) if forced else c for c in sorted(self._beginning)]
            self._starts[forced] = tuple(sorted(map(self.graph.number, configs)))
        return self._starts[forced]

    def after(self, state: GrammarState, token: int) -> GrammarState:
        """The state after one more token; empty if that is not allowed."""
        return tuple(filter(self._leads, self.graph.after(state, token)))

    def ends(self, state: GrammarState) -> bool:
        """True if the hole may end here."""
        return any(map(self.graph.ends, state))

    def allowed(self, state: GrammarState, width: int) -> Allowed:
        """The tokens, out of `width`, that may come next."""
        allowed = self._allowed.get(state)
        if allowed is None or allowed.width != width:
            allowed = Allowed.of(width, self.graph.tokens(state, self._leads))
            if len(self._allowed) >= SETS:
                self._allowed.clear()
            self._allowed[state] = allowed
        return allowed

    def shortest(self, state: GrammarState) -> bytes | None:
        """The shortest text that ends the hole from here."""
        configs = [self.graph.configs[number] for number in state]
        if self._then:
            return self._automaton.shortest_before(configs, self._then.encode())
        best = min(configs, key=self._automaton.length)
        return None if self._automaton.length(best) >= NEVER else self._automaton.shortest(best)

    def simplest(self, forced: bytes) -> bytes:
        """A short text of the whole hole, after `forced`."""
        shortest = self.closing(self.start(b""), b"")
        if not self.sound(shortest, whole=True):
            raise wire.Impossible("What can stand here would need more keys than fit; ask for fewer.")
        return forced + shortest

    def closing(self, state: GrammarState, own: bytes) -> bytes:
        """A short text that ends the hole after its `own` text so far. The shortest may repeat a key."""
        shortest = self.shortest(state)
        assert shortest is not None, "a grammar leads to an end from everywhere"
        if self.sound(own + shortest, whole=True):
            return shortest
        null = len(self._pieces)
        logits = (-1 - 3 * np.asarray(Draws(0).uniform(DrawStream.TABLE, SIMPLE, null + 1))).astype(np.float32)
        logits[:, null] = 0.0
        gains = Gains(HostScores(logits), self.graph.walker.sets)
        fill = Trellis(self.graph, state, gains, [None] * SIMPLE, [], null)
        tokens = self._sound_fill(fill, 0, own, on=True)
        return shortest if tokens is None else b"".join(self._pieces[t] for t in tokens if t != null)

    def sound(self, raw: bytes, *, whole: bool = False) -> bool:
        """True if no object in the hole's text has a duplicate key; `whole` includes the text after the hole."""
        if not self._json:
            return True
        text = self._typed + raw.decode("utf-8", errors="ignore") + (self._then if whole else "")
        return json.distinct_keys(text, members=self._members)

    def to_taken(self, raw: bytes) -> list[str]:
        """The rest of each taken key that begins like the open key at the end of the hole's text. An empty rest means
        that the open key is taken so far and has to go on."""
        begun = json.open_key(self._typed + raw.decode(errors="ignore")) if self.taken else None
        return [] if begun is None else [key[len(begun) :] for key in self.taken if key.startswith(begun)]

    # A whole canvas

    def best(
        self,
        state: GrammarState,
        scores: Scores,
        held: Sequence[int | None],
        known: Sequence[int],
        skip: int,
        null: int | None,
    ) -> list[int] | None:
        """The most probable whole fill: a token for every slot, null for those that write nothing.

        `scores` have a row for each slot; `held` are the decided slots' tokens; `known` is a fill that agrees with
        them, or empty. The first `skip` bytes are not the hole's own. None if no whole fill has that many slots.
        """
        fill = Trellis(self.graph, state, Gains(scores, self.graph.walker.sets), held, known, null)
        return self._sound_fill(fill, skip) or list(known) or None

    def any(self, forced: bytes, slots: int, width: int) -> list[int] | None:
        """Some fill of exactly `slots` tokens, out of `width`, after `forced`."""
        if (forced, slots) not in self._fills:
            gains = Gains(HostScores(np.zeros((slots, width), np.float32)), self.graph.walker.sets)
            fill = Trellis(self.graph, self.start(forced), gains, [None] * slots, [], None)
            self._fills[forced, slots] = self._sound_fill(fill, len(forced))
        return self._fills[forced, slots]

    def _sound_fill(self, fill: Trellis, skip: int, own: bytes = b"", *, on: bool = False) -> list[int] | None:
        """The best fill whose keys differ, after the `own` text so far; None if it is not found soon. `on` bans the
        token that ends a duplicate key in all later slots too; otherwise it would move to the next one."""
        for _ in range(4 * DUPLICATES if on else DUPLICATES):
            tokens = fill.solve()
            if tokens is None:
                return None
            twice = self._first_unsound([self._pieces[t] if t != fill.null else b"" for t in tokens], skip, own)
            if twice is None:
                return tokens
            if fill.held[twice] is not None:
                return None
            fill.ban(twice, tokens[twice], on=on)
        return None

    def _first_unsound(self, written: Sequence[bytes], skip: int, own: bytes) -> int | None:
        """The first slot that completes a duplicate key."""
        raw = b"".join(written)[skip:]
        if self.sound(own + raw, whole=True):
            return None
        end = 0
        for slot, piece in enumerate(written):
            end += len(piece)
            if piece and not self.sound(own + raw[: max(0, end - skip)]):
                return slot
        return len(written) - 1
