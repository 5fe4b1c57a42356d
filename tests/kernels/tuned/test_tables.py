"""Block sizes measured on a GPU: a launcher takes those of its device's table, and its own where there are none."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from caesura.kernels import attention, experts, fp8, gated, head, matmul, tuned
from caesura.kernels.linear import Linear

if torch.cuda.is_available():
    pytest.skip("tables of a CPU are for Triton's interpreter", allow_module_level=True)

UP = {"BLOCK_R": 32, "BLOCK_N": 16, "BLOCK_K": 16, "num_warps": 8, "num_stages": 2}
DOWN = {**UP, "BLOCK_N": 32}
SCAN = {"BLOCK_R": 32, "BLOCK_V": 64, "BLOCK_D": 16, "num_warps": 4, "num_stages": 3}
MEAN = {**SCAN, "BLOCK_D": 32}
ATTENTION = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_V": 16, "num_warps": 2, "num_stages": 3}
ROWS, TOP_K = 6, 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CAESURA_TUNED", str(tmp_path))
    tuned._read.cache_clear()
    yield tmp_path
    tuned._read.cache_clear()


def work() -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Linear, Linear]]:
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(ROWS, 48, generator=generator), torch.rand(ROWS, TOP_K, generator=generator)
    chosen = torch.randint(4, (ROWS, TOP_K), generator=generator)
    up, down = (torch.randn(shape, generator=generator) / 8 for shape in ((4, 64, 48), (4, 48, 32)))
    return (x, weights, chosen), (fp8.Fp8Linear(*fp8.quantize(up)), fp8.Fp8Linear(*fp8.quantize(down)))


def entries() -> list[tuned.TunedEntry]:
    (x, _, _), (up, down) = work()
    of_up, of_down = (x, up.operands[0]), (x, down.operands[0])
    return [
        tuned.entry(experts.UP, up.shape, 1000, of_up, {**UP, "num_warps": 4}),
        tuned.entry(experts.UP, up.shape, ROWS * TOP_K, of_up, UP),
        tuned.entry(experts.DOWN, down.shape, ROWS * TOP_K, of_down, DOWN),
        tuned.entry(attention.NAME, (4, 2, 32), ROWS, [x], ATTENTION),
        tuned.entry(matmul.NAME, up[0].shape, ROWS, of_up, UP),
        tuned.entry(gated.NAME, up[0].shape, ROWS, of_up, UP),
        tuned.entry(head.SCAN, (300, 48), ROWS, [x], SCAN),
        tuned.entry(head.MEAN, (300, 48), ROWS, [x], MEAN),
    ]


def write(folder: Path, text: str) -> None:
    (folder / tuned.file_name("cpu")).write_text(text)


def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, int]]:
    """The block sizes of each launch, by kernel."""
    found, kernel = dict[str, dict[str, int]](), type(experts._up)
    get = kernel.__getitem__

    def noted(self: Any, grid: Any) -> Any:
        def launch(*arguments: Any, **how: Any) -> Any:
            found[self.fn.__name__] = {n: v for n, v in how.items() if n in FORMULAS.get(self.fn.__name__, ())}
            return get(self, grid)(*arguments, **how)

        return launch

    given, both = work()
    x, one = given[0], both[0][0]
    embed, none = torch.randn(300, 48) / 8, torch.zeros(ROWS, dtype=torch.int64)
    of, asked = head.Head(embed, embed, 30.0), head.Rows(x, torch.ones(ROWS), torch.zeros(1, 300), none, none == 0)
    q, kv = torch.randn(ROWS, 4, 32), torch.randn(2, 2, 40, 32)
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "__getitem__", noted)
        torch.testing.assert_close(experts.launch(*given, *both), experts.reference(*given, *both))
        torch.testing.assert_close(attention.launch(q, *kv, None, 1), attention.reference(q, *kv, None, 1))
        torch.testing.assert_close(matmul.launch(x, one), one.reference(x))
        torch.testing.assert_close(gated.launch_product(x, one, "gelu"), gated.reference(x, one))
        seen, plain = head.launch(of, asked), head.reference(of, asked)
        torch.testing.assert_close((seen.entropy, seen.soft), (plain.entropy, plain.soft), atol=1e-5, rtol=1e-4)
        drawn = head.launch_draw(of, asked, seen, torch.linspace(0, 0.99, ROWS), asked.open)
        right = head.reference_draw(of, asked, plain, torch.linspace(0, 0.99, ROWS), asked.open)
        assert torch.equal(drawn, right), "whatever the width of a tile"
    return {name: found[name] for name in FORMULAS}


FORMULAS = {
    "_up": {"BLOCK_R": 16, "BLOCK_N": 32, "BLOCK_K": 64, "num_warps": 2, "num_stages": 4},
    "_down": {"BLOCK_R": 16, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 2, "num_stages": 4},
    "_attend": {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_V": 32, "num_warps": 4, "num_stages": 2},
    "_multiply": {"BLOCK_R": 16, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 2, "num_stages": 4},
    "_gate_up": {"BLOCK_R": 16, "BLOCK_N": 32, "BLOCK_K": 64, "num_warps": 2, "num_stages": 4},
    "_scan": {"BLOCK_R": 16, "BLOCK_V": 256, "BLOCK_D": 64, "num_warps": 8, "num_stages": 2},
    "_mean": {"BLOCK_R": 16, "BLOCK_V": 32, "BLOCK_D": 128, "num_warps": 8, "num_stages": 3},
}
OWN = dict(zip(FORMULAS, (UP, DOWN, ATTENTION, UP, UP, SCAN, MEAN), strict=True))


def test_without_a_table_launchers_take_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(monkeypatch) == FORMULAS


def test_a_table_is_used_and_changes_no_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, tuned.document("cpu", entries()))
    assert launched(monkeypatch) == OWN


def test_an_entry_holds_for_its_rows_down_to_half_of_them_for_its_shape_and_dtypes(folder: Path) -> None:
    write(folder, tuned.document("cpu", entries()))
    (x, _, _), (up, _) = work()

    def warps(shape: tuple[int, ...], rows: int, x: Tensor) -> int | None:
        found = tuned.blocks(experts.UP, shape, rows, x, up.operands[0])
        return found and found["num_warps"]

    assert [warps(up.shape, rows, x) for rows in (6, 7, 12, 13, 500, 501, 1000, 1001)] == [
        None, 8, 8, None, None, 4, 4, None,
    ]  # fmt: skip
    assert warps((4, 64, 64), 12, x) is None
    assert warps(up.shape, 12, x.half()) is None


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(tuned.document("cpu", entries())) | fields)


def wrong(**blocks: Any) -> str:
    entry = json.loads(tuned.document("cpu", entries()))["entries"][0]
    return changed(entries=[entry | {"blocks": blocks}])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        changed(device="NVIDIA H200"),
        changed(triton="2.0"),
        changed(kernels="other code"),
        changed(entries=7),
        changed(entries=[{"kernel": "experts up"}]),
        changed(entries=[{**entries()[0], "kernel": "another"}]),
        changed(entries=[{**entries()[0], "rows": "many"}]),
        wrong(BLOCK_R=16),
        wrong(**UP, BLOCK_Z=16),
        wrong(**UP | {"BLOCK_N": 48}),
        wrong(**UP | {"BLOCK_N": 4096}),
        wrong(**UP | {"BLOCK_N": "64"}),
        wrong(**UP | {"num_warps": 64}),
        wrong(**UP | {"num_stages": 0}),
        changed(entries=[tuned.entry(attention.NAME, (4, 2, 32), ROWS, [], {**ATTENTION, "BLOCK_V": 64})]),
    ],
)
def test_a_damaged_or_foreign_table_is_ignored_with_one_line(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, text)
    with caplog.at_level(logging.WARNING, "caesura.kernels.tuned"):
        assert launched(monkeypatch) == FORMULAS
    assert len(caplog.records) == 1
    assert "cpu.json is not used" in caplog.text


def test_a_table_outlives_comments_but_no_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "__file__", str(tmp_path / "tuned" / "__init__.py"))
    monkeypatch.setattr(tuned, "SOURCES", ("one.py",))

    def digest(text: str) -> str:
        (tmp_path / "one.py").write_text(text)
        return tuned.digest.__wrapped__()

    plain = digest("@jit\ndef one(x):\n    return x\n")
    assert digest('@jit\ndef one(x):\n    """Says more."""\n    return x  # and more\n\n\ndef launch(): ...\n') == plain
    assert digest("@jit\ndef one(x):\n    return x + 1\n") != plain


def test_entries_that_are_measured_replace_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, tuned.document("cpu", entries()))
    with tuned.using([]):
        assert launched(monkeypatch) == FORMULAS


def test_a_file_is_named_after_its_card() -> None:
    assert tuned.file_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3.json"


def is_whole(path: Path) -> bool:
    """True if a card would read it, whatever its Triton, and the kernels are still those that were measured."""
    table = json.loads(path.read_text())
    named = path.name == tuned.file_name(table["device"]) and table["kernels"] == tuned.digest()
    return named and bool(tuned._ordered(table["entries"]))


def test_every_committed_table_is_whole(tmp_path: Path) -> None:
    assert all(map(is_whole, Path(tuned.__file__).parent.glob("nvidia-*.json")))
    made, text = tmp_path / "nvidia-h200.json", tuned.document("NVIDIA H200", entries())
    others = {text: True, text.replace(tuned.digest(), "0"): False, text.replace("H2", "H1"): False}
    for other, expected in others.items():
        made.write_text(other)
        assert is_whole(made) == expected
    made.write_text(tuned.document("NVIDIA H200", []))
    assert not is_whole(made), "an empty one"
