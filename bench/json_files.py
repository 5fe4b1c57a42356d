"""What an editor shows in real JSON files: places cut out of them, while a key is typed and on request.

    python bench/json_files.py FOLDER [--model NAME|PATH] [--seed 7] [--json] [--out bench/results/json-files.json]

FOLDER has a folder for each package, named `name-version`, with JSON files in it. Each file gets four places: a value
that is missing, a string that is begun, a key that is missing, and a line that is missing. The real `caesura lsp` over
stdio; the last character before the cursor is typed, then the editor asks as it does by itself, and once more as a
person does.
"""

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caesura import model_store
from caesura.server.options import MODES

from latency import HERE, Editor, Report, conditions, own_engine, save, spread, table  # isort: skip  (next to this script)

WAIT_MS = 250.0  # the server's own deadline: from then on it answers with the first it has to show
SETTLE_S = 0.3  # between opening a file and typing in it
LANGUAGES: Mapping[str, str] = {"tsconfig.json": "jsonc"}  # by file name, as VS Code has them; others are JSON

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_KINDS = {  # each has the group `gap`: what stands in the file and is cut out
    "value": rf"{_STRING}: (?P<gap>{_STRING}|-?\d[\d.]*|true|false|null)(?=,?$)",
    "begun string": r'"(?:[^"\\\n]|\\.)*": "\w{2}(?P<gap>(?:[^"\\\n]|\\.){3,})(?=",?$)',
    "key": r'^[ \t]+"(?P<gap>(?:[^"\\\n]|\\.)+)(?=": )',
    "line": rf"(?<=,\n)[ \t]+(?P<gap>{_STRING}: (?:{_STRING}|-?\d[\d.]*|true|false|null)),?$",
}


@dataclass(frozen=True)
class Place:
    """A gap in a text, and what its author wrote there. Of a line the comma is missing, too."""

    kind: str
    file: str
    text: str
    at: int
    gap: str

    @property
    def position(self) -> tuple[int, int]:
        before = self.text[: self.at]
        return before.count("\n"), len(before) - before.rfind("\n") - 1


def places(folder: Path, seed: int) -> Iterator[Place]:
    """One place of each kind in each file; a kind that a file lacks is left out."""
    for path in sorted(folder.rglob("*.json")):
        text, draw = path.read_text("utf-8"), random.Random(f"{seed} {path.relative_to(folder)}")
        for kind, pattern in _KINDS.items():
            found = [gap for gap in re.finditer(pattern, text, re.MULTILINE) if gap["gap"].isascii()]
            if found:
                gap = draw.choice(found)
                at, end = gap.span("gap")
                end = gap.end() if kind == "line" else end
                yield Place(kind, str(path.relative_to(folder)), text[:at] + text[end:], at, gap["gap"])


def ask(editor: Editor, place: Place) -> Report:
    """What is shown after the last key before the gap: by itself, then on request."""
    line, column = place.position
    key = place.text[place.at - 1]
    language = LANGUAGES.get(Path(place.file).name, "json")
    editor.open(place.text[: place.at - 1] + place.text[place.at :], language=language)
    time.sleep(SETTLE_S)
    began = time.perf_counter()
    editor.type(line, column - 1, key)
    row: Report = {"kind": place.kind, "file": place.file, "wanted": place.gap}
    for name, invoked in (("automatic", False), ("request", True)):
        text = editor.complete(line, column, invoked=invoked)
        row[name] = {"text": text, "ms": round((time.perf_counter() - began) * 1000, 1)}
        began = time.perf_counter()
    editor.close()
    return row


def measure(folder: Path, model: str, seed: int) -> Report:
    rows = []
    with own_engine(), Editor() as editor:
        # Eager with the bar of `balanced`: that mode asks for more after suggestions that nobody took, as here.
        settings = {
            "mode": "eager",
            "minConfidence": MODES["balanced"].chance,
            "speculate": False,
            "stats": False,
            "deadlineMs": WAIT_MS,
        }
        about = conditions(model)
        editor.initialize(model=model_store.resolve(model), **settings)
        editor.tell("initialized", {})
        found = list(places(folder, seed))
        ask(editor, found[0])  # grammars and buffers that are made once
        for number, place in enumerate(found, 1):
            rows.append(ask(editor, place))
            print(f"\r{number} of {len(found)} ", end="", file=sys.stderr, flush=True)
        print(*editor.said, sep="\n", file=sys.stderr)
    files = list(dict.fromkeys(row["file"] for row in rows))
    kinds = {kind: summary([row for row in rows if row["kind"] == kind]) for kind in _KINDS}
    return {"bench": "json_files", **about, "seed": seed, "files": files, **summary(rows), "kinds": kinds, "rows": rows}


def summary(rows: Sequence[Report]) -> Report:
    report: Report = {"places": len(rows)}
    for name in ("automatic", "request"):
        shown = [row for row in rows if row[name]["text"]]
        report[name] = {
            "shown": len(shown),
            "right": sum(row[name]["text"].rstrip(",") == row["wanted"] for row in shown),
            "begun right": sum(row["wanted"].startswith(row[name]["text"].rstrip(",")) for row in shown),
            "ms": spread([row[name]["ms"] for row in rows]),
        }
    return report


def picture(report: Report) -> str:
    """The report as a person reads it."""
    rows = []
    for kind, found in [*report["kinds"].items(), ("all", report)]:
        for name in ("automatic", "request"):
            counts = [found[name][count] for count in ("shown", "right", "begun right")]
            rows.append((f"{kind}, {name}", found["places"], *counts, *(found[name]["ms"][p] for p in ("p50", "p95"))))
    head = ("", "places", "shown", "right", "begun right", "ms p50", "p95")
    return f"{report['model']['name']} at {report['commit']}, load {report['load']}\n\n{table(head, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="What an editor shows in real JSON files.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="JSON files, in a folder for each package")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "json-files.json")
    options = parser.parse_args()
    report = measure(options.folder, options.model, options.seed)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
