"""A linear layer's weights in whatever precision they are stored: one matrix, or a stack of them (experts).

`Dense` is here; the other precisions have a file each. Activations stay as they come, or become `Rows8` where the
weights ask for it (`fp8.Fp8Dynamic`).

Bytes: each call reads the whole matrix once, 2*N*K in bfloat16; with few rows of x that is the cost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Rows8:
    """Rows of activations in 8 bits: e4m3 codes [rows, K], and the scale of each row, float32 [rows, 1]."""

    codes: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def new_empty(self, *size: int) -> Tensor:
        """For what is computed of these rows: bfloat16 on their device."""
        return self.codes.new_empty(*size, dtype=torch.bfloat16)

    def __getitem__(self, rows: Tensor | slice) -> "Rows8":
        return Rows8(self.codes[rows], self.scale[rows])


Activations = Tensor | Rows8


def row_operands(x: Activations) -> tuple[Tensor, Tensor | None]:
    """What a kernel reads of rows: values, or codes and the scale of each row."""
    return (x.codes, x.scale) if isinstance(x, Rows8) else (x.contiguous(), None)


class Linear:
    """A matrix [N, K] or a stack [E, N, K]. A child is a frozen dataclass of tensors that all begin with [(E,) N]."""

    rounds: ClassVar[bool] = False  # True if it multiplies `Rows8`

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, not of its codes."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes held, scales included."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def operands(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The kernels' operands: codes or values, a scale per 16 columns, a factor per row."""
        raise NotImplementedError

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The values, [(E,) N, K]."""
        raise NotImplementedError

    def __call__(self, x: Any) -> Tensor:
        """[..., K] -> [..., N] in x's dtype; for a matrix, not for a stack."""
        raise NotImplementedError

    def __getitem__(self, expert: int) -> Self:
        """One matrix of a stack; a view."""
        return type(self)(*(tensor[expert] for tensor in self.tensors))

    def to(self, device: str) -> Self:
        return type(self)(*(tensor.to(device) for tensor in self.tensors))

    def __repr__(self) -> str:
        return f"{type(self).__module__}.{type(self).__name__}{list(self.shape)}"


@dataclass(frozen=True, repr=False)
class Dense(Linear):
    weight: Tensor  # [(E,) N, K], a float

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def operands(self) -> tuple[Tensor, None, None]:
        return self.weight, None, None

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.weight.to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


def joined(parts: Sequence[Linear], dtype: torch.dtype) -> Linear:
    """Matrices [n, K] as one [sum of n, K], in their precision; if they have several, as floats of `dtype`."""
    if len({type(part) for part in parts}) > 1:
        parts = [Dense(part.dense(dtype)) for part in parts]
    return stack([parts], 1, str(parts[0].tensors[0].device))[0]


def stack(experts: Iterable[Sequence[Linear]], count: int, device: str) -> Linear:
    """Matrices [n, K] of one precision, `count` times the same sequence of heights -> [count, sum of n, K].

    Each expert is taken from the iterator, copied into its place and freed.
    """
    kind: type[Linear] = Dense
    whole: list[Tensor] = []
    for expert, parts in enumerate(experts):
        kind = type(parts[0])
        for field, pieces in enumerate(zip(*(part.tensors for part in parts), strict=True)):
            heights = [piece.shape[0] for piece in pieces]
            if expert == 0:
                like = pieces[0]
                whole.append(torch.empty(count, sum(heights), like.shape[1], dtype=like.dtype, device=device))
            for place, piece in zip(whole[field][expert].split(heights), pieces, strict=True):
                place.copy_(piece)
    return kind(*whole)
