"""Segments -> ids, locks, slots; ids -> text. A canvas is one row being denoised: locked tail of the prefix, slots
(and fixed text between holes), locked head of the suffix. Token healing happens here, at both ends.
"""

import bisect
import codecs
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from caesura.engine.models import Model
from caesura.engine.prompts import prompt
from caesura.wire import Fill, Hole, Neighbour, Text

# The last pre-token of a prefix by GPT-2's pattern: a cursor inside it changes how the whole of it is tokenised.
# An apostrophe that opens its run binds the letters behind it; blanks in front belong to it unless they end in a space.
_CORE = r"(?:(?<![^\w\s])(?<![_ ])')?[^\W\d_]+|(?:[^\s\w]|_)+"
_LAST_PIECE = re.compile(rf"(?:(?:\s+(?<! )| )?(?:{_CORE})|\d|\s+)\Z")
HEALED = 48  # code points; a longer last piece (a run of blanks) is only healed from its end
MAX_ROWS = 512  # of a canvas, from its first hole to its last
WORTH_A_ROW = 0.05  # joint probability of a drafted chain
TAIL, HEAD = 4, 12  # rows, as in training/examples.py


def heal(prefix: str) -> tuple[str, str]:
    """Split a prefix into what tokenises the same whatever follows, and the rest, which the fill has to begin with.

    Byte-level BPE never merges across pre-tokens, so cutting before the last one is safe.
    """
    match = _LAST_PIECE.search(prefix[-HEALED:])
    piece = match.group() if match else ""
    numerals = [i for i, character in enumerate(piece) if unicodedata.category(character)[0] == "N"]
    if numerals:  # a numeral is a piece of its own
        piece = piece[-1:] if numerals[-1] == len(piece) - 1 else piece[numerals[-1] + 1 :]
    cut = len(prefix) - len(piece)
    return prefix[:cut], prefix[cut:]


class Vocabulary:
    """Which tokens may stand where, as additive float biases over the vocabulary (0 or -inf)."""

    def __init__(self, model: Model) -> None:
        self.pieces = model.tokenizer.pieces
        self.null_id = model.null_id
        self.size = len(self.pieces) + (2 if model.null_id is not None else 0)  # with mask and null behind them
        self._sorted = sorted((piece, number) for number, piece in enumerate(self.pieces) if piece)
        self._numbers = dict(self._sorted)
        self._line_breaks = torch.tensor([not one_line(piece) for piece in self.pieces])
        special = torch.tensor([not piece for piece in self.pieces])
        self._any = torch.zeros(len(self.pieces)).masked_fill(special, -torch.inf)
        self._any_of_line = self._any.masked_fill(self._line_breaks, -torch.inf)
        self.allowed = lru_cache(maxsize=512)(self._allowed)

    @cached_property
    def line_ends(self) -> Tensor:
        """Ids of tokens that begin with a line break, and of the end-of-text specials."""
        return torch.tensor([i for i, p in enumerate(self.pieces) if p[:1] in (b"\n", b"\r", b"")])

    def _allowed(self, pending: bytes, of_line: bool) -> Tensor:
        """Bias [vocabulary without specials] for a slot that still has to produce `pending` first; `of_line` forbids
        line breaks behind it. Indentation that is there already is not deepened."""
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
        bias = torch.full((len(self.pieces),), -torch.inf)
        bias[torch.tensor(fits, dtype=torch.int64)] = 0.0
        return bias


def one_line(piece: bytes) -> bool:
    return b"\n" not in piece and b"\r" not in piece


@dataclass(eq=False)
class Slot:
    """One position of a hole. `token` is accepted (None while open); `draft` is the best guess with its probability;
    `shown` is a warm start's token, shown to the first forward in the place of noise."""

    hole: int
    token: int | None = None
    shown: int | None = None
    draft: int | None = None
    prob: float = 0.0
    p_null: float = 0.0
    stable: int = 0  # steps for which a uniform-noise slot has kept its best token
    locked: bool = False

    def held(self, noise: Iterator[int]) -> int:
        """What the row holds; an open slot takes the next noise token."""
        if self.token is not None:
            return self.token
        drawn = next(noise)
        return drawn if self.shown is None else self.shown


@dataclass
class HoleState:
    """A hole's kind and budget, and what its text has to begin with (`forced`, from token healing)."""

    one_line: bool
    max_tokens: int
    forced: bytes = b""


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
        """The row to denoise; open slots take the noise tokens in order."""
        draw = iter(noise)
        middle = [row if isinstance(row, int) else row.held(draw) for row in self.layout]
        return [*self.tail, *middle, *self.head]

    def slot_rows(self) -> list[int]:
        """Row of every slot, in order."""
        return [len(self.tail) + i for i, row in enumerate(self.layout) if isinstance(row, Slot)]

    def of_hole(self, number: int) -> list[Slot]:
        return [s for s in self.slots if s.hole == number]

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

    def unhealed(self) -> dict[int, Slot]:
        """By hole, the leftmost open slot where forced text is still to be produced."""
        pending = map(self.pending, range(len(self.holes)))
        return {slot.hole: slot for slot, forced in pending if slot and forced}

    def piece(self, token: int) -> bytes:
        return self.vocabulary.pieces[token] if token < len(self.vocabulary.pieces) else b""

    def bias(self) -> Tensor:
        """Additive bias [slots, vocabulary with specials]: no mask token, no specials, one-line holes stay so, and the
        leftmost open slot of a healed hole continues the forced text."""
        vocabulary = self.vocabulary
        rows = []
        leftmost = {id(slot): pending for slot, pending in map(self.pending, range(len(self.holes)))}
        for slot in self.slots:
            pending = leftmost.get(id(slot), b"")
            row = vocabulary.allowed(pending, self.holes[slot.hole].one_line)
            extra = torch.full((vocabulary.size - len(vocabulary.pieces),), -torch.inf)
            if len(extra) and not pending:
                extra[-1] = 0.0  # null
            rows.append(torch.cat((row, extra)))
        return torch.stack(rows)

    def grow(self, number: int) -> None:
        """Double the slots of a hole, within its budget, and open them all."""
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

    def _fill(self, number: int) -> Fill:
        slots = self.of_hole(number)
        skip = len(self.holes[number].forced)
        parts, flags, pieces = bytearray(), bytearray(), list[tuple[bytes, float]]()
        for slot in slots:
            token = slot.token if slot.token is not None else slot.draft
            piece = b"" if token is None else self.piece(token)
            parts += piece
            flags += bytes([slot.locked]) * len(piece)
            pieces.append((piece, slot.prob))
        probs = [s.prob for s in slots if self.piece(s.token if s.token is not None else s.draft or 0)]
        sure = float(torch.tensor(probs or [0.0]).clamp_min(1e-9).log().mean().exp())
        still_open = sum(s.token is None for s in slots)
        if not parts.startswith(self.holes[number].forced):
            return Fill(text="", open=still_open)
        text, locked = spans(bytes(parts[skip:]), bytes(flags[skip:]))
        return Fill(text, locked, min(1.0, sure), still_open, by_token(pieces, skip))


def spans(raw: bytes, flags: bytes) -> tuple[str, tuple[tuple[int, int], ...]]:
    """UTF-8 bytes and a flag per byte -> text and the spans of it, in code points, whose bytes are all flagged.

    Incomplete characters are left out: a token may end inside one.
    """
    text, found, start, at = raw.decode("utf-8", errors="ignore"), [], None, 0
    for number, character in enumerate(text):
        encoded = character.encode()
        at = raw.index(encoded, at)
        whole = all(flags[at : at + len(encoded)])
        at += len(encoded)
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
) -> Layout:
    """Tokenise a job for a model with causal context: what prompts.py shows, and the canvas behind it.

    `slots` bounds the open slots of a hole at the start; a canvas that does not end grows. Raises ValueError for a job
    without a hole, or with holes too far apart for one canvas.
    """
    prefix, holes_and_text, suffix = fold(prefix, segments, suffix)
    encode = model.tokenizer.encode
    stable, forced = heal(prefix)
    before, layout, holes = prefix, list[Slot | int](), list[HoleState]()
    for index, segment in enumerate(holes_and_text):
        if isinstance(segment, Text):
            fixed, forced = heal(segment.text)
            layout += encode(fixed)
            before = segment.text
            continue
        following = "".join(s.text for s in holes_and_text[index + 1 :] if isinstance(s, Text)) + suffix
        most = segment.max_tokens + len(encode(forced))
        layout += [Slot(len(holes)) for _ in range(min(slots, most))]
        holes.append(HoleState(single_line(segment, before, following), most, forced.encode()))
        forced = ""
    if len(layout) > MAX_ROWS:
        raise ValueError(f"The holes are too far apart: {len(layout)} tokens lie between them, and {MAX_ROWS} fit.")
    shown = prompt(model, stable, suffix, neighbours)
    rows = [*shown.suffix, *model.separator, *shown.before]
    cut = len(rows) - (min(TAIL, len(shown.before)) or len(model.separator))  # the row before a slot predicts it
    return Layout(rows[:cut], Canvas(rows[cut:], layout, shown.suffix[:HEAD], holes, vocabulary))


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
        raise ValueError("The job has no hole to fill.")
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
