"""What bench/steps.py stands on: the work of a step by the published shapes, and a whole run at a tiny size."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ..support.checkpoints.oracle import TEXT

BENCH = Path(__file__).parents[2] / "bench"
PUBLISHED = json.loads((BENCH.parent / "gpu" / "diffusiongemma-26b.json").read_text())["text_config"]


@pytest.fixture(scope="module")
def steps() -> Iterator[ModuleType]:
    """The benchmark is a script that imports what lies beside it."""
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("steps")
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def roofline(steps: ModuleType) -> ModuleType:
    return sys.modules["roofline"]


def test_the_published_model_has_its_published_size(roofline: ModuleType) -> None:
    embedding = 262144 * 2816
    assert (roofline.parameters(PUBLISHED) + embedding) / 1e9 == pytest.approx(25.25, abs=0.02)


@pytest.mark.parametrize(("canvas", "gigabytes"), [(16, 35.9), (256, 52.2)])
def test_a_step_of_the_published_model_moves_the_bytes_that_were_counted_for_it(
    roofline: ModuleType, canvas: int, gigabytes: float
) -> None:
    parts = roofline.work(PUBLISHED, canvas, 2048, 2)
    assert sum(part.bytes for name, part in parts.items() if name != "sampler") / 1e9 == pytest.approx(
        gigabytes, abs=0.15
    )


def test_a_bound_is_the_slower_of_reading_and_multiplying_part_by_part(roofline: ModuleType) -> None:
    parts = {"reads": roofline.Work(200, 10), "multiplies": roofline.Work(10, 3000)}
    assert roofline.bound_ms(parts, bandwidth=100, peak=1000) == pytest.approx(1000 * (2 + 3))


@pytest.mark.slow
def test_both_sides_are_timed_on_the_same_answers(steps: ModuleType) -> None:
    report = steps.measure(TEXT, [512], [16], [1], 1)
    [row] = report["rows"]
    assert row["agreement"]["same best"] == 1.0
    assert row["agreement"]["apart"] < 1e-3
    assert set(row["ms"]) == {"ours", "transformers", "eager"}
    assert all(times["p50"] > 0 for times in row["ms"].values())
    assert sum(row["shares"].values()) == pytest.approx(1, abs=0.01)
    assert min(row["shares"][part] for part in ("experts", "attention", "head", "self-conditioning", "sampler")) > 0
    assert "512" in steps.picture(report)
