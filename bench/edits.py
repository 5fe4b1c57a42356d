"""What an edit of one character costs the server's own text, by the size of the document; the tree not counted.

    python bench/edits.py [--edits 500] [--json] [--out bench/results/edits.json]

Each edit is at a random place (`jumping`) or behind the one before (`typing`). Its position is converted from UTF-16.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any

from latency import conditions, save, spread, table

from caesura.model_store import DEFAULT
from caesura.server.text.document import Document

SIZES = {"50 KB": 50_000, "1 MB": 1_000_000, "8 MB": 8_000_000}
LINE = "    total = compute(first, second)  # größer\n"

Report = dict[str, Any]


def measure(size: int, edits: int, *, typing: bool) -> Report:
    """Microseconds of an edit."""
    lines = size // len(LINE)
    document, random, spent = Document("file:///a", "python", 1, LINE * lines), Random(1), list[float]()
    document.edit((lines, 0), (lines, 0), "x")  # an editor's first one has the index made
    line = lines // 2
    for column in range(edits):
        place = (line, column) if typing else (random.randrange(lines), random.randrange(len(LINE)))
        began = time.perf_counter()
        document.edit(place, place, "x")
        spent.append(1e6 * (time.perf_counter() - began))
    return spread(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report: Report = {"bench": "edits", **conditions(DEFAULT), "edits": options.edits, "us": {}}
    for name, size in SIZES.items():
        for way in ("typing", "jumping"):
            report["us"][f"{name}, {way}"] = measure(size, options.edits, typing=way == "typing")
    if options.out:
        save(report, options.out)
    rows = [[name, found["p50"], found["p95"]] for name, found in report["us"].items()]
    print(json.dumps(report, indent=2) if options.json else table(["an edit, us", "p50", "p95"], rows))


if __name__ == "__main__":
    main()
