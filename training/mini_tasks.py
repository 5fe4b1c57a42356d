"""What the mini model is taught, as tensors: a prompt, a clean canvas, and which of its rows are hidden.

A board's prompt is a legend: one word a cell in the board's own layout, so that a fixed number of rows back from every
cell stands the word that names its place. Every row of text is `side` tokens and a newline; the canvas ends with
end-of-text tokens.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from caesura.engine.models.diffusion_gemma.model import PINS

import sudoku  # isort: skip  (beside this script)
from records import Example, Records  # isort: skip
from sudoku import Array  # isort: skip

NAMES = {
    4: "tb te tf th|ra rc rd re|la lb le li|ob of ok ol",
    9: "ab ac ad af ag ah ai ak al|ba bb bc be bg bi bl bo br|ca cb cc cd ce cf ch ci cl|da db dc dd de df dh di dl|"
    "fa fc fd fe ff fg fh fl fn|ma mc md me mg mi mk ml mm|na nb nd ne ng nm nn no np|"
    "pa pc pd pe pg ph pi pk pl|sa sc se sf sg sh si sk sl",
}
LEGENDS = {side: "".join(f" {line}\n" for line in names.split("|")) for side, names in NAMES.items()}
PROMPT, RECORD = 64, 48  # rows of a record's prompt, padded on the left, and of its canvas
Encode = Callable[[str], list[int]]


class Batch(NamedTuple):
    """ids are int64, masks bool. `hidden` marks rows that hold noise; `padding` the left padding of the prompt.
    `wrong` replaces ids of the canvas as it is shown (-1: nothing); rows `beyond` its end are not there."""

    prompt: Tensor  # [batch or 1, rows]
    padding: Tensor | None
    canvas: Tensor  # [batch, rows]
    hidden: Tensor  # [batch, rows]
    wrong: Tensor | None  # [batch, rows]
    beyond: Tensor | None  # [batch, rows]


class Boards:
    """Puzzles of one size as batches."""

    def __init__(self, encode: Encode, side: int, eos: int) -> None:
        self.side, self.eos = side, eos
        self.legend = encode(LEGENDS[side])
        (self.newline,) = encode("\n")
        self.digits = [encode(str(d))[0] for d in range(1, side + 1)]
        self.rows = {4: 24, 9: 96}[side]  # of a canvas: the text and at least one end of text
        assert len(self.legend) == side * (side + 1), "a word of the legend is not one token"
        self.cells = np.array([r * (side + 1) + c for r in range(side) for c in range(side)])

    @property
    def tokens(self) -> set[int]:
        return {*self.legend, *self.digits, self.newline, self.eos}

    def render(self, full: Array, rows: int) -> Tensor:
        """[n, cells] digits -> [n, rows] ids."""
        ids = np.full((len(full), rows), self.eos)
        ids[:, self.side : self.side * (self.side + 1) : self.side + 1] = self.newline
        ids[:, self.cells] = np.array([-1, *self.digits])[full]
        return torch.from_numpy(ids)

    def hide(self, blank: Array, rows: int) -> Tensor:
        """[n, cells] -> [n, rows]: the rows of blank cells."""
        hidden = np.zeros((len(blank), rows), bool)
        hidden[:, self.cells] = blank
        return torch.from_numpy(hidden)

    def batch(self, full: Array, rounds: Array, rows: int, rng: np.random.Generator) -> Batch:
        """Training states of puzzles [n, cells]: as given (30 %), with cells shown by chance (10 %), between two rounds
        of singles (45 %), and every row of the canvas hidden with probability t (15 %)."""
        n = len(full)
        full, rounds = sudoku.shuffled(full, rounds, self.side, rng)
        last = np.where(rounds == sudoku.NEVER, 0, rounds).max(1)
        now = 1 + (rng.random(n) * np.maximum(last, 1)).astype(int)[:, None]
        part, kind = rng.random((n, 1)), rng.random((n, 1))
        shown = (rounds < now) | ((rounds == now) & (rng.random(rounds.shape) < part))
        shown = np.where(kind < 0.4, rng.random(rounds.shape) < part, shown)
        shown = np.where(kind < 0.3, rounds == 0, shown)
        hidden = self.hide(~shown, rows)
        chance = torch.from_numpy(rng.random(hidden.shape) < part)
        hidden = torch.where(torch.from_numpy(kind > 0.85), chance, hidden)
        return Batch(torch.tensor([self.legend]), None, self.render(full, rows), hidden, None, None)


def record_batch(records: Records, n: int, rows: int, eos: int, rule: Sequence[int], rng: random.Random) -> Batch:
    """Records to repeat: one value as a job asks for it (40 %), values hidden (36 %; half of them in another order of
    fields), every row hidden with probability t (24 %)."""
    made = []
    for _ in range(n):
        kind = rng.random()
        example = records.example(rng, moved=kind < 0.58)
        if kind < 0.4:
            made.append(as_job(example, rows, eos, rule, rng))
            continue
        hidden = [False] * rows
        t = 1.0 if kind < 0.6 else rng.random()
        if kind < 0.76:
            for start, end in [span for span in example.values if rng.random() < 0.5] or [rng.choice(example.values)]:
                hidden[start:end] = [rng.random() < t for _ in range(end - start)]
        else:
            hidden = [rng.random() < t for _ in range(rows)]
        canvas = example.canvas + [eos] * (rows - len(example.canvas))
        made.append((example.prompt, canvas, hidden, [-1] * rows, [False] * rows))
    prompts, *rest = zip(*made, strict=True)
    padded = [[eos] * (PROMPT - len(prompt)) + prompt for prompt in prompts]
    padding = [[True] * (PROMPT - len(prompt)) + [False] * len(prompt) for prompt in prompts]
    canvas, hidden, wrong, beyond = map(torch.tensor, rest)
    return Batch(torch.tensor(padded), torch.tensor(padding), canvas, hidden, wrong, beyond)


def as_job(
    example: Example, rows: int, eos: int, rule: Sequence[int], rng: random.Random
) -> tuple[list[int], list[int], list[bool], list[int], list[bool]]:
    """Prompt, canvas, hidden, wrong, beyond of a value as the engine's format `plain` shows it: the text behind the
    value and a rule before the record, the text before it as context, the canvas from the quote (which healing takes
    along) to a suffix head of at most 12 tokens. In half of the examples the hole is a token or two too long or too
    short: the head is wrong, and is to be seen through, which is what a choice of length lives from."""
    start, end = rng.choice(example.values)
    cut = start - (rng.random() < 0.7)
    tail = example.canvas[end:]
    prompt = [*tail, *rule, *example.prompt, *example.canvas[:cut]][-PROMPT:]
    size = max(1, end - cut + rng.choice((0, 0, 0, 0, -2, -1, 1, 2)))
    last = size + len(tail[:PINS])
    canvas = example.canvas[cut:] + [eos] * rows
    wrong = [-1] * size + tail[:PINS] + [-1] * rows
    return prompt, canvas[:rows], [i < size for i in range(rows)], wrong[:rows], [i >= last for i in range(rows)]


def tokens(boards: Sequence[Boards], records: Records, eos: int) -> list[int]:
    """Every id that a task uses, sorted."""
    return sorted({eos}.union(records.tokens, *(b.tokens for b in boards)))
