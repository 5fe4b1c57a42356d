"""What a mini DiffusionGemma can do, with pinned rows and the stored weights: whole boards solved by steps allowed and
by difficulty, beside the same weights from left to right, one cell a forward, and all at once; and records.

    python training/mini_figures.py --model FOLDER [--count 100]

Boards come from seeds of their own. Their fingerprints are compared with those of --puzzles, so that no board of this
table is a symmetry of a trained one. Difficulty is the number of givens: easy 40 or more, medium 30 to 39, hard under
30, all solvable by singles; minimal: no given can go, and singles do not suffice.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import tokenizers
import torch
from torch import Tensor

import mini_export  # isort: skip  (beside this script)
import sudoku  # isort: skip
from mini_net import Net, Shape  # isort: skip
from mini_solve import Filled, in_order, infill, stored_table  # isort: skip
from mini_tasks import PROMPT, Boards  # isort: skip
from records import Records  # isort: skip

Way = Callable[[Net, Tensor, Tensor, Tensor], Filled]  # prompt, canvas, free rows
WAYS: dict[str, Way] = {f"{steps} steps": partial(infill, steps=steps) for steps in (4, 8, 16, 32, 48)}
WAYS |= {
    "48 steps, no self-conditioning": partial(infill, steps=48, conditioned=False),
    "at once": partial(infill, steps=1),
    "left to right": in_order,
    "surest cell first": partial(in_order, adaptive=True),
}


def puzzles(count: int, trained: Path | None) -> Iterator[tuple[str, int, sudoku.Array, sudoku.Array]]:
    """(name, side, solution, rounds) of held-out puzzles, at most `count` of a kind."""
    full, rounds = sudoku.small(held=True)
    pick = np.random.default_rng(0).permutation(len(full))[:count]
    yield "4x4", 4, full[pick], rounds[pick]
    full, rounds = sudoku.collection(3 * count, count + count // 2, 777777, most=50)
    if trained:
        seen = set(sudoku.fingerprints(np.load(trained)["full"], 9))
        fresh = np.array([print_ not in seen for print_ in sudoku.fingerprints(full, 9)])
        print(f"{(~fresh).sum()} of {len(full)} boards may be symmetries of trained ones and are left out")
        full, rounds = full[fresh], rounds[fresh]
    givens, beyond = (rounds == 0).sum(1), (rounds == sudoku.NEVER).any(1)
    for name, low, high in (("easy", 40, 81), ("medium", 30, 39), ("hard", 0, 29)):
        pick = np.flatnonzero(~beyond & (givens >= low) & (givens <= high))[:count]
        yield f"9x9 {name}", 9, full[pick], rounds[pick]
    yield "9x9 minimal", 9, full[beyond][:count], rounds[beyond][:count]


def boards_table(net: Net, encode: Callable[[str], list[int]], count: int, trained: Path | None) -> None:
    print("| puzzles, way | whole boards | cells | mean forwards | CPU s |\n|---|---|---|---|---|")
    for name, side, full, rounds in puzzles(count, trained):
        board = Boards(encode, side, net.shape.eos)
        rows = net.shape.canvas if side == 9 else 24
        canvas, free = board.render(full, rows), board.hide(rounds > 0, rows)
        prompt = torch.tensor([board.legend])
        givens = (rounds == 0).sum(1).mean()
        for way, fill in WAYS.items():
            cpu = time.process_time()
            found = fill(net, prompt, canvas, free)
            cpu = (time.process_time() - cpu) / len(canvas)
            wrong = (found.canvas != canvas) & free
            whole, cells = 1 - wrong.any(1).float().mean(), 1 - wrong.sum() / free.sum()
            print(
                f"| {name} ({len(full)}, {givens:.1f} givens), {way} | {whole:.1%} | {cells:.1%} |"
                f" {found.steps.float().mean():.1f} | {cpu:.2f} |",
                flush=True,
            )


@torch.no_grad()
def records_table(net: Net, encode: Callable[[str], list[int]], count: int, seed: int = 9) -> None:
    """One value of a record hidden; its length given, or chosen from 1 to 6 by how likely the model finds the value and
    the text behind it in the canvas it filled."""
    records, rng = Records(encode), random.Random(seed)
    table = stored_table(net)
    given = chosen = lengths = forwards = 0
    for _ in range(count):
        example = records.example(rng, moved=True)
        start, end = rng.choice(example.values)
        canvases, holes = [], []
        for size in range(1, 7):
            ids = example.canvas[:start] + [net.shape.eos] * size + example.canvas[end:]
            canvases.append((ids + [net.shape.eos] * 48)[:48])
            holes.append([start <= i < start + size for i in range(48)])
        pad = PROMPT - len(example.prompt)
        prompt = torch.tensor([[net.shape.eos] * pad + example.prompt]).expand(6, -1)
        padding = (torch.arange(PROMPT) < pad).expand(6, -1)
        found = infill(net, prompt, torch.tensor(canvases), torch.tensor(holes), 8, padding=padding)
        x, _ = net.decode(found.canvas, net.encode(prompt, padding), padding)
        likely = net.logits(x, table).log_softmax(-1).gather(-1, found.canvas[..., None])[..., 0]
        tail = len(example.canvas) - end
        scores = [float(likely[n, start : start + n + 1 + tail].mean()) for n in range(6)]
        value, best = example.canvas[start:end], max(range(6), key=scores.__getitem__)
        given += found.canvas[end - start - 1, start:end].tolist() == value
        lengths += best + 1 == end - start
        chosen += found.canvas[best, start : start + best + 1].tolist() == value
        forwards += int(found.steps[end - start - 1])
    print(
        f"records ({count}): value right, length given {given / count:.1%} ({forwards / count:.1f} forwards);"
        f" length chosen right {lengths / count:.1%}, value right {chosen / count:.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--puzzles", type=Path, help="the trained ones, to be kept apart from")
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    inner = tokenizers.Tokenizer.from_file(str(arguments.model / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = inner.encode(text, add_special_tokens=False).ids
        return ids

    net = mini_export.read(arguments.model, Shape())
    records_table(net, encode, arguments.count)
    boards_table(net, encode, arguments.count, arguments.puzzles)


if __name__ == "__main__":
    main()
