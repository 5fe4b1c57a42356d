"""How good the fills are: HumanEval-Infilling single-line, next to trivial and left-to-right baselines.

    python bench/quality.py --data FOLDER --base FOLDER [--model NAME|PATH] [--n 200] [--seed 7] [--rows ROW,ROW]

Editor convention: the cursor stands behind the indentation of the missing line, and the line's break belongs to the
suffix. A fill passes when prefix + fill + suffix + test runs to its end in a sandbox. `canvas` and `verify` go through
the real command `caesura eval`; context is cold in every case, so ms is more than a keystroke costs.
"""

import argparse
import gzip
import inspect
import json
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caesura import models
from caesura.engine.lookup import lookup as occurrences

from latency import CAESURA, HERE, Report, conditions, own_engine, save, spread, table  # isort: skip  (beside this)

FILE = "HumanEval-SingleLineInfilling.jsonl.gz"
ROWS = ("empty", "lookup", "smollm2", "canvas", "verify")
SOURCES = ("canvas", "lookup", "left_to_right")

CPU_S, WALL_S, MEMORY = 5, 30.0, 1 << 30  # of a program in the sandbox; the wall time is for machines that are busy
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Case:
    id: str
    prefix: str
    suffix: str
    middle: str
    test: str
    entry_point: str

    def program(self, fill: str) -> str:
        """As in openai/human-eval-infilling."""
        return f"{self.prefix}{fill}{self.suffix}\n{self.test}\ncheck({self.entry_point})\n"


@dataclass(frozen=True)
class Completion:
    text: str
    ms: float | None = None
    steps: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Score:
    exact: bool
    passed: bool
    similarity: float


def read(data: Path, n: int, seed: int) -> list[Case]:
    """A sample that (n, seed) fixes, in the order of the file."""
    with gzip.open(data / FILE, "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file]
    chosen = sorted(random.Random(seed).sample(range(len(tasks)), min(n, len(tasks))))
    return [at_cursor(tasks[i]) for i in chosen]


def at_cursor(task: dict[str, str]) -> Case:
    """A task as an editor shows it."""
    line = task["canonical_solution"]
    middle = line.strip()
    start = line.index(middle)
    return Case(
        id=task["task_id"],
        prefix=task["prompt"] + line[:start],
        suffix=line[start + len(middle) :] + task["suffix"],
        middle=middle,
        test=task["test"],
        entry_point=task["entry_point"],
    )


# Rows: cases in, completions out


def empty(case: Case) -> Completion:
    return Completion("")


def lookup(case: Case) -> Completion:
    """The rest of the line behind the longest match of the text before the cursor elsewhere in the buffer."""
    found = occurrences(case.prefix, case.suffix, most=1)
    text = found[0].strip() if found else ""
    return Completion(text, tokens={"lookup": 1} if text else {})


TRIVIAL: dict[str, Callable[[Case], Completion]] = {"empty": empty, "lookup": lookup}


def command(row: str, options: argparse.Namespace) -> list[str]:
    """What completes a file of cases; the file and `--out` are still to be added."""
    if row == "smollm2":
        return [sys.executable, str(HERE / "peers" / "smollm2.py"), "--model", str(options.base)]
    sampler = ["--sampler", "threshold"] if row == "canvas" else []
    return [*CAESURA, "eval", "--model", options.model, "--deadline-ms", str(options.deadline_ms), *sampler]


def complete(row: str, cases: Sequence[Case], options: argparse.Namespace, folder: Path) -> list[Completion]:
    """The completions of a row, in the order of the cases."""
    if row in TRIVIAL:
        return [TRIVIAL[row](case) for case in cases]
    asked, answered = folder / "cases.jsonl", folder / f"{row}.jsonl"
    asked.write_text("".join(json.dumps(_question(case)) + "\n" for case in cases), encoding="utf-8")
    answered.unlink(missing_ok=True)
    subprocess.run([*command(row, options), str(asked), "--out", str(answered)], check=True)
    answers = {answer["id"]: answer for answer in map(json.loads, answered.read_text("utf-8").splitlines())}
    return [_completion(answers[case.id]) for case in cases]


def _question(case: Case) -> dict[str, str]:
    return {"id": case.id, "prefix": case.prefix, "suffix": case.suffix, "lang": "python", "kind": "line"}


def _completion(answer: dict[str, Any]) -> Completion:
    sources = answer.get("tokens_by_source") or {}
    return Completion(answer["completion"], answer["ms"], answer["steps"], sources, answer.get("error", ""))


# Scores


def score(case: Case, completion: Completion) -> Score:
    """Blanks at the end of the line do not count; blanks at its start do: the cursor is behind the indentation."""
    text = completion.text.rstrip()
    return Score(text == case.middle, passes(case.program(text)), similarity(text, case.middle))


def similarity(left: str, right: str) -> float:
    """1 - Levenshtein distance / length of the longer: edit similarity as in RepoCoder (Zhang et al. 2023)."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return 1.0 - row[-1] / max(len(left), len(right), 1)


def interval(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not n:
        return 0.0, 1.0
    z2, share = NORMAL_95**2, successes / n
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = NORMAL_95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return round(max(0.0, middle - reach), 4), round(min(1.0, middle + reach), 4)


# The sandbox


def passes(program: str, *, cpu_s: int = CPU_S, wall_s: float = WALL_S) -> bool:
    """Whether a program runs to its end. Against accidents of a model, not against an attacker."""
    secret = secrets.token_hex(16)
    source = inspect.getsource(confined) + "\nconfined()\n"
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-X", "utf8", "-c", source, secret, str(cpu_s), str(MEMORY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(program.encode("utf-8", errors="replace"), timeout=wall_s)
        except subprocess.TimeoutExpired:
            said = b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return said.decode(errors="replace") == secret


def confined() -> None:
    """What runs in the sandbox's process, sent there as source: limits, then the program that stdin holds.

    Says the secret at the end, so that a program that exits early has not passed.
    """
    import os
    import resource
    import sys

    secret, cpu_s, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    program = sys.stdin.buffer.read().decode()
    out, silence = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    limits = [(resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0)]
    for limit, most in [*limits, (resource.RLIMIT_CORE, 0)]:
        try:
            resource.setrlimit(limit, (most, most))
        except (ValueError, OSError):
            if limit != resource.RLIMIT_AS:  # macOS has none
                raise

    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    harmless = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv"}
    refused = {"ctypes", "fcntl", "os", "pty", "resource", "shutil", "signal", "socket", "sqlite3", "subprocess"}

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        if isinstance(flags, int) and flags & writing:
            raise PermissionError("the sandbox is read-only")
        if event.partition(".")[0] in refused and event not in harmless:
            raise PermissionError(f"{event} is refused in the sandbox")

    sys.addaudithook(audit)
    exec(compile(program, "program.py", "exec"), {"__name__": "program"})  # noqa: S102  (what a sandbox is for)
    os.write(out, secret.encode())


# The report


def summary(completions: Sequence[Completion], scores: Sequence[Score]) -> Report:
    """One row: shares of 1 with their intervals, means and percentiles."""
    n = len(scores)
    exact, passed = sum(s.exact for s in scores), sum(s.passed for s in scores)
    tokens: Counter[str] = Counter()
    for completion in completions:
        tokens.update(completion.tokens)
    return {
        "n": n,
        "exact": round(exact / n, 4),
        "exact_95": interval(exact, n),
        "pass": round(passed / n, 4),
        "pass_95": interval(passed, n),
        "similarity": round(sum(s.similarity for s in scores) / n, 4),
        "empty": round(sum(not c.text.strip() for c in completions) / n, 4),
        "errors": sum(bool(c.error) for c in completions),
        "ms": spread([c.ms for c in completions if c.ms is not None]),
        "steps": spread([c.steps for c in completions if c.ms is not None]),
        "tokens": {source: tokens[source] for source in SOURCES},
    }


def measure(options: argparse.Namespace, folder: Path) -> Report:
    cases = read(options.data, options.n, options.seed)
    report: Report = {"bench": "quality", "data": FILE, "n": len(cases), "seed": options.seed}
    report |= conditions(options.model)
    report |= {"kind": "line", "context": "cold", "deadline_ms": options.deadline_ms}
    if "smollm2" in options.rows:
        report["base"] = {"name": options.base.name, "manifest": models.identity(str(options.base))[:12]}
    report["reference_passes"] = sum(passes(case.program(case.middle)) for case in cases)
    rows: Report = {}
    report["rows"] = rows
    with own_engine():
        for row in options.rows:
            completions = complete(row, cases, options, folder)
            scores = [score(case, completion) for case, completion in zip(cases, completions, strict=True)]
            rows[row] = summary(completions, scores)
            if options.keep:
                _keep(folder / f"{row}.scored.jsonl", cases, completions, scores)
            print(f"{row}: {rows[row]['exact']:.1%} exact, {rows[row]['pass']:.1%} pass", file=sys.stderr)
    return report


def _keep(path: Path, cases: Sequence[Case], completions: Sequence[Completion], scores: Sequence[Score]) -> None:
    """One line a case, to be read by a person."""
    with path.open("w", encoding="utf-8") as file:
        for case, completion, verdict in zip(cases, completions, scores, strict=True):
            told = {"id": case.id, "wanted": case.middle, "got": completion.text, **vars(verdict)}
            file.write(json.dumps(told, ensure_ascii=False) + "\n")


def picture(report: Report) -> str:
    """The report as a person reads it."""
    head = ("", "exact %", "pass@1 %", "95 %", "edit sim %", "empty %", "p50 ms", "p95 ms", "steps p50", "p95", "c/l/r")
    said = f"{FILE}, n {report['n']}, seed {report['seed']}, reference passes {report['reference_passes']}"
    where = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    note = "c/l/r: tokens from canvas, lookup, left-to-right steps; of the lookup row, lines"
    return "\n".join([where, said, "", table(head, [_line(*row) for row in report["rows"].items()]), note])


def _line(name: str, row: Report) -> list[object]:
    low, high = row["pass_95"]
    return [
        f"{name} ({row['errors']} errors)" if row["errors"] else name,
        100 * row["exact"],
        100 * row["pass"],
        f"{100 * low:.1f}-{100 * high:.1f}",
        100 * row["similarity"],
        100 * row["empty"],
        row["ms"]["p50"],
        row["ms"]["p95"],
        row["steps"]["p50"],
        row["steps"]["p95"],
        "/".join(str(row["tokens"][source]) for source in SOURCES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality of single-line fills.")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help=f"holds {FILE}")
    parser.add_argument("--base", type=Path, metavar="FOLDER", help="SmolLM2 with its whole vocabulary, for `smollm2`")
    parser.add_argument("--model", default=models.EMBEDDED, metavar="NAME|PATH")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help=",".join(ROWS))
    parser.add_argument("--deadline-ms", type=float, default=10_000.0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the completions and their scores there")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "quality.json")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    if options.n < 1:
        parser.error("--n is at least 1")
    if "smollm2" in options.rows and options.base is None:
        parser.error("the row smollm2 needs --base")
    options.model = models.resolve(options.model)
    with tempfile.TemporaryDirectory(prefix="caesura-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        report = measure(options, folder)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
