"""Attention over the KV cache: the kernel finds what plain products find, whatever is split, shared or out of sight."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from caesura.kernels.attention import attention, bits, launch, reference

from ..support.checkpoints.few import few

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where there is no GPU, Triton interprets

# Rows that fill up a block may see nothing and divide zero by zero; they are not stored.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")

ALL = 1 << 62  # a window that hides nothing
TOLERANCES = [(torch.float32, 1e-5, 1e-5), (torch.float16, 2e-3, 2e-3)]
Given = tuple[Tensor, Tensor, Tensor]
# rows, heads, key heads, columns, width
CANVASES = [
    (1, 4, 4, 1, 16),  # a single row that sees itself
    (5, 4, 2, 123, 24),
    (17, 6, 1, 300, 32),  # more rows of one key head than a block has
    (7, 2, 1, 380, 16),  # twelve splits
    (3, 8, 2, 250, 256),
    (2, 8, 1, 200, 512),  # two programs share a head's values
]
# rows, heads, key heads, columns, width, first, window
CAUSAL = [
    (1, 2, 1, 1, 16, 0, ALL),
    (17, 4, 2, 17, 32, 0, ALL),  # nothing before the rows themselves
    (17, 4, 2, 140, 32, 123, ALL),
    (30, 6, 2, 230, 16, 200, 40),  # of many blocks a row sees only the end, and of some splits nothing
    (90, 2, 2, 90, 16, 0, 1),  # itself alone
    (70, 2, 1, 260, 24, 190, 64),
    (3, 4, 1, 130, 512, 120, ALL),  # columns behind the last row are nobody's
]


def inputs(rows: int, heads: int, groups: int, columns: int, width: int, dtype: torch.dtype) -> Given:
    """q, keys and values: the latter views into buffers of more columns, with nonsense around them, not to be read."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    q = torch.randn(rows, heads, width, generator=generator) * 3 / math.sqrt(width)
    buffers = torch.full((2, groups, columns + 9, width), torch.nan)
    buffers[:, :, 4 : 4 + columns] = torch.randn(2, groups, columns, width, generator=generator)
    keys, values = buffers.to(DEVICE, dtype)[:, :, 4 : 4 + columns]
    return q.to(DEVICE, dtype), keys, values


def exact(q: Tensor, keys: Tensor, values: Tensor, first: int | None, window: int) -> Tensor:
    """Row by row and head by head, from the columns that the row sees alone."""
    rows, heads, width = q.shape
    share, out = heads // len(keys), torch.empty(rows, heads, width, dtype=torch.float64, device=q.device)
    for row in range(rows):
        low, high = 0, keys.shape[1]
        if first is not None:
            low, high = max(0, first + row - window + 1), first + row + 1
        for head in range(heads):
            k, v = (x[head // share, low:high].double() for x in (keys, values))
            out[row, head] = (k @ q[row, head].double()).softmax(0) @ v
    return out.flatten(1)


def assert_equal(found: Tensor, expected: Tensor, atol: float, rtol: float) -> None:
    torch.testing.assert_close(found.double(), expected.double(), atol=atol, rtol=rtol)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few("shape", CANVASES, 3)
def test_a_canvas_sees_every_column(shape: tuple[int, ...], dtype: torch.dtype, atol: float, rtol: float) -> None:
    rows, heads, groups, columns, width = shape
    given = inputs(rows, heads, groups, columns, width, dtype)
    expected = exact(*given, None, 1)
    for path in (reference, launch, attention):
        found = path(*given, None, 1)  # a canvas has no window
        assert found.shape == (rows, heads * width)
        assert found.dtype == dtype
        assert_equal(found, expected, atol, rtol)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few("shape", CAUSAL, 3)
def test_a_context_row_sees_its_window(shape: tuple[int, ...], dtype: torch.dtype, atol: float, rtol: float) -> None:
    rows, heads, groups, columns, width, first, window = shape
    given = inputs(rows, heads, groups, columns, width, dtype)
    expected = exact(*given, first, window)
    for path in (reference, launch, attention):
        assert_equal(path(*given, first, window), expected, atol, rtol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_columns_that_no_row_sees_are_not_read(dtype: torch.dtype) -> None:
    q, keys, values = inputs(5, 4, 2, 300, 16, dtype)
    expected = launch(q, keys, values, 250, 20)
    for unseen in (slice(0, 231), slice(255, 300)):
        keys[:, unseen], values[:, unseen] = torch.nan, torch.nan
    assert torch.equal(launch(q, keys, values, 250, 20), expected)


def test_large_scores_far_apart_neither_overflow_nor_vanish() -> None:
    q, keys, values = inputs(4, 2, 1, 150, 32, torch.float32)
    q *= 300  # the largest score decides, in whichever split it is
    rounded = 8 * torch.finfo(torch.float32).eps * float((q[:, :, None] * keys[:1, None]).sum(-1).abs().max())
    for sign in (1, -1):  # a score is known to its own rounding, and a probability as far
        assert_equal(
            launch(sign * q, keys, values, None, ALL), exact(sign * q, keys, values, None, ALL), rounded, rounded
        )


def test_rows_may_be_a_slice_of_wider_ones() -> None:
    q, keys, values = inputs(9, 4, 2, 70, 16, torch.float32)
    wide = torch.full((9, 6, 40), torch.nan, device=DEVICE)
    wide[:, 1:5, 3:19] = q
    assert torch.equal(launch(wide[2:7, 1:5, 3:19], keys, values, None, ALL), launch(q[2:7], keys, values, None, ALL))


# The columns that each row sees: from the first to the second number, and from the third to the fourth.
SPANS = {
    "a canvas after its context": [(41, 290, 290, 297)] * 7,
    "a canvas at the very start": [(0, 0, 0, 7)] * 7,
    "three canvases, each after the last": [(0, 200, 200, 203)] * 3
    + [(0, 200, 203, 205)] * 2
    + [(0, 200, 205, 207)] * 2,
    "a canvas and the context that it reads first": [(150, 203, 203, 207)] * 4
    + [(150 + n, 200 + n, 200 + n, 201 + n) for n in range(3)],
    "a row alone, and rows far apart": [(5, 5, 9, 10), (0, 300, 0, 0), (0, 0, 0, 300), (299, 300, 1, 2)]
    + [(60, 80, 200, 240)] * 3,
}


def seen_alone(q: Tensor, keys: Tensor, values: Tensor, spans: Sequence[tuple[int, ...]]) -> Tensor:
    """Each row over copies of the columns that it sees."""
    rows = []
    for row, (low, context, own, end) in enumerate(spans):
        at = sorted({*range(low, context), *range(own, end)})
        rows.append(exact(q[row : row + 1], keys[:, at], values[:, at], None, ALL))
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@few("what", SPANS, 3)
def test_the_device_may_say_which_columns_a_row_sees(what: str, dtype: torch.dtype) -> None:
    q, keys, values = inputs(7, 4, 2, 300, 16, dtype)
    expected = seen_alone(q, keys, values, SPANS[what])
    spans = torch.tensor(SPANS[what], dtype=torch.int32, device=DEVICE)
    low, high = int(spans[:, ::2].min()), int(spans[:, 1::2].max())
    keys[:, :low], keys[:, high:], values[:, :low], values[:, high:] = (torch.nan,) * 4
    for path in (launch, reference):
        assert_equal(path(q, keys, values, None, ALL, spans), expected, 2e-3, 2e-3)


@pytest.mark.parametrize("window", [40, ALL])
@few(("columns", "start"), [(300, 0), (300, 1000), (700, 20)], 2)
def test_a_table_says_where_keys_and_values_are(columns: int, start: int, window: int) -> None:
    """Buffers with more or fewer columns than those that are given, of which only the shape counts, and which begin at
    another place of the text."""
    q, *held = inputs(7, 4, 2, columns, 16, torch.float16)
    keys, values = (x.contiguous() for x in held)
    table = torch.tensor([keys.data_ptr(), values.data_ptr(), columns, start], device=DEVICE)
    given = torch.full_like(keys[:, :50], torch.nan)
    for of_rows in SPANS.values():
        spans = torch.tensor(of_rows, dtype=torch.int32, device=DEVICE) + start
        expected = seen_alone(q, keys, values, of_rows)
        assert_equal(launch(q, given, given, None, window, spans, table), expected, 2e-3, 2e-3)
        assert_equal(reference(q, keys, values, None, window, spans, table), expected, 2e-3, 2e-3)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@few(("rows", "columns", "reach"), [(41, 230, 60), (5, 300, 300), (17, 17, 17), (1, 130, 1), (90, 128, 64)], 3)
def test_a_mask_hides_some_of_the_last_columns(
    rows: int, columns: int, reach: int, dtype: torch.dtype, atol: float, rtol: float
) -> None:
    """Also where a CUDA graph gets whole buffers, and a mask with bits for more columns than there are."""
    q, keys, values = inputs(rows, 6, 2, columns, 16, dtype)
    generator = torch.Generator().manual_seed(reach)
    mask = torch.rand(rows, reach, generator=generator) < 0.5
    mask[:, -1] = True
    scores = torch.einsum("rghd,gcd->rghc", q.double().unflatten(1, (2, 3)), keys.double())
    scores[..., columns - reach :].masked_fill_(~mask.to(DEVICE)[:, None, None], -torch.inf)
    expected = torch.einsum("rghc,gcd->rghd", scores.softmax(-1), values.double()).flatten(1)
    for path in (reference, launch, attention):
        found = path(q, keys, values, None, ALL, mask=bits(mask, columns).to(DEVICE))
        assert_equal(found, expected, atol, rtol)
    wide = tuple(torch.full((2, 1000, 16), torch.nan, dtype=dtype, device=DEVICE) for _ in range(2))
    for whole, part in zip(wide, (keys, values), strict=True):
        whole[:, 128 : 128 + columns] = part
    last = 128 + columns
    spans = torch.tensor([[128, last, last, last]] * rows, dtype=torch.int32, device=DEVICE)
    seen = bits(mask, 128 + columns, 16).to(DEVICE)
    for path in (reference, launch):
        assert_equal(path(q, *wide, None, ALL, spans, mask=seen), expected, atol, rtol)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize(("groups", "width"), [(8, 256), (2, 512)])
@pytest.mark.parametrize(("rows", "columns", "first", "window"), [
    (16, 2064, None, ALL), (256, 8448, None, ALL), (1, 1024, None, ALL), (512, 1535, 1023, 1024), (37, 4133, 4096, ALL),
])  # fmt: skip
def test_on_a_gpu_at_the_real_shapes(
    rows: int, columns: int, first: int | None, window: int, groups: int, width: int
) -> None:
    q, keys, values = inputs(rows, 16, groups, columns, width, torch.bfloat16)
    expected = reference(q.float(), keys.float(), values.float(), first, window)
    assert_equal(attention(q, keys, values, first, window), expected, 2e-2, 2e-2)
