"""How often the fills of each word (`sure`, `likely`, ...) are what the author wrote.

    python bench/words.py ask FOLDER... --out FILLS.jsonl [--model NAME|PATH] [--n 120] [--seed 11]
    python bench/words.py count FILLS.jsonl

`ask` takes a line, an expression and a block out of as many files each, and asks for it as `caesura fill` does; one gap
of a file. `count` prints the fills by probability and by word.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from caesura import model_store
from caesura.client.shared import Engine
from caesura.commands.common import Filled, ask, filled
from caesura.server.infill.choose import choice
from caesura.server.infill.job import Ask
from caesura.server.infill.site import bare_site
from caesura.server.languages import language
from caesura.server.options import Options

from latency import HERE, own_engine, table  # isort: skip  (next to this script)

sys.path.insert(0, str(HERE.parent / "training"))
import gap_places  # isort: skip

KINDS = "line", "span", "block"
ENDINGS = ".py", ".js", ".mjs", ".ts", ".go", ".java"
SIZE = range(1_000, 60_000)  # bytes of a file
WIDEST = 200  # columns: a longer line is made by a program
STEPS = 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9

Row = dict[str, Any]


def places(folders: Sequence[Path], n: int, seed: int) -> Iterator[Row]:
    """`n` gaps of each kind, each of a file of its own, the languages in turn."""
    draw = random.Random(seed)
    files: dict[str, list[Path]] = {}
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.suffix in ENDINGS and file.is_file() and file.stat().st_size in SIZE:
                files.setdefault(file.suffix.replace("m", ""), []).append(file)
    turns = [draw.sample(some, len(some)) for some in files.values()]
    left = dict.fromkeys(KINDS, n)
    for file in (some[turn] for turn in range(max(map(len, turns))) for some in turns if turn < len(some)):
        kind = max(KINDS, key=lambda each: left[each])
        if not left[kind]:
            return
        try:
            text = file.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if "\r" in text or max(map(len, text.split("\n"))) > WIDEST:
            continue
        if spans := gap_places.Code(text, file.name).spans(kind):
            start, end = draw.choice(spans)
            left[kind] -= 1
            yield {"file": file.name, "kind": kind, "text": text[:start] + text[end:], "at": start} | {
                "wanted": text[start:end]
            }


async def fills(cases: Sequence[Row], model: str) -> list[Row]:
    """Each case with its fill and the probability of it."""
    engine, rows = Engine(client="bench", model=model), list[Row]()
    await engine.start()
    for number, case in enumerate(cases, 1):
        name = language("", case["file"]).id
        asked = bare_site(case["text"], case["at"], case["at"], name)
        done = await ask(engine, asked.job(Ask(kind="fill", candidates=Options().candidates)))
        found = filled(*choice(asked, done))
        rows.append(case | {"got": found.text, "chance": found.chance, "stop": done.stop, "ms": done.timings.total_ms})
        print(f"{number} of {len(cases)}", end="\r", file=sys.stderr)
    await engine.close()
    return rows


def exact(row: Row) -> bool:
    return bool(row["got"].strip() == row["wanted"].strip())


def count(rows: Sequence[Row]) -> str:
    told = [row for row in rows if row["got"].strip()]
    bounds = list(zip((0.0, *STEPS), (*STEPS, 1.1), strict=True))
    by_chance = [[f"{low:.2f}", *_counts([r for r in told if low <= r["chance"] < high])] for low, high in bounds]
    words = dict.fromkeys(Filled("", step / 100).word for step in range(100, -1, -1))
    by_word = [[w, *_counts([r for r in told if Filled("", r["chance"]).word == w])] for w in words]
    heads = "from", *KINDS, "all"
    return f"{table(heads, by_chance)}\n\n{table(('word', *heads[1:]), by_word)}\n\n{len(rows) - len(told)} are empty."


def _counts(rows: Sequence[Row]) -> list[str]:
    some = [[r for r in rows if r["kind"] == kind] for kind in KINDS]
    return [f"{sum(map(exact, each))} of {len(each)}" for each in (*some, rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description="How often the fills of each word are right.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("ask")
    one.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    one.add_argument("--out", type=Path, required=True, metavar="FILLS.jsonl")
    one.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    one.add_argument("--n", type=int, default=120, help="gaps of a kind")
    one.add_argument("--seed", type=int, default=11)
    one = commands.add_parser("count")
    one.add_argument("fills", type=Path, metavar="FILLS.jsonl")
    options = parser.parse_args()
    if options.command == "count":
        print(count([json.loads(line) for line in options.fills.read_text("utf-8").splitlines()]))
        return
    cases = list(places(options.folders, options.n, options.seed))
    with own_engine():
        rows = asyncio.run(fills(cases, model_store.resolve(options.model)))
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
