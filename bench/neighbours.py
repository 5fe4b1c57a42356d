"""What neighbours gain: the same places with and without them, through the real engine, each with a cold context.

    python bench/neighbours.py [--data FOLDER] [--package FOLDER] [--n 25] [--seed 7] [--model NAME|PATH] [--json]

`--data` holds LANGUAGE.inputs.jsonl of a CrossCodeEval sample (Ding et al. 2023, Apache-2.0): ten-line pieces of other
files are the snapshots. `--package` is a Python package: places in its files behind a name from another file of it,
whose snapshots are what `server/context/files.py` reads. The wanted text is the rest of the line.
"""

import argparse
import ast
import asyncio
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from caesura import model_store, wire
from caesura.client.backend import job_id
from caesura.client.shared import Engine
from caesura.server.context.files import Files
from caesura.server.context.neighbours import Snapshot, Target, choose

from infilling.scores import interval, similarity  # isort: skip  (next to this)
from latency import HERE, START_S, Report, conditions, own_engine, save, spread, table  # isort: skip

LANGUAGES = ("python", "typescript")
ROWS = ("off", "on")
BEFORE, AFTER = 6000, 2000  # code points, the server's defaults
SLOTS = 32
DEADLINE_MS = 10_000.0


@dataclass(frozen=True)
class Case:
    """A place: the wanted text ends its line. `group` is the row of the table."""

    group: str
    target: Target
    wanted: str
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True)
class Fill:
    text: str
    ms: float
    chosen: int  # neighbours
    choose_ms: float


# Cases


def crosscode(data: Path, language: str, n: int) -> list[Case]:
    """The first `n` of the sample; what is wanted is their first line, without the blanks it begins with."""
    lines = (data / f"{language}.inputs.jsonl").read_text("utf-8").splitlines()
    return [_crosscode(json.loads(line), language) for line in lines[:n]]


def _crosscode(task: dict[str, object], language: str) -> Case:
    prompt, truth, right, about, others = (
        task[key] for key in ("prompt", "groundtruth", "right_context", "metadata", "crossfile_context")
    )
    assert isinstance(prompt, str) and isinstance(truth, str) and isinstance(right, str)  # noqa: PT018
    assert isinstance(about, dict) and isinstance(others, dict)  # noqa: PT018
    first, *rest = truth.split("\n")
    blanks = first[: len(first) - len(first.lstrip())]
    pieces: dict[str, list[str]] = {}
    for piece in others["list"]:
        pieces.setdefault(piece["filename"], []).append(piece["retrieved_chunk"])
    suffix = "".join("\n" + line for line in rest) + right
    return Case(
        f"crosscodeeval {language}",
        Target(about["file"], language, (prompt + blanks)[-BEFORE:], suffix[:AFTER]),
        first.strip(),
        tuple(Snapshot(name, language, "\n\n".join(dict.fromkeys(texts))) for name, texts in pieces.items()),
    )


async def packaged(package: Path, n: int, seed: int) -> list[Case]:
    """Places behind `name.` or `name(`, where the name comes from another file of the package."""
    files = Files([str(package.parent)])
    places = [(path, offset) for path in sorted(package.rglob("*.py")) for offset in _places(path, package.name)]
    cases: list[Case] = []
    for path, offset in random.Random(seed).sample(places, len(places)):
        text = path.read_text("utf-8")
        end = text.index("\n", offset)
        snapshots = await files.imported(path.as_uri(), text, "python")
        if len(cases) < n and snapshots:
            name = path.relative_to(package.parent).as_posix()
            target = Target(name, "python", text[max(0, offset - BEFORE) : offset], text[end : end + AFTER])
            cases.append(Case(f"package {package.name}", target, text[offset:end].rstrip(), snapshots))
    return cases


def _places(path: Path, package: str) -> Iterator[int]:
    """Of each imported name, its uses: offsets behind the dot or bracket, with something left of the line."""
    try:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
    except (ValueError, SyntaxError):
        return
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == package)
        for alias in node.names
    }
    for name in sorted(names):
        for found in re.finditer(rf"(?<![\w.]){re.escape(name)}[.(](?=[^\s)#][^\n#]{{5,60}}\n)", text):
            if not text[text.rfind("\n", 0, found.start()) + 1 :].lstrip().startswith(("import", "from", "#")):
                yield found.end()


# Fills


async def fills(row: str, cases: Sequence[Case], model: str) -> list[Fill]:
    engine = Engine(client="bench", model=model)
    await engine.start()
    try:
        await engine.ready(START_S)
        return [await _fill(engine, case, number, row) for number, case in enumerate(cases)]
    finally:
        await engine.close()


async def _fill(engine: Engine, case: Case, number: int, row: str) -> Fill:
    start = time.perf_counter()
    neighbours = choose(case.target, case.snapshots) if row == "on" else ()
    choose_ms = 1000 * (time.perf_counter() - start)
    job = wire.Infill(
        job=job_id(),
        document=f"{row}-{number}",
        prefix=case.target.prefix,
        suffix=case.target.suffix,
        language=case.target.language,
        neighbours=neighbours,
        segments=(wire.Hole(max_tokens=SLOTS, kind="line"),),
        deadline_ms=DEADLINE_MS,
    )
    start, text = time.perf_counter(), ""
    async for event in engine.infill(job):
        text = event.holes[0].text
    return Fill(text.split("\n")[0].rstrip(), 1000 * (time.perf_counter() - start), len(neighbours), choose_ms)


# The report


def kept(text: str, wanted: str) -> int:
    """The characters of a fill that its author wrote too: as far as both agree from the start."""
    return next((i for i, (a, b) in enumerate(zip(text, wanted, strict=False)) if a != b), min(len(text), len(wanted)))


def summary(cases: Sequence[Case], found: Sequence[Fill]) -> Report:
    n = len(cases)
    exact = sum(fill.text == case.wanted for case, fill in zip(cases, found, strict=True))
    agreed = [kept(fill.text, case.wanted) for case, fill in zip(cases, found, strict=True)]
    shown = sum(len(fill.text) for fill in found)
    return {
        "n": n,
        "exact": round(exact / n, 4),
        "exact_95": interval(exact, n),
        "similarity": round(
            statistics.mean(similarity(f.text, c.wanted) for c, f in zip(cases, found, strict=True)), 4
        ),
        "kept_characters": round(statistics.mean(agreed), 2),
        "kept_of_shown": round(sum(agreed) / max(1, shown), 4),
        "with_neighbours": round(sum(fill.chosen > 0 for fill in found) / n, 4),
        "ms": spread([fill.ms for fill in found]),
        "choose_ms": spread([fill.choose_ms for fill in found if fill.choose_ms]),
    }


def measure(options: argparse.Namespace) -> Report:
    groups: list[list[Case]] = []
    if options.data:
        groups += [crosscode(options.data, language, options.n) for language in LANGUAGES]
    if options.package:
        groups.append(asyncio.run(packaged(options.package.resolve(), options.n, options.seed)))
    report: Report = {"bench": "neighbours", "seed": options.seed} | conditions(options.model)
    report |= {"kind": "line", "context": "cold", "deadline_ms": DEADLINE_MS, "groups": {}}
    with own_engine():
        for cases in groups:
            rows: Report = {}
            for row in ROWS:
                found = asyncio.run(fills(row, cases, options.model))
                rows[row] = summary(cases, found)
                if options.keep:
                    _keep(options.keep, row, cases, found)
                print(f"{cases[0].group}, {row}: {rows[row]['exact']:.1%} exact", file=sys.stderr)
            report["groups"][cases[0].group] = rows
    return report


def _keep(folder: Path, row: str, cases: Sequence[Case], found: Sequence[Fill]) -> None:
    """One line a case, to be read by a person."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{cases[0].group}, {row}.jsonl").open("w", encoding="utf-8") as file:
        for case, fill in zip(cases, found, strict=True):
            shown = [[one.name, one.text] for one in choose(case.target, case.snapshots)] if row == "on" else []
            told = {"before": case.target.prefix[-80:], "wanted": case.wanted, "got": fill.text, "neighbours": shown}
            file.write(json.dumps(told, ensure_ascii=False) + "\n")


def picture(report: Report) -> str:
    """The report as a person reads it."""
    head = ("", "n", "exact %", "95 %", "edit sim %", "kept chars", "kept/shown %", "with %", "p50 ms", "p95 ms")
    where = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    rows = [_line(f"{group}: {name}", row) for group, found in report["groups"].items() for name, row in found.items()]
    note = "kept: as far as fill and author agree, mean a case; with: cases that got a neighbour; cold contexts"
    return "\n".join([where, "", table(head, rows), note])


def _line(name: str, row: Report) -> list[object]:
    low, high = row["exact_95"]
    return [
        name,
        row["n"],
        100 * row["exact"],
        f"{100 * low:.1f}-{100 * high:.1f}",
        100 * row["similarity"],
        row["kept_characters"],
        100 * row["kept_of_shown"],
        100 * row["with_neighbours"],
        row["ms"]["p50"],
        row["ms"]["p95"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality of fills with and without neighbours.")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="holds LANGUAGE.inputs.jsonl")
    parser.add_argument("--package", type=Path, metavar="FOLDER", help="a Python package")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--n", type=int, default=25, help="cases of each set")
    parser.add_argument("--seed", type=int, default=7, help="which places of the package")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the fills there")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "neighbours.json")
    options = parser.parse_args()
    if not (options.data or options.package):
        parser.error("give --data, --package or both")
    if options.n < 1:
        parser.error("--n is at least 1")
    options.model = model_store.resolve(options.model)
    report = measure(options)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
