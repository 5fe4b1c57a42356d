"""Four bits a weight with little harm to what a matrix computes: GPTQ (Frantar et al. 2022), in the stored form k4
(engine/weights/stored.py).

Columns are rounded one by one, the most active first, and what rounding a column does to the output is made up for by
the columns after it. Scales and minima of the groups are fixed before, by a search for the least squared error.
"""

import torch
from torch import Tensor

from caesura.engine.weights import stored, tensors
from caesura.engine.weights.stored import GROUP

BLOCK = 128  # columns whose error waits until it is passed on to those after them
DAMPING = 0.05  # of the mean of the Hessian's diagonal, added to it
CLIPPED = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # shares of a group's range that the search begins from


def gptq(weight: Tensor, hessian: Tensor) -> tensors.CodedTensors:
    """[N, K] float and the sum of x xᵀ [K, K] over its inputs x -> the parts of k4."""
    hessian = damped(hessian)
    held = stored.row_fractions(*(part.numpy() for part in searched(weight, hessian.diagonal())))
    codes = rounded(weight, hessian, *map(torch.from_numpy, stored.fractions(*held)))
    return tensors.coded("k4", (stored.pack_nibbles(codes.numpy()), *held))


def damped(hessian: Tensor) -> Tensor:
    """Positive definite, also where an input is always 0."""
    mean = hessian.diagonal().mean().clamp_min(1e-8)
    return hessian + DAMPING * mean * torch.eye(len(hessian))


def searched(weight: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum (to be taken off) [N, K/32] with the least error of rounding to nearest, squared and weighted
    by the importance [K] of a column."""
    groups, heavy = weight.view(weight.shape[0], -1, GROUP), importance.view(-1, GROUP)
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1)
    best = torch.full_like(low, torch.inf)
    scale, least = torch.zeros_like(low), torch.zeros_like(low)
    for share in CLIPPED:
        tried = fitted(groups, heavy, ((high - low) * share / 15).clamp_min(1e-12), -low * share)
        error = ((nearest(groups, *tried) * tried[0][..., None] - tried[1][..., None] - groups) ** 2 * heavy).sum(-1)
        better = error < best
        best, scale, least = (
            torch.where(better, new, old) for new, old in zip((error, *tried), (best, scale, least), strict=True)
        )
    return scale, least


def nearest(groups: Tensor, scale: Tensor, least: Tensor) -> Tensor:
    return ((groups + least[..., None]) / scale[..., None]).round_().clamp_(0, 15)


def fitted(groups: Tensor, heavy: Tensor, scale: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """The line through the codes that scale and minimum give, by weighted least squares; as they were where there is
    none with a rising slope and a minimum that k4 can hold."""
    q = nearest(groups, scale, least)
    mass, codes, values = heavy.sum(-1), (q * heavy).sum(-1), (groups * heavy).sum(-1)
    square, product = (q * q * heavy).sum(-1), (q * groups * heavy).sum(-1)
    spread = square * mass - codes * codes
    slope = (product * mass - codes * values) / spread
    offset = (slope * codes - values) / mass
    good = (spread > 0) & (slope > 1e-12) & (offset >= 0)
    return torch.where(good, slope, scale), torch.where(good, offset, least)


def rounded(weight: Tensor, hessian: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Codes uint8 [N, K] under scale and offset [N, K/32]: value = scale * q + offset."""
    order = hessian.diagonal().argsort(descending=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian[order][:, order]))
    factor = torch.linalg.cholesky(inverse, upper=True)
    left = weight.T[order].contiguous()  # [K, N], so that a column is a row of memory
    steps, offsets = (t.repeat_interleave(GROUP, 1).T[order].contiguous() for t in (scale.clamp_min(1e-12), offset))
    codes = torch.empty_like(left, dtype=torch.uint8)
    for first in range(0, len(left), BLOCK):
        end = min(first + BLOCK, len(left))
        errors = torch.empty_like(left[first:end])
        for column in range(first, end):
            q = ((left[column] - offsets[column]) / steps[column]).round_().clamp_(0, 15)
            codes[column] = q.to(torch.uint8)
            error = (left[column] - q * steps[column] - offsets[column]) / factor[column, column]
            left[column + 1 : end].addr_(factor[column, column + 1 : end], error, alpha=-1)
            errors[column - first] = error
        left[end:].addmm_(factor[first:end, end:].T, errors, alpha=-1)
    return codes[order.argsort()].T.contiguous()
