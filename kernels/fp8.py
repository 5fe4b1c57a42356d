"""Linear layer with FP8 weights: e4m3 codes and one scale per output channel. Activations come as they are
(`Fp8Linear`), or are quantised too, with a scale for each row that is taken as it runs (`Fp8Dynamic`).

A code has 4 significant bits. A value of at least 2^-6 times the scale of its row has an error of at most 1/16 of
itself, a smaller value one of at most 2^-10 times the scale. A code is exact in bfloat16, and the scale multiplies the
output, so the only rounding of weights is that of the format.

Bytes: N*K codes + 4*N scales, read once per call: half as many as bfloat16. The reference also writes and reads 2*N*K
for the unpacked matrix; `matmul.py`, which runs on a GPU for few rows, keeps that in registers. A product of two e4m3
matrices decodes nothing, and tensor cores multiply twice as many numbers a second as in bfloat16.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from caesura.kernels import linear, matmul
from caesura.kernels.jit import fused, jit, tl, whole
from caesura.kernels.linear import Activations, Rows8

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


@dataclass(frozen=True, repr=False)
class Fp8Dynamic(Fp8Linear):
    """FP8 weights that multiply rows in FP8, as published FP8-dynamic files prescribe."""

    rounds: ClassVar[bool] = True

    def __call__(self, x: Activations) -> Tensor:
        """[..., K], or `Rows8` [rows, K] -> [..., N] in bfloat16."""
        rows = quantised(x.reshape(-1, x.shape[-1])) if isinstance(x, Tensor) else x
        aligned = all(size % 16 == 0 for size in self.shape)
        out = (product if aligned and fused(rows.codes, fp8=True) else reference_product)(rows, self)
        return out.view(*x.shape[:-1], len(self.codes))


def reference_product(x: Rows8, weight: Fp8Linear) -> Tensor:
    return (functional.linear(x.codes.float(), weight.codes.float()) * x.scale * weight.scale.t()).bfloat16()


def product(x: Rows8, weight: Fp8Linear) -> Tensor:
    """By PyTorch's own kernel, which wants sides that are multiples of 16."""
    return torch._scaled_mm(
        x.codes, weight.codes.t(), scale_a=x.scale, scale_b=weight.scale.t(), out_dtype=torch.bfloat16
    )


def reference_quantised(x: Tensor) -> Rows8:
    return Rows8(*quantize(x))


@jit
def unit(largest):
    """The scale of a row by its largest magnitude."""
    return tl.maximum(largest / 448.0, 1e-12)


@jit
def store_row(x, out, scales, row, d, WIDTH: tl.constexpr):
    """Store float32 values, 0 from WIDTH on, as a row of `out`: in its type, or with `scales` as codes and a scale."""
    if scales is not None:
        scale = unit(tl.max(tl.abs(x), 0))
        tl.store(scales + row, scale)
        x = x / scale
    tl.store(out + row * WIDTH + d, x.to(out.dtype.element_ty), mask=d < WIDTH)


@jit
def _quantise(x, codes, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * WIDTH + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    store_row(values, codes, scales, row, d, WIDTH)


def launch_quantised(x: Tensor) -> Rows8:
    x, made = x.contiguous(), empty_rows(x, *x.shape)
    _quantise[len(x),](x, made.codes, made.scale, **whole(x.shape[1]))
    return made


def quantised(x: Tensor) -> Rows8:
    """Rows [rows, K] -> e4m3, rounded to nearest; the largest value of a row gets the code 448."""
    return (launch_quantised if fused(x, fp8=True) else reference_quantised)(x)


def empty_rows(like: Tensor, rows: int, width: int) -> Rows8:
    return Rows8(like.new_empty(rows, width, dtype=torch.float8_e4m3fn), like.new_empty(rows, 1, dtype=torch.float32))
