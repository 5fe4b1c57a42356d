"""What an editor notices when its engine is killed at every point, or hangs.

    python bench/kills.py [--times 10] [--json] [--out bench/results/kills.json]

The real `caesura lsp` and the real supervisor and worker processes around a model of a dozen lines, of whose scheduler
every call is a point (tests/support/processes/fake_engine.py): at one of them the process kills, stops or hangs itself
while somebody types a key every 30 ms. Times are from that moment. Ends with 1 where an answer was of another text, a
process is left behind, or the p95 of a row is over its bound.
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
from tests.support.processes.kills import SUPERVISOR, WORKER, Seen, trial

HANGS = ("stop", "gil", "spin")
SUMS = ("stale", "orphans")
LOST_MS = 100.0  # the most from a worker's death to the answer of what it had
HUNG_MS = 3000.0  # the most until it is noticed that it hangs
GREET_MS = 3000.0  # until a supervisor that hangs has not answered three Hellos and is killed
BACK_MS = 3000.0  # and from then on to the next fill, and to that of what no worker had yet: two seconds and the load


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
    return {
        **{"process": process, "point": point, "act": act, "times": times},
        "lost_ms": slowest([one.lost for one in seen]),
        "waited_ms": slowest([one.waited for one in seen]),
        "back_ms": slowest([[one.back] for one in seen]),
        **{name: sum(getattr(one, name) for one in seen) for name in SUMS},
    }


def slowest(trials: list[list[float]]) -> Report:
    """Of each trial in which there was one."""
    found = [max(values) for values in trials if values]
    return spread(found) | {"max": round(max(found, default=0.0), 1)}


def measure(times: int, out: Path) -> Report:
    """Row by row, each kept once it is measured."""
    report: Report = {"conditions": conditions("fake"), "rows": []}
    hanging = [("worker", "idle"), ("worker", "step 3"), ("supervisor", "turn")]
    faults = [(process, point, act) for process, point in hanging for act in HANGS]
    faults += [("worker", point, "kill") for point in WORKER] + [("supervisor", point, "kill") for point in SUPERVISOR]
    for process, point, act in faults:
        report["rows"].append(row(process, point, act, times))
        save(report, out)
    return report


def picture(report: Report) -> str:
    rows = [
        [
            f"{row['process']}, {row['act']}: {row['point']}",
            *(row[times][name] for times in ("lost_ms", "waited_ms") for name in ("n", "p50", "p95", "max")),
            *(row["back_ms"][name] for name in ("p50", "p95", "max")),
            *(row[name] for name in SUMS),
        ]
        for row in report["rows"]
    ]
    times = ("p50", "p95", "max")
    head = ["", "lost", *times, "waited", *times, *(f"next fill {name}" for name in times), *SUMS]
    return table(head, rows)


def broken(row: Report) -> list[str]:
    """The promises that a row did not keep, a sentence each."""
    noticed = HUNG_MS if row["act"] in HANGS else 0.0
    back = noticed + BACK_MS + (GREET_MS if noticed and row["process"] == "supervisor" else 0.0)
    bounds = {"lost_ms": noticed or LOST_MS, "waited_ms": back, "back_ms": back}
    over = [
        f"{name} p95 is {row[name]['p95']}, over {bound:g}"
        for name, bound in bounds.items()
        if row[name]["n"] and row[name]["p95"] > bound
    ]
    over += [f"{row[name]} {name}" for name in SUMS if row[name]]
    return [f"{row['process']}, {row['act']}: {row['point']}: {what}." for what in over]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "kills.json")
    options = parser.parse_args()
    report = measure(options.times, options.out)
    print(json.dumps(report) if options.json else picture(report))
    sentences = [sentence for row in report["rows"] for sentence in broken(row)]
    print(*sentences, sep="\n", file=sys.stderr)
    sys.exit(bool(sentences))


if __name__ == "__main__":
    main()
