"""What the processes of Caesura keep resident while an editor is used: with one file, with four, after forty jumps.

    python bench/memory.py [--model NAME|PATH] [--vs PEERS] [--seed 7] [--json] [--out bench/results/memory.json]

The real `caesura lsp` over stdio and the real shared engine, as in latency.py. In every file, and at every place that
is jumped to, a key is typed and its whole fill waited for. With `--vs` llama.cpp writes a line at the same places.
"""

import argparse
import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from caesura import models

from llama import CHARACTERS, Peer  # isort: skip  (beside this)
from latency import HERE, WAIT_MS, Editor, Place, Report, conditions, engine_starts  # isort: skip
from latency import memory, own_engine, places, resident, save, table  # isort: skip

FILES = 4
JUMPS = 40
MOST = 16  # tokens of the peer's line


def visit(editor: Editor, place: Place) -> None:
    """Type a key in a file that stays open."""
    editor.open(place.text)
    editor.type(place.line, place.column, place.keys[0])
    editor.complete(place.line, place.column + 1)


def moments(model: str, seed: int, peer: Peer | None) -> Iterator[tuple[str, Report]]:
    """MiB of each process, moment after moment."""
    where = iter(places(seed))
    with Editor() as editor:
        editor.initialize(
            model=models.resolve(model), deadlineMs=WAIT_MS, minConfidence=0, speculate=False, stats=False
        )
        editor.tell("initialized", {})
        for count, name in ((1, "one file"), (FILES - 1, "four files"), (JUMPS, "after forty jumps")):
            for place in itertools.islice(where, count):
                visit(editor, place)
                if peer:
                    peer.fill(place.before[-CHARACTERS:] + place.keys[0], MOST, warm=False)
            yield name, memory(editor.pid) | ({"llama.cpp": resident(peer.pid)} if peer else {})


def measure(model: str, seed: int, peers: Path | None) -> Report:
    with own_engine(), contextlib.ExitStack() as stack:
        engine_starts(model, 1)
        peer = stack.enter_context(Peer(peers, model)) if peers else None
        return {"bench": "memory", **conditions(model), "seed": seed, "mib": dict(moments(model, seed, peer))}


def picture(report: Report) -> str:
    """The report as a person reads it."""
    processes = list(next(iter(report["mib"].values())))
    rows = [(name, *mib.values()) for name, mib in report["mib"].items()]
    about = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    return f"{about}\n\n{table(('MiB resident', *processes), rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Resident memory of the processes.")
    parser.add_argument("--model", default=models.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--vs", type=Path, metavar="PEERS", help="llama.cpp beside it; see README.md")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "memory.json")
    options = parser.parse_args()
    report = measure(options.model, options.seed, options.vs)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
