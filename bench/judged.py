"""A user's gaps: places in real packages, filled by several models, to be read and judged by a person.

    python bench/judged.py collect GAPS.json --exclude DATA [--seed 7]
    python bench/judged.py ask GAPS.json --models small,coder --out FOLDER
    python bench/judged.py count FOLDER

`collect` takes the gaps out of the newest releases of the packages below, only where they differ from the last
release before 2025 (training/heldout.py says how), by a seed that is fixed before anybody has seen a fill. `ask` runs
`caesura fill` at each of them, in a copy of the file without the gap, and writes three files. `fills.md` shows
before, wanted and the different fills by letter; only `fills.json` says which model wrote which. In `verdicts.json`
exact and empty are filled in, the others are for a person: one of VERDICTS. `count` makes the table of it, and
compares every two models.
"""

import argparse
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caesura import model_store

from infilling.scores import paired  # isort: skip  (next to this script)
from latency import CAESURA, HERE, own_engine, table  # isort: skip

sys.path.insert(0, str(HERE.parent / "training"))
import corpus  # isort: skip
import gap_places  # isort: skip
import heldout  # isort: skip
import packages  # isort: skip

PROJECTS = {  # with its last release before 2025; none is in a corpus or in the held-out set
    "pypi": {
        "uvicorn": "0.34.0", "structlog": "24.4.0", "cattrs": "24.1.2", "pypdf": "5.1.0", "zarr": "2.18.4",
        "reflex": "0.6.7", "openai": "1.58.1", "pydantic-settings": "2.7.1",
    },
    "npm": {
        "@tanstack/form-core": "0.39.0", "@tanstack/react-router": "1.87.7", "@tanstack/virtual-core": "3.10.9",
        "@fastify/rate-limit": "10.2.1", "@fastify/cors": "10.0.1", "pino-pretty": "13.0.0", "avvio": "9.1.0",
    },
}  # fmt: skip
COUNT = 63
OF_A_LANGUAGE = {"python": 4, "javascript": 3, "typescript": 4, "json": 1, "markdown": 2}  # gaps of a project at most
LINES = 12, 4  # before and after a gap, shown to the reader
VERDICTS = {
    "exact": "what its author wrote",
    "useful": "taken as it is, or with a word changed",
    "start": "its beginning is right, the rest is not",
    "plausible": "fits and is wrong",
    "harmful": "breaks the text, or does what nobody would want",
    "empty": "nothing is proposed",
}
RIGHT = ("exact", "useful")
Places = Callable[[str], Iterator[gap_places.Span]]
Fill = dict[str, Any]  # `text`, and of whom: `confidence`, or by letter `models` with the confidence of each
Fills = dict[str, dict[str, Fill]]  # by model and gap


@dataclass(frozen=True)
class Gap:
    """`middle` is what its author wrote between `prefix` and `suffix`, which are the rest of the file."""

    id: str
    package: str
    version: str
    path: str
    prefix: str
    middle: str
    suffix: str


# Collect


def rests(text: str) -> Iterator[gap_places.Span]:
    """The rest of each line of code or prose after a place between two words, where somebody stops typing."""
    for line in re.finditer(r"^[ \t]*(?!//|\*|/\*|#)(\S.*?)[ \t]*$", text, re.M):
        inner = [found.start() for found in re.finditer(r"(?<=[\s(.=\[{])\w", line[1])][1:]
        if inner and len(line[1]) <= gap_places.LINE[-1]:
            start = line.start(1) + inner[len(line[1]) % len(inner)]  # any, and always the same
            if line.end(1) - start in gap_places.LINE:
                yield start, line.end(1)


PLACES: dict[str, tuple[Places, ...]] = {
    "python": (gap_places.python_lines, gap_places.python_blocks, gap_places.python_spans, rests),
    "javascript": (gap_places.javascript_lines, rests),
    "typescript": (gap_places.javascript_lines, rests),
    "json": (gap_places.json_values,),
    "markdown": (gap_places.markdown_rows, gap_places.markdown_items, rests),
}


def collect(exclude: Path, seed: int) -> list[Gap]:
    """COUNT gaps, in turn from each project."""
    taken = heldout.HeldOut(None, corpus.Exclusions.read(exclude))
    sign = {"pypi": "==", "npm": "@"}
    named = [(of, name, f"{name}{sign[of]}{old}") for of, some in PROJECTS.items() for name, old in some.items()]
    newest = packages.fetch_all([(of, name) for of, name, _ in named], heldout.SIZES)
    before = packages.fetch_all([(of, old) for of, _, old in named], heldout.SIZES)
    for (registry, name, package), (_, _, old) in zip(newest, before, strict=True):
        if package is None or old is None:
            raise SystemExit(f"{registry}:{name} could not be fetched; try again.")
        taken.take(package, old)
        print(taken, package.label, package.version, file=sys.stderr)
    return chosen(taken, random.Random(seed))


def chosen(taken: heldout.HeldOut, draw: random.Random) -> list[Gap]:
    """One gap of a file; a language's kinds of places in turn, then the projects in turn."""
    turns = Counter[str]()
    of_project: dict[str, list[Gap]] = {}
    for package, path, text in draw.sample(taken.files, len(taken.files)):
        lang = packages.language(path)
        known = of_project.setdefault(package.label, [])
        if sum(packages.language(gap.path) == lang for gap in known) >= OF_A_LANGUAGE.get(lang, 0):
            continue
        kinds = PLACES[lang]
        spans = sorted(filter(taken.old.spares(text), set(kinds[turns[lang] % len(kinds)](text))))
        turns[lang] += 1
        if spans:
            start, end = draw.choice(spans)
            about = (f"{package.label}/{len(known)}", package.label, package.version, path)
            known.append(Gap(*about, text[:start], text[start:end], text[end:]))
    rounds = max(map(len, of_project.values()), default=0)
    found = [gaps[turn] for turn in range(rounds) for _, gaps in sorted(of_project.items()) if turn < len(gaps)]
    return found[:COUNT]


# Ask


def ask(gaps: Sequence[Gap], model: str) -> dict[str, Fill]:
    """What `caesura fill` says at each gap: text and confidence."""
    with tempfile.TemporaryDirectory() as folder:
        return {gap.id: _ask(gap, model, Path(folder)) for gap in gaps}


def _ask(gap: Gap, model: str, folder: Path) -> Fill:
    file = folder / Path(gap.path).name
    file.write_bytes((gap.prefix + gap.suffix).encode())
    lines = gap.prefix.split("\n")
    at = f"{len(lines)}:{len(lines[-1]) + 1}"
    command = [*CAESURA, "fill", str(file), "--at", at, "--model", model, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{gap.id}: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    return {"text": said["text"], "confidence": round(said["confidence"], 3)}


def verdict(gap: Gap, text: str) -> str:
    """The verdict that needs no reader, or ""."""
    if not text.strip():
        return "empty"
    return "exact" if text.rstrip() == gap.middle.rstrip() else ""


def lettered(gap: Gap, fills: Fills) -> dict[str, Fill]:
    """The different fills of a gap by letter, in an order that says nothing of the models."""
    models_of: dict[str, dict[str, float]] = {}
    for model, of in fills.items():
        models_of.setdefault(of[gap.id]["text"], {})[model] = of[gap.id]["confidence"]
    texts = random.Random(gap.id).sample(sorted(models_of), len(models_of))
    return {chr(ord("A") + number): {"text": text, "models": models_of[text]} for number, text in enumerate(texts)}


def page(gaps: Sequence[Gap], letters: dict[str, dict[str, Fill]]) -> str:
    """Side by side, for a reader who does not see whose they are."""
    said = [f"{name}: {what}" for name, what in VERDICTS.items()]
    shown = (_shown(gap, letters[gap.id]) for gap in gaps)
    return "\n".join(["# Gaps", "", *(f"- {one}" for one in said), "", *shown])


def _shown(gap: Gap, letters: dict[str, Fill]) -> str:
    before, behind = gap.prefix.split("\n")[-LINES[0] :], gap.suffix.split("\n")[: LINES[1]]
    lines = [f"## {gap.id}", "", f"{gap.package} {gap.version}, {gap.path}", "", "~~~~"]
    lines += ["\n".join(before) + "⟦ ⟧" + "\n".join(behind), "~~~~", "", "wanted:", "~~~~", gap.middle, "~~~~"]
    for letter, fill in letters.items():
        known = verdict(gap, fill["text"])
        lines += [f"{letter}{', ' + known if known else ''}:"]
        lines += [] if known == "empty" else ["~~~~", fill["text"], "~~~~"]
    return "\n".join([*lines, ""])


def count(letters: dict[str, dict[str, Fill]], verdicts: dict[str, dict[str, str]]) -> str:
    """Models by verdicts, and how often each two are right where the other is not. Raises SystemExit where a verdict is
    missing or unknown."""
    left = [f"{gap} {letter}" for gap, of in verdicts.items() for letter, one in of.items() if one not in VERDICTS]
    if left:
        raise SystemExit(f"{len(left)} verdicts are missing or unknown, the first of {left[0]}.")
    told: dict[str, list[str]] = {}
    for gap, of in letters.items():
        for letter, fill in of.items():
            for model in fill["models"]:
                told.setdefault(model, []).append(verdicts[gap][letter])
    counted = [(model, Counter(told[model])) for model in sorted(told)]
    shown = table(("", *VERDICTS), [(model, *(of[name] for name in VERDICTS)) for model, of in counted])
    return "\n".join([shown, *(_compared(told, *pair) for pair in itertools.combinations(sorted(told), 2))])


def _compared(told: dict[str, list[str]], one: str, other: str) -> str:
    right = [[verdict in RIGHT for verdict in told[model]] for model in (one, other)]
    found = paired(*right)
    low, high = found.interval
    alone = f"only {one} {found.only_left}, only {other} {found.only_right}"
    return f"{' or '.join(RIGHT)}: {alone}; {found.difference:+.1%} [{low:+.1%}, {high:+.1%}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="A user's gaps.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("collect")
    one.add_argument("gaps", type=Path, metavar="GAPS.json")
    one.add_argument("--exclude", type=Path, required=True, help="data folder with exclude/ and the benchmarks")
    one.add_argument("--seed", type=int, default=7)
    one = commands.add_parser("ask")
    one.add_argument("gaps", type=Path, metavar="GAPS.json")
    one.add_argument(
        "--models", type=lambda text: text.split(","), default=[model_store.DEFAULT], metavar="NAME|PATH,..."
    )
    one.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    one = commands.add_parser("count")
    one.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "collect":
        options.gaps.write_text(json.dumps([asdict(gap) for gap in collect(options.exclude, options.seed)], indent=1))
    elif options.command == "count":
        told = [json.loads((options.folder / name).read_text("utf-8")) for name in ("fills.json", "verdicts.json")]
        print(count(*told))
    else:
        fill(options)


def fill(options: argparse.Namespace) -> None:
    if (options.out / "verdicts.json").exists():
        raise SystemExit(f"{options.out} has verdicts already; take another folder.")
    gaps = [Gap(**one) for one in json.loads(options.gaps.read_text("utf-8"))]
    with own_engine():
        fills = {Path(model).name: ask(gaps, model_store.resolve(model)) for model in options.models}
    letters = {gap.id: lettered(gap, fills) for gap in gaps}
    verdicts = {gap.id: {letter: verdict(gap, one["text"]) for letter, one in letters[gap.id].items()} for gap in gaps}
    options.out.mkdir(parents=True, exist_ok=True)
    for name, value in (("fills.json", letters), ("verdicts.json", verdicts)):
        (options.out / name).write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
    (options.out / "fills.md").write_text(page(gaps, letters), encoding="utf-8")


if __name__ == "__main__":
    main()
