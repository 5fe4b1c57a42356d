"""The random numbers of a job: they depend on its seed and on what each is for, so a job has the same ones alone and in
a batch, on every device and however its steps are computed.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from caesura.kernels.cpu import philox


class DrawStream(IntEnum):
    """The uses of random numbers. These integers decide every recorded answer with a seed."""

    START = 0  # the first noise, a row a slot
    NOISE = 1  # the noise of a step, a row a slot
    TOKEN = 2  # which token a slot takes, a row a slot
    ORDER = 3  # which slots are accepted, a row a slot
    GUMBEL = 4  # another answer of a search, a row a row of its tree, a column a token
    TABLE = 5  # no job's


@dataclass(frozen=True)
class Draws:
    """The numbers of one `step` of a job: of a canvas, or of a search the number of its hole."""

    seed: int
    step: int = 0

    def uniform(self, stream: DrawStream, rows: int, columns: int = 1, first: int = 0) -> NDArray[np.float64]:
        """In (0, 1), float64 [rows, columns]; `first` is the number of the first row."""
        return philox.uniform(self.seed % 2**64, stream, self.step, rows, columns, first)

    def of_slots(self, stream: DrawStream, slots: int, column: int = 0) -> NDArray[np.float64]:
        """One for each slot, float64 [slots]."""
        return self.uniform(stream, slots, column + 1)[:, column]

    def gumbel(self, rows: int, columns: int, first: int) -> NDArray[np.float32]:
        """Standard Gumbel noise, float32 [rows, columns]: computed in float64 and rounded once."""
        return (-np.log(-np.log(self.uniform(DrawStream.GUMBEL, rows, columns, first)))).astype(np.float32)
