"""What becomes of sixty places in files and of eight stretches of typing by each route from a place in a text to
inserted text: the jobs that the engine is given, and the texts that come out for its answers. They are recorded in
tests/data/routes/recorded.jsonl: whoever changes how the routes are built, and not what they answer, runs
test_recorded_routes.py before and after.

    python -m tests.support.routes.recorded [NAME...] [--write]

prints what differs at the places whose names begin so, or takes today's answers as right. The engine answers by rule
(engine.py): no weights, and a clock that waits for nobody. `ghost`, `typing`, `fills` and `edits` are an editor's,
`serve` and `demo` are what HTTP clients get, and the other routes are commands.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..processes import sessions
from ..processes.clock import Clock
from .editor import Editor
from .engine import Engine, plain
from .places import ROOT, Place, places, stretches
from .routes import COMMANDS, EDITOR, HTTP, Texts, routes, typing

RECORDING = ROOT / "tests" / "data" / "routes" / "recorded.jsonl"
MOST_TOLD = 12  # differences, and kinds of them

Row = dict[str, Any]  # what is recorded of a place and a route


async def at_place(engine: Engine, place: Place, folder: Path) -> list[Row]:
    """What becomes of a place in an editor, in one session, and over HTTP."""
    rows = list[Row]()
    async with Editor(engine, folder, place.language) as editor:
        for turn, (route, play) in enumerate(routes({**EDITOR, **HTTP}, place).items()):
            engine.begin(place, turn)
            texts = await play(editor if route in EDITOR else engine, place)
            rows.append(row(engine, place.name, route, texts))
    return rows


def by_commands(engine: Engine, place: Place, folder: Path) -> Iterator[Row]:
    for turn, (route, play) in enumerate(routes(COMMANDS, place).items()):
        engine.begin(place, turn, step=3)
        yield row(engine, place.name, route, play(place, folder))


async def of_stretch(engine: Engine, name: str, stretch: dict[str, Any], folder: Path) -> Row:
    engine.jobs, engine.others, engine.step = [], (), 0
    async with Editor(engine, folder, stretch["language"]) as editor:
        return row(engine, name, "typing", await typing(engine, editor, stretch))


def row(engine: Engine, name: str, route: str, texts: Texts) -> Row:
    found = {"place": name, "route": route, "jobs": list(changes(engine.jobs)), "texts": rounded(texts)}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def today(begins: tuple[str, ...]) -> Iterator[Row]:
    """What becomes of the places whose names begin so. Only in a process whose time is that of sessions.CLOCKS."""
    engine = Engine()
    replace_engine(engine)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for kind in ("STATE", "CONFIG", "DATA"):
            os.environ[f"XDG_{kind}_HOME"] = str(folder / kind)
        for place in places():
            if place.name.startswith(begins):
                yield from asyncio.run(at_place(engine, place, folder))
                yield from by_commands(engine, place, folder)
        for name, stretch in stretches().items():
            if name.startswith(begins):
                yield asyncio.run(of_stretch(engine, name, stretch, folder))


def changes(jobs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The first job, and of each other one the fields that differ from those of the job before."""
    before = dict[str, Any]()
    for job in jobs:
        yield {name: job.get(name) for name in {**before, **job} if job.get(name) != before.get(name)}
        before = job


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(rounded, value))
    return round(value, 4) if isinstance(value, float) else plain(value)


def replace_engine(engine: Engine) -> None:
    """In this process: time is that of a Clock, also for `asyncio.run`, and commands get our engine."""
    from caesura.client import shared

    shared.Engine = lambda **_: engine  # type: ignore[assignment, misc]
    asyncio.events.new_event_loop = clock


def clock() -> Clock:
    sessions.CLOCKS[:] = [Clock()]
    return sessions.CLOCKS[0]


def read() -> list[Row]:
    return [json.loads(line) for line in RECORDING.read_text("utf-8").splitlines()]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The fields of what is recorded, each by its path."""
    if isinstance(value, dict | list) and value:
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, f"{path}.{name}".lstrip("."))
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def differences(recorded: Iterable[Row], found: Iterable[Row]) -> list[str]:
    """Each field that differs, by its place and route: a heading and two values."""
    before, now = ({(one["place"], one["route"]): dict(leaves(one)) for one in rows} for rows in (recorded, found))
    told = []
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key, {}), now.get(key, {})
        if not (old and new):
            told.append(f"{', '.join(key)}, {'is new' if new else 'is missing'}")
            continue
        for path in dict.fromkeys([*old, *new]):
            if old.get(path) != new.get(path):
                values = f"  recorded: {old.get(path, 'nothing')}\n  today:    {new.get(path, 'nothing')}"
                told.append(f"{', '.join(key)}, {path}\n{values}")
    return told


def summary(told: Sequence[str]) -> str:
    """How many fields differ by each route, then the first of them."""
    kinds = Counter(re.sub(r"\.\d+", "", one.split("\n")[0].partition(", ")[2]) for one in told)
    counted = "\n".join(f"{count:5} {kind}" for kind, count in kinds.most_common(MOST_TOLD))
    return "\n".join([f"{len(told)} fields differ, most of them of these kinds:", counted, "", *told[:MOST_TOLD]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.routes.recorded")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    time.monotonic = time.perf_counter = lambda: sessions.CLOCKS[0].now  # before the server is imported
    begins = tuple(options.names) or ("",)
    known, found = read() if RECORDING.exists() else [], list(today(begins))
    told = differences([one for one in known if one["place"].startswith(begins)], found)
    if told:
        print(summary(told))
    if options.write:
        rows = {(one["place"], one["route"]): one for one in [*(known if options.names else []), *found]}
        RECORDING.write_text("".join(f"{sessions.text(one)}\n" for one in rows.values()), "utf-8")
    return 0 if options.write else min(len(told), 1)


if __name__ == "__main__":
    sys.exit(main())
