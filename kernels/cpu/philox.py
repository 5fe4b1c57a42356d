"""Random numbers that are counted and not consumed: Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3"). A number depends on a seed and on its own place, and on nothing else that was drawn. So a row has the
same numbers alone and in a batch, and on every machine. The CPU draws them: a step of a canvas needs two a slot.

C does it where the library was built, and PyTorch elsewhere, eight times as slowly.
"""

import torch
from torch import Tensor

from caesura.kernels.cpu import library

WORD = 0xFFFFFFFF
ROUNDS = 10
FACTORS = 0xD2511F53, 0xCD9E8D57
STEPS = 0x9E3779B9, 0xBB67AE85  # of the two words of the key, from round to round


def uniform(seed: int, stream: int, step: int, rows: int, columns: int, first: int = 0) -> Tensor:
    """Numbers in (0, 1), float64 [rows, columns] with 32 bits each. That of a column is word `column % 4` for the key
    `seed`, below 2**64, and the counter (`stream`, `step`, row, `column // 4`), where rows count from `first`."""
    if (loaded := library()) is None:
        return reference(seed, stream, step, rows, columns, first)
    found = torch.empty(rows, columns, dtype=torch.float64)
    loaded.caesura_uniform(seed, stream, step, first, rows, columns, found.data_ptr())
    return found


def reference(seed: int, stream: int, step: int, rows: int, columns: int, first: int = 0) -> Tensor:
    """As `uniform`."""
    blocks = -(-columns // 4)
    places = torch.cartesian_prod(torch.arange(first, first + rows), torch.arange(blocks)).view(-1, 2)
    counters = torch.cat((torch.tensor([[stream, step]]).expand(len(places), 2), places), 1)
    drawn = words(counters, (seed & WORD, seed >> 32)).view(rows, 4 * blocks)[:, :columns]
    return (drawn.double() + 0.5) * 2.0**-32


def words(counters: Tensor, key: tuple[int, int]) -> Tensor:
    """The four numbers of 32 bits, int64 [n, 4], of each counter, int64 [n, 4] with 32 bits in each word."""
    (a, b, c, d), (left, right) = counters.unbind(1), key
    for _ in range(ROUNDS):
        first, second = a * FACTORS[0], c * FACTORS[1]  # overflows into the sign, which the shift below keeps
        a, b = second >> 32 & WORD ^ b ^ left, second & WORD
        c, d = first >> 32 & WORD ^ d ^ right, first & WORD
        left, right = left + STEPS[0] & WORD, right + STEPS[1] & WORD
    return torch.stack((a, b, c, d), 1)
