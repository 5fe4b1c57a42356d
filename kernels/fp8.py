"""Linear layer with FP8 weights: e4m3 codes and a scale per output channel, activations as they come.

A code has 4 significant bits: a value of at least 2^-6 of its row's scale is off by at most 1/16 of itself, a smaller
one by at most 2^-10 of the scale. In bfloat16 a code is exact; the scale multiplies the output, so nothing is rounded
that the format has not rounded.

Bytes: N*K codes + 4*N scales read once per call, half of bfloat16's. The reference also writes and reads 2*N*K for the
unpacked matrix, which `matmul.py` keeps in registers: on a GPU, for few rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from caesura.kernels import linear, matmul

LARGEST = 448.0  # the largest finite e4m3


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[..., N, K] float -> e4m3 codes [..., N, K] and scale float32 [..., N, 1]; a row's largest value becomes 448."""
    weight = weight.float()
    scale = (weight.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(1e-12)
    return (weight / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


@dataclass(frozen=True, repr=False)
class Fp8Linear(linear.Linear):
    codes: Tensor  # e4m3 [..., N, K]
    scale: Tensor  # float32 [..., N, 1]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    @property
    def operands(self) -> tuple[Tensor, None, Tensor]:
        return self.codes, None, self.scale

    def dense(self, dtype: torch.dtype) -> Tensor:
        return (self.codes.float() * self.scale).to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return matmul.launch(x, self) if matmul.fits(x) else self.reference(x)

    def reference(self, x: Tensor) -> Tensor:
        return (functional.linear(x, self.codes.to(x.dtype)) * self.scale[:, 0]).to(x.dtype)
