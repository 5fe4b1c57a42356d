"""What the benchmarks stand on: the sandbox, the scores, the trivial baselines, the rows, the places to type at."""

import importlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from caesura import model_store, wire
from caesura.engine import samplers
from caesura.engine.canvas.healing import heal
from caesura.engine.methods import absorbing, verify
from caesura.engine.methods.verify.lookup import agreeing
from caesura.engine.model import Run
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.noise import Uniform
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores.tensors import TensorScores

from ..support.checkpoints.tiny import Scripted, infill

BENCH = Path(__file__).parents[2] / "bench"


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
def sandbox(beside: None) -> ModuleType:
    return importlib.import_module("infilling.sandbox")


@pytest.fixture(scope="module")
def cases(beside: None) -> ModuleType:
    return importlib.import_module("infilling.cases")


@pytest.fixture(scope="module")
def scores(beside: None) -> ModuleType:
    return importlib.import_module("infilling.scores")


@pytest.fixture(scope="module")
def rows(beside: None) -> ModuleType:
    return importlib.import_module("infilling.rows")


@pytest.fixture(scope="module")
def report(beside: None) -> ModuleType:
    return importlib.import_module("infilling.report")


@pytest.fixture(scope="module")
def latency(beside: None) -> ModuleType:
    return importlib.import_module("latency")


# The sandbox


def test_a_program_that_runs_to_its_end_passes(sandbox: ModuleType) -> None:
    assert sandbox.passes("import math, random\nprint('noise', math.pi, random.random())")


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
def test_a_program_that_fails_or_leaves_early_does_not_pass(sandbox: ModuleType, program: str) -> None:
    assert not sandbox.passes(program)


def test_an_endless_loop_ends(sandbox: ModuleType) -> None:
    began = time.monotonic()
    assert not sandbox.passes("while True: pass", cpu_s=1)
    assert not sandbox.passes("import time\ntime.sleep(60)", wall_s=0.5)
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
def test_a_program_reaches_nothing_outside(sandbox: ModuleType, tmp_path: Path, program: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old")
    tried = program.format(old=str(old), new=str(new), folder=str(tmp_path))
    assert sandbox.passes(f"try:\n    exec({tried!r})\nexcept PermissionError:\n    pass\nelse:\n    1 / 0")
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


def test_the_cursor_is_behind_the_indentation(cases: ModuleType) -> None:
    case = cases.at_cursor(TASK)
    assert case.prefix == "def double(x):\n    y = x\n    "
    assert case.suffix == "\n\n# end\n"
    assert (case.middle, case.kind) == ("return x + y", "line")
    block = cases.at_cursor({**TASK, "canonical_solution": "    x += y\n    return x\n"})
    assert (block.middle, block.kind) == ("x += y\n    return x", "block")


def test_santacoders_lines_are_put_together(cases: ModuleType) -> None:
    task = {"name": "n", "language": "js", "prompt": "{\n  a();", "suffix": "}", "canonical_solution": "  b();"}
    case = cases.joined(task)
    assert case.filled(case.middle) == "{\n  a();\n  b();\n}"
    assert (case.middle, case.lang) == ("b();", "javascript")


@pytest.mark.parametrize(
    ("fill", "exact", "parses", "passed"),
    [
        ("return x + y", True, True, True),
        ("return x + y  ", True, True, True),
        ("return 2 * x", False, True, True),
        ("return x", False, True, False),
        ("    return x + y", False, False, False),
        ("return (", False, False, False),
        ("", False, True, False),
    ],
)
def test_a_fill_of_a_program(
    cases: ModuleType, scores: ModuleType, fill: str, exact: bool, parses: bool, passed: bool
) -> None:
    found = scores.score(cases.at_cursor(TASK), fill)
    assert (found.exact, found.parses, found.passed) == (exact, parses, passed)


@pytest.mark.parametrize(
    ("language", "prefix", "middle", "suffix", "fill", "parses"),
    [
        ("json", '{"a": ', "1", "}", "[2]", True),
        ("json", '{"a": ', "1", "}", "[2", False),
        ("javascript", "f(", "x, y", ");\n", "z", True),
        ("javascript", "f(", "x, y", ");\n", "z)", False),
        ("toml", "a = 1\n", "b = 2", "\n", "a = 2", False),
        ("java", "class A {\n", "int b;", "\n}\n", "int c() {", False),
        ("java", "class A {\n", "int b;", "\n}\n", "int c() {}", True),
        ("klingon", "a ", "b", "\n", ") (", None),
        ("markdown", "| a | b |\n|---|---|\n| ", "c | d |", "\n", "e | f |", True),
        ("markdown", "| a | b |\n|---|---|\n| ", "c | d |", "\n", "e |", False),
        ("markdown", "- a\n- ", "b", "\n", "anything", None),
    ],
)
def test_whether_a_text_is_valid_with_its_fill(
    cases: ModuleType, scores: ModuleType, language: str, prefix: str, middle: str, suffix: str, fill: str, parses: bool
) -> None:
    assert scores.parses(cases.Case("", prefix, suffix, middle, language), fill) is parses


def test_length_and_first_line(cases: ModuleType, scores: ModuleType) -> None:
    found = scores.score(cases.Case("", "", "", "a = 1\nb = 22", "python", "block"), "a = 1\nb")
    assert (found.first_line, found.exact, found.length) == (True, False, -5)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [("", "", 1.0), ("", "abc", 0.0), ("abc", "abc", 1.0), ("abc", "abd", 2 / 3), ("kitten", "sitting", 4 / 7)],
)
def test_similarity(scores: ModuleType, left: str, right: str, expected: float) -> None:
    assert scores.similarity(left, right) == pytest.approx(expected)
    assert scores.similarity(right, left) == pytest.approx(expected)


def test_interval(scores: ModuleType) -> None:
    assert scores.interval(0, 200) == (0.0, pytest.approx(0.0188, abs=1e-3))
    low, high = scores.interval(20, 200)
    assert low == pytest.approx(0.0657, abs=1e-3)
    assert high == pytest.approx(0.1494, abs=1e-3)


def test_calibration(scores: ModuleType) -> None:
    """Nine of ten right at 0.9 is no error; sure and wrong is."""
    honest = scores.reliability([(0.9, i > 0) for i in range(10)])
    assert honest[9] == (10, 9.0, 9)
    assert scores.calibration_error(honest) == 0.0
    assert scores.calibration_error(scores.reliability([(1.0, False), (0.0, False)])) == 0.5
    assert scores.calibration_error([]) is None


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
def test_lookup(cases: ModuleType, rows: ModuleType, prefix: str, suffix: str, expected: str) -> None:
    assert rows.lookup(cases.Case("", prefix, suffix, "")).text == expected


# Rows


def test_every_row_has_its_completions(
    cases: ModuleType, rows: ModuleType, tiny: NativeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is a command from cases to completions; here one that answers in the wrong order."""
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> None:
        asked.append(command)
        source, target = (part for part in command if part.endswith(".jsonl"))
        told = [json.loads(line) for line in Path(source).read_text().splitlines()]
        done = [
            {"id": c["id"], "completion": f"{c['id']}\nmore", "ms": 2.5} for c in reversed(told)
        ]  # steps are omitted
        Path(target).write_text("".join(json.dumps(one) + "\n" for one in done))

    monkeypatch.setattr(subprocess, "run", answer)
    means = rows.Means("m", 100.0, Path("b"), Path("p"))
    found = [cases.Case(str(i), "x = ", "\n", "") for i in range(4)]
    ours = [("smollm2", []), ("canvas", ["--sampler"]), ("left-to-right", ["--method"]), ("fill", [])]
    for row, _ in ours:
        assert [c.text for c in rows.complete(row, found, means, tmp_path)] == [f"{i}\nmore" for i in range(4)]
    assert [[part for part in command if part in ("--sampler", "--method")] for command in asked] == [
        named for _, named in ours
    ]
    cut = list[str]()
    monkeypatch.setattr(rows, "_tokenizer", lambda weights: cut.append(weights.name) or tiny.tokenizer)
    for row in ("smollm2-q4", "qwen"):  # what they say is fitted into its line
        assert [c.text for c in rows.complete(row, found, means, tmp_path)] == ["0", "1", "2", "3"]
    assert [command[0] for command in asked[4:]] == ["node", "node"]
    assert dict.fromkeys(cut) == dict.fromkeys((rows.SMOLLM2, rows.QWEN)), "each prefix is cut by the peer's pre-tokens"


GHOST = [  # of `caesura eval`: right, unlikely, a start of a longer candidate, and a cursor before a word
    {"id": "0", "completion": "a + b", "shown": "a + b", "ms": 9.0, "steps": 4, "stop": "complete", "chance": 0.9},
    {"id": "1", "completion": "a + b", "ms": 7.0, "steps": 4, "stop": "complete", "chance": 0.2},
    {"id": "2", "completion": "a + c\nd", "shown": "a +", "ms": 8.0, "steps": 6, "stop": "deadline", "chance": 0.1},
    {"id": "3", "completion": "", "ms": 0.5},
]


def test_ghost_text_is_judged_by_what_is_drawn_and_by_its_best_candidate(
    quality: ModuleType,
    cases: ModuleType,
    rows: ModuleType,
    report: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(command: list[str], **_: Any) -> None:
        assert command[command.index("--as") + 1] == "ghost"
        Path(command[-1]).write_text("".join(json.dumps(one) + "\n" for one in GHOST))

    monkeypatch.setattr(subprocess, "run", answer)
    found = [cases.Case(str(number), "def f(a, b):\n    return ", "\n", "a + b") for number in range(4)]
    drawn = rows.complete("ghost", found, rows.Means("m", 100.0), tmp_path)
    assert [(one.text, one.best, one.ms, one.late) for one in drawn] == [
        ("a + b", "a + b", 9.0, False),
        ("", "a + b", 7.0, False),
        ("a +", "a + c\nd", 8.0, True),
        ("", None, None, False),
    ]
    row, _ = quality.judged("ghost:m", found, drawn)
    assert (row["exact"], row["hits"], row["empty"], row["reliability"]) == (0.25, "1000", 0.5, None)
    assert row["parses"] == 1.0, "'return a +' is the start of a candidate"
    counts = {"n": 4, "asked": 3, "shown": 2, "exact": 1, "begun": 2, "best_exact": 2, "best_first_line": 2}
    assert counts.items() <= row["ghost"].items()
    assert row["ghost"]["best_hits"] == "1100"
    group = {"data": "d", "n": 4, "seed": 7, "reference_passes": None, "rows": {"ghost:m": row}}
    never = {"n": 2, "asked": 0, "shown": 0, "exact": 0, "begun": 0, "best_exact": 0, "best_first_line": 0}
    silent = {**group, "rows": {"ghost:m": {**row, "ghost": never}}}
    lines = report.markdown({"groups": {"g": group, "h": silent}}).splitlines()
    head = lines.index("| ghost:m | asks | shows | exact | or its start | best candidate exact | its first line |")
    assert lines[head + 2 :] == [
        "| g | 3 of 4 | 2 of 4 | 1 of 2 | 2 of 2 | 2 of 3 | 2 of 3 |",
        "| h | 0 of 2 | 0 of 2 | | | | |",
        "| **all** | 3 of 6 | 2 of 6 | 1 of 2 | 2 of 2 | 2 of 3 | 2 of 3 |",
    ]
    assert any("it asks nothing" in line for line in lines[:head])
    assert "3 of 4" in report.picture("g", group)


def test_where_nothing_is_drawn_no_program_passes(cases: ModuleType, scores: ModuleType) -> None:
    case = cases.at_cursor({**TASK, "test": "def check(f):\n    pass\n"})
    assert (scores.score(case, "").passed, scores.score_drawn(case, "", "return x").passed) == (True, False)
    assert [scores.score_drawn(case, *texts).parses for texts in (("", ""), ("f(", "f()"), ("f(", "f("))] == [
        None,
        None,
        False,
    ]
    assert scores.score_drawn(case, "return x", "return x").passed
    begun = [scores.score(case, text).begun for text in ("return x", "return x + y", "ret", "return y", "")]
    assert begun == [True, True, False, False, False]


def test_a_run_that_was_cut_short_goes_on_with_the_next_row(
    quality: ModuleType, cases: ModuleType, rows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, of_now = list[str](), {"commit": "abc", "model": "m"}

    def complete(row: str, asked: list[Any], *_: Any) -> list[Any]:
        measured.append(row)
        if row == "ghost" and len(measured) == 2:
            raise KeyboardInterrupt
        return [rows.Completion("a", 1.0) for _ in asked]

    monkeypatch.setattr(quality, "complete", complete)
    monkeypatch.setattr(quality, "conditions", lambda model: dict(of_now))
    monkeypatch.setattr(quality, "read", lambda *_: [cases.Case("0", "x = ", "\n", "a")])
    words = ["--data", str(tmp_path), "--groups", "single-line", "--rows", "fill,ghost", "--out", str(tmp_path / "out")]
    options = quality.parser().parse_args(words)
    sources, means = quality.checked(quality.parser(), options)
    with pytest.raises(KeyboardInterrupt):
        quality.measure(options, sources, means, tmp_path)
    told = quality.measure(options, sources, means, tmp_path)
    assert measured == ["fill", "ghost", "ghost"]
    assert list(told["groups"]["single-line"]["rows"]) == ["fill", "ghost"]
    known = quality.measure(options, sources, means, tmp_path)
    assert (len(measured), json.dumps(known)) == (3, json.dumps(told)), "all is known"
    for changed in ({"commit": "abd"}, {"commit": "abd+"}, {"commit": "abd+"}):
        of_now.update(changed)
        quality.measure(options, sources, means, tmp_path)
    assert measured[3:] == ["fill", "ghost"] * 3, "files that differ from a commit are never known"


def test_what_a_row_or_group_lacks_is_said(quality: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in {
        "": "no cases; give --data, --santa or --held-out",
        "--data d --groups json-key": "the group json-key needs --held-out",
        "--data d --rows qwen": "the row qwen needs --peers",
        "--data d --rows best": "no row best; there are empty, lookup,",
    }.items():
        asked = quality.parser()
        with pytest.raises(SystemExit):
            quality.checked(asked, asked.parse_args(given.split()))
        assert said in capsys.readouterr().err
    options = quality.parser().parse_args(["--data", "d"])
    quality.checked(quality.parser(), options)
    assert options.groups == ["single-line", "multi-line", "random-span"]
    assert options.rows == ["empty", "lookup", "left-to-right", "canvas", "fill", "ghost"]


def test_a_summary_counts_and_the_tables_show_it(rows: ModuleType, scores: ModuleType, report: ModuleType) -> None:
    completions = [
        rows.Completion("a", 10.0, 4, {"canvas": 3, "left_to_right": 1}, chance=0.9),
        rows.Completion(" ", 30.0, 8, {"canvas": 2}, chance=0.1, late=True),
        rows.Completion("", error="too long"),
    ]
    verdicts = [
        scores.Score(True, True, 1.0, 0, True, True),
        scores.Score(False, True, 0.5, -4, True, True),
        scores.Score(False, False, 0.0, 1, None, False),
    ]
    row = report.summary(completions, verdicts)
    assert (row["n"], row["exact"], row["pass"], row["similarity"]) == (3, 0.3333, 0.6667, 0.5)
    assert (row["parses"], row["length_error"], row["length_bias"]) == (1.0, 1.67, -1.0)
    assert (row["empty"], row["errors"], row["late"]) == (0.6667, 1, 1)
    assert row["tokens"] == {"canvas": 5, "lookup": 0, "left_to_right": 1}
    assert row["steps"]["p95"] == 8
    assert scores.calibration_error(row["reliability"]) == 0.1
    trivial = report.summary([rows.Completion("")], verdicts[2:])
    group = {"data": "d", "n": 3, "seed": 7, "reference_passes": 3, "rows": {"canvas": row, "empty": trivial}}
    shown = report.picture("g", group)
    assert "canvas (1 errors, 1 late)" in shown
    assert "5/0/1" in shown
    assert len({len(line) for line in shown.splitlines()[1:]}) == 1
    told = {"groups": {"g": group, "h": {**group, "rows": {**group["rows"], "fill": row}}}}
    lines = report.markdown(told).splitlines()
    assert lines[0] == "| | empty | canvas |"
    assert lines[2] == "| g, 3 | 0.0 / 0.0 | 33.3 / 66.7 |"
    assert "| **ms p50** | | 20.0 |" in lines
    assert "| **calibration error %** | | 10.0 |" in lines
    held = next(line for line in lines if line.startswith("| held likely, % |"))
    assert held.startswith("| held likely, % | 0-10 | 10-20 |")
    assert lines[-1] == "| canvas | | 0 of 2 | | | | | | | | 100 of 2 |"


def test_one_command_writes_the_table_of_the_docs(
    quality: ModuleType, rows: ModuleType, scores: ModuleType, report: ModuleType, tmp_path: Path
) -> None:
    right = report.summary([rows.Completion("a", 50.0, 4)], [scores.Score(True, True, 1.0, 0, True, True)])
    about = {"data": "d", "n": 1, "seed": 7, "reference_passes": 1}
    told = {"groups": {"single-line": {**about, "rows": {"canvas": right, "fill": right}}}}
    page = tmp_path / "models.md"
    page.write_text((quality.DOCS / "models.md").read_text())
    quality.document(told, tmp_path)
    once = page.read_text()
    assert "| single-line, 1 | 100.0 / 100.0 | 100.0 / 100.0 |" in once
    assert "](pictures/quality.svg)" in once
    quality.document(told, tmp_path)
    assert page.read_text() == once


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


def test_many_files_are_cut_and_written_again_as_their_author_did(beside: None, tmp_path: Path) -> None:
    memory = importlib.import_module("memory")
    for number in range(12):
        (tmp_path / f"a{number}.{'md' if number % 4 == 0 else 'py'}").write_text(
            "naïve = 1\nx = 1\nvalue = other\n" * 80
        )
    (tmp_path / "small.py").write_text("value = other\n")
    files = memory.sources(5, 7, tmp_path)
    assert files == memory.sources(5, 7, tmp_path)
    assert sorted(file.suffix for file in files) == [".md", ".md", ".py", ".py", ".py"]
    text = files[0].read_text()
    typed = list[tuple[int, int, str, int | None]]()
    editor = SimpleNamespace(type=lambda *event, end=None: typed.append((*event, end)), complete=lambda *_: "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory.time, "sleep", lambda _: None)
        keys = memory.edit(editor, text, random.Random(1), until=0)
    assert keys == memory.KEYS == len(typed) - 2
    assert "".join(text for _, _, text, _ in typed) == "value = other"[typed[0][1] :]
    assert memory.slope([5, 9, 1, 2, 3, 4]) == 100


# ---- a peer beside ours

# What the peer is asked is what it answers, so that a test sees it.
ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"text": line, "tokens": asked["most"], "read": len(asked["before"]), "ms": 5.0}), flush=True)
"""


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PEERS folder, and a `node` that echoes."""
    package = tmp_path / "node_modules" / "node-llama-cpp" / "package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"version": "3.2.1"}')
    node = tmp_path / "node"
    node.write_text(f"#!{sys.executable}\n{ECHO}")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_a_peer_is_asked_for_the_text_that_ours_was_asked_for(
    latency: ModuleType, peers: Path, tiny: NativeLlama
) -> None:
    """The text before the cursor begins where it did, so that the peer finds it read; it may write as much."""
    place = latency.Place("x.py", "a\n" * 2000 + "name = \n", 2000, 7, "value + 1")
    with latency.Peer(peers, model_store.CODER) as peer:
        assert "3.2.1" in peer.name
        beside = latency.Beside(peer, tiny.tokenizer)
        pairs = [*beside.key(place, 8, "alue", 20.0, warm=False), *beside.key(place, 9, "lue", 10.0, warm=True)]
        assert beside.key(place, 10, "", None, warm=True) == []
    asked = [json.loads(pair.peer.text) for pair in pairs]
    assert asked[0]["before"] == place.before[-latency.CHARACTERS :] + "v"
    assert asked[1]["before"] == asked[0]["before"] + "a"
    assert [one["warm"] for one in asked] == [False, True]
    assert [one["most"] for one in asked] == [len(tiny.tokenizer.encode(text)) for text in ("alue", "lue")]
    told = latency.compared([*pairs, pairs[1]._replace(ms=30.0)])
    assert told["context warm"]["ms"]["ours"] == {"n": 2, "p50": 20.0, "p95": 30.0}
    assert told["context warm"]["ratio"] == {"p50": 0.25, "p95": 0.17}
    assert told["context cold"]["ms"]["ours"]["n"] == 1
    assert told["context cold"]["wrote"]["ours"]["characters"] == 4


def test_results_name_no_path_of_the_machine(latency: ModuleType, tmp_path: Path) -> None:
    """A model without a manifest is known by its path."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").touch()
    for model in (tmp_path, tmp_path / "model.gguf"):
        assert str(tmp_path)[:12] not in json.dumps(latency.conditions(str(model)))
    assert latency.conditions(model_store.CODER)["model"]["manifest"]


def test_a_peer_that_has_ended_is_a_sentence(latency: ModuleType, peers: Path) -> None:
    (peers / "node").write_text("#!/bin/sh\nexit 1\n")
    with latency.Peer(peers, model_store.CODER) as peer, pytest.raises(RuntimeError, match="The peer has ended"):
        peer.fill("a", 1, warm=False)


# ---- many editors at one engine


@pytest.fixture(scope="module")
def crowd(beside: None) -> ModuleType:
    return importlib.import_module("crowd")


def test_a_crowd_types_and_rests(crowd: ModuleType) -> None:
    keys = crowd.crowd(3, 12.0, 7)
    assert [key.at for key in keys] == sorted(key.at for key in keys)
    assert len({key.peer for key in keys}) == 3
    assert len({key.job.document for key in keys}) >= 3
    own = [key for key in keys if key.peer == b"1"]
    for key, following in pairwise(own):
        assert key.last == (following.at - key.at >= crowd.REST_S)


def test_time_passes_where_a_forward_is_paid(crowd: ModuleType, tiny: NativeLlama) -> None:
    """One editor at a model that costs 4 ms for its 16 rows or fewer: the last key of a place is answered at once."""
    clock = crowd.Virtual()
    keys = crowd.crowd(1, 20.0, 7)
    steps = crowd.replay(Scheduler(crowd.Costed(Scripted(tiny.tokenizer, [], Uniform(400)), clock)), keys, clock, 20.0)
    told = crowd.summary(keys, steps, 20.0)
    assert told["rested_answered"] == 1.0
    assert 4 <= told["step_ms"]["p50"] <= told["rested_ms"]["p50"] < 400


def test_who_was_never_answered_waited_for_ever(crowd: ModuleType) -> None:
    keys = crowd.crowd(1, 20.0, 7)
    for key in keys[: len(keys) // 4]:
        key.first = key.whole = 0.05
    told = crowd.summary(keys, [0.004], 20.0)
    assert told["first_ms"]["p50"] is None
    for key in keys:
        key.first = 0.05
    assert crowd.summary(keys, [0.004], 20.0)["first_ms"]["p95"] == 50.0


# ---- what each way to need fewer forwards is worth


@pytest.fixture(scope="module")
def forwards(beside: None) -> ModuleType:
    return importlib.import_module("forwards")


def test_forwards_are_counted_with_what_rides_along(
    forwards: ModuleType, latency: ModuleType, tiny: NativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "FILES", ("csv",))
    monkeypatch.setattr(forwards, "BEFORE", 200)
    monkeypatch.setattr(forwards, "SLOTS", 4)
    place, ways = latency.places(seed=7)[0], ("all of them", "new context in a forward of its own", "no context kept")
    usual, apart, anew = (forwards.type_all(tiny, [place], forwards.WAYS[way]) for way in ways)
    assert len(usual.texts) == latency.KEYS
    assert usual.texts == apart.texts == anew.texts
    assert sum(apart.rows) == sum(usual.rows) < sum(anew.rows)
    assert sum(apart.forwards) > sum(usual.forwards)


def test_a_key_that_the_proposal_foresaw_needs_no_forward(
    forwards: ModuleType, latency: ModuleType, tiny: NativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = latency.Place("a.py", "x = \n", 0, 4, "abcd")
    asked = list[str | None]()

    def foreseen(_: object, job: Any) -> str:
        asked.append(job.draft and job.draft[0])
        return "bcd"

    monkeypatch.setattr(forwards, "_fill", foreseen)
    assert forwards.type_all(tiny, [place], forwards.Way()).texts == ["bcd", "cd", "d", "bcd"]
    assert asked == [None, None]
    assert forwards.type_all(tiny, [place], forwards.Way(foreseen=False)).texts == ["bcd"] * 4
    assert asked[2:] == [None, "cd", None, None]


# Kills


@pytest.mark.parametrize(
    ("act", "worse", "said"),
    [
        ("kill", {}, []),
        ("kill", {"lost_ms": 101.0}, ["lost_ms p95 is 101.0, over 100"]),
        ("gil", {"lost_ms": 2900.0, "back_ms": 5900.0}, []),
        ("gil", {"lost_ms": 3001.0}, ["lost_ms p95 is 3001.0, over 3000"]),
        (
            "kill",
            {"waited_ms": 3001.0, "back_ms": 3001.0},
            [f"{n}_ms p95 is 3001.0, over 3000" for n in ("waited", "back")],
        ),
        ("kill", {"stale": 1, "orphans": 2}, ["1 stale", "2 orphans"]),
    ],
)
def test_a_measurement_of_kills_fails_where_a_promise_is_not_kept(
    beside: None, act: str, worse: dict[str, float], said: list[str]
) -> None:
    kills = importlib.import_module("kills")
    times = {name: {"n": 1, "p95": worse.get(name, 50.0)} for name in ("lost_ms", "waited_ms", "back_ms")}
    nobody_waited = {} if "waited_ms" in worse else {"waited_ms": {"n": 0, "p95": None}}
    row = {"process": "worker", "point": "take", "act": act, "stale": 0, "orphans": 0} | worse | times | nobody_waited
    assert kills.broken(row) == [f"worker, {act}: take: {sentence}." for sentence in said]


# Pairs of rows


@pytest.mark.parametrize(
    ("left", "right", "only", "excludes_nothing"),
    [
        ("1" * 20 + "0" * 40, "1" * 20 + "0" * 40, (0, 0), True),
        ("1" * 30 + "0" * 30, "1" * 10 + "0" * 50, (20, 0), False),
        ("1" * 10 + "0" * 50, "1" * 30 + "0" * 30, (0, 20), False),
        ("10" * 30, "01" * 30, (30, 30), True),
    ],
)
def test_two_rows_are_compared_case_by_case(
    scores: ModuleType, left: str, right: str, only: tuple[int, int], excludes_nothing: bool
) -> None:
    found = scores.paired(*([hit == "1" for hit in row] for row in (left, right)))
    assert (found.only_left, found.only_right) == only
    assert found.difference == round((only[0] - only[1]) / 60, 4)
    low, high = found.interval
    assert low <= found.difference <= high
    assert (low <= 0 <= high) is excludes_nothing


def test_an_interval_of_pairs_is_agresti_and_mins(scores: ModuleType) -> None:
    """1,600 voters asked twice (Agresti, Categorical Data Analysis, 10.1): 86 and 150 changed their mind. Half a case
    more changes little where there are so many, and Wald's interval is known: -0.059 to -0.021."""
    left = [True] * 86 + [False] * 150 + [True] * 794 + [False] * 570
    right = [False] * 86 + [True] * 150 + [True] * 794 + [False] * 570
    assert scores.paired(left, right).interval == pytest.approx((-0.059, -0.021), abs=1e-3)


def test_pairs_are_of_the_cases_that_both_rows_have(report: ModuleType) -> None:
    groups = {
        "a": {"rows": {"fill:coder": {"hits": "110"}, "qwen": {"hits": "100"}, "empty": {"exact": 0.0}}},
        "b": {"rows": {"fill:coder": {"hits": "10"}, "qwen": {"hits": "01"}, "lookup": {"hits": "00"}}},
    }
    found = report.pairs(groups)
    told = {(one["left"], one["right"], one["group"]): (one["only_left"], one["only_right"]) for one in found}
    assert told == {
        ("lookup", "qwen", "b"): (0, 1),
        ("lookup", "fill:coder", "b"): (0, 1),
        ("qwen", "fill:coder", "a"): (0, 1),
        ("qwen", "fill:coder", "b"): (1, 1),
        ("qwen", "fill:coder", "all"): (1, 2),
    }
    shown = " ".join(report.comparison(found).split())
    assert "qwen - fill:coder all 5 1 2 -20.0 -69.3 to +40.7" in shown


def test_a_row_may_name_its_model(
    quality: ModuleType, rows: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    means = rows.Means("m", 100.0)
    for row, model in {"fill": "m", f"fill:{tmp_path}": str(tmp_path), "canvas:small": "small"}.items():
        command = rows.command(row, Path("a"), Path("b"), means)
        assert command[command.index("--model") + 1] == model
    assert rows.label(f"fill:{tmp_path}") == f"fill:{tmp_path.name}"
    asked = quality.parser()
    quality.checked(asked, asked.parse_args(["--data", "d", "--rows", "lookup,fill:embedded,ghost:embedded"]))
    with pytest.raises(SystemExit):
        quality.checked(asked, asked.parse_args(["--data", "d", "--rows", "lookup:embedded"]))
    assert "no row lookup:embedded" in capsys.readouterr().err


# ---- what each part of a fill is worth


@pytest.fixture(scope="module")
def parts(beside: None) -> ModuleType:
    return importlib.import_module("parts")


def test_each_part_can_be_taken_out(parts: ModuleType, tiny: NativeLlama) -> None:
    from caesura.engine.canvas import prompts, vocabulary
    from caesura.engine.methods.verify import search
    from caesura.server.infill.site import at_cursor

    text = "def total(values):\n    return sum(values)\n\n\ntotal = "
    cases = [parts.Case("g", at_cursor(f"{text}\n", len(text), "python", "line"), "sum(values)")]
    ways = parts.parts(tiny)
    assert set(ways) == {
        *("whole", "no suffix judge", "no lookup", "no end inside a token", "no syntax gate"),
        *("prompt plain", "context 512", "context 1024"),
    }
    before = (search.HEAD, verify.lookup, vocabulary.Vocabulary.crossing, tiny.spec, prompts.FORMATS.copy())
    whole = parts.fill_all(tiny, cases, ways["whole"])
    for part in ways.values():
        found = parts.fill_all(tiny, cases, part)
        assert parts.summary(cases, found, whole)["n"] == 1
    assert before == (
        search.HEAD,
        verify.lookup,
        vocabulary.Vocabulary.crossing,
        tiny.spec,
        prompts.FORMATS,
    )
    assert whole == [parts.Fill(whole[0].text, whole[0].ms, whole[0].text.rstrip() == "sum(values)")]


def test_without_the_gate_what_breaks_the_syntax_is_inserted(parts: ModuleType) -> None:
    from caesura import wire
    from caesura.server.infill.site import at_cursor

    asked = at_cursor("x = \ny = 1\n", 4, "python", "line")
    done = wire.Done(
        job="j",
        seq=0,
        holes=(wire.Fill("f(1", ((0, 3),), 0.9, 0, ()),),
        steps=1,
        tokens=wire.Tokens(),
        timings=wire.Timings(0, 0, 0, 0, 0),
        stop="complete",
    )
    assert parts.Part(insert=parts._ungated).insert(asked, done) == "f(1"
    assert parts.Part().insert(asked, done) != "f(1"


# ---- a user's gaps


@pytest.fixture(scope="module")
def judged(beside: None) -> ModuleType:
    return importlib.import_module("judged")


def test_gaps_are_taken_from_each_project_in_turn(judged: ModuleType) -> None:
    import random

    taken = judged.heldout.HeldOut(None, judged.corpus.Exclusions(set(), set(), set(), set()))
    for name in ("one", "two"):
        lines = "".join(f"    {name}{n} = calculate(first, {n}, {name}{n - 1})\n" for n in range(1, 9))
        files = [(f"{name}{n}.py", f"def {name}_{n}({name}0, first):\n{lines}".encode()) for n in range(30)]
        package = judged.packages.Package("pypi", name, "2", "MIT", "", files[:1])
        taken.files += [(package, path, raw.decode()) for path, raw in files]
    found = judged.chosen(taken, random.Random(7))
    assert found == judged.chosen(taken, random.Random(7))
    assert [gap.id for gap in found[:3]] == ["pypi:one/0", "pypi:two/0", "pypi:one/1"]
    assert len(found) == 2 * judged.OF_A_LANGUAGE["python"]
    texts = {(package.label, path): text for package, path, text in taken.files}
    assert all(gap.prefix + gap.middle + gap.suffix == texts[gap.package, gap.path] for gap in found)


def test_a_person_judges_what_is_neither_exact_nor_empty(judged: ModuleType) -> None:
    gap = judged.Gap("pypi:one/0", "pypi:one", "2", "a.py", "x = ", "first(1)", "\ny = 2\n")
    fills = {
        "small": {gap.id: {"text": "second", "confidence": 0.4}},
        "coder": {gap.id: {"text": "first(1) ", "confidence": 0.9}},
    }
    letters = {gap.id: judged.lettered(gap, fills)}
    assert letters == {gap.id: judged.lettered(gap, dict(reversed(fills.items())))}, "no letter stands for a model"
    letter = {fill["text"]: letter for letter, fill in letters[gap.id].items()}
    shown = judged.page([gap], letters)
    assert "x = ⟦ ⟧\ny = 2" in shown
    assert f"{letter['second']}:\n~~~~\nsecond" in shown
    assert f"{letter['first(1) ']}, exact:" in shown
    assert not re.search("small|coder|0\\.[49]", shown)
    assert judged.verdict(gap, " ") == "empty"
    told = {gap.id: {name: judged.verdict(gap, fill["text"]) for name, fill in letters[gap.id].items()}}
    with pytest.raises(
        SystemExit, match=f"1 verdicts are missing or unknown, the first of {gap.id} {letter['second']}"
    ):
        judged.count(letters, told)
    told[gap.id][letter["second"]] = "plausible"
    assert judged.count(letters, told).splitlines()[-3:] == [
        "coder      1       0      0          0        0      0",
        "small      0       0      0          1        0      0",
        "exact or useful: only coder 1, only small 0; +100.0% [-51.0%, +100.0%]",
    ]


# ---- the canvas


@pytest.fixture(scope="module")
def canvas(beside: None) -> ModuleType:
    return importlib.import_module("canvas")


@pytest.fixture(scope="module")
def trials(beside: None) -> ModuleType:
    return importlib.import_module("canvas_places")


class Chosen(Scripted):
    """A base that chooses the tokens of a list after the tail of the prefix, and a canvas that says its answer."""

    base: Sequence[int] = ()

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
        judged, drawn = super().forward(trees, canvases)
        for row in range(judged.rows):
            chosen = row - (self.spec.tail - 1)
            judged.logits[row, self.base[chosen] if 0 <= chosen < len(self.base) else 0] = self.sure
        return judged, drawn


PREFIX, MIDDLE = "def count(total):\n    ", "return total + count * 20"


def chosen(tiny: NativeLlama, canvas: str, base: str) -> tuple[Chosen, list[int]]:
    """A model whose two paths say these texts after PREFIX, and the tokens of MIDDLE there."""
    _, forced = heal(tiny.tokenizer, PREFIX)
    encode = tiny.tokenizer.encode
    model = Chosen(tiny.tokenizer, encode(forced + canvas))
    model.base = encode(forced + base)
    return model, encode(forced + MIDDLE)


def test_a_gap_is_read_by_both_paths(canvas: ModuleType, tiny: NativeLlama) -> None:
    import math

    model, tokens = chosen(tiny, MIDDLE, "return total + count - 1")
    read = canvas.read(canvas.Bench(model), infill("j", PREFIX, "\n"), MIDDLE)
    same = agreeing(tokens, model.base)
    assert 1 < same < len(tokens)
    assert (read.greedy, read.truth) == (same, len(tokens))
    assert read.canvas == pytest.approx([0.0] * len(tokens), abs=1e-4)
    assert read.base[:same] == pytest.approx([0.0] * same, abs=1e-4)
    assert read.base[same] == pytest.approx(model.sure, abs=1e-3), "the base holds another token to be sure"
    found = canvas.Checkpoint({}, {}, [read, None])
    assert read.healed == 1, "the indentation"
    assert found.accepted("greedy", healed=True) == [same - 1]
    assert found.accepted("truth", healed=False) == [len(tokens) - 2]
    assert found.nats("canvas", first=False, healed=True) == [(pytest.approx(0.0, abs=1e-3), len(tokens) - 1)]
    assert found.nats("canvas", first=True, healed=True) == [(pytest.approx(0.0, abs=1e-3), 1)]
    assert found.nats("base", first=False, healed=False) == [(pytest.approx(sum(read.base[2:])), len(tokens) - 2)]
    blind, _ = chosen(tiny, MIDDLE, MIDDLE)
    blind.sure = 0.0
    read = canvas.read(canvas.Bench(blind), infill("j", PREFIX, "\n"), MIDDLE)
    assert read.canvas == pytest.approx([math.log(blind.width)] * len(tokens))
    assert read.base == pytest.approx([math.log(blind.tokenizer.size)] * len(tokens))
    long = canvas.read(canvas.Bench(blind), infill("j", PREFIX, "\n"), "total + " * 40)
    assert long is None, "longer than a canvas of training"


@pytest.mark.parametrize(
    ("way", "tokens", "forwards"),
    [
        ("canvas, 1 step", 16, 1),
        ("canvas, 4 steps", 16, 4),
        ("canvas, 8 steps", 16, 8),
        ("canvas, 1 step", 20, 2),  # the first one tells that the canvas is too short
        ("canvas, 8 steps", 1, 1),  # the nulls after a token follow it at once
    ],
)
def test_the_steps_of_a_canvas_are_bounded(
    canvas: ModuleType, tiny: NativeLlama, way: str, tokens: int, forwards: int
) -> None:
    before = absorbing.STEPS, absorbing.decide, verify.canvas_drafts
    model = Scripted(tiny.tokenizer, (tiny.tokenizer.encode("total + count * 20") * 3)[:tokens])
    job = infill("j", "", "\n", wire.Hole(16 if tokens <= 16 else 32))
    found = canvas.Bench(model).fill(job, canvas.CURVE[way])
    assert found.texts == [tiny.tokenizer.decode(model.answer).rstrip()]
    assert found.forwards == forwards
    assert (absorbing.STEPS, absorbing.decide, verify.canvas_drafts) == before


def test_samplers_are_compared_with_one_token_per_forward(beside: None, tiny: NativeLlama) -> None:
    script = importlib.import_module("samplers")
    model = Scripted(tiny.tokenizer, tiny.tokenizer.encode("(left, right)"))
    case = {"prefix": "x = f", "answer": "(left, right)", "suffix": "\n"}
    rows = {name: figures for name, *figures in script.measured(model, [case], 2)}
    assert set(rows) == {"one token", *samplers.names()}
    assert rows["one token"][:1] == ["1.00"]
    assert rows["top_k"][:1] == ["2.00"]
    assert rows["threshold"][:1] == ["6.00"]
    assert {tuple(figures[2:]) for figures in rows.values()} == {("100.0%", "100.0%")}


def test_only_the_ways_with_drafts_take_tokens_of_the_canvas(canvas: ModuleType, tiny: NativeLlama) -> None:
    model, _ = chosen(tiny, MIDDLE, MIDDLE)
    bench, job = canvas.Bench(model), infill("j", PREFIX, "\n")
    found = bench.in_turn(job, canvas.PASSES, 1)
    assert list(found) == ["lookup only", "both", "left to right"]
    drafted = {name: filled.done.tokens.canvas for name, filled in found.items()}
    assert drafted["lookup only"] == drafted["left to right"] == 0
    assert drafted["both"] > 0


def test_a_ratio_is_of_sums(canvas: ModuleType) -> None:
    assert canvas.ratio([(1.0, 2.0)] * 5 + [(6.0, 2.0)] * 5).value == 1.75
    assert canvas.ratio([(3.0, 2.0)] * 9) == (1.5, 1.5, 1.5)
    found = canvas.mean([0.0] * 50 + [1.0] * 50)
    assert 0.38 < found.low < 0.44 < found.value < 0.56 < found.high < 0.62


def test_what_is_not_locked_stands_in_brackets(canvas: ModuleType) -> None:
    assert canvas.marked(wire.Fill("return total", ((0, 6), (9, 12)), 0.5, 2)) == "return⟨ to⟩tal"
    assert canvas.marked(wire.Fill("total", ((0, 5),), 0.5, 0)) == "total"


SOURCE = '''\
def first(path):
    """Read it."""
    value = path.read(1, path.size + 2, None)
    return [value, path]


def second(rows):
    total = 0
    for row in rows:
        total += row.count
    return total * 2
'''


def test_places_are_cut_where_they_should_be(trials: ModuleType) -> None:
    import random

    found = {
        name: list(maker(SOURCE, random.Random(7))) for name, (lang, maker) in trials.PLACES.items() if lang == "python"
    }
    assert [one.wanted for one in found["two holes, one name"]] == [("value", "value")]
    assert [one.wanted for one in found["middle arguments"]] == [("path.size + 2",)]
    assert {one.prefix[-1] for one in found["first draft"]} == {" "}
    assert all(one.prefix.rpartition("\n")[2].strip() for one in found["first draft"])
    for trial in (one for name, of in found.items() if name != "renamed variable" for one in of):
        assert trial.case().filled(trial.joined(trial.wanted)) == SOURCE
    assert all(one.draft != one.wanted and one.draft for one in found["repair"])
    renamed = {one.name for one in found["renamed variable"]}
    assert renamed < set(trials.FRESH)
    [new] = renamed
    for trial in found["renamed variable"]:
        text = trial.case().filled(trial.joined(trial.wanted))
        assert text.replace(new, "total") == SOURCE or text.replace(new, "row", 2).count("row") > 1
        assert trial.uses(trial.wanted)
        assert not trial.uses(["total"])


def test_holes_agree_on_a_name(trials: ModuleType) -> None:
    trial = trials.hole(SOURCE, 0, 3, "python", "span")
    assert trial.agrees(["value", " value "])
    assert not trial.agrees(["value", "values"])
    assert not trial.agrees(["a b", "a b"])


def test_after_a_mismatch_the_rest_of_the_answer_is_the_draft(trials: ModuleType) -> None:
    start = SOURCE.index("total * 2")
    trial = trials.hole(SOURCE, start, start + 9, "python", "line")
    found = trials.mismatched(trial, "total + row")
    assert found.prefix.endswith("return total *")
    assert (found.wanted, found.draft) == ((" 2",), (" row",))
    assert trials.mismatched(trial, "total * 2") is None
    assert trials.mismatched(trial, "total *") is None
