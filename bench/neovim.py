"""Somebody types in a real Neovim with the plugin: how long after a key there is ghost text on the screen.

    python bench/neovim.py [--stretches N] [--view NAME] [--nvim PROGRAM] [--json] [--out bench/results/neovim.json]

Those stretches of typing_stretches/ that were made for Neovim, replayed on the real clock as plain keys; nothing is
taken. What is on the screen is read from what Neovim draws, frame by frame, with the real server and engine.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from latency import CAESURA, HERE, Report, conditions, own_engine, save, spread, table
from simulator import own_records, warm_up
from typist import Stretch, stretches

from caesura import model_store

sys.path.insert(0, str(HERE.parent))
from tests.real.neovim import PLUGIN, Frame, Neovim

VIEWS = {
    "stream": {"view": "stream"},
    "builtin": {"view": "builtin"},
    "builtin, eager": {"view": "builtin", "eager": True},
}
READY_S = 60.0
LOOK_S = 0.5  # between opening a file and the first key
LAST_S = 2.0  # for what comes after the last key
COLORS = "for _, name in ipairs(...) do vim.api.nvim_set_hl(0, name, { fg = 0x808080 }) end"
LITERAL = "set noautoindent nosmartindent nosmarttab indentexpr= formatoptions= textwidth=0"  # keys write themselves


@dataclass(frozen=True)
class Key:
    """A key, and what it writes where it writes anything."""

    at: float
    text: str


@dataclass(frozen=True)
class Span:
    """The time from one key to the next: the ghost that was there, and the frames since."""

    key: Key
    before: Frame
    frames: Sequence[Frame]


def keys_of(event: list[Any]) -> tuple[str, str]:
    """What to press in insert mode, and what of it is written before the cursor."""
    match event[1:]:
        case ["key", text]:
            return _escaped(text), text
        case ["pair", text, behind]:
            return _escaped(text + behind) + "<C-g>U<Left>" * (0 if "\n" in behind else len(behind)), text
        case ["over", text]:
            return "<C-g>U<Right>", text
        case ["back", count]:
            return "<BS>" * count, ""
    raise ValueError(f"no key for {event}")


def _escaped(text: str) -> str:
    return text.replace("<", "<lt>").replace("\n", "<CR>")


def replay(neovim: Neovim, stretch: Stretch, pace: float) -> list[Key]:
    """Type it; nothing is left out, and the text is what it was meant to be."""
    pressed = []
    time.sleep(LOOK_S)
    for event in stretch.events:
        time.sleep(event[0] / 1000 * pace)
        if event[1] == "to":
            _move(neovim, event[2], event[3])
            continue
        keys, text = keys_of(event)
        pressed.append(Key(time.monotonic(), text))
        neovim.input(keys)
        if event[1] == "pair" and "\n" in event[3]:  # to the end of the line between the two
            row, _ = neovim.call("nvim_win_get_cursor", 0)
            neovim.call("nvim_win_set_cursor", 0, [row - 1, len(neovim.lines[row - 2].encode())])
    time.sleep(LAST_S)
    return pressed


def _move(neovim: Neovim, line: int, column: int) -> None:
    text = neovim.lines[line]
    neovim.call("nvim_win_set_cursor", 0, [line + 1, len(text[:column].encode())])


def spans(keys: Sequence[Key], frames: Sequence[Frame]) -> Iterator[Span]:
    ends = [key.at for key in keys[1:]] + [float("inf")]
    for key, end in zip(keys, ends, strict=True):
        before = [frame for frame in frames if frame.at < key.at]
        if before:
            yield Span(key, before[-1], [frame for frame in frames if key.at <= frame.at < end])


def appeared(span: Span) -> float | None:
    """When something new was there, not the rest of what is typed through; in ms after the key."""
    before = span.before.ghost
    rest = before.removeprefix(span.key.text) if before.startswith(span.key.text) else ""
    for frame in span.frames:
        if frame.ghost and not (rest and frame.ghost.startswith(rest)):
            return (frame.at - span.key.at) * 1000
    return None


def blank(span: Span) -> int:
    """Frames without a ghost between two with one."""
    shown = [number for number, frame in enumerate(span.frames) if frame.ghost]
    return sum(later - earlier - 1 for earlier, later in pairwise(shown))


def withdrawn(span: Span) -> bool:
    """Something new was shown, and nothing was left of it when the next key came."""
    return appeared(span) is not None and not span.frames[-1].ghost


def report(found: Sequence[Span]) -> Report:
    ghosts = [appeared(span) for span in found]
    return {
        "ms": {"key to ghost": spread([ms for ms in ghosts if ms is not None])},
        "counts": {
            "keys": len(found),
            "frames": sum(len(span.frames) for span in found),
            "frames without ghost": sum(blank(span) for span in found),
            "ghosts withdrawn": sum(map(withdrawn, found)),
        },
    }


def play(program: str, view: dict[str, Any], chosen: Sequence[Stretch], model: str, pace: float) -> list[Span]:
    """Every stretch in a Neovim of its own."""
    found: list[Span] = []
    for number, stretch in enumerate(chosen):
        print(f"\r{number + 1} of {len(chosen)}: {stretch.name} ", end="", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="caesura-typing-") as folder:
            file = Path(folder, stretch.file)
            file.write_text(stretch.start, "utf-8")
            neovim = Neovim(program, width=110, height=36)
            try:
                setup = {"cmd": [*CAESURA, "lsp"], "settings": {"model": model_store.resolve(model)}, **view}
                begin(neovim, file, setup)
                keys = replay(neovim, stretch, pace)
                text = "\n".join(neovim.lines) + "\n"
                assert text == stretch.end, f"{stretch.name} came out otherwise"
                found += spans(keys, neovim.frames)
            finally:
                neovim.close()
    print(file=sys.stderr)
    return found


def begin(neovim: Neovim, file: Path, setup: dict[str, Any]) -> None:
    """The plugin attached to a file, in insert mode."""
    neovim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
    neovim.lua(COLORS, ["CaesuraGhost", "ComplHint"])
    neovim.command(f"filetype on | edit {file} | {LITERAL}")
    neovim.lua("require('caesura').setup(...)", setup)
    state = "return require('caesura.status').get().state"
    neovim.wait(lambda: neovim.lua(state) == "ready", "the engine", READY_S)
    neovim.input("i")


def measure(program: str, names: Sequence[str], chosen: Sequence[Stretch], model: str, speed: float | None) -> Report:
    with own_records(), own_engine():
        found: Report = {"bench": "neovim", **conditions(model), "neovim": version(program), "speed_wpm": speed}
        found["stretches"] = len(chosen)
        asyncio.run(warm_up(model))
        found["views"] = {}
        for name in names:
            played = [
                span
                for stretch in chosen
                for span in play(program, VIEWS[name], [stretch], model, stretch.wpm / speed if speed else 1.0)
            ]
            found["views"][name] = report(played)
    return found


def version(program: str) -> str:
    neovim = Neovim(program)
    try:
        return str(neovim.lua("return tostring(vim.version())"))
    finally:
        neovim.close()


def picture(found: Report) -> str:
    views: dict[str, Report] = found["views"]
    first = next(iter(views.values()))
    rows: list[list[object]] = []
    for name in first["ms"]:
        for rank, label in (("n", "n"), ("p50", "p50 ms"), ("p95", "p95 ms")):
            rows.append([f"{name}, {label}", *(view["ms"][name][rank] for view in views.values())])
    rows += [[name, *(view["counts"][name] for view in views.values())] for name in first["counts"]]
    about = f"{found['model']['name']} at {found['commit']}, {found['machine']}, load {found['load']}"
    return f"{about}, Neovim {found['neovim']}, {found['stretches']} stretches\n\n" + table(("", *views), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Typing in a real Neovim, with the real server and engine.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--stretches", type=int, metavar="N", help="only the first N")
    parser.add_argument("--speed", type=float, metavar="WPM", help="type them all at this speed, not at their own")
    parser.add_argument("--view", choices=VIEWS, action="append", help="default: all")
    parser.add_argument("--nvim", default=os.environ.get("NVIM", "nvim"), metavar="PROGRAM")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "neovim.json")
    options = parser.parse_args()
    chosen = [stretch for stretch in stretches() if stretch.editor == "neovim"][: options.stretches]
    found = measure(options.nvim, options.view or list(VIEWS), chosen, options.model, options.speed)
    save(found, options.out)
    print(json.dumps(found) if options.json else picture(found))


if __name__ == "__main__":
    main()
