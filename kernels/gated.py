"""The inner rows of a gated MLP, gelu(gate x) * (up x), whose matrices gate and up are one [2 * width, K], gate first.

One product, then one kernel that adds up its splits (matmul.py), takes gelu in its tanh form, multiplies and rounds
once. PyTorch would launch three: sum, gelu and product. Where the next product wants `Rows8`, a program has a whole row
and makes codes and a scale of it.

Bytes: the matrix once, and 2*rows*width read for each split and written once; of splits 4 bytes a value, all from L2.
With 256 rows of 2112 that is 17 MB for two splits. FLOP: 4*rows*width*K, in the product.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from torch.nn.functional import gelu

from caesura.kernels import matmul
from caesura.kernels.fp8 import empty_rows, quantised, store_row
from caesura.kernels.jit import cdiv, fused, jit, power, tl, whole
from caesura.kernels.linear import Activations, Linear, row_operands


def reference(x: Activations, gate_up: Linear, rounds: bool = False) -> Activations:
    gate, up = gate_up(x).chunk(2, -1)
    inner = gelu(gate, approximate="tanh") * up
    return quantised(inner) if rounds else inner


@jit
def activated(gate, up, SILU: tl.constexpr):
    """gelu(gate) * up in float32, gelu in its tanh form; or silu(gate) * up."""
    # 0.5 * (1 + tanh(t)) is sigmoid(2t); t = sqrt(2/pi) * (gate + 0.044715 * gate^3)
    steep = gate if SILU else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(steep) * up


@jit(do_not_specialize=["rows", "splits"])  # they change from step to step and must not wait for the compiler
def _gate(parts, out, scales, rows, splits, WIDTH: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    split = tl.arange(0, SPLITS)
    parts += (split * rows + row)[:, None] * (2 * WIDTH) + n[None, :]
    mask = (split < splits)[:, None] & (n < WIDTH)[None, :]
    gate = tl.sum(tl.load(parts, mask=mask, other=0.0).to(tl.float32), 0)
    up = tl.sum(tl.load(parts + WIDTH, mask=mask, other=0.0).to(tl.float32), 0)
    inner = activated(gate, up, False)
    if scales is not None:
        inner = inner.to(tl.bfloat16).to(tl.float32)
    store_row(inner, out, scales, row, n, WIDTH)


def launch(x: Activations, gate_up: Linear, rounds: bool = False) -> Activations:
    """As `gated`."""
    parts = matmul.products(x, gate_up)
    splits, rows, width = *parts.shape[:2], parts.shape[2] // 2
    out = empty_rows(parts, rows, width) if rounds else x.new_empty(rows, width)
    how = whole(width) if rounds else {"WIDTH": width, "BLOCK": 512}
    _gate[rows, cdiv(width, how["BLOCK"])](parts, *row_operands(out), rows, splits, SPLITS=power(splits), **how)
    return out


def gated(x: Activations, gate_up: Linear, rounds: bool = False) -> Activations:
    """x [rows, K] and gate_up [2 * width, K], gate first -> gelu(gate x) * (up x), [rows, width] in x's dtype; or as
    `Rows8`, where the next product `rounds`."""
    return (launch if fused(row_operands(x)[0]) else reference)(x, gate_up, rounds)
