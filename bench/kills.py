"""What an editor notices when its engine is killed at every point, or hangs.

    python bench/kills.py [--times 10] [--json] [--out bench/results/kills.json]

The real `caesura lsp` and the real supervisor and worker processes around a model of a dozen lines, of whose scheduler
every call is a point (tests/fake_engine.py): at one of them the process kills, stops or hangs itself while somebody
types a key every 30 ms. Times are from that moment. Ends with 1 where an answer was of another text, or a process is
left behind.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latency import HERE, Report, conditions, save, spread, table

sys.path.insert(0, str(HERE.parent))
from tests.kills import SUPERVISOR, WORKER, Seen, trial

HANGS = ("stop", "gil", "spin")
SUMS = ("stale", "orphans")


@contextmanager
def own_folder() -> Iterator[Path]:
    """A runtime folder whose engine ends soon."""
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        os.environ.update(CAESURA_RUNTIME=folder, XDG_STATE_HOME=f"{folder}/state", CAESURA_IDLE_EXIT="0.5")
        yield Path(folder)


def row(process: str, point: str, act: str, times: int) -> Report:
    seen: list[Seen] = []
    for _ in range(times):
        with own_folder() as runtime:
            seen.append(asyncio.run(trial(runtime, point, act)))
    answered = [max(one.answered) for one in seen if one.answered]
    return {
        **{"process": process, "point": point, "act": act, "times": times},
        "answered_ms": spread(answered) | {"max": round(max(answered, default=0.0), 1)},
        "back_ms": spread([one.back for one in seen]),
        **{name: sum(getattr(one, name) for one in seen) for name in SUMS},
    }


def measure(times: int, out: Path) -> Report:
    """Row by row, each kept once it is measured."""
    report: Report = {"conditions": conditions("fake"), "rows": []}
    faults = [("worker", "step 3", act) for act in HANGS]
    faults += [("worker", point, "kill") for point in WORKER] + [("supervisor", point, "kill") for point in SUPERVISOR]
    for process, point, act in faults:
        report["rows"].append(row(process, point, act, times))
        save(report, out)
    return report


def picture(report: Report) -> str:
    rows = [
        [
            *(f"{row['process']}, {row['act']}: {row['point']}", row["answered_ms"]["n"]),
            *(row["answered_ms"][name] for name in ("p50", "p95", "max")),
            *(row["back_ms"][name] for name in ("p50", "p95")),
            *(row[name] for name in SUMS),
        ]
        for row in report["rows"]
    ]
    head = ["", "pending", "answered ms p50", "p95", "max", "next fill ms p50", "p95", *SUMS]
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "kills.json")
    options = parser.parse_args()
    report = measure(options.times, options.out)
    print(json.dumps(report) if options.json else picture(report))
    sys.exit(any(row[name] for row in report["rows"] for name in SUMS))


if __name__ == "__main__":
    main()
