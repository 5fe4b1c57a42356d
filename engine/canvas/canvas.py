"""One row being denoised: locked tail of the prefix, slots with fixed text between holes, locked head of the suffix."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from caesura.engine import length
from caesura.engine.canvas.pieces import by_token, cut_character, spans
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.grammar.constraint import Grammar
from caesura.engine.grammar.solve import GrammarState
from caesura.engine.model import MAX_ROWS
from caesura.engine.scores import Allowed, Scores, told
from caesura.wire import Fill

NOTHING = b"\xff"  # in no UTF-8 text: the place of an open slot that shows nothing
NEAR = 1e-3  # nats below a whole fill's token within which others are banned too: cooling could make them equal
WORTH_A_ROW = 0.05  # joint probability of a drafted chain, below which its next token is not worth a row


def unknown(at: int, allowed: Allowed) -> None:
    """No slot's best token is known."""


def likeliest(scores: Scores, at: int, allowed: Allowed) -> int:
    """The likeliest token of a row out of some."""
    (best,) = told(scores.part(at, at + 1).best(1, [allowed]))
    return int(best.ids[0, 0])


@dataclass(eq=False)
class Slot:
    """One position of a hole. `token` is decided (None while open); `draft` is the best guess with its probability;
    `shown` is a warm start's token, shown to the first forward instead of noise; `dropped` are the tokens that a
    sampler took back."""

    hole: int
    token: int | None = None
    shown: int | None = None
    draft: int | None = None
    prob: float = 0.0
    p_null: float = 0.0
    locked: bool = False
    dropped: frozenset[int] = frozenset()

    def take_back(self) -> None:
        """Open the slot again; its token is still the best guess."""
        assert self.token is not None
        self.dropped |= {self.token}
        self.draft, self.token = self.token, None

    def held(self, noise: int) -> int:
        """The row's token: the decided one, else the shown one, else `noise`."""
        if self.token is not None:
            return self.token
        return noise if self.shown is None else self.shown


@dataclass
class HoleState:
    """A hole's kind and budget; `forced`, the bytes its text must begin with (token healing); and its grammar, with the
    state before those bytes and the shortest fill in tokens."""

    one_line: bool
    max_tokens: int
    forced: bytes = b""
    grammar: Grammar | None = None
    state: GrammarState = ()
    shortest: list[int] = field(default_factory=list)
    last: bool = False  # nothing follows it, so the model may end the text

    @property
    def block(self) -> bool:
        """True if it may have several lines, by no grammar."""
        return not self.one_line and self.grammar is None


@dataclass
class Canvas:
    """Rows in order: `tail` ids, `layout` (slots, and the ids of fixed rows), `head` ids. `expanded` counts the slots
    that became two."""

    tail: list[int]
    layout: list[Slot | int]
    head: list[int]
    holes: list[HoleState]
    vocabulary: Vocabulary
    expanded: int = 0
    slots: list[Slot] = field(init=False)

    def __post_init__(self) -> None:
        self._index()

    def __repr__(self) -> str:
        return f"<Canvas {len(self.open())} of {len(self.slots)} open {[f.text for f in self.fills()]}>"

    def _index(self) -> None:
        self.slots = [s for s in self.layout if isinstance(s, Slot)]

    def open(self) -> list[Slot]:
        return [s for s in self.slots if s.token is None]

    def ids(self, noise: Sequence[int]) -> list[int]:
        """The tokens of all rows. `noise` has a token for every slot; open slots take theirs."""
        draw = iter(noise)
        middle = [row if isinstance(row, int) else row.held(next(draw)) for row in self.layout]
        return [*self.tail, *middle, *self.head]

    def resized(self, slots: Sequence[int]) -> "Canvas":
        """A copy with that many slots in each hole, at most the hole's budget, all open."""
        layout, seen = list[Slot | int](), set[int]()
        for row in self.layout:
            if isinstance(row, int):
                layout.append(row)
            elif row.hole not in seen:
                seen.add(row.hole)
                most = self.holes[row.hole].max_tokens
                layout += [Slot(row.hole) for _ in range(min(slots[row.hole], most))]
        return Canvas(self.tail, layout, self.head, self.holes, self.vocabulary)

    def copied(self) -> "Canvas":
        """A copy with slots of its own."""
        layout = [replace(row) if isinstance(row, Slot) else row for row in self.layout]
        return replace(self, layout=layout)

    def slot_rows(self) -> list[int]:
        """Row of every slot, in order."""
        return [len(self.tail) + i for i, row in enumerate(self.layout) if isinstance(row, Slot)]

    @property
    def finite(self) -> bool:
        """False if a forward gave a slot NaN."""
        return all(math.isfinite(slot.prob) for slot in self.slots)

    @property
    def rows(self) -> int:
        return len(self.tail) + len(self.layout) + len(self.head)

    def pins(self) -> list[tuple[int, int]]:
        """Row and id of each fixed token after the first hole: the text between holes, and the suffix head."""
        fixed = [*self.layout, *self.head]
        return [(len(self.tail) + i, row) for i, row in enumerate(fixed) if isinstance(row, int)]

    def seams(self, count: int) -> list[tuple[int, int]]:
        """Row and id of the first `count` fixed tokens after each hole."""
        found, left = list[tuple[int, int]](), 0
        for at, row in enumerate([*self.layout, *self.head], len(self.tail)):
            if isinstance(row, Slot):
                left = count
            elif left:
                found.append((at, row))
                left -= 1
        return found

    def of_hole(self, number: int) -> list[Slot]:
        return [s for s in self.slots if s.hole == number]

    def fixed_after(self, number: int) -> list[int]:
        """Ids of the fixed tokens after a hole: the text up to the next hole, or the suffix head."""
        if number + 1 == len(self.holes):
            return self.head
        last = max(at for at, row in enumerate(self.layout) if isinstance(row, Slot) and row.hole == number)
        fixed = itertools.takewhile(lambda row: not isinstance(row, Slot), self.layout[last + 1 :])
        return [row for row in fixed if isinstance(row, int)]

    def guess(self, number: int) -> list[int]:
        """The best tokens of a hole from the left: the first one, and more while their joint probability is worth a
        row each in a verifying pass."""
        tokens: list[int] = []
        together = 1.0
        for slot in self.of_hole(number):
            token = slot.draft if slot.token is None else slot.token
            together *= slot.prob if slot.token is None else 1.0
            if token is None or (tokens and together < WORTH_A_ROW):
                break
            tokens.append(token)
        return tokens

    def pending(self, number: int) -> tuple[Slot | None, bytes]:
        """The leftmost open slot of a hole, and the part of the forced text that is still missing there."""
        forced = self.holes[number].forced
        for slot in self.of_hole(number):
            if slot.token is None:
                return slot, forced
            forced = forced[len(self.piece(slot.token)) :]
        return None, forced

    def draft_shortest(self) -> bool:
        """Draft the shortest whole fill for every hole with a grammar. False if a grammar has no fill of that many
        slots. From then on the drafts and decided tokens of such a hole always form a whole fill."""
        for number, hole in enumerate(self.holes):
            slots = self.of_hole(number)
            tokens = self.simplest(number, len(slots)) if hole.grammar else [slot.draft for slot in slots]
            if tokens is None:
                return False
            for slot, token in zip(slots, tokens, strict=True):
                slot.draft = token
        return True

    def simplest(self, number: int, slots: int) -> list[int] | None:
        """A whole fill of exactly `slots` tokens: the shortest padded with nulls, or without a null token any fill of
        that size. None if there is none."""
        hole, null = self.holes[number], self.vocabulary.null_id
        assert hole.grammar is not None
        if null is not None:
            return hole.shortest + [null] * (slots - len(hole.shortest)) if len(hole.shortest) <= slots else None
        known = hole.shortest if len(hole.shortest) == slots else []
        return known or hole.grammar.any(hole.forced, slots, self.vocabulary.size)

    def unhealed(self) -> dict[int, Slot]:
        """The leftmost open slot of each hole whose forced text is not complete."""
        pending = map(self.pending, range(len(self.holes)))
        return {slot.hole: slot for slot, forced in pending if slot and forced}

    def revisable(self) -> list[bool]:
        """True for each accepted slot whose token a sampler may take back: its hole has no grammar, it is not part of
        a healed start, and it was not taken back before."""
        found = list[bool]()
        for number, hole in enumerate(self.holes):
            forced = hole.forced
            for slot in self.of_hole(number):
                free = slot.token is not None and slot.token not in slot.dropped
                found.append(free and not forced and hole.grammar is None)
                forced = forced[len(self.piece(slot.token)) :] if slot.token is not None else forced
        return found

    def piece(self, token: int) -> bytes:
        return self.vocabulary.pieces[token] if token < len(self.vocabulary.pieces) else b""

    def constrain(self, scores: Scores) -> Scores:
        """Scores of the slots, without every token that must not stand in a slot.

        The mask token and specials are banned, and line breaks in a one-line hole. A healed hole begins with its forced
        text, over as many slots as that takes. In a hole with a grammar every token likelier than the best whole fill's
        is banned, so the best tokens of its slots are that fill."""
        constrained, row = scores.only(self.allowed(partial(likeliest, scores))), 0
        for number, hole in enumerate(self.holes):
            slots = self.of_hole(number)
            if hole.grammar is not None and slots:
                constrained = constrained.over(row, self._whole(number, slots, scores.part(row, row + len(slots))))
            row += len(slots)
        return constrained

    def allowed(self, best: Callable[[int, Allowed], int | None] = unknown) -> list[Allowed]:
        """The tokens that `constrain` allows in each slot, grammars aside. `best` returns a slot's best token out of
        some, or None if unknown: if a forced text takes several tokens, the next slot's set depends on it."""
        found = list[Allowed]()
        for number, hole in enumerate(self.holes):
            slots, forced = self.of_hole(number), hole.forced
            of_hole = [self.vocabulary.allowed(b"", hole.one_line, self.room(number) > 0)] * len(slots)
            if hole.last:  # locked text must not be cut off
                free = max((at + 1 for at, slot in enumerate(slots) if slot.locked), default=0)
                of_hole[free:] = [self.vocabulary.may_end] * (len(slots) - free)
            for at, slot in enumerate(slots):
                if not forced or hole.grammar is not None:
                    break
                token = slot.token
                if token is None:
                    of_hole[at] = self.vocabulary.allowed(forced, hole.one_line)
                    token = best(len(found) + at, of_hole[at])
                if token is None:
                    break
                forced = forced[len(self.piece(token)) :]
            found += of_hole
        return found

    @property
    def ruled(self) -> bool:
        """True if any hole has a grammar."""
        return any(hole.grammar is not None for hole in self.holes)

    def _whole(self, number: int, slots: Sequence[Slot], scores: Scores) -> Scores:
        hole, after = self.holes[number], b"".join(map(self.piece, self.fixed_after(number)))
        assert hole.grammar is not None
        scores = self.vocabulary.ending(scores, after, hole.one_line)
        held = [slot.token for slot in slots]
        known = [slot.draft if slot.token is None else slot.token for slot in slots]
        assert None not in known, "`draft_shortest` has drafted"
        best = hole.grammar.best(
            hole.state,
            scores,
            held,
            [token for token in known if token is not None],
            len(hole.forced),
            self.vocabulary.null_id,
        )
        assert best is not None, "what is known is a whole fill"
        return scores.bounded(best, NEAR)

    def whole(self) -> bool:
        """True if the best tokens of every hole begin with its forced text and go on. Too few slots cannot."""
        texts = zip(map(self._bytes, range(len(self.holes))), self.holes, strict=True)
        return all(hole.grammar or (text.startswith(hole.forced) and text != hole.forced) for text, hole in texts)

    def _bytes(self, number: int) -> bytes:
        return b"".join(map(self.piece, self._tokens(number)))

    def grow(self, number: int) -> None:
        """Double the slots of a hole, within its budget, and open them all. Call `draft_shortest` afterwards."""
        wanted = min(2 * len(self.of_hole(number)), self.holes[number].max_tokens)
        first = next(i for i, row in enumerate(self.layout) if isinstance(row, Slot) and row.hole == number)
        rest = [row for row in self.layout[first:] if isinstance(row, int) or row.hole != number]
        self.layout = [*self.layout[:first], *(Slot(number) for _ in range(wanted)), *rest]
        self._index()

    def expands(self, number: int) -> bool:
        """True if the model lengthens a hole by its expand token. A grammar knows whole fills only, so it bans it."""
        return self.vocabulary.expand_id is not None and self.holes[number].grammar is None

    def begun(self, number: int) -> bool:
        """True if text of a hole may lock. Where slots expand, the first text must be decided: a locked span at the
        start says that nothing comes before it, and an open slot there shows nothing while it expands."""
        if not self.expands(number):
            return True
        decided = itertools.takewhile(lambda token: token is not None, (s.token for s in self.of_hole(number)))
        size = sum(len(self.piece(token)) for token in decided if token is not None)
        return size > len(self.holes[number].forced)

    def room(self, number: int) -> int:
        """How many slots of a hole may become two now: the hole, the canvas and the expansions so far bound them."""
        if not self.expands(number):
            return 0
        of_hole = self.holes[number].max_tokens - len(self.of_hole(number))
        left = sum(hole.max_tokens for hole in self.holes) - self.expanded
        return max(0, min(of_hole, left, MAX_ROWS - len(self.layout)))

    def expand(self) -> None:
        """Put two open slots where one holds the expand token; only one if the hole has no room."""
        for slot in [s for s in self.slots if s.token is not None and s.token == self.vocabulary.expand_id]:
            at, more = self.layout.index(slot), min(1, self.room(slot.hole))
            self.layout[at : at + 1] = [Slot(slot.hole) for _ in range(1 + more)]
            self.expanded += more
            self._index()

    def shrink(self) -> None:
        """Delete the rows of accepted nulls, so that the remaining tokens are contiguous, as in training."""
        null = self.vocabulary.null_id
        self.layout = [row for row in self.layout if isinstance(row, int) or row.token is None or row.token != null]
        self._index()

    def fills(self) -> tuple[Fill, ...]:
        """The state of every hole as text: accepted tokens, drafts of open slots, locked spans in code points."""
        return tuple(self._fill(number) for number in range(len(self.holes)))

    def written(self) -> int:
        """Number of tokens in the fills."""
        return sum(bool(self.piece(token)) for number in range(len(self.holes)) for token in self._tokens(number))

    def _tokens(self, number: int) -> Iterator[int]:
        """The best tokens of a hole, up to the end of the text."""
        for slot in self.of_hole(number):
            token = slot.draft if slot.token is None else slot.token
            if token in self.vocabulary.ends:
                return
            if token is not None:
                yield token

    def _fill(self, number: int) -> Fill:
        slots = self.of_hole(number)
        skip = len(self.holes[number].forced)
        parts, flags, pieces = bytearray(), bytearray(), list[tuple[bytes, float]]()
        for slot in slots:
            token = slot.token if slot.token is not None else slot.draft
            if token in self.vocabulary.ends:
                break  # the text ends here; later slots hold no text
            piece = b"" if token is None else self.piece(token)
            pieces.append((piece, slot.prob))
            piece = piece or (b"" if slot.locked or len(parts) < skip or cut_character(parts) else NOTHING)
            parts += piece
            flags += bytes([slot.locked]) * len(piece)
        probs = [probability for piece, probability in pieces if piece]
        sure = math.exp(length.mean(length.logs(probs or [0.0])))
        still_open = sum(s.token is None for s in slots)
        if not parts.startswith(self.holes[number].forced):
            return Fill(text="", open=still_open)
        text, locked = spans(bytes(parts[skip:]), bytes(flags[skip:]))
        return Fill(text, locked, min(1.0, sure), still_open, by_token(pieces, skip))
