"""The greatest numbers of rows, in C. The first of equal ones comes first; torch's `topk` gives them in any order."""

import torch
from torch import Tensor

from caesura.kernels.cpu import library


def highest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest numbers of each float32 row [rows, n], at most n, and their places, both [rows, count]; of
    equal ones the first comes first. Needs the library."""
    rows = rows.contiguous()
    assert rows.dtype == torch.float32
    assert count <= rows.shape[1]
    values, places = rows.new_empty(len(rows), count), torch.empty(len(rows), count, dtype=torch.int64)
    library().caesura_best(rows.data_ptr(), *rows.shape, count, values.data_ptr(), places.data_ptr())
    return values, places
