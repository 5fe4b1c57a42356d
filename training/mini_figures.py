"""What a mini DiffusionGemma can do in the engine: whole boards solved by steps allowed and by difficulty, beside the
same weights from left to right, surest cell first, and all at once; and records, their lengths given or chosen.

    python training/mini_figures.py --model FOLDER [--puzzles PUZZLES.npz] [--count 100]

Boards come from a seed of their own. Their fingerprints are compared with those of --puzzles, so that none of this is a
symmetry of a trained one. Difficulty is the number of givens: easy 40 or more, medium 30 to 39, hard under 30, all
solvable by singles; minimal: no given can go, and singles do not suffice.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from caesura.engine import models
from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.draws import Draws
from caesura.engine.methods.uniform import canvases as uniform
from caesura.engine.methods.uniform import renoise
from caesura.engine.methods.uniform.renoise import by_entropy, statistics
from caesura.engine.model import Model, Run

import sudoku  # isort: skip  (beside this script)
from mini_tasks import Boards  # isort: skip
from records import Example, Records  # isort: skip

Blank = tuple[list[int], list[bool]]  # a canvas's true ids, and which of its rows are hidden
Filled = tuple[list[int], int]  # ids, and the forwards that they took
AT_ONCE = 20  # canvases of a forward


def puzzles(count: int, trained: Path | None) -> Iterator[tuple[str, int, sudoku.Array, sudoku.Array]]:
    """(name, side, solution, rounds) of held-out puzzles, at most `count` of a kind."""
    full, rounds = sudoku.small(held=True)
    pick = np.random.default_rng(0).permutation(len(full))[:count]
    yield "4x4", 4, full[pick], rounds[pick]
    full, rounds = sudoku.collection(5 * count, count + count // 2, 777777, most=50)
    if trained:
        seen = set(sudoku.fingerprints(np.load(trained)["full"], 9))
        fresh = np.array([one not in seen for one in sudoku.fingerprints(full, 9)])
        print(f"{(~fresh).sum()} of {len(full)} boards may be symmetries of trained ones and are left out.\n")
        full, rounds = full[fresh], rounds[fresh]
    givens, beyond = (rounds == 0).sum(1), (rounds == sudoku.NEVER).any(1)
    for name, low, high in (("easy", 40, 81), ("medium", 30, 39), ("hard", 0, 29)):
        pick = np.flatnonzero(~beyond & (givens >= low) & (givens <= high))[:count]
        yield f"9x9 {name}", 9, full[pick], rounds[pick]
    yield "9x9 minimal", 9, full[beyond][:count], rounds[beyond][:count]


def canvas_of(vocabulary: Vocabulary, blank: Blank) -> Canvas:
    """Every hidden row a hole of one token: neither its length nor its neighbours are told by anything else."""
    layout, holes = list[Slot | int](), list[HoleState]()
    for token, hidden in zip(*blank, strict=True):
        layout.append(Slot(len(holes)) if hidden else token)
        holes += [HoleState(False, 1)] * hidden
    return Canvas([], layout, [], holes, vocabulary)


def infill(model: Model, prompt: Sequence[int], blanks: Sequence[Blank], *, steps: int) -> list[Filled]:
    """By the engine's denoise steps, its locks and its stop."""
    vocabulary, kv = Vocabulary(model), model.cache().lease(prompt)
    model.prefill(prompt, kv)
    work = [uniform.Renoising(canvas_of(vocabulary, b), kv, by_entropy, steps, n) for n, b in enumerate(blanks)]
    while going := [w for w in work if not w.finished]:
        uniform.step(model, going[:AT_ONCE])
    drafts = [[s.draft if s.token is None else s.token for s in w.canvas.slots] for w in work]
    return [(w.canvas.ids([d or 0 for d in draft]), w.step) for w, draft in zip(work, drafts, strict=True)]


@torch.no_grad()
def in_order(model: Model, prompt: Sequence[int], blanks: Sequence[Blank], *, surest: bool) -> list[Filled]:
    """One row a forward, its best token: the leftmost, or the one of least entropy."""
    kv = model.cache().lease(prompt)
    model.prefill(prompt, kv)
    boards = [(list(ids), [row for row, hidden in enumerate(blank) if hidden]) for ids, blank in blanks]
    steps = [len(rows) for _, rows in boards]
    while going := [board for board in boards if board[1]][:AT_ONCE]:
        runs = []
        for number, (ids, rows) in enumerate(going):
            noise = iter(renoise.first_noise(model, len(rows), Draws(number, len(rows))).tolist())
            shown = [next(noise) if row in rows else token for row, token in enumerate(ids)]
            runs.append(Run(kv, shown, range(kv.length, kv.length + len(ids)), None, rows))
        for (ids, rows), logits in zip(
            going, model.denoise(runs).logits.split([len(r.wanted or ()) for r in runs]), strict=True
        ):
            scores = statistics(logits)
            at = int(scores.entropy[0].argmin()) if surest else 0
            ids[rows.pop(at)] = int(scores.token[0, at])
    return [(ids, n) for (ids, _), n in zip(boards, steps, strict=True)]


Way = Callable[[Model, Sequence[int], Sequence[Blank]], list[Filled]]
WAYS: dict[str, Way] = {f"{steps} steps": partial(infill, steps=steps) for steps in (4, 8, 16, 48)}
WAYS |= {
    "at once": partial(infill, steps=1),
    "left to right": partial(in_order, surest=False),
    "surest cell first": partial(in_order, surest=True),
}


def boards_table(model: Model, count: int, trained: Path | None) -> None:
    print("| puzzles | way | whole boards | cells | mean forwards | CPU s |\n|---|---|---|---|---|---|")
    for name, side, full, rounds in puzzles(count, trained):
        board = Boards(model.tokenizer.encode, side, min(model.spec.ends))
        true, hidden = board.render(full, board.rows), board.hide(rounds > 0, board.rows)
        blanks = list(zip(true.tolist(), hidden.tolist(), strict=True))
        givens = (rounds == 0).sum(1).mean()
        for way, fill in WAYS.items():
            cpu = time.process_time()
            found = fill(model, board.legend, blanks)
            cpu = (time.process_time() - cpu) / len(blanks)
            wrong = torch.tensor([ids for ids, _ in found]) != true
            print(
                f"| {name} ({len(full)}, {givens:.1f} givens) | {way} | {1 - wrong.any(1).float().mean():.1%} |"
                f" {1 - wrong.sum() / hidden.sum():.1%} | {sum(n for _, n in found) / len(found):.1f} | {cpu:.2f} |",
                flush=True,
            )


def of_every_length(model: Model, example: Example, start: int, end: int) -> list[uniform.Renoising]:
    """The value at rows [start, end) hidden and filled at 1 to 6 tokens, in one batch; the text behind it is pinned."""
    kv, vocabulary = model.cache().lease(example.prompt), Vocabulary(model)
    model.prefill(example.prompt, kv)
    work = []
    for size in range(1, 7):
        layout = [*example.canvas[:start], *(Slot(0) for _ in range(size))]
        canvas = Canvas([], layout, example.canvas[end:][:12], [HoleState(True, size)], vocabulary)
        work.append(uniform.Renoising(canvas, kv, by_entropy, 8, size, judged=True))
    while going := [w for w in work if not w.finished]:
        uniform.step(model, going)
    return work


def records_table(model: Model, count: int) -> None:
    """One value of a record hidden; its length given, or chosen by the engine's score from 1 to 6."""
    made, rng = Records(model.tokenizer.encode), random.Random(9)
    given = lengths = chosen = forwards = 0
    for _ in range(count):
        example = made.example(rng, moved=True)
        start, end = rng.choice(example.values)
        work = of_every_length(model, example, start, end)
        found = [[s.draft for s in w.canvas.slots] for w in work]
        value, best = example.canvas[start:end], max(range(6), key=lambda n: work[n].score)
        given += found[len(value) - 1] == value
        lengths += best + 1 == len(value)
        chosen += found[best] == value
        forwards += work[len(value) - 1].step
    print(
        f"Records ({count}): value right with its length given {given / count:.1%} ({forwards / count:.1f} forwards);"
        f" length chosen right {lengths / count:.1%}, value right then {chosen / count:.1%}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--puzzles", type=Path, help="the trained ones, to be kept apart from")
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = models.load(str(arguments.model), "cpu")
    records_table(model, arguments.count)
    boards_table(model, arguments.count, arguments.puzzles)


if __name__ == "__main__":
    main()
