"""A hole's grammar over a vocabulary, as the engine asks it: what a `wire.Json` or `wire.Pattern` says becomes a
`Language`, that an `Automaton`, and that, with the tree of the tokens, a `Grammar`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from caesura import regex, wire
from caesura.engine.grammar import json
from caesura.engine.grammar.automaton import NEVER, Automaton, Configuration
from caesura.engine.grammar.expressions import Language, Regular
from caesura.engine.grammar.solve import Gains, GrammarState, Graph, Trellis
from caesura.engine.grammar.tokens import Tree, Walker

BIASES = 64  # kept, two bytes a token
SIMPLE = 64  # tokens of a simple text, where the shortest is not sound
DUPLICATES = 8  # keys said twice that are replaced before we fall back on what is known


def load(spec: wire.Json | wire.Pattern, schemas: Sequence[str], tree: Tree) -> "Grammar":
    """The grammar of a hole. Raises ValueError with one sentence where nothing can stand there, or too much."""
    if isinstance(spec, wire.Pattern):
        return Grammar(Language(Regular(regex.matching(spec.regex, whole=True)), _no_rule), tree)
    return Grammar(_json(spec, schemas), tree, spec)


def _no_rule(name: object) -> "Regular":
    raise KeyError(name)


def _json(spec: wire.Json, schemas: Sequence[str]) -> Language:
    if spec.schema is None:
        return json.language(spec)
    if spec.schema >= len(schemas):
        raise wire.Impossible("The grammar names a schema that the job does not have.")
    from caesura.engine.grammar import schema
    from caesura.schemas import Schema

    return schema.language(spec, Schema.read(schemas[spec.schema]))


class Grammar:
    """A language over a vocabulary. A `State` is all that is possible behind some text of the hole.

    Raises wire.Impossible where no text fits. The text of a hole is sound when no object in it has a key twice.
    """

    def __init__(self, language: Language, tree: Tree, spec: wire.Json | None = None) -> None:
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
        self._allowed: dict[GrammarState, Tensor] = {}
        self._fills: dict[tuple[bytes, int], list[int] | None] = {}
        if not self._beginning or self.shortest(self.start(b"")) is None:
            raise wire.Impossible("Nothing can stand here that the schema, or the text around it, allows.")

    def __repr__(self) -> str:
        return f"<Grammar {self._automaton} {self.graph}>"

    @property
    def nbytes(self) -> int:
        """What it takes with all that is known of it so far."""
        return self.graph.nbytes + sum(bias.nbytes for bias in self._allowed.values())

    def _accepts(self, config: Configuration) -> bool:
        return any(map(self._automaton.ends, self._automaton.read([config], self._then.encode())))

    def _leads(self, number: int) -> bool:
        """Whether a whole text can be reached from here."""
        if not self._then:
            return bool(self.graph.lengths[number] < NEVER)
        if number not in self._open:
            self._open[number] = self.shortest((number,)) is not None
        return self._open[number]

    # Left to right

    def start(self, forced: bytes) -> GrammarState:
        """Before the hole, where it has to write `forced` first (canvas.heal)."""
        if forced not in self._starts:
            configs = [self._automaton.behind(forced, c) if forced else c for c in sorted(self._beginning)]
            self._starts[forced] = tuple(sorted(map(self.graph.number, configs)))
        return self._starts[forced]

    def after(self, state: GrammarState, token: int) -> GrammarState:
        """Behind one more token; nothing is possible where it must not stand."""
        return tuple(filter(self._leads, self.graph.after(state, token)))

    def ends(self, state: GrammarState) -> bool:
        """Whether the hole may end here."""
        return any(map(self.graph.ends, state))

    def bias(self, state: GrammarState, width: int) -> Tensor:
        """[width]: 0 where a token may come next, else -inf."""
        bias = self._allowed.get(state)
        if bias is None or len(bias) != width:
            bias = torch.full((width,), -torch.inf, dtype=torch.bfloat16)
            bias[torch.from_numpy(self.graph.tokens(state, self._leads))] = 0.0
            if len(self._allowed) >= BIASES:
                self._allowed.clear()
            self._allowed[state] = bias
        return bias.float()

    def shortest(self, state: GrammarState) -> bytes | None:
        """The shortest text that ends the hole from here."""
        configs = [self.graph.configs[number] for number in state]
        if self._then:
            return self._automaton.shortest_before(configs, self._then.encode())
        best = min(configs, key=self._automaton.length)
        return None if self._automaton.length(best) >= NEVER else self._automaton.shortest(best)

    def simplest(self, forced: bytes) -> bytes:
        """A short text of the whole hole, behind `forced`."""
        shortest = self.closing(self.start(b""), b"")
        if not self.sound(shortest, whole=True):
            raise wire.Impossible("What can stand here would need more keys than fit; ask for fewer.")
        return forced + shortest

    def closing(self, state: GrammarState, own: bytes) -> bytes:
        """A short text that ends the hole behind its `own` text so far. The shortest may say a key twice."""
        shortest = self.shortest(state)
        assert shortest is not None, "a grammar leads to an end from everywhere"
        if self.sound(own + shortest, whole=True):
            return shortest
        null, draw = len(self._pieces), torch.Generator().manual_seed(0)
        logp = -1 - 3 * torch.rand(SIMPLE, null + 1, generator=draw)
        logp[:, null] = 0.0
        fill = Trellis(self.graph, state, Gains(logp, self.graph.walker.sets), [None] * SIMPLE, [], null)
        tokens = self._sound_fill(fill, 0, own, on=True)
        return shortest if tokens is None else b"".join(self._pieces[t] for t in tokens if t != null)

    def sound(self, raw: bytes, *, whole: bool = False) -> bool:
        """Whether no object has a key twice, as far as the hole's text goes; `whole`: with what stands behind it."""
        if not self._json:
            return True
        text = self._typed + raw.decode("utf-8", errors="ignore") + (self._then if whole else "")
        return json.distinct_keys(text, members=self._members)

    def to_taken(self, raw: bytes) -> list[str]:
        """What each taken key still has that begins like the key which is open at the end of the hole's text. With
        nothing left that key is taken so far: it has to go on."""
        begun = json.open_key(self._typed + raw.decode(errors="ignore")) if self.taken else None
        return [] if begun is None else [key[len(begun) :] for key in self.taken if key.startswith(begun)]

    # A whole canvas

    def best(
        self,
        state: GrammarState,
        logp: Tensor,
        held: Sequence[int | None],
        known: Sequence[int],
        skip: int,
        null: int | None,
    ) -> list[int] | None:
        """The most probable whole fill: a token for every slot, the null where it writes nothing.

        `logp` is [slots, width]; `held` are the decided slots' tokens; `known` is a fill that agrees with them, or
        empty. The first `skip` bytes are not the hole's own. None where nothing whole fits so many slots.
        """
        fill = Trellis(self.graph, state, Gains(logp, self.graph.walker.sets), held, known, null)
        return self._sound_fill(fill, skip) or list(known) or None

    def any(self, forced: bytes, slots: int, width: int) -> list[int] | None:
        """Some fill of exactly so many tokens, out of `width`, behind `forced`."""
        if (forced, slots) not in self._fills:
            gains = Gains(torch.zeros(slots, width), self.graph.walker.sets)
            fill = Trellis(self.graph, self.start(forced), gains, [None] * slots, [], None)
            self._fills[forced, slots] = self._sound_fill(fill, len(forced))
        return self._fills[forced, slots]

    def _sound_fill(self, fill: Trellis, skip: int, own: bytes = b"", *, on: bool = False) -> list[int] | None:
        """The best fill whose keys differ, behind the `own` text so far; None where that is not found soon. `on`: what
        ends a key a second time is not said again, else it would be in the next slot."""
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
        """The slot by which a key stands twice."""
        raw = b"".join(written)[skip:]
        if self.sound(own + raw, whole=True):
            return None
        end = 0
        for slot, piece in enumerate(written):
            end += len(piece)
            if piece and not self.sound(own + raw[: max(0, end - skip)]):
                return slot
        return len(written) - 1
