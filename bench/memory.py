"""What the processes of Caesura keep resident while an editor is used: with one file, with four, after forty jumps.

    python bench/memory.py [--model NAME|PATH] [--vs PEERS] [--seed 7] [--json] [--out bench/results/memory.json]
    python bench/memory.py --files 200 --minutes 60 [--model NAME|PATH] [--seed 7] [--json] [--out ...memory-files.json]

The real `caesura lsp` over stdio and the real shared engine, as in latency.py. In every file, and at every place that
is jumped to, a key is typed and its whole fill waited for. With `--vs` llama.cpp writes a line at the same places.

With `--files` that many files of the installed packages are opened, typed in and closed one after another, each for its
share of the minutes, after which no other is opened. Every process is read before a file is closed; its slope is that
of the second half of the files.
"""

import argparse
import contextlib
import itertools
import json
import random
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from caesura import model_store

from llama import CHARACTERS, Peer  # isort: skip  (next to this)
from latency import HERE, WAIT_MS, Editor, Place, Report, conditions, engine_starts  # isort: skip
from latency import memory, own_engine, places, resident, save, table  # isort: skip

FILES = 4
JUMPS = 40
MOST = 16  # tokens of the peer's line

LANGUAGES = {".py": "python", ".js": "javascript", ".ts": "typescript", ".json": "json", ".md": "markdown"}
OTHERS = 0.3  # the share of files that are not Python, as far as there are so many
BYTES = range(2_000, 100_000)  # of a file
KEYS = 8  # typed at each place
KEY_S = 0.12  # between two keys
PAUSE_S = 0.6  # at the end of a place


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
            model=model_store.resolve(model), deadlineMs=WAIT_MS, minConfidence=0, speculate=False, stats=False
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


# Many files


def sources(count: int, seed: int, root: Path) -> list[Path]:
    """Files under `root`, in an order that `seed` decides."""
    draw = random.Random(seed)
    found = [file for file in sorted(root.rglob("*")) if file.suffix in LANGUAGES and file.stat().st_size in BYTES]
    python, others = ([file for file in found if (file.suffix == ".py") == own] for own in (True, False))
    chosen = draw.sample(others, min(len(others), round(count * OTHERS)))
    chosen += draw.sample(python, count - len(chosen))
    draw.shuffle(chosen)
    return chosen


def spots(text: str, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Lines and columns, without end, from which at least KEYS characters follow in ASCII."""
    lines = text.splitlines()
    good = [number for number, line in enumerate(lines) if line.isascii() and len(line.strip()) >= KEYS]
    while good:
        number = draw.choice(good)
        line = lines[number]
        yield number, draw.randint(len(line) - len(line.lstrip()), len(line.rstrip()) - KEYS)


def edit(editor: Editor, text: str, draw: random.Random, until: float) -> int:
    """Cut lines off and write them again, key by key, and wait for what is proposed then; how many keys that took."""
    lines, keys = text.splitlines(), 0
    for line, column in spots(text, draw):
        editor.type(line, column, "", end=len(lines[line]))
        for at, key in enumerate(lines[line][column : column + KEYS], column):
            editor.type(line, at, key)
            time.sleep(KEY_S)
            keys += 1
        editor.complete(line, column + KEYS)
        time.sleep(PAUSE_S)
        editor.type(line, column + KEYS, lines[line][column + KEYS :])
        if time.monotonic() > until:
            break
    return keys


def curve(model: str, count: int, minutes: float, seed: int) -> tuple[list[Report], int]:
    """MiB of each process with every file, and how many keys were typed in all of them."""
    root, draw = Path(sysconfig.get_path("purelib")), random.Random(seed)
    found, keys = list[Report](), 0
    with Editor() as editor:
        settings = {"mode": "eager", "minConfidence": 0, "stats": False}
        editor.initialize(root, model=model_store.resolve(model), **settings)
        editor.tell("initialized", {})
        began = time.monotonic()
        for number, file in enumerate(sources(count, seed, root), 1):
            text = file.read_bytes().decode(errors="replace").replace("\r\n", "\n")
            editor.open(text, file, LANGUAGES[file.suffix])
            keys += edit(editor, text, draw, began + 60 * minutes * number / count)
            found.append(memory(editor.pid))
            editor.close()
            print(f"\r{number} of {count}: {found[-1]} ", end="", file=sys.stderr, flush=True)
            if time.monotonic() > began + 60 * minutes:
                break
    return found, keys


def slope(mib: Sequence[float]) -> float:
    """MiB that a hundred files add, by the second half of them."""
    half = mib[len(mib) // 2 :]
    return round(100 * statistics.linear_regression(range(len(half)), half).slope, 1)


def measure_files(model: str, count: int, minutes: float, seed: int) -> Report:
    report = {"bench": "memory", **conditions(model), "seed": seed, "minutes": minutes}
    with own_engine():
        engine_starts(model, 1)
        found, report["keys"] = curve(model, count, minutes, seed)
    report["files"] = len(found)
    report["mib"] = {name: [one[name] for one in found] for name in found[0]}
    return report | {"slope": {name: slope(values) for name, values in report["mib"].items()}}


def picture_files(report: Report) -> str:
    mib, tenths = report["mib"], [max(1, report["files"] * n // 10) for n in range(11)]
    rows = [(f"file {number}", *(values[number - 1] for values in mib.values())) for number in dict.fromkeys(tenths)]
    rows += [("most", *map(max, mib.values())), ("a hundred files add", *report["slope"].values())]
    return _about(report, table(("MiB resident", *mib), rows))


def picture(report: Report) -> str:
    """The report as a person reads it."""
    processes = list(next(iter(report["mib"].values())))
    rows = [(name, *mib.values()) for name, mib in report["mib"].items()]
    return _about(report, table(("MiB resident", *processes), rows))


def _about(report: Report, table: str) -> str:
    return f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}\n\n{table}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Resident memory of the processes.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--vs", type=Path, metavar="PEERS", help="llama.cpp beside it; see README.md")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--files", type=int, help="type in that many files of the installed packages")
    parser.add_argument("--minutes", type=float, default=60, help="for all of the --files; default 60")
    parser.add_argument("--out", type=Path, help="default bench/results/memory.json, with --files memory-files.json")
    options = parser.parse_args()
    if options.files:
        report, show, name = (
            measure_files(options.model, options.files, options.minutes, options.seed),
            picture_files,
            "-files",
        )
    else:
        report, show, name = measure(options.model, options.seed, options.vs), picture, ""
    save(report, options.out or HERE / "results" / f"memory{name}.json")
    print(json.dumps(report) if options.json else show(report))


if __name__ == "__main__":
    main()
