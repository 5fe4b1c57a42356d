"""Random numbers that are counted and not consumed: Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3"). A number depends on a seed and on its own place, and on nothing else that was drawn. So a row has the
same numbers alone and in a batch, and on every machine. The CPU draws them: a step of a canvas needs two a slot.

C does it where the library was built, and numpy elsewhere, more slowly.
"""

import numpy as np
from numpy.typing import NDArray

from caesura.kernels.cpu import address, library

F64 = NDArray[np.float64]

WORD = 0xFFFFFFFF
ROUNDS = 10
FACTORS = 0xD2511F53, 0xCD9E8D57
STEPS = 0x9E3779B9, 0xBB67AE85  # of the two words of the key, from round to round


def uniform(seed: int, stream: int, step: int, rows: int, columns: int, first: int = 0) -> F64:
    """Numbers in (0, 1), float64 [rows, columns] with 32 bits each. That of a column is word `column % 4` for the key
    `seed`, below 2**64, and the counter (`stream`, `step`, row, `column // 4`), where rows count from `first`."""
    if (loaded := library()) is None:
        return reference(seed, stream, step, rows, columns, first)
    found = np.empty((rows, columns))
    loaded.caesura_uniform(seed, stream, step, first, rows, columns, address(found))
    return found


def reference(seed: int, stream: int, step: int, rows: int, columns: int, first: int = 0) -> F64:
    """As `uniform`."""
    blocks = -(-columns // 4)
    counters = np.empty((rows, blocks, 4), np.uint64)
    counters[..., 0], counters[..., 1] = stream, step
    counters[..., 2], counters[..., 3] = np.arange(first, first + rows)[:, None], np.arange(blocks)
    drawn = words(counters.reshape(-1, 4), (seed & WORD, seed >> 32)).reshape(rows, 4 * blocks)[:, :columns]
    return (drawn.astype(np.float64) + 0.5) * 2.0**-32


def words(counters: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """The four numbers of 32 bits, uint64 [n, 4], of each counter, uint64 [n, 4] with 32 bits in each word."""
    (a, b, c, d), (left, right) = counters.T, key
    for _ in range(ROUNDS):
        first, second = a * FACTORS[0], c * FACTORS[1]
        a, b = second >> 32 ^ b ^ left, second & WORD
        c, d = first >> 32 ^ d ^ right, first & WORD
        left, right = left + STEPS[0] & WORD, right + STEPS[1] & WORD
    return np.stack((a, b, c, d), 1)
