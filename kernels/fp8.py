"""Linear layer with FP8 weights: e4m3 codes and one scale per output channel. Activations are not quantised.

A code has 4 significant bits. A value of at least 2^-6 times the scale of its row has an error of at most 1/16 of
itself, a smaller value one of at most 2^-10 times the scale. A code is exact in bfloat16, and the scale multiplies the
output, so the only rounding of weights is that of the format.

Bytes: N*K codes + 4*N scales, read once per call: half as many as bfloat16. The reference also writes and reads 2*N*K
for the unpacked matrix; `matmul.py`, which runs on a GPU for few rows, keeps that in registers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from caesura.kernels import linear, matmul

LARGEST = 448.0  # the largest finite e4m3


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [..., N, K] -> e4m3 codes [..., N, K] and scales float32 [..., N, 1]; the largest value of a row gets the
    code 448."""
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
