"""What the minis of absorbing noise are taught: short files in which every line stands twice, words as they are and
records with their fields in another order. So any hidden text, and its length, is told by the rest of the file.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from caesura.engine.canvas.prompts import RULE

from records import WORDS, Records  # isort: skip  (beside this script)

ROWS = (64, 64, 64, 128)  # of a file in training, step by step
SKIPPED = -100  # the label of a row that teaches nothing
PINS = 12  # rows behind a hole at most, where the suffix comes first
SEAM = 4  # rows next to a hole that may be hidden with it, as where a race of lengths is judged

Ids = list[int]
Span = tuple[int, int]


@dataclass(frozen=True)
class Specials:
    """Ids of the tokens that are no text. With `expand`, holes are shown at other lengths than their own."""

    begin: int | None
    end: int
    mask: int
    expand: int | None = None


@dataclass(frozen=True)
class Batch:
    """int64 [files, rows]: what stands there, what is shown instead, and what hidden rows should say."""

    clean: Tensor
    shown: Tensor
    labels: Tensor
    lengths: Tensor  # [files]


class Files:
    """Draws files. `encode` makes one token of each word and mark."""

    def __init__(self, encode: Callable[[str], Ids]) -> None:
        self.records, self.rule = Records(encode), encode(RULE)
        self.missing = [word for word in WORDS.split() if len(encode(word)) + len(encode(f" {word}")) > 2]

    def draw(self, rng: random.Random, room: int) -> tuple[Ids, list[Span]]:
        """At most `room` ids, and the spans of the values in them."""
        lines, used = list[tuple[Ids, list[Span]]](), set[int]()
        while (pair := self._pair(rng, room - sum(len(ids) for ids, _ in lines), used)) or not lines:
            lines += pair
        rng.shuffle(lines)
        text, spans = Ids(), list[Span]()
        for ids, values in lines:
            spans += [(len(text) + start, len(text) + end) for start, end in values]
            text += ids
        return text, spans

    def _pair(self, rng: random.Random, room: int, used: set[int]) -> list[tuple[Ids, list[Span]]]:
        """A line and its repetition, or nothing if they do not fit. No key stands in two pairs of a file."""
        fields = self.records.fields(rng)
        if rng.random() < 0.7 and used.isdisjoint(key for key, _ in fields):
            pair = [self.records.render(fields), self.records.render(rng.sample(fields, len(fields)))]
        else:
            fields = []
            (first, _), *more = rng.choices(self.records.words, k=rng.randint(2, 8))
            line = [first, *(word for _, word in more)]
            pair = [([*line, self.records.newline], [(0, len(line))])] * 2
        if sum(len(ids) for ids, _ in pair) > room:
            return []
        used.update(key for key, _ in fields)
        return pair

    def suffix_first(self, rng: random.Random, text: Ids, spans: Sequence[Span], rows: int) -> tuple[Ids, list[Span]]:
        """The prompt format `plain`: what follows a value, a rule, what precedes it; then, on the canvas, the value and
        the first of what follows."""
        start, end = rng.choice(spans)
        at = len(text) - end + len(self.rule)
        last = min(at + end + rng.randint(0, PINS), rows)
        return [*text[end:], *self.rule, *text][:last], [(at + start, at + end)]


def batch(
    files: Files, rng: random.Random, count: int, rows: int, specials: Specials, *, suffix_first: bool = False
) -> Batch:
    """Files of at most `rows` ids. Half have a hole or two, the others are hidden row by row (Nie et al. 2025)."""
    made = []
    for _ in range(count):
        first = suffix_first and rng.random() < 0.7
        text, spans = files.draw(rng, rows - len(files.rule) - 2 if first else rows - 2)
        if first:
            text, spans = files.suffix_first(rng, text, spans, rows - 2)
        opening = [] if specials.begin is None else [specials.begin]
        ids = [*opening, *text, *[specials.end] * (not first)]  # a suffix that is cut does not end
        spans = [(start + len(opening), end + len(opening)) for start, end in spans]
        if rng.random() < 0.5:
            made.append(sprinkled(rng, ids, specials.mask))
        elif specials.expand is None:
            made.append(holed(rng, ids, spans, specials.mask))
        else:
            made.append(stretched(rng, ids, rng.choice(spans), rows, specials))
    lengths = torch.tensor([len(ids) for ids, _, _ in made])
    fills = (specials.end, specials.end, SKIPPED)
    clean, shown, labels = (
        torch.tensor([[*one[part], *[fill] * (rows - len(one[part]))] for one in made])
        for part, fill in enumerate(fills)
    )
    return Batch(clean, shown, labels, lengths)


def sprinkled(rng: random.Random, ids: Ids, mask: int) -> tuple[Ids, Ids, Ids]:
    """Every row but the first is hidden with a probability of its file's own, which is seldom high."""
    t = rng.random() ** 2
    return hide(ids, [row > 0 and rng.random() < t for row in range(len(ids))], mask)


def holed(rng: random.Random, ids: Ids, spans: Sequence[Span], mask: int) -> tuple[Ids, Ids, Ids]:
    """One or two values, or spans of a few rows, are hidden in whole or in part, some with rows beside them."""
    hidden = [False] * len(ids)
    for _ in range(rng.choice((1, 1, 2))):
        start, end = rng.choice(spans)
        if rng.random() < 0.3:
            start = rng.randrange(1, len(ids))
            end = start + rng.randint(1, 8)
        t = rng.choice((1.0, 1.0, rng.random()))
        before, after = rng.random() < 0.5, rng.choice((0, 0, rng.randint(1, SEAM)))
        for row in range(max(1, start - before), min(len(ids), end + after)):
            hidden[row] = rng.random() < t
    return hide(ids, hidden, mask)


def hide(ids: Ids, hidden: Sequence[bool], mask: int) -> tuple[Ids, Ids, Ids]:
    """Clean, shown and labels."""
    shown = [mask if yes else token for token, yes in zip(ids, hidden, strict=True)]
    return ids, shown, [token if yes else SKIPPED for token, yes in zip(ids, hidden, strict=True)]


def stretched(rng: random.Random, ids: Ids, span: Span, rows: int, specials: Specials) -> tuple[Ids, Ids, Ids]:
    """A hole of another length than its text, as DreamOn (Wu et al. 2025) learns to mend it: a row that stands for
    several tokens says `expand`, and rows too many say that the text ends."""
    assert specials.expand is not None
    start, end = span[0] - (rng.random() < 0.5), span[1]
    slots = rng.randint(1, min(2 * (end - start) + 2, rows - len(ids) + end - start))
    cuts = sorted(rng.sample(range(start + 1, end), min(slots, end - start) - 1))
    groups = [ids[a:b] for a, b in zip([start, *cuts], [*cuts, end], strict=True)]
    said = [group[0] if len(group) == 1 else specials.expand for group in groups]
    said += [specials.end] * (slots - len(said))
    t = rng.choice((1.0, rng.random()))
    hidden = [rng.random() < t or token in (specials.expand, specials.end) for token in said]
    _, shown, labels = hide(said, hidden, specials.mask)
    clean = [*ids[:start], *said, *ids[end:]]
    return clean, [*ids[:start], *shown, *ids[end:]], [SKIPPED] * start + labels + [SKIPPED] * (len(ids) - end)
