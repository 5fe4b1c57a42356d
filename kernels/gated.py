"""The inner rows of a gated MLP, gelu(gate x) * (up x) or silu(gate x) * (up x), whose matrices gate and up are one
[2 * width, K], gate first.

One product, then one kernel that adds up its splits (matmul.py), takes gelu in its tanh form or silu, multiplies and
rounds once. PyTorch would launch three: sum, gelu and product.

Bytes: the matrix once, and 2*rows*width read for each split and written once; of splits 4 bytes a value, all from L2.
With 256 rows of 2112 that is 17 MB for two splits. FLOP: 4*rows*width*K, in the product.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from caesura.kernels import matmul
from caesura.kernels.jit import cdiv, fused, jit, power, tl
from caesura.kernels.linear import Linear

Act = Literal["gelu", "silu"]


def reference(x: Tensor, gate_up: Linear, act: Act = "gelu") -> Tensor:
    gate, up = gate_up(x).chunk(2, -1)
    return (silu(gate) if act == "silu" else gelu(gate, approximate="tanh")) * up


@jit
def activated(gate, up, SILU: tl.constexpr):
    """gelu(gate) * up in float32, gelu in its tanh form; or silu(gate) * up."""
    # 0.5 * (1 + tanh(t)) is sigmoid(2t); t = sqrt(2/pi) * (gate + 0.044715 * gate^3)
    steep = gate if SILU else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(steep) * up


@jit(do_not_specialize=["rows", "splits"])  # they change from step to step and must not wait for the compiler
def _gate(
    parts, out, rows, splits, N: tl.constexpr, SPLITS: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, n, split = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SPLITS)
    parts += (split * rows + row).to(tl.int64)[:, None] * (2 * N) + n[None, :]
    mask = (split < splits)[:, None] & (n < N)[None, :]
    gate = tl.sum(tl.load(parts, mask=mask, other=0.0).to(tl.float32), 0)
    up = tl.sum(tl.load(parts + N, mask=mask, other=0.0).to(tl.float32), 0)
    tl.store(out + row.to(tl.int64) * N + n, activated(gate, up, SILU).to(out.dtype.element_ty), mask=n < N)


def launch(x: Tensor, gate_up: Linear, act: Act = "gelu") -> Tensor:
    """As `gated`."""
    parts = matmul.products(x, gate_up)
    splits, rows, width = *parts.shape[:2], parts.shape[2] // 2
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    _gate[rows, cdiv(width, 512)](
        parts, out, rows, splits, N=width, SPLITS=power(splits), SILU=act == "silu", BLOCK=512
    )
    return out


def gated(x: Tensor, gate_up: Linear, act: Act = "gelu") -> Tensor:
    """x [rows, K] and gate_up [2 * width, K], gate first -> gelu(gate x) * (up x), or with `act` "silu" that of the
    gate; [rows, width] in x's dtype."""
    return (launch if fused(x) else reference)(x, gate_up, act)
