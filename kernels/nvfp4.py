"""Linear layer with NVFP4 weights: e2m1 codes, two per byte, an e4m3 scale per 16 columns and a float32 factor per row.

value = code * scale * factor. Published files have one factor per matrix. One factor per row lets gate and up rows from
different files form one matrix. Codes are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. With unit = scale * factor,
a value has an error of at most 1 unit (half the gap from 4 to 6), or a quarter of a unit if it is below 2 units. The
scale is itself rounded to 4 significant bits: the unit of a group is at most 17/16 of a sixth of its largest value. If
the scale is below 2^-6, the smallest normal e4m3 number, the unit is at most that sixth + 2^-10 * factor. code * scale
has 6 significant bits and is exact in bfloat16; the factor multiplies the output.

Bytes: N*K/2 codes + N*K/16 scales + 4*N factors, read once per call: 0.28 times as many as bfloat16. The reference also
writes and reads 2*N*K for the unpacked matrix; `matmul.py`, which runs on a GPU for few rows, keeps that in registers.
`decode.py` states the cost of decoding there.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from caesura.kernels import linear, matmul

GROUP = 16  # columns that share a scale
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # values of the codes 0 to 7; 8 to 15 are their negatives
BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # midpoints, where the nearest magnitude changes
LARGEST = 6.0 * 448.0  # the largest code times the largest scale


def quantize(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [..., N, K], K a multiple of 16 -> codes uint8 [..., N, K/2], scales e4m3 [..., N, K/16] and factors
    float32 [..., N, 1]. All rows of a matrix get the same factor: its largest value becomes 6 * 448 * factor.
    """
    groups = weight.float().unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    factor = (largest.amax((-2, -1), keepdim=True) / LARGEST).clamp_min(1e-30)
    scale = (largest / (MAGNITUDES[-1] * factor)).clamp_max(448.0).to(torch.float8_e4m3fn)
    unit = (scale.float() * factor)[..., None]
    values = torch.where(unit > 0, groups / unit, 0.0).flatten(-2)
    codes = torch.bucketize(values.abs(), torch.tensor(BETWEEN, device=weight.device), out_int32=True).to(torch.uint8)
    codes |= (values < 0).to(torch.uint8) << 3
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scale, factor.expand(*weight.shape[:-1], 1).contiguous()


@dataclass(frozen=True, repr=False)
class Nvfp4Linear(linear.Linear):
    codes: Tensor  # uint8 [..., N, K/2], the even column in the low nibble
    scale: Tensor  # e4m3 [..., N, K/16]
    factor: Tensor  # float32 [..., N, 1]

    @property
    def shape(self) -> tuple[int, ...]:
        *outer, half = self.codes.shape
        return (*outer, 2 * half)

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """Codes eight per word, the first in the low bits; scale; factor."""
        return self.codes.view(torch.int32), self.scale, self.factor

    def dense(self, dtype: torch.dtype) -> Tensor:
        return (self._scaled(torch.float32) * self.factor).to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return matmul.launch(x, self) if matmul.fits(x) else self.reference(x)

    def reference(self, x: Tensor) -> Tensor:
        return (functional.linear(x, self._scaled(x.dtype)) * self.factor[:, 0]).to(x.dtype)

    def _scaled(self, dtype: torch.dtype) -> Tensor:
        """code * scale, [..., N, K]."""
        values = functional.embedding(self.codes.int(), _pairs(self.codes.device, dtype)).flatten(-2)
        groups: Tensor = values.unflatten(-1, (-1, GROUP)) * self.scale.to(dtype)[..., None]
        return groups.flatten(-2)


@cache
def _pairs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """The two values of every byte, [256, 2]: low nibble, then high nibble. The table stays on the device, because a
    copy from the host cannot be part of a CUDA graph."""
    table = torch.tensor(MAGNITUDES, device=device, dtype=dtype)
    table = torch.cat((table, -table))
    return torch.stack((table.repeat(16), table.repeat_interleave(16)), 1)
