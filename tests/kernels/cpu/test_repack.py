"""Rows of matrices as they lie in files become floats as llama.cpp's makers compute them, and tiles as our own forms
have them; a matrix may lie in several formats, one below the other."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from caesura.engine.weights import forms, packing, stored
from caesura.kernels import cpu
from caesura.kernels.cpu import repack
from caesura.kernels.cpu.repack import RowBlocks

ROWS, COLUMNS = 37, 512
SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # places in a block; else 0
FLOATS = ("F32", "F16", "BF16")

pytestmark = pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")


def drawn(kind: str, rows: int = ROWS) -> RowBlocks:
    """Random weights: floats, or any bytes but for the scales of a block."""
    draw, (columns, size) = np.random.default_rng(4), gguf.GGML_QUANT_SIZES[Type[kind]]
    if kind in FLOATS:
        raw = gguf.quantize(draw.standard_normal((rows, COLUMNS)).astype(np.float32), Type[kind])
        return RowBlocks(kind, raw.view(np.uint8).reshape(rows, -1), COLUMNS)
    raw = draw.integers(0, 256, (rows, COLUMNS // columns, size), dtype=np.uint8)
    for at in SCALES.get(kind, (0,)):
        scales = draw.uniform(-0.1, 0.1, (rows, COLUMNS // columns, 1)).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    return RowBlocks(kind, raw.reshape(rows, -1), COLUMNS)


def exact(blocks: RowBlocks) -> np.ndarray:
    return gguf.dequantize(blocks.rows, Type[blocks.kind]).reshape(len(blocks.rows), -1)


def untiled(matrix: cpu.Matrix) -> np.ndarray:
    """The values of tiles in q8 or q4, as cpu.h describes them."""
    groups, wide = matrix.columns // 32, 8 if matrix.held.form == cpu.FORMS["q8"] else 4
    tiles, size = matrix.tiles.reshape(-(-matrix.rows // 16), -1), groups * wide * 64
    codes = tiles[:, :size].reshape(-1, groups, wide, 16, 4).transpose(0, 3, 1, 2, 4)  # [tiles, 16, groups, quads, 4]
    if wide == 4:
        codes = np.concatenate((codes & 15, codes >> 4), 3)
    halves = tiles[:, size : size + groups * 32 * (8 // wide)].view(np.float16)
    scale, *least = halves.reshape(len(tiles), -1, groups, 16).swapaxes(0, 1)
    values = (
        codes.view(np.int8).reshape(len(tiles), 16, groups, 32) * scale.astype(np.float32).swapaxes(1, 2)[..., None]
    )
    for one in least:
        values += one.astype(np.float32).swapaxes(1, 2)[..., None]
    return values.reshape(-1, matrix.columns)[: matrix.rows]


@pytest.mark.parametrize("kind", repack.KINDS)
def test_floats_are_to_the_bit_what_the_format_says(kind: str) -> None:
    blocks = drawn(kind)
    np.testing.assert_array_equal(repack.floats(blocks).view(np.uint32), exact(blocks).view(np.uint32))


@pytest.mark.parametrize("kind", repack.KEPT)
def test_codes_with_groups_of_32_are_kept(kind: str) -> None:
    """Q4_K's scales and minima are products, and rounded: by at most 1/2048 of themselves."""
    blocks = drawn(kind)
    found, right = untiled(repack.packed(repack.KEPT[kind], [blocks])), exact(blocks)
    assert np.abs(found - right).max() <= (1e-3 * np.abs(right).max() if kind == "Q4_K" else 0)


@pytest.mark.parametrize("kind", [kind for kind in repack.KINDS if kind not in repack.KEPT])
def test_all_others_are_to_the_bit_what_rounding_their_floats_makes_of_them(kind: str) -> None:
    blocks = drawn(kind)
    right = cpu.Matrix("q8", *stored.q8(exact(blocks)))
    np.testing.assert_array_equal(repack.packed("q8", [blocks]).tiles, right.tiles)


@pytest.mark.parametrize("size", [1e-9, 1e-7, 1e-4, 3e4])
def test_small_and_large_floats_are_rounded_as_by_numpy(size: float) -> None:
    weight = np.random.default_rng(1).standard_normal((20, 96)).astype(np.float32) * np.float32(size)
    weight[3], weight[4, :32] = 0, -weight[4, :32]
    found = repack.packed("q8", [repack.plain(weight)])
    np.testing.assert_array_equal(found.tiles, cpu.Matrix("q8", *forms.quantised("q8", weight)).tiles)


@pytest.mark.parametrize(("form", "least"), [("q8", 127 * 65_520), ("k4", 15 * 65_520)])
def test_weights_too_large_for_a_scale_of_16_bits_are_refused(form: str, least: float) -> None:
    weight = np.random.default_rng(1).uniform(-1, 1, (16, 64)).astype(np.float32)
    x = np.ones((1, 64), np.float32)
    weight[5, 40] = 0.999 * least
    assert np.isfinite(cpu.Packed(packing.packed(form, [repack.plain(weight)])).product(x)).all()
    weight[5, 40] = 1.001 * least
    with pytest.raises(ValueError, match="too large"):
        packing.packed(form, [repack.plain(weight)])


def test_columns_that_fill_no_group_are_padded_with_zeros() -> None:
    weight = np.random.default_rng(2).standard_normal((5, 40)).astype(np.float32)
    found = repack.packed("q8", [repack.plain(weight)])
    padded = cpu.Matrix("q8", *stored.q8(np.pad(weight, ((0, 0), (0, 24)))))
    assert found.columns == 64
    np.testing.assert_array_equal(found.tiles, padded.tiles)


def test_matrices_below_one_another_may_differ_in_their_format() -> None:
    """Also where one ends within a tile."""
    parts = [drawn("Q6_K", 5), drawn("Q8_0", 20), drawn("F16", 7)]
    right = np.concatenate([untiled(repack.packed("q8", [part])) for part in parts])
    np.testing.assert_array_equal(untiled(repack.packed("q8", parts)), right)


@pytest.mark.parametrize("kind", repack.KINDS)
def test_a_weight_that_is_no_number_is_refused(kind: str) -> None:
    blocks = drawn(kind)
    at = SCALES.get(kind, (0,))[0]
    for bad in (np.nan, np.inf):
        rows = blocks.rows.copy()
        value = np.float32(bad).tobytes()[2:] if kind == "BF16" else np.float16(bad).tobytes()
        value = np.float32(bad).tobytes() if kind == "F32" else value
        rows[-1, at : at + len(value)] = np.frombuffer(value, np.uint8)
        for make in (lambda held: repack.packed(repack.KEPT.get(kind, "q8"), [held]), repack.floats):
            with pytest.raises(ValueError, match="infinite or no number"):
                make(blocks._replace(rows=rows))
