"""What the benchmarks stand on: the sandbox, the scores, the trivial baselines, the rows, the places to type at."""

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(scope="module", autouse=True)
def beside() -> Iterator[None]:
    """The benchmarks are scripts that import what lies beside them."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def quality(beside: None) -> ModuleType:
    return importlib.import_module("quality")


@pytest.fixture(scope="module")
def latency(beside: None) -> ModuleType:
    return importlib.import_module("latency")


# The sandbox


def test_a_program_that_runs_to_its_end_passes(quality: ModuleType) -> None:
    assert quality.passes("import math, random\nprint('noise', math.pi, random.random())")


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "def f(:",
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "input()",
        "x = bytearray(2 << 30)",
    ],
)
def test_a_program_that_fails_or_leaves_early_does_not_pass(quality: ModuleType, program: str) -> None:
    assert not quality.passes(program)


def test_an_endless_loop_ends(quality: ModuleType) -> None:
    began = time.monotonic()
    assert not quality.passes("while True: pass", cpu_s=1)
    assert not quality.passes("import time\ntime.sleep(60)", wall_s=0.5)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "program",
    [
        "open({new!r}, 'w').write('x')",
        "import os\nos.open({new!r}, os.O_CREAT)",
        "open({old!r}, 'a')",
        "import os\nos.remove({old!r})",
        "import os\nos.rename({old!r}, {new!r})",
        "import shutil\nshutil.rmtree({folder!r})",
        "import os\nos.mkdir({new!r})",
        "import subprocess\nsubprocess.run(['touch', {new!r}])",
        "import os\nos.system('touch ' + {new!r})",
        "import os\nos.fork()",
        "import os\nos.kill(os.getppid(), 0)",
        "import socket\nsocket.create_connection(('127.0.0.1', 9))",
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))",
    ],
)
def test_a_program_reaches_nothing_outside(quality: ModuleType, tmp_path: Path, program: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old")
    tried = program.format(old=str(old), new=str(new), folder=str(tmp_path))
    assert quality.passes(f"try:\n    exec({tried!r})\nexcept PermissionError:\n    pass\nelse:\n    1 / 0")
    assert old.read_text() == "old"
    assert not new.exists()


# Cases and scores

TASK = {
    "task_id": "t/1",
    "entry_point": "double",
    "prompt": "def double(x):\n    y = x\n",
    "canonical_solution": "    return x + y\n",
    "suffix": "\n# end\n",
    "test": "def check(f):\n    assert f(2) == 4\n",
}


def test_the_cursor_is_behind_the_indentation(quality: ModuleType) -> None:
    case = quality.at_cursor(TASK)
    assert case.prefix == "def double(x):\n    y = x\n    "
    assert case.suffix == "\n\n# end\n"
    assert case.middle == "return x + y"


@pytest.mark.parametrize(
    ("fill", "exact", "passed"),
    [
        ("return x + y", True, True),
        ("return x + y  ", True, True),
        ("return 2 * x", False, True),
        ("return x", False, False),
        ("    return x + y", False, False),
        ("", False, False),
    ],
)
def test_exact_and_pass(quality: ModuleType, fill: str, exact: bool, passed: bool) -> None:
    found = quality.score(quality.at_cursor(TASK), quality.Completion(fill))
    assert (found.exact, found.passed) == (exact, passed)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [("", "", 1.0), ("", "abc", 0.0), ("abc", "abc", 1.0), ("abc", "abd", 2 / 3), ("kitten", "sitting", 4 / 7)],
)
def test_similarity(quality: ModuleType, left: str, right: str, expected: float) -> None:
    assert quality.similarity(left, right) == pytest.approx(expected)
    assert quality.similarity(right, left) == pytest.approx(expected)


def test_interval(quality: ModuleType) -> None:
    assert quality.interval(0, 200) == (0.0, pytest.approx(0.0188, abs=1e-3))
    low, high = quality.interval(20, 200)
    assert low == pytest.approx(0.0657, abs=1e-3)
    assert high == pytest.approx(0.1494, abs=1e-3)


@pytest.mark.parametrize(
    ("prefix", "suffix", "expected"),
    [
        ("total = first\nprint(total)\ntotal = ", "\n", "first"),
        ("for name in names:\n    show(name)\nfor name in ", "\n", "names:"),
        ("a = ", "\nb = 1\na = later\n", "later"),
        ("nothing like it", "\n", ""),
        ("", "", ""),
    ],
)
def test_lookup(quality: ModuleType, prefix: str, suffix: str, expected: str) -> None:
    case = quality.Case("", prefix, suffix, "", "", "")
    assert quality.lookup(case).text == expected


# Rows


def test_every_row_has_its_completions(quality: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is a command from cases to completions; here one that answers in the wrong order."""
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> None:
        asked.append(command)
        cases = [json.loads(line) for line in Path(command[-3]).read_text().splitlines()]
        done = [{"id": c["id"], "completion": c["prefix"][-1], "ms": 2.5, "steps": 3} for c in reversed(cases)]
        Path(command[-1]).write_text("".join(json.dumps(one) + "\n" for one in done))

    monkeypatch.setattr(subprocess, "run", answer)
    options = SimpleNamespace(model="m", base=Path("b"), deadline_ms=100.0)
    cases = [quality.Case(str(i), f"x{i}", "", "", "", "") for i in range(4)]
    for row in ("smollm2", "canvas", "verify"):
        assert [c.text for c in quality.complete(row, cases, options, tmp_path)] == ["0", "1", "2", "3"]
    assert [("--sampler" in command, "eval" in command) for command in asked] == [
        (False, False),
        (True, True),
        (False, True),
    ]


def test_a_summary_counts_and_the_table_shows_it(quality: ModuleType) -> None:
    completions = [
        quality.Completion("a", 10.0, 4, {"canvas": 3, "left_to_right": 1}),
        quality.Completion(" ", 30.0, 8, {"canvas": 2}),
        quality.Completion("", error="too long"),
    ]
    scores = [quality.Score(True, True, 1.0), quality.Score(False, True, 0.5), quality.Score(False, False, 0.0)]
    row = quality.summary(completions, scores)
    assert (row["n"], row["exact"], row["pass"], row["similarity"]) == (3, 0.3333, 0.6667, 0.5)
    assert (row["empty"], row["errors"]) == (0.6667, 1)
    assert row["tokens"] == {"canvas": 5, "lookup": 0, "left_to_right": 1}
    assert row["steps"]["p95"] == 8
    report = {"rows": {"canvas": row, "empty": quality.summary([quality.Completion("")], scores[2:])}}
    about = {"n": 3, "seed": 7, "reference_passes": 3, "commit": "c", "machine": "box", "load": 0.1}
    shown = quality.picture({**report, **about, "model": {"name": "m"}})
    assert "canvas (1 errors)" in shown
    assert "5/0/1" in shown
    assert len({len(line) for line in shown.splitlines()[3:-1]}) == 1


def test_spread(latency: ModuleType) -> None:
    assert latency.spread([]) == {"n": 0, "p50": None, "p95": None}
    assert latency.spread([3.0]) == {"n": 1, "p50": 3.0, "p95": 3.0}
    assert latency.spread([float(i) for i in range(1, 101)]) == {"n": 100, "p50": 50.5, "p95": 95.0}


def test_places_are_lines_cut_where_their_author_went_on(latency: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "FILES", ("csv", "json/decoder"))
    found = latency.places(seed=7)
    assert found == latency.places(seed=7)
    assert [place.name for place in found[:4]] == ["csv.py", "json/decoder.py"] * 2
    for place in found:
        line = place.text.split("\n")[place.line]
        assert len(line) == place.column
        assert len(place.keys) == latency.KEYS
