"""Linear layer with int8 activations on a CPU: per-row activation scales, so a row's result does not depend on the rest
of the batch. Our own library (`cpu`), where it is built, takes weights as stored; otherwise they are int8 for torch's
kernels, or bfloat16 if torch has none.

Kernels for CPUs without VNNI add the products of two neighbouring columns in 16 bits, which saturate. The scale keeps
every such sum in range, so that all CPUs give the same result, at a cost of about a fifth of a bit.

Bytes: N*K weights + 4*N scales read once per call, 4*M*K activations in, 4*M*N out. At M of 1 to 40 rows the weights
dominate and stay in cache between layers only for tiny models: bound by memory at M = 1, by VNNI throughput above.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from caesura.kernels import cpu
from caesura.kernels.linear import Linear

scripting = torch.jit.is_scripting  # type: ignore[attr-defined]

CACHED = 1 << 17  # weights quantised at once, which stay in a core's cache


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] float -> int8 [N, K] and per-row scale [N], symmetric; two neighbouring columns (2i, 2i + 1) have codes
    whose positive and whose negative parts add up to 128 at most, since 255 * 128 fits in 16 bits."""
    parts = [_quantized(rows) for rows in weight.split(max(1, CACHED // weight.shape[1]))]
    codes, scales = zip(*parts, strict=True)
    return torch.cat(codes), torch.cat(scales)


def _quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    sums = torch.cat((weight[:, :1], weight[:, :-1:2] + weight[:, 1::2]), 1)  # the first for a single column
    scale = torch.maximum(weight.abs().amax(1), sums.abs().amax(1)).clamp_min(1e-12) / 127
    return (weight / scale[:, None]).round_().to(torch.int8), scale


def reference(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """[M, K] float x ([N, K] int8, [N]) -> [M, N] float, with the activations rounded as the fast path does."""
    row = x.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    q = (x / row * 127).round()
    return (q @ weight.float().T) * (row / 127) * scale


def available() -> bool:
    """True if this torch build has the packed x86 kernel (FBGEMM)."""
    return torch.backends.quantized.engine in ("x86", "fbgemm")


if TYPE_CHECKING:
    Packed = Any
else:  # for TorchScript
    Packed = torch.classes.quantized.LinearPackedParamsBase if available() else Tensor


def _packed(x: Tensor, packed: Packed) -> Tensor:
    if isinstance(packed, Tensor):
        return _dense(x, packed)
    row = x.abs().amax(1, keepdim=True).clamp_min(1e-12)
    out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x / row, 1 / 127, 128, packed)
    return out.mul_(row)


def _dense(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.linear(x.to(weight.dtype), weight).float()


_of_torch = _packed if available() else _dense


def product(x: Tensor, packed: Packed) -> Tensor:
    """[M, K] float32, packed or float [N, K] -> [M, N] float32; in TorchScript only torch's packed form, if there is
    one."""
    # TorchScript does not know these classes, and skips only code below the first condition.
    if not scripting():
        if isinstance(packed, cpu.Packed):
            return torch.from_numpy(packed.product(x.numpy()))
        if isinstance(packed, Linear):
            return packed(x.to(torch.bfloat16)).float()
    return _of_torch(x, packed)


def pack(weight: Tensor) -> Packed:
    """Pack [N, K] for `product` by torch; without FBGEMM it stays bfloat16."""
    if not available():
        return weight.to(torch.bfloat16)
    q, scale = quantize(weight.float())
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():  # quantised tensors are deprecated in torch 2.13; the packed kernel is not
        warnings.simplefilter("ignore")
        packed = torch._make_per_channel_quantized_tensor(q, scale.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(packed, None)


class PackedStack:
    """Matrices of one shape for `product`, one for each expert."""

    def __init__(self, matrices: Sequence[Packed]) -> None:
        self._matrices = matrices

    def __repr__(self) -> str:
        return f"<PackedStack of {len(self)}>"

    def __len__(self) -> int:
        return len(self._matrices)

    def __getitem__(self, expert: int) -> Callable[[Tensor], Tensor]:
        return partial(product, packed=self._matrices[expert])
