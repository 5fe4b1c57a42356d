"""The pictures of measurements: they are of the results that lie here, and a mark stands where its number is."""

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", autouse=True)
def beside() -> Iterator[None]:
    """The benchmarks are scripts that import what lies beside them."""
    sys.path.insert(0, str(ROOT / "bench"))
    yield
    sys.path.remove(str(ROOT / "bench"))


@pytest.fixture(scope="module")
def plots(beside: None) -> ModuleType:
    return importlib.import_module("plots")


@pytest.fixture(scope="module")
def flame(beside: None) -> ModuleType:
    return importlib.import_module("flame")


def test_the_pictures_of_the_docs_are_of_the_results(plots: ModuleType, tmp_path: Path) -> None:
    plots.draw(ROOT / "bench" / "results", tmp_path)
    for name in plots.DRAWN:
        kept = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
        assert (tmp_path / f"{name}.svg").read_text() == kept, "`make plots` has not been run after a measurement"
        assert len(kept) < 150_000


@pytest.mark.parametrize("name", ["holes", "quality", "steps", "latency", "crowd", "capacity", "flame"])
def test_everything_lies_within_the_picture(plots: ModuleType, name: str) -> None:
    """Text by a width of seven pixels a letter, which most letters do not have."""
    report = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    picture = ElementTree.fromstring(plots.DRAWN[name](report))
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for mark in picture.iter(f"{SVG}circle"):
        assert 5 <= float(mark.attrib["cx"]) <= width - 5
        assert 5 <= float(mark.attrib["cy"]) <= height - 5
    for text in picture.iter(f"{SVG}text"):
        x, long = float(text.attrib["x"]), 7 * len(text.text or "")
        begin = x - {"start": 0, "middle": long / 2, "end": long}[text.attrib.get("text-anchor", "start")]
        assert begin >= 0, text.text
        assert begin + long <= width, text.text


def test_a_mark_stands_where_its_number_is(plots: ModuleType) -> None:
    """Two decades of a logarithmic axis are as far apart as any other two."""
    ms = {
        "one": {"n": 1, "p50": 1.0, "p95": 10.0},
        "  warm": {"n": 1, "p50": 100.0, "p95": 1000.0},
    }
    side = {"ms": {"ours": ms["one"], "peer": ms["  warm"]}}
    picture = ElementTree.fromstring(plots.latency({"ms": ms, "beside": {"peer": "p", "context cold": side}}))
    rows: dict[str, list[float]] = {}
    for mark in picture.iter(f"{SVG}circle"):
        rows.setdefault(mark.attrib["cy"], []).append(float(mark.attrib["cx"]))
    _, first, second, ours, peer = rows.values()  # the legend is above
    assert first == ours
    assert second == peer
    steps = [first[1] - first[0], second[0] - first[1], second[1] - second[0]]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    said = [text.text for text in picture.iter(f"{SVG}text")]
    assert "first text, warm" in said
    assert "100 / 1,000" in said
    assert "whole line, context cold: llama.cpp" in said


def test_a_series_ends_where_nobody_was_answered(plots: ModuleType) -> None:
    def row(kind: str, peers: int, live: int, answered: float, p50: float | None) -> dict[str, object]:
        wait = {"n": 9, "p50": p50, "p95": None}
        return {"kind": kind, "peers": peers, "live": live, "rested_answered": answered, "rested_ms": wait}

    kinds = [(kind, live) for kind in ("measured", "simulated") for live in (8, 1)]
    found = [row(kind, 1, live, 1.0, 50.0) for kind, live in kinds] + [row(k, 9, live, 0.2, None) for k, live in kinds]
    paths = [path.attrib["d"] for path in ElementTree.fromstring(plots.crowd({"rows": found})).iter(f"{SVG}path")]
    assert [path.count("L") for path in paths] == [1] * 4 + [0] * 4


# Stacks as py-spy writes them: the main thread, the second one, one that waits, one that is somebody else's.
STACKS = """\
0x7f (libc.so.6);<module> (bench/flame.py:9);Scheduler.step (caesura/engine/scheduler.py:1);Linear.__call__ \
(caesura/kernels/int8.py:57);__call__ (torch/_ops.py:12);torch::jit::invoke (libtorch.so);c10::Call<at::Tensor>::call \
(libtorch.so);fbgemm::fbgemmPacked<float> (libtorch.so);fbgemm::ExecuteKernel<float> (libtorch.so) 30
0x7f (libc.so.6);Scheduler.step (caesura/engine/scheduler.py:2);Linear.__call__ (caesura/kernels/int8.py:57);\
0x7f9ebeb4d0fe (?) 40
_worker (concurrent/futures/thread.py:83);f.<locals>.attend (caesura/engine/models/llama/trunk.py:3);\
at::_ops::softmax_int::call (libtorch.so);at::native::softmax(at::Tensor const&) (libtorch.so) 20
_worker (concurrent/futures/thread.py:83);attend (caesura/engine/models/llama/trunk.py:3);c10::x (libtorch.so) 10
_worker (concurrent/futures/thread.py:81);lock_PyThread_acquire_lock (libpython3.11.so.1.0) 500
main (bench/other.py:1) 7
"""


def test_stacks_are_told_in_our_functions_and_the_native_code_below(flame: ModuleType) -> None:
    found = flame.stacks(STACKS.splitlines())
    assert found == Counter(
        {
            "Scheduler.step;Linear.__call__;[FBGEMM]": 30,
            "Scheduler.step;Linear.__call__;[generated code]": 40,
            "[second thread];attend;[softmax]": 20,
            "[second thread];attend;[dispatch]": 10,
        }
    )
    assert flame.costs(found) == {"Linear.__call__": 70, "attend": 30}


def test_what_is_too_small_to_be_seen_is_counted_below(flame: ModuleType) -> None:
    found = Counter({"a;b;c": 2, "a;b;d": 3, "a;e": 95})
    assert flame.pruned(found, 5) == {"a;b": 5, "a;e": 95}
    assert flame.pruned(found, 6) == {"a": 5, "a;e": 95}


def test_a_frame_is_as_wide_as_the_time_in_it_and_stands_on_its_caller(plots: ModuleType) -> None:
    found = {"a;b": 25, "a b": 50, "a": 15, "a;[c]": 10}
    picture = ElementTree.fromstring(plots.flame({"stacks": found, "machine": "m"}))
    boxes = {}
    for group in picture.iter(f"{SVG}g"):
        box, title = group.find(f"{SVG}rect"), group.findtext(f"{SVG}title")
        assert box is not None
        assert title is not None
        boxes[title] = [float(box.attrib[name]) for name in ("x", "y", "width")]
    assert boxes.keys() == {"a: 50.0%", "a b: 50.0%", "b: 25.0%", "[c]: 10.0%"}
    whole = boxes["a: 50.0%"]
    assert whole[2] == boxes["a b: 50.0%"][2] == pytest.approx(5 * boxes["[c]: 10.0%"][2], abs=0.2)
    for title in ("b: 25.0%", "[c]: 10.0%"):
        x, y, width = boxes[title]
        assert y == whole[1] - plots.TALL
        assert whole[0] <= x <= x + width <= whole[0] + whole[2]
    assert len(re.findall("frame native", plots.flame({"stacks": found, "machine": "m"}))) == 1
