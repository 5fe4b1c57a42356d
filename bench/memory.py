"""What the processes of Caesura keep resident while an editor is used: with one file, with four, after forty jumps.

    python bench/memory.py [--model NAME|PATH] [--seed 7] [--json] [--out bench/results/memory.json]

The real `caesura lsp` over stdio and the real shared engine, as in latency.py. In every file, and at every place that
is jumped to, a key is typed and its whole fill waited for.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from caesura import models

from latency import HERE, WAIT_MS, Editor, Place, Report  # isort: skip  (beside this)
from latency import conditions, engine_starts, memory, own_engine, places, save, table  # isort: skip

FILES = 4
JUMPS = 40


def visit(editor: Editor, place: Place) -> None:
    """Type a key in a file that stays open."""
    editor.open(place.text)
    editor.type(place.line, place.column, place.keys[0])
    editor.complete(place.line, place.column + 1)


def moments(model: str, seed: int) -> Iterator[tuple[str, Report]]:
    """MiB of each process, moment after moment."""
    where = iter(places(seed))
    with Editor() as editor:
        editor.initialize(
            model=models.resolve(model), deadlineMs=WAIT_MS, minConfidence=0, speculate=False, stats=False
        )
        editor.tell("initialized", {})
        for count, name in ((1, "one file"), (FILES - 1, "four files"), (JUMPS, "after forty jumps")):
            for _ in range(count):
                visit(editor, next(where))
            yield name, memory(editor.pid)


def measure(model: str, seed: int) -> Report:
    with own_engine():
        engine_starts(model, 1)
        return {"bench": "memory", **conditions(model), "seed": seed, "mib": dict(moments(model, seed))}


def picture(report: Report) -> str:
    """The report as a person reads it."""
    processes = list(next(iter(report["mib"].values())))
    rows = [(name, *resident.values()) for name, resident in report["mib"].items()]
    about = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    return f"{about}\n\n{table(('MiB resident', *processes), rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Resident memory of the processes.")
    parser.add_argument("--model", default=models.EMBEDDED, metavar="NAME|PATH")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "memory.json")
    options = parser.parse_args()
    report = measure(options.model, options.seed)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
