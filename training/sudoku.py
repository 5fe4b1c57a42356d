"""Sudoku of 4x4 and 9x9: grids, puzzles of a stated difficulty, the symmetries that multiply them, and a fingerprint
that tells grids apart across all symmetries.

A grid is [cells] uint8, 1..side, 0 where blank. A puzzle is (solution, rounds): `rounds` is 0 at a given and otherwise
the round in which singles alone (naked and hidden, all of a round at once) find the cell, or NEVER.
"""

import argparse
import random
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NEVER = 99  # in `rounds`: singles alone do not find this cell

Array = np.ndarray[Any, Any]


class Board(NamedTuple):
    """The geometry of one size."""

    side: int
    units: Array  # [3 * side, cells] float32, 1 where the cell lies in the row, column or box
    peers: Array  # [cells, cells] float32, 1 where two different cells share a unit


@cache
def board(side: int) -> Board:
    box = round(side**0.5)
    row, column = np.divmod(np.arange(side * side), side)
    kinds = (row, column, row // box * box + column // box)
    units = np.stack([kind == n for kind in kinds for n in range(side)]).astype(np.float32)
    peers = ((units.T @ units > 0) & ~np.eye(side * side, dtype=bool)).astype(np.float32)
    return Board(side, units, peers)


def candidates(grids: Array, side: int) -> Array:
    """[n, cells] -> [n, cells, side] bool: digits that no peer of a blank cell holds."""
    held = (grids[..., None] == np.arange(1, side + 1)).astype(np.float32)
    return (board(side).peers @ held == 0) & (grids == 0)[..., None]


def singles(grids: Array, side: int) -> tuple[Array, Array]:
    """Fill by naked and hidden singles until nothing moves: the grids, and the round [n, cells] of each cell."""
    grids, (_, units, _) = grids.copy(), board(side)
    rounds = np.where(grids > 0, 0, NEVER).astype(np.uint8)
    live = np.arange(len(grids))
    for turn in range(1, NEVER):
        options = candidates(grids[live], side)
        places = units @ options.astype(np.float32)
        hidden = options & (units.T @ (places == 1).astype(np.float32) > 0)
        sure = np.where((options.sum(-1) == 1)[..., None], options, hidden)
        found = sure.any(-1)
        moved = found.any(-1)
        live, found, sure = live[moved], found[moved], sure[moved]
        if not len(live):
            break
        grids[live] = np.where(found, sure.argmax(-1) + 1, grids[live])
        rounds[live] = np.where(found, turn, rounds[live])
    return grids, rounds


def solve(grid: list[int], side: int, rng: random.Random | None = None, limit: int = 2) -> list[list[int]]:
    """Up to `limit` solutions by backtracking over the cell with the fewest options; `rng` shuffles the digits."""
    mates = _mates(side)
    full = (1 << side) - 1
    used = [0] * (side * side)
    for cell, digit in enumerate(grid):
        if digit:
            for mate in mates[cell]:
                used[mate] |= 1 << (digit - 1)
    found: list[list[int]] = []
    grid = list(grid)

    def search() -> bool:
        best, fewest = -1, side + 1
        for cell, digit in enumerate(grid):
            if not digit:
                count = (full & ~used[cell]).bit_count()
                if count < fewest:
                    best, fewest = cell, count
                    if count < 2:
                        break
        if best < 0:
            found.append(list(grid))
            return len(found) >= limit
        options = [digit for digit in range(side) if not used[best] >> digit & 1]
        if rng:
            rng.shuffle(options)
        for digit in options:
            changed = [mate for mate in mates[best] if not used[mate] >> digit & 1]
            for mate in changed:
                used[mate] |= 1 << digit
            grid[best] = digit + 1
            if search():
                return True
            grid[best] = 0
            for mate in changed:
                used[mate] &= ~(1 << digit)
        return False

    search()
    return found


@cache
def _mates(side: int) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in board(side).peers]


def solutions(count: int, side: int, seed: str) -> Array:
    """[count, cells] full grids by randomised backtracking from an empty one."""
    rng = random.Random(seed)
    return np.array([solve([0] * side**2, side, rng, 1)[0] for _ in range(count)], np.uint8)


def dig(full: Array, side: int, wanted: Array, seed: int) -> Array:
    """Rounds [n, cells] of puzzles that singles solve: blank cells in an order of chance while they still do, until
    `wanted` [n] givens are left."""
    rng = np.random.default_rng(seed)
    grids, all_rows = full.copy(), np.arange(len(full))
    order = rng.random(full.shape).argsort(1)
    for step in range(full.shape[1]):
        rows = all_rows[(grids > 0).sum(1) > wanted]
        cells = order[rows, step]
        tried = grids[rows]
        tried[np.arange(len(rows)), cells] = 0
        done = (singles(tried, side)[0] > 0).all(1)
        grids[rows[done], cells[done]] = 0
    return singles(grids, side)[1]


def dig_deep(full: Array, side: int, seed: int) -> Array:
    """Rounds [n, cells] of minimal puzzles: no given can go without a second solution appearing."""
    rng = random.Random(seed)
    grids = full.copy()
    for n, grid in enumerate(full.tolist()):
        for cell in rng.sample(range(side * side), side * side):
            kept, grid[cell] = grid[cell], 0
            if len(solve(grid, side)) > 1:
                grid[cell] = kept
        grids[n] = grid
    return singles(grids, side)[1]


def shuffled(full: Array, rounds: Array, side: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Each puzzle of [n, cells] under a symmetry of chance: relabelled, lines and bands permuted, transposed."""
    n, box = len(full), round(side**0.5)
    labels = np.concatenate((np.zeros((n, 1), np.uint8), rng.random((n, side)).argsort(1).astype(np.uint8) + 1), 1)

    def lines() -> Array:
        bands = rng.random((n, box)).argsort(1)[..., None] * box
        return (bands + rng.random((n, box, box)).argsort(2)).reshape(n, side)

    where = lines()[:, :, None] * side + lines()[:, None, :]
    where = np.where(rng.random((n, 1, 1)) < 0.5, where, where.transpose(0, 2, 1)).reshape(n, -1)
    full = np.take_along_axis(np.take_along_axis(labels, full.astype(np.int64), 1), where, 1)
    return full, np.take_along_axis(rounds, where, 1)


def fingerprints(full: Array, side: int) -> list[bytes]:
    """One of each grid, unchanged by every symmetry: from the cycles of the permutations that lead from one line to
    another, gathered by band. Different fingerprints: no symmetry leads from one grid to the other."""
    grids = full.reshape(-1, side, side).astype(np.int64) - 1
    box = round(side**0.5)
    sides = []
    for lines in (grids, grids.transpose(0, 2, 1)):
        places = lines.argsort(2)
        step = np.take_along_axis(lines[:, None], places[:, :, None].repeat(side, 2), 3)  # [n, from, to, digit]
        power, fixed = step, []
        for _ in range(side - 1):
            fixed.append((power == np.arange(side)).sum(-1))
            power = np.take_along_axis(step, power, 3)
        weights = 7 ** np.arange(1, side)
        types = sum((f * 11 + f * f) * w for f, w in zip(fixed, weights, strict=True)) % 1000003
        types = types + types.transpose(0, 2, 1)
        bands = types.reshape(-1, box, box, box, box).transpose(0, 1, 3, 2, 4).reshape(-1, box, box, box * box)
        bands = np.sort(bands, 3) @ 31 ** np.arange(box * box) % 1000003
        within = bands[:, np.arange(box), np.arange(box)]
        across = np.sort(bands.reshape(len(grids), -1), 1)
        sides.append(np.concatenate((np.sort(within, 1), across), 1))
    return [b"".join(sorted((a.tobytes(), b.tobytes()))) for a, b in zip(*sides, strict=True)]


def small(*, held: bool) -> tuple[Array, Array]:
    """Puzzles of 4x4 (solution, rounds), eight of each of the 288 grids. A sixth of the grids is held out: of such few
    grids symmetries lead from everyone to all others of its kind, so identity is what is held apart."""
    found = np.array(solve([0] * 16, 4, limit=1000), np.uint8)
    kept = np.array([(sha256(grid.tobytes()).digest()[0] % 6 == 0) == held for grid in found])
    full = found[kept].repeat(8, 0)
    return full, dig(full, 4, np.random.default_rng(4).integers(4, 10, len(full)), 4)


def collection(count: int, deep: int, seed: int, most: int = 45) -> tuple[Array, Array]:
    """(solution, rounds) of 9x9 puzzles: `count` that singles solve, 22 to `most` givens wanted; then `deep` minimal
    ones."""
    full, minimal = solutions(count, 9, f"{seed}"), solutions(deep, 9, f"{seed}deep")
    wanted = np.random.default_rng(seed).integers(22, most + 1, count)
    parts = [dig(full[i : i + 512], 9, wanted[i : i + 512], seed + i) for i in range(0, count, 512)]
    return np.concatenate((full, minimal)), np.concatenate((*parts, dig_deep(minimal, 9, seed)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a collection of 9x9 puzzles.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=12000)
    parser.add_argument("--deep", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    full, rounds = collection(arguments.count, arguments.deep, arguments.seed)
    np.savez(arguments.out, full=full, rounds=rounds)


if __name__ == "__main__":
    main()
