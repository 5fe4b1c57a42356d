"""Somebody types in a real VS Code with the extension: how long after a key there is ghost text on the screen.

    python bench/vscode.py --editors FOLDER [--stretches N] [--streaming lines|off] [--json] [--out FILE]

code-server in Chromium, with the extension built and the real server and engine. Those stretches of typing_stretches/
that were made for VS Code are replayed on the real clock; nothing is taken. What is on the screen is read at every
frame that the browser draws, so a time is right to a frame. FOLDER is what tests/real/editors.sh has filled.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from latency import HERE, Report, conditions, own_engine, save, spread, table
from simulator import own_records, warm_up
from typist import Stretch, stretches

from caesura import model_store

sys.path.insert(0, str(HERE.parent))
from tests.real.browser import chromium
from tests.real.vscode import Code, Frame, build, code_server

LAST_S = 2.0  # for what comes after the last key
# Keys write themselves, and brackets are closed wherever one is typed, as when the stretches were made.
PLAIN = {
    "editor.autoIndent": "none",
    "editor.autoClosingBrackets": "always",
    "editor.autoClosingQuotes": "always",
    "editor.autoClosingOvertype": "always",
    "editor.autoClosingDelete": "never",
    "editor.formatOnType": False,
    "editor.trimAutoWhitespace": False,
}


@dataclass
class Seen:
    """`ghosts`: milliseconds from a key to text that is not the rest of what was there; `grown`: suggestions that were
    drawn again with more text, and for each the frames without any in between."""

    keys: int = 0
    ghosts: list[float] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)


def press(code: Code, event: list[Any]) -> str:
    """What it writes before the cursor."""
    match event[1:]:
        case ["key" | "over", text]:
            code.page.keyboard.type(text) if len(text) == 1 else code.page.keyboard.insert_text(text)
            return str(text)
        case ["pair", text, behind]:
            if len(text) == 1:
                code.page.keyboard.type(text)
            else:  # a line break between two brackets
                code.page.keyboard.insert_text(text + behind)
                code.press("ArrowUp", "End")
            return str(text)
        case ["back", count]:
            code.press(*["Backspace"] * count)
        case ["to", line, column]:
            code.press("Control+Home", *["ArrowDown"] * line, *["ArrowRight"] * column)
    return ""


def replay(code: Code, stretch: Stretch, seen: Seen) -> None:
    code.open(f"{stretch.name}-{stretch.file}", stretch.start)
    code.record()
    keys: list[tuple[float, str]] = []
    for event in stretch.events:
        time.sleep(event[0] / 1000)
        at = time.time()
        written = press(code, event)
        if event[1] != "to":
            keys.append((at, written))
    time.sleep(LAST_S)
    frames = code.frames()
    seen.keys += len(keys)
    ends = [at for at, _ in keys[1:]] + [float("inf")]
    for (at, written), end in zip(keys, ends, strict=True):
        before = next((frame.ghost for frame in reversed(frames) if frame.at < at), "")
        look(before, written, at, [frame for frame in frames if at <= frame.at < end], seen)


def look(before: str, written: str, at: float, frames: Sequence[Frame], seen: Seen) -> None:
    """What there was between one key and the next."""
    rest = before.removeprefix(written) if before.startswith(written) else ""
    new = (frame for frame in frames if frame.ghost and not (rest and frame.ghost.startswith(rest)))
    if (first := next(new, None)) and first.ghost != before:
        seen.ghosts.append((first.at - at) * 1000)
    shown = [number for number, frame in enumerate(frames) if frame.ghost]
    steady = [number for number in shown if not frames[number].ghost.startswith("\n")]  # a block before its first line
    for one, next_ in pairwise(steady):
        old, grown = frames[one].ghost, frames[next_].ghost
        if grown != old and grown.startswith(old):
            seen.grown.append(sum(not frame.ghost for frame in frames[one:next_]))


def measure(editors: Path, chosen: Sequence[Stretch], streaming: str) -> Report:
    with own_records(), own_engine(), tempfile.TemporaryDirectory(prefix="caesura-vscode-") as name:
        folder, seen, began = Path(name), Seen(), time.time()
        report: Report = {"bench": "vscode", **conditions(model_store.DEFAULT), "streaming": streaming}
        extension = build(folder)
        asyncio.run(warm_up(model_store.DEFAULT))
        program = folder / "caesura"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m caesura "$@"\n')
        program.chmod(0o755)
        (folder / "work").mkdir()
        with (
            code_server(str(editors / "bin" / "code-server"), extension, folder / "code", program) as server,
            chromium() as browser,
            server.window(browser, folder / "work") as code,
        ):
            code.settings(plain=PLAIN, streaming=streaming)
            for number, stretch in enumerate(chosen):
                print(f"\r{number + 1} of {len(chosen)}: {stretch.name} ", end="", file=sys.stderr, flush=True)
                replay(code, stretch, seen)
        print(file=sys.stderr)
        return {
            **report,
            "minutes": round((time.time() - began) / 60, 1),
            "stretches": len(chosen),
            "keys": seen.keys,
            "key to ghost, ms": spread(seen.ghosts),
            "grown": len(seen.grown),
            "frames without ghost text, for each time": spread(seen.grown),
            "most of them": max(seen.grown, default=0),
        }


def picture(report: Report) -> str:
    rows = [[name, report[name]] for name in ("stretches", "keys", "grown", "most of them")]
    for name in ("key to ghost, ms", "frames without ghost text, for each time"):
        rows += [[f"{name}, {rank}", report[name][rank]] for rank in ("n", "p50", "p95")]
    about = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    return f"{about}, streaming {report['streaming']}, {report['minutes']} min\n\n" + table(("", "VS Code"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Typing in a real VS Code.")
    parser.add_argument("--editors", type=Path, required=True, metavar="FOLDER", help="with bin/code-server in it")
    parser.add_argument("--stretches", type=int, metavar="N", help="only the first N")
    parser.add_argument("--streaming", choices=("lines", "off"), default="lines")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "vscode.json")
    options = parser.parse_args()
    chosen = [stretch for stretch in stretches() if stretch.editor == "vscode"][: options.stretches]
    report = measure(options.editors.resolve(), chosen, options.streaming)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
