"""Rows of matrices as they lie in files -> tiles or floats, in C (repack.c has the formats).

Bytes: the rows are read once, and the tiles written once; between them are the 32 or 256 columns of a block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from caesura.kernels.cpu import F32, GROUP, Bytes, Matrix, address, library

KINDS = {  # that are supported, as GGUF numbers them
    **{"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7},
    **{"Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30},
}
KEPT = {"Q8_0": "q8", "Q4_0": "q4", "Q4_1": "q4", "Q4_K": "q4"}  # kinds whose codes are kept, and their form


class RowBlocks(NamedTuple):
    """Rows of a matrix as they lie in a file: uint8 [rows, bytes of a row], of one of KINDS."""

    kind: str
    rows: Bytes
    columns: int


def plain(weight: F32) -> RowBlocks:
    """The rows of floats [rows, columns]."""
    whole = np.ascontiguousarray(weight)
    return RowBlocks("F32", whole.view(np.uint8).reshape(len(whole), -1), whole.shape[1])


def packed(form: str, blocks: Sequence[RowBlocks]) -> Matrix:
    """Matrices below one another as one: of kinds that keep their codes in this `form`, or for q8 of any that do not
    keep them. Columns are padded to whole groups. Raises ValueError for a weight that is no number or too large."""
    (columns,) = {one.columns for one in blocks}
    held, first = Matrix.empty(form, sum(len(one.rows) for one in blocks), -(-columns // GROUP) * GROUP), 0
    for one in blocks:
        rows = np.ascontiguousarray(one.rows)
        place = columns, address(rows), rows.shape[1], first, address(held.tiles)
        if not library().caesura_repack(KINDS[one.kind], len(rows), *place):
            raise ValueError("a weight or a scale is too large, infinite or no number")
        first += len(rows)
    return held


def floats(blocks: RowBlocks) -> F32:
    """The values, float32 [rows, columns]. Raises ValueError for one that is no number."""
    found, good = values(blocks)
    if not good:
        raise ValueError("a weight is infinite or no number")
    return found


def values(blocks: RowBlocks) -> tuple[F32, bool]:
    """The values, float32 [rows, columns], and whether all are numbers."""
    rows = np.ascontiguousarray(blocks.rows)
    out = np.empty((len(rows), blocks.columns), np.float32)
    place = blocks.columns, address(rows), rows.shape[1], address(out)
    return out, bool(library().caesura_restore(KINDS[blocks.kind], len(rows), *place))
