"""Segments -> ids, locks, slots; ids -> text. A canvas is one row being denoised: locked tail of the prefix, slots
(and fixed text between holes), locked head of the suffix.
"""

import bisect
import codecs
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from caesura.engine.canvas.healing import heal
from caesura.engine.canvas.prompts import prompt
from caesura.engine.grammar.constraint import Grammar, load
from caesura.engine.grammar.solve import State
from caesura.engine.grammar.tokens import Tree
from caesura.engine.models import Model
from caesura.engine.noise import Uniform
from caesura.recent import Recent
from caesura.wire import MAX_SLOTS, Fill, Hole, Impossible, Json, Neighbour, Pattern, Text

NOTHING = b"\xff"  # in no UTF-8 text: the place of an open slot that shows nothing
MAX_ROWS = 512  # of a canvas, and of all canvases of a step together
BIASES = 8 << 20  # bytes of biases kept
GRAMMARS = 24 << 20  # bytes of grammars kept, with what is known of them
NEAR = 1e-3  # nats: what is nearer to the best token of a slot could become its equal when it is cooled
WORTH_A_ROW = 0.05  # joint probability of a drafted chain
CROSSED = 16  # bytes of what stands behind a hole that a token may go on into
SUFFIXES = 32  # texts after a hole whose crossing tokens are kept, 0.1 MiB each: a job has one for each hole


class Vocabulary:
    """Which tokens may stand where, as additive float biases over the columns of the logits (0 or -inf)."""

    def __init__(self, model: Model) -> None:
        self.pieces, self._encode = model.tokenizer.pieces, model.tokenizer.encode
        self.null_id, self.ends, self.size = model.null_id, model.ends, model.width
        self._sorted = sorted((piece, number) for number, piece in enumerate(self.pieces) if piece)
        self._numbers = dict(self._sorted)
        self._crossings = lru_cache(maxsize=SUFFIXES)(self._crossing)
        # Uniform noise is decided where the model is, everything else on the CPU (denoise.py).
        self.device = model.device if isinstance(model.noise, Uniform) else "cpu"
        self._nothing = torch.full((self.size,), -torch.inf, device=self.device)
        self._any = self._but([number for _, number in self._sorted], self._nothing)
        breaks = [number for piece, number in self._sorted if not one_line(piece)]
        self._any_of_line = self._but(breaks, self._any, -torch.inf)
        self.anything = torch.zeros_like(self._nothing)
        for bias in (self._any, self._any_of_line):
            if self.null_id is not None:
                bias[self.null_id] = 0.0
        self.allowed = lru_cache(maxsize=max(8, min(512, BIASES // (4 * self.size))))(self._allowed)
        self._grammars = Recent[tuple[Json | Pattern, tuple[str, ...]], Grammar | str](GRAMMARS, _grammar_bytes)

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.pieces)

    def grammar(self, spec: Json | Pattern, schemas: tuple[str, ...]) -> Grammar:
        """The latest are kept, or why there is none. Raises Impossible with one sentence where nothing can stand there,
        or too much."""
        found = self._grammars.get((spec, schemas))
        if found is None:
            try:
                found = load(spec, schemas, self.tree)
            except Impossible as error:
                found = str(error)
            self._grammars.put((spec, schemas), found)
        if isinstance(found, str):
            raise Impossible(found)
        return found

    def spelled(self, text: bytes) -> list[int]:
        """Some text in tokens, each the one that is found by its bytes."""
        return [self._numbers[self.pieces[token]] for token in self._encode(text.decode())]

    def crossing(self, behind: bytes, of_line: bool) -> list[tuple[int, int]]:
        """Tokens that end a text and begin what stands `behind` it, such as `":` before `: 1` or `)` and a line break,
        and how many bytes of each are the text's."""
        return self._crossings(behind[:CROSSED], of_line)

    def _crossing(self, behind: bytes, of_line: bool) -> list[tuple[int, int]]:
        if not behind:
            return []
        blank = behind[:1].isspace()  # more blanks before it would be no end of a text
        return [
            (number, at)
            for piece, number in self._sorted
            if behind[:1] in piece[1:]
            for at in range(1, len(piece))
            if behind.startswith(piece[at:]) and is_whole(piece[at:])
            if not (of_line and not one_line(piece[:at])) and not (blank and piece[:at].isspace())
        ]

    def ending(self, logits: Tensor, behind: bytes, of_line: bool) -> Tensor:
        """Logits [slots, width] for a hole that has to end before what stands `behind` it: the chance of a token that
        goes on into that is added to the token of its part before it."""
        cuts = [(n, self._numbers.get(self.pieces[n][:at])) for n, at in self.crossing(behind, of_line)]
        across = torch.tensor([cut for cut in cuts if cut[1] is not None], dtype=torch.int64, device=logits.device)
        if not len(across):
            return logits
        chances = logits.softmax(-1)
        return chances.index_add(1, across[:, 1], chances[:, across[:, 0]]).log()

    @cached_property
    def line_ends(self) -> Tensor:
        """Ids of tokens that begin with a line break, and of the end-of-text specials."""
        return torch.tensor([i for i, p in enumerate(self.pieces) if p[:1] in (b"\n", b"\r", b"")])

    @cached_property
    def stops(self) -> Tensor:
        """Ids of the tokens with which a text ends."""
        return torch.tensor(sorted(self.ends), dtype=torch.int64, device=self.anything.device)

    @cached_property
    def may_end(self) -> Tensor:
        """Of a hole with nothing behind it: as `allowed`, and the text may end."""
        return self._but(sorted(self.ends), self._any)

    def _allowed(self, pending: bytes, of_line: bool) -> Tensor:
        """Bias [size] for a slot that still has to produce `pending` first; `of_line` forbids line breaks behind it.
        Indentation that is there already is not deepened."""
        if not pending:
            return self._any_of_line if of_line else self._any
        fits = [n for k in range(1, len(pending)) if (n := self._numbers.get(pending[:k])) is not None]
        indented = pending.endswith((b" ", b"\t"))
        for piece, number in itertools.islice(self._sorted, bisect.bisect_left(self._sorted, (pending, -1)), None):
            if not piece.startswith(pending):
                break
            rest = piece[len(pending) :]
            if not (of_line and not one_line(rest)) and not (indented and rest[:1] in (b" ", b"\t")):
                fits.append(number)
        return self._but(fits, self._nothing)

    def _but(self, tokens: Sequence[int], bias: Tensor, value: float = 0.0) -> Tensor:
        """The bias with another value for some tokens."""
        return bias.index_fill(0, torch.tensor(tokens, dtype=torch.int64, device=bias.device), value)


def _grammar_bytes(key: tuple[Json | Pattern, tuple[str, ...]], found: Grammar | str) -> int:
    """Those of its schemas among them."""
    return sum(map(len, key[1])) + (len(found) if isinstance(found, str) else found.nbytes)


def one_line(piece: bytes) -> bool:
    return b"\n" not in piece and b"\r" not in piece


def is_whole(raw: bytes) -> bool:
    """Whether no character is cut."""
    return raw.decode("utf-8", errors="ignore").encode() == raw


@dataclass(eq=False)
class Slot:
    """One position of a hole. `token` is decided (None while open); `draft` is the best guess with its probability;
    `shown` is a warm start's token, shown to the first forward in the place of noise."""

    hole: int
    token: int | None = None
    shown: int | None = None
    draft: int | None = None
    prob: float = 0.0
    p_null: float = 0.0
    locked: bool = False

    def held(self, noise: int) -> int:
        """What the row holds; an open slot takes the noise."""
        if self.token is not None:
            return self.token
        return noise if self.shown is None else self.shown


@dataclass
class HoleState:
    """A hole's kind and budget, what its text has to begin with (`forced`, from token healing), and its grammar with
    the state before that text, and the shortest fill."""

    one_line: bool
    max_tokens: int
    forced: bytes = b""
    grammar: Grammar | None = None
    state: State = ()
    shortest: list[int] = field(default_factory=list)
    last: bool = False  # nothing stands behind it: the model may end the text


@dataclass
class Canvas:
    """tail ids, then slots and fixed ids in order, then head ids. `layout` holds a slot, or the id of a fixed row."""

    tail: list[int]
    layout: list[Slot | int]
    head: list[int]
    holes: list[HoleState]
    vocabulary: Vocabulary
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
        """The row to denoise; `noise` has a token for every slot, which the open ones take."""
        draw = iter(noise)
        middle = [row if isinstance(row, int) else row.held(next(draw)) for row in self.layout]
        return [*self.tail, *middle, *self.head]

    def resized(self, slots: Sequence[int]) -> "Canvas":
        """The same canvas with that many slots in each hole, as far as its budget goes, all open."""
        layout, seen = list[Slot | int](), set[int]()
        for row in self.layout:
            if isinstance(row, int):
                layout.append(row)
            elif row.hole not in seen:
                seen.add(row.hole)
                most = self.holes[row.hole].max_tokens
                layout += [Slot(row.hole) for _ in range(min(slots[row.hole], most))]
        return Canvas(self.tail, layout, self.head, self.holes, self.vocabulary)

    def slot_rows(self) -> list[int]:
        """Row of every slot, in order."""
        return [len(self.tail) + i for i, row in enumerate(self.layout) if isinstance(row, Slot)]

    @property
    def rows(self) -> int:
        return len(self.tail) + len(self.layout) + len(self.head)

    def pins(self) -> list[tuple[int, int]]:
        """Row and id of all that is fixed behind the first hole: text between holes, and the suffix head."""
        fixed = [*self.layout, *self.head]
        return [(len(self.tail) + i, row) for i, row in enumerate(fixed) if isinstance(row, int)]

    def of_hole(self, number: int) -> list[Slot]:
        return [s for s in self.slots if s.hole == number]

    def behind(self, number: int) -> list[int]:
        """Ids of what is fixed behind a hole: the text up to the next one, or the suffix head."""
        if number + 1 == len(self.holes):
            return self.head
        last = max(at for at, row in enumerate(self.layout) if isinstance(row, Slot) and row.hole == number)
        fixed = itertools.takewhile(lambda row: not isinstance(row, Slot), self.layout[last + 1 :])
        return [row for row in fixed if isinstance(row, int)]

    def guess(self, number: int) -> list[int]:
        """The best known tokens of a hole from its left, as long as all of them together are likely enough to be worth
        a row each in a verifying pass; the first one always."""
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
        """The leftmost open slot of a hole, and what of the forced text is still to be produced there."""
        forced = self.holes[number].forced
        for slot in self.of_hole(number):
            if slot.token is None:
                return slot, forced
            forced = forced[len(self.piece(slot.token)) :]
        return None, forced

    def begin(self) -> bool:
        """Draft a whole fill, the shortest, for every hole with a grammar; false where so many slots have none. From
        then on the drafts and the decided tokens together are such a fill."""
        for number, hole in enumerate(self.holes):
            slots = self.of_hole(number)
            tokens = self.simplest(number, len(slots)) if hole.grammar else [slot.draft for slot in slots]
            if tokens is None:
                return False
            for slot, token in zip(slots, tokens, strict=True):
                slot.draft = token
        return True

    def simplest(self, number: int, slots: int) -> list[int] | None:
        """A whole fill of so many slots: the shortest and nulls, or without a null any; None where there is none."""
        hole, null = self.holes[number], self.vocabulary.null_id
        assert hole.grammar is not None
        if null is not None:
            return hole.shortest + [null] * (slots - len(hole.shortest)) if len(hole.shortest) <= slots else None
        known = hole.shortest if len(hole.shortest) == slots else []
        return known or hole.grammar.any(hole.forced, slots, self.vocabulary.size)

    def unhealed(self) -> dict[int, Slot]:
        """By hole, the leftmost open slot where forced text is still to be produced."""
        pending = map(self.pending, range(len(self.holes)))
        return {slot.hole: slot for slot, forced in pending if slot and forced}

    def piece(self, token: int) -> bytes:
        return self.vocabulary.pieces[token] if token < len(self.vocabulary.pieces) else b""

    def constrain(self, logits: Tensor) -> Tensor:
        """Logits [slots, width] with -inf where a token must not stand: no mask token, no specials, one-line holes stay
        so, and a healed hole begins with its forced text, which may take the best tokens of several slots. With a
        grammar the best tokens are those of the best whole fill: whatever is likelier has to go."""
        constrained = torch.empty_like(logits)
        for at, bias in enumerate(self.biases(lambda at, bias: int((logits[at] + bias).argmax()))):
            torch.add(logits[at], bias, out=constrained[at])
        row = 0
        for number, hole in enumerate(self.holes):
            slots = self.of_hole(number)
            if hole.grammar is not None:
                constrained[row : row + len(slots)] = self._whole(number, slots, logits[row : row + len(slots)])
            row += len(slots)
        return constrained

    def biases(self, best: Callable[[int, Tensor], int | None]) -> list[Tensor]:
        """What `constrain` adds to the logits of each slot where no grammar rules. `best` is the best token of a slot
        with a bias, on which the next slot's depends where a forced text takes several; None where it is not known."""
        biases = list[Tensor]()
        for number, hole in enumerate(self.holes):
            slots, forced = self.of_hole(number), hole.forced
            of_hole = [self.vocabulary.allowed(b"", hole.one_line)] * len(slots)
            if hole.last:  # what is locked is not to be cut off
                free = max((at + 1 for at, slot in enumerate(slots) if slot.locked), default=0)
                of_hole[free:] = [self.vocabulary.may_end] * (len(slots) - free)
            for at, slot in enumerate(slots):
                if not forced or hole.grammar is not None:
                    break
                token = slot.token
                if token is None:
                    of_hole[at] = self.vocabulary.allowed(forced, hole.one_line)
                    token = best(len(biases) + at, of_hole[at])
                if token is None:
                    break
                forced = forced[len(self.piece(token)) :]
            biases += of_hole
        return biases

    @property
    def ruled(self) -> bool:
        """Whether a grammar has a say in any hole."""
        return any(hole.grammar is not None for hole in self.holes)

    def _whole(self, number: int, slots: Sequence[Slot], logits: Tensor) -> Tensor:
        hole, behind = self.holes[number], b"".join(map(self.piece, self.behind(number)))
        assert hole.grammar is not None
        logits = self.vocabulary.ending(logits, behind, hole.one_line)
        held = [slot.token for slot in slots]
        known = [slot.draft if slot.token is None else slot.token for slot in slots]
        assert None not in known, "`begin` has drafted"
        best = hole.grammar.best(
            hole.state,
            logits.log_softmax(-1),
            held,
            [token for token in known if token is not None],
            len(hole.forced),
            self.vocabulary.null_id,
        )
        tokens = torch.tensor(best, device=logits.device)[:, None]
        level = logits.gather(1, tokens)
        return logits.masked_fill(logits >= level - NEAR, -torch.inf).scatter(1, tokens, level)

    def whole(self) -> bool:
        """Whether the best tokens of every hole begin with its forced text, and add to it: too few slots cannot."""
        texts = zip(map(self._bytes, range(len(self.holes))), self.holes, strict=True)
        return all(hole.grammar or (text.startswith(hole.forced) and text != hole.forced) for text, hole in texts)

    def _bytes(self, number: int) -> bytes:
        return b"".join(map(self.piece, self._tokens(number)))

    def grow(self, number: int) -> None:
        """Double the slots of a hole, within its budget, and open them all. Call `begin` then."""
        wanted = min(2 * len(self.of_hole(number)), self.holes[number].max_tokens)
        first = next(i for i, row in enumerate(self.layout) if isinstance(row, Slot) and row.hole == number)
        rest = [row for row in self.layout[first:] if isinstance(row, int) or row.hole != number]
        self.layout = [*self.layout[:first], *(Slot(number) for _ in range(wanted)), *rest]
        self._index()

    def shrink(self) -> None:
        """Delete rows of accepted nulls: what is left is contiguous, as it was in training."""
        null = self.vocabulary.null_id
        self.layout = [row for row in self.layout if isinstance(row, int) or row.token is None or row.token != null]
        self._index()

    def fills(self) -> tuple[Fill, ...]:
        """The state of every hole as text: accepted tokens, drafts of open slots, locked spans in code points."""
        return tuple(self._fill(number) for number in range(len(self.holes)))

    def written(self) -> int:
        """How many tokens the fills are made of."""
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
                break  # the text ends here; what the canvas holds behind it is nothing
            piece = b"" if token is None else self.piece(token)
            pieces.append((piece, slot.prob))
            piece = piece or (b"" if slot.locked or len(parts) < skip or within(parts) else NOTHING)
            parts += piece
            flags += bytes([slot.locked]) * len(piece)
        probs = [probability for piece, probability in pieces if piece]
        sure = float(torch.tensor(probs or [0.0]).clamp_min(1e-9).log().mean().exp())
        still_open = sum(s.token is None for s in slots)
        if not parts.startswith(self.holes[number].forced):
            return Fill(text="", open=still_open)
        text, locked = spans(bytes(parts[skip:]), bytes(flags[skip:]))
        return Fill(text, locked, min(1.0, sure), still_open, by_token(pieces, skip))


def within(raw: bytes | bytearray) -> bool:
    """Whether UTF-8 ends inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    decoder.decode(bytes(raw[-4:]))
    return bool(decoder.getstate()[0])


def spans(raw: bytes, flags: bytes) -> tuple[str, tuple[tuple[int, int], ...]]:
    """UTF-8 bytes and a flag per byte -> text and the spans of it, in code points, whose bytes are all flagged.

    Incomplete characters are left out: a token may end inside one. Where one that is not flagged stands, text may yet
    come: a span ends there, and none begins at 0 behind it.
    """
    text, found, start, at = raw.decode("utf-8", errors="ignore"), [], None, 0
    for number, character in enumerate(text):
        encoded = character.encode()
        begin = raw.index(encoded, at)
        settled = all(flags[at:begin])
        if start is not None and not settled:
            found.append((start, number))
            start = None
        at = begin + len(encoded)
        whole = all(flags[begin:at]) and (settled or number > 0)
        if whole and start is None:
            start = number
        if not whole and start is not None:
            found.append((start, number))
            start = None
    if start is not None:
        found.append((start, len(text)))
    return text, tuple(found)


def by_token(pieces: Iterable[tuple[bytes, float]], skip: int) -> tuple[tuple[int, float], ...]:
    """Bytes and probability of each token -> its end in the text behind the first `skip` bytes, in code points, and its
    probability. What ends inside a character, or before the text begins, counts with the token behind it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    found, end, last, together = list[tuple[int, float]](), 0, 0, 1.0
    for piece, probability in pieces:
        if not piece:
            continue  # null
        end += len(decoder.decode(piece[skip:]))
        skip = max(0, skip - len(piece))
        together *= min(1.0, probability)
        if end > last and not decoder.getstate()[0]:
            found.append((end, together))
            last, together = end, 1.0
    if end > last:  # the character that the last token begins is not shown
        found.append((end, together))
    return tuple(found)


@dataclass(frozen=True)
class Layout:
    """A job in tokens: the context to prefill, and the canvas behind it."""

    context: list[int]
    canvas: Canvas


def lay(
    model: Model,
    vocabulary: Vocabulary,
    prefix: str,
    suffix: str,
    segments: Sequence[Text | Hole],
    neighbours: Sequence[Neighbour] = (),
    *,
    slots: int,
    name: str | None = None,
    language: str = "",
    schemas: tuple[str, ...] = (),
) -> Layout:
    """Tokenise a job for a model with causal context: what prompts.py shows, in the format of that `name`, and the
    canvas behind it.

    `slots` bounds the open slots of a hole at the start; a canvas that does not end grows. Raises Impossible for a job
    without a hole, with holes too far apart for one canvas, or with a grammar that nothing fits.
    """
    prefix, holes_and_text, suffix = fold(prefix, segments, suffix)
    encode = model.tokenizer.encode
    stable, forced = heal(model.tokenizer, prefix)
    before, layout, holes = prefix, list[Slot | int](), list[HoleState]()
    for index, segment in enumerate(holes_and_text):
        if isinstance(segment, Text):
            fixed, forced = heal(model.tokenizer, segment.text)
            layout += encode(fixed)
            before = segment.text
            continue
        following = "".join(s.text for s in holes_and_text[index + 1 :] if isinstance(s, Text)) + suffix
        hole = HoleState(
            single_line(segment, before, following), segment.max_tokens + len(encode(forced)), forced.encode()
        )
        if segment.grammar is not None:
            rule(vocabulary, hole, segment.grammar, schemas)
        layout += [Slot(len(holes)) for _ in range(max(len(hole.shortest), min(slots, hole.max_tokens)))]
        holes.append(hole)
        forced = ""
    if len(layout) > MAX_ROWS:
        raise Impossible(f"The holes are too far apart: {len(layout)} tokens lie between them, and {MAX_ROWS} fit.")
    shown = prompt(model, stable, suffix, neighbours, name=name, language=language)
    rows = [*shown.opening, *shown.before]
    cut = len(rows) - (min(model.tail, len(shown.before)) or min(model.tail, 1))
    head = shown.head[: model.head]
    if not head and model.ends:  # at the end of a text, a line ends with a break, and all else as the model says
        head = encode("\n") if holes[-1].one_line else []
        holes[-1].last = not head and holes[-1].grammar is None
    return Layout(rows[:cut], Canvas(rows[cut:], layout, head, holes, vocabulary))


def rule(vocabulary: Vocabulary, hole: HoleState, spec: Json | Pattern, schemas: tuple[str, ...]) -> None:
    """Give a hole its grammar, and room for what that needs at least."""
    hole.grammar = vocabulary.grammar(spec, schemas)
    hole.state = hole.grammar.start(hole.forced)
    hole.shortest = vocabulary.spelled(hole.grammar.simplest(hole.forced))
    if len(hole.shortest) > MAX_SLOTS:
        raise Impossible(f"What has to stand here takes {len(hole.shortest)} tokens at least, and {MAX_SLOTS} fit.")
    hole.max_tokens = max(hole.max_tokens, len(hole.shortest))


def fold(prefix: str, segments: Sequence[Text | Hole], suffix: str) -> tuple[str, list[Text | Hole], str]:
    """Fixed text at either end of the segments becomes prefix and suffix, so that holes come first and last; texts that
    touch become one."""
    middle = list(segments)
    while middle and isinstance(first := middle[0], Text):
        prefix += first.text
        del middle[0]
    while middle and isinstance(last := middle[-1], Text):
        suffix = last.text + suffix
        del middle[-1]
    if not middle:
        raise Impossible("The job has no hole to fill.")
    joined: list[Text | Hole] = []
    for segment in middle:
        if joined and isinstance(segment, Text) and isinstance(before := joined[-1], Text):
            joined[-1] = Text(before.text + segment.text)
        else:
            joined.append(segment)
    return prefix, joined, suffix


def single_line(hole: Hole, before: str, after: str) -> bool:
    """Whether a hole ends before a line break. `auto` is a block where an empty line follows an opened one."""
    if hole.kind != "auto":
        return hole.kind != "block"
    line = before.rpartition("\n")[2]
    opener = before.rstrip()[-1:] in (":", "{") and not line.strip()
    return not (opener and after.lstrip(" \t")[:1] in ("\n", "\r", ""))
