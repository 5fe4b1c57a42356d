"""Somebody writes five files in real editors and takes suggestions: does what is shown stay, and what is it worth?

    python bench/replays.py neovim|vscode --editors FOLDER [--replay NAME]... [--json] [--out FILE]

The marked part of each file in replays/ is typed on the real clock, in the same rhythm in every run; nobody was
recorded. At a pause, a suggestion that was there for NOTICE_S is taken with Tab if it is exactly what comes next and
has LEAST characters or more. What is on the screen is read from each frame. A suggestion is withdrawn if it vanishes,
or changes to text that does not continue it, later than KEY_S after the last key. FOLDER is what tests/real/editors.sh
has filled.
"""

import argparse
import asyncio
import atexit
import contextlib
import importlib
import inspect
import itertools
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from latency import CAESURA, HERE, Report, conditions, own_engine, save, spread, table
from neovim import begin
from simulator import own_records, warm_up
from vscode import PLAIN

from caesura import model_store

sys.path.insert(0, str(HERE.parent))
from tests.real.browser import chromium
from tests.real.neovim import Neovim
from tests.real.vscode import SCREEN, Code, build, code_server

MARKED = re.compile("(.*)«(.*)»(.*)", re.DOTALL)
LARGE = {"sections.py": ("configparser", "class ConverterMapping")}  # written in a module of Python's, before this line

SEED = 7
KEY_MS, SPREAD = 130.0, 0.4  # median of the log-normal times between keys, and its sigma
THINK_MS, THINK_SHARE = 450.0, 0.25  # before a name: median, and how many names are thought about
LINE_END_MS = 700.0  # median of what an Enter takes longer
PAUSE_S = 0.4  # a longer time before a key is a pause, in which a suggestion is read
NOTICE_S = 0.3  # time on the screen before a suggestion can be taken
LEAST = 3  # characters that a suggestion must save to be taken
KEY_S = 0.06  # time in which a change of the screen is the work of the last key
SKEW_S = 0.02  # a frame may be stamped so much before the key that changed it
BACK_S = 0.1  # a suggestion that is there again within this time was only drawn again
LOOK_S, LAST_S = 1.0, 2.0  # before the first key, and for what comes after the last
SAVED_S = 5.0  # within which VS Code has written a file
COUNTED = (
    *("keys", "suggestions", "withdrawn", "withdrawn though right", "tabs", "characters saved"),
    *("tabs that wrote something else", "wrong at a pause"),
)
UNPAIRED = PLAIN | {f"editor.autoClosing{what}": "never" for what in ("Brackets", "Quotes", "Overtype")}

# Each change of the ghost text in VS Code, at the frame that the browser draws.
CHANGES = f"""() => {{
  const screen = {SCREEN};
  const changes = (window.changes_ = []);
  const look = (at) => {{
    const {{ ghost }} = screen();
    if (ghost !== (changes.at(-1) ?? [0, ""])[1]) changes.push([(performance.timeOrigin + at) / 1000, ghost]);
    requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}}"""


@dataclass(frozen=True)
class Replay:
    name: str
    file: str
    before: str
    part: str
    after: str


@dataclass(frozen=True)
class Shown:
    """The suggestion on the screen since `at`, in seconds of the desk's clock. `ghost` has no blanks, since not all of
    them can be seen; `blank` are those that it begins with."""

    at: float
    ghost: str
    blank: str


NOTHING = Shown(0.0, "", "")


def shown(at: float, ghost: str) -> Shown:
    return Shown(at, "".join(ghost.split()), ghost[: len(ghost) - len(ghost.lstrip())])


@dataclass(frozen=True)
class Key:
    """A key pressed at `at`, the text that it wrote, or None for Tab, and what of the part was to come after it."""

    at: float
    wrote: str | None
    rest: str


class Desk(Protocol):
    """An editor with the file open and the cursor where the part belongs."""

    def now(self) -> float: ...
    def press(self, text: str) -> None: ...
    def tab(self) -> str:
        """Press Tab. Returns the text of the file."""

    def put(self, replay: Replay, size: int) -> None:
        """Make the text what it should be after `size` characters of the part."""

    def frames(self) -> list[Shown]: ...


@dataclass
class Seen:
    """What came of the suggestions; `late_ms`: from the last key to a right one that is new."""

    counts: Counter[str] = field(default_factory=Counter)
    late_ms: list[float] = field(default_factory=list)
    # With what came instead, the key, what was to come, and ms from the key to when it came and when it went.
    withdrawn: list[list[str | int]] = field(default_factory=list)
    wrong: list[list[str]] = field(default_factory=list)  # at a pause, with what was to come


def replays() -> list[Replay]:
    found = []
    for path in sorted((HERE / "replays").glob("*.txt")):
        matched = MARKED.fullmatch(path.read_text("utf-8").removesuffix("\n"))
        assert matched, path
        before, part, after = matched.groups()
        file = path.name.partition("-")[2].removesuffix(".txt")
        if file in LARGE:
            module, line = LARGE[file]
            before, line, after = inspect.getsource(importlib.import_module(module)).partition(line)
            after = line + after
        text = part.rstrip("\n")
        found.append(Replay(path.name.removesuffix(".txt"), file, before, text, part[len(text) :] + after))
    return found


def delay(replay: Replay, at: int) -> float:
    """Seconds before the key at this place of the part, the same in every run."""
    draw = random.Random(f"{SEED} {replay.name} {at}")
    ms = KEY_MS * draw.lognormvariate(0, SPREAD)
    before, key = replay.part[at - 1 : at], replay.part[at]
    if before == "\n" or key == "\n":
        ms += LINE_END_MS * draw.lognormvariate(0, 0.5)
    elif key.isalpha() and not (before.isalnum() or before == "_") and draw.random() < THINK_SHARE:
        ms += THINK_MS * draw.lognormvariate(0, 0.5)
    return ms / 1000


def unit(rest: str) -> str:
    """What the next key writes: an Enter brings its indentation."""
    found = re.match(r"\n[ \t]*(?=\S)|.", rest, re.DOTALL)
    assert found
    return found[0]


def is_right(ghost: str, rest: str) -> bool:
    return bool(ghost) and "".join(rest.split()).startswith(ghost)


def play(desk: Desk, replay: Replay, seen: Seen) -> None:
    keys = list[Key]()
    at = 0
    looked = set[float]()
    time.sleep(LOOK_S)
    while at < len(replay.part):
        wait = delay(replay, at)
        time.sleep(wait)
        ghost, since = _read(desk.frames()) if wait >= PAUSE_S else ("", 0.0)
        pressed, right = desk.now(), is_right(ghost, replay.part[at:])
        if ghost and pressed - since >= NOTICE_S and not right and since not in looked:
            looked.add(since)
            seen.wrong.append([ghost, replay.part[at : at + 40]])
        if pressed - since >= NOTICE_S and right and len(ghost) >= LEAST and (size := _taken(desk, replay, at, seen)):
            at += size
            keys.append(Key(pressed, None, replay.part[at:]))
            continue
        text = unit(replay.part[at:])
        desk.press(text)
        at += len(text)
        keys.append(Key(pressed, text, replay.part[at:]))
    time.sleep(LAST_S)
    seen.counts["keys"] += sum(key.wrote is not None for key in keys)
    seen.counts["wrong at a pause"] += len(looked)
    count(keys, desk.frames(), seen)


def _read(frames: Sequence[Shown]) -> tuple[str, float]:
    """The suggestion on the screen, and since when it is there: text that is appended to it, or typed of it, leaves it
    the same."""
    ghost, since = (frames[-1].ghost, frames[-1].at) if frames else ("", 0.0)
    for frame in reversed(frames):
        if not frame.ghost or not (ghost.startswith(frame.ghost) or frame.ghost.endswith(ghost)):
            break
        since = frame.at
    return ghost, since


def _taken(desk: Desk, replay: Replay, at: int, seen: Seen) -> int:
    """Press Tab on a right suggestion. Returns how much it wrote of the part."""
    text = desk.tab()
    seen.counts["tabs"] += 1
    start, end = replay.before + replay.part[:at], replay.after
    written = text[len(start) : len(text) - len(end)] if text.startswith(start) and text.endswith(end) else ""
    if not written or not replay.part.startswith(written, at):
        seen.counts["tabs that wrote something else"] += 1
        desk.put(replay, at)
        return 0
    seen.counts["characters saved"] += len(written) - 1
    return len(written)


def count(keys: Sequence[Key], frames: Sequence[Shown], seen: Seen) -> None:
    for number, key in enumerate(keys):
        end = keys[number + 1].at if number + 1 < len(keys) else float("inf")
        before = next((frame for frame in reversed(frames) if frame.at < key.at), NOTHING)
        look(before, key, [frame for frame in frames if key.at <= frame.at < end - SKEW_S], seen)


def look(before: Shown, key: Key, frames: Sequence[Shown], seen: Seen) -> None:
    """What there was between one key and the next."""
    wrote = "".join((key.wrote or "").split())
    on = key.wrote is not None and before.ghost.startswith(wrote) and (wrote or before.blank.startswith(key.wrote))
    kept = before.ghost.removeprefix(wrote) if on else ""
    if kept != before.ghost:  # until the editor has seen the key, the old one is there
        frames = list(itertools.dropwhile(lambda frame: frame.ghost == before.ghost, frames))
    new = next((frame for frame in frames if frame.ghost and not (kept and frame.ghost.startswith(kept))), None)
    if new:
        seen.counts["suggestions"] += 1
        if is_right(new.ghost, key.rest) and len(new.ghost) >= LEAST:
            seen.late_ms.append((new.at - key.at) * 1000)
    there, came = kept, before.at
    for number, frame in enumerate(frames):
        soon = (later.ghost for later in frames[number:] if later.at <= frame.at + BACK_S)
        # A key before this one is seen late, or the lines below, which VS Code may draw before the first.
        drawn = frame.ghost != "" and (there.endswith(frame.ghost) or frame.ghost.endswith(there))
        if frame.ghost.startswith(there) or drawn or frame.at < key.at + KEY_S:
            there, came = frame.ghost, frame.at
        elif not any(ghost.startswith(there) for ghost in soon):
            seen.counts["withdrawn"] += 1
            seen.counts["withdrawn though right"] += is_right(there, key.rest)
            times = (round((at - key.at) * 1000) for at in (came, frame.at))
            seen.withdrawn.append([there, frame.ghost, key.wrote or "<Tab>", key.rest[:40], *times])
            there, came = frame.ghost, frame.at


# The editors


class NeovimDesk:
    def __init__(self, neovim: Neovim) -> None:
        self._neovim = neovim

    now = staticmethod(time.monotonic)

    def press(self, text: str) -> None:
        self._neovim.input(text.replace("<", "<lt>").replace("\n", "<CR>"))

    def tab(self) -> str:
        self._neovim.input("<Tab>")
        self._neovim.settle()
        return "\n".join(self._neovim.lines) + "\n"

    def put(self, replay: Replay, size: int) -> None:
        before = replay.before + replay.part[:size]
        self._neovim.call("nvim_buf_set_lines", 0, 0, -1, True, (before + replay.after)[:-1].split("\n"))
        row, column = before.count("\n") + 1, len(before.rpartition("\n")[2].encode())
        self._neovim.call("nvim_win_set_cursor", 0, [row, column])

    def frames(self) -> list[Shown]:
        return [shown(frame.at, frame.ghost) for frame in self._neovim.frames]


class CodeDesk:
    def __init__(self, code: Code, file: Path) -> None:
        self._code, self._file = code, file

    now = staticmethod(time.time)

    def press(self, text: str) -> None:
        keyboard = self._code.page.keyboard
        keyboard.type(text) if len(text) == 1 else keyboard.insert_text(text)

    def tab(self) -> str:
        before = self._file.stat().st_mtime_ns
        self._code.press("Tab", "Control+s")
        end = time.monotonic() + SAVED_S
        while self._file.stat().st_mtime_ns == before and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.05)  # until all of it is written
        return self._file.read_text("utf-8")

    def put(self, replay: Replay, size: int) -> None:
        self._code.press("Control+z")

    def frames(self) -> list[Shown]:
        changes = self._code.page.evaluate("() => window.changes_")
        return [shown(at, ghost) for at, ghost in changes]


@contextlib.contextmanager
def neovim_desk(editors: Path, folder: Path, replay: Replay, model: str) -> Iterator[Desk]:
    neovim = Neovim(str(editors / "bin" / "nvim"), width=200, height=60)
    try:
        setup = {"cmd": [*CAESURA, "lsp"], "settings": {"model": model_store.resolve(model)}, "keymaps": True}
        begin(neovim, folder / replay.file, setup)
        neovim.command("set scrolloff=12")
        desk = NeovimDesk(neovim)
        desk.put(replay, 0)
        yield desk
    finally:
        neovim.close()


@contextlib.contextmanager
def code_desk(editors: Path, folder: Path, replay: Replay, model: str) -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="caesura-vscode-") as name:
        home = Path(name)
        program = home / "caesura"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m caesura "$@"\n')
        program.chmod(0o755)
        with (
            code_server(str(editors / "bin" / "code-server"), _extension(), home / "code", program) as server,
            chromium() as browser,
            server.window(browser, folder, (1500, 1100)) as code,
        ):
            code.settings(plain=UNPAIRED, model=model)
            code.open(replay.file, (folder / replay.file).read_text("utf-8"))
            code.press("Control+End", *["ArrowUp"] * replay.after.count("\n"), "End")
            code.page.evaluate(CHANGES)
            yield CodeDesk(code, folder / replay.file)


@cache
def _extension() -> Path:
    folder = tempfile.mkdtemp(prefix="caesura-extension-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build(Path(folder))


EDITORS: dict[str, Callable[[Path, Path, Replay, str], contextlib.AbstractContextManager[Desk]]] = {
    "neovim": neovim_desk,
    "vscode": code_desk,
}


def measure(editor: str, editors: Path, chosen: Sequence[Replay], model: str) -> Report:
    seen, began = Seen(), time.time()
    with own_records(), own_engine(), tempfile.TemporaryDirectory(prefix="caesura-replays-") as name:
        found: Report = {"bench": "replays", **conditions(model), "editor": editor}
        asyncio.run(warm_up(model))
        for replay in chosen:
            print(f"\r{replay.name} ", end="", file=sys.stderr, flush=True)
            (Path(name) / replay.file).write_text(replay.before + replay.after, "utf-8")
            with EDITORS[editor](editors, Path(name), replay, model) as desk:
                play(desk, replay, seen)
            (Path(name) / replay.file).write_text(replay.before + replay.part + replay.after, "utf-8")
    print(file=sys.stderr)
    return {
        **found,
        "minutes": round((time.time() - began) / 60, 1),
        "replays": [replay.name for replay in chosen],
        "counts": {name: seen.counts[name] for name in COUNTED},
        "key to right suggestion, ms": spread(seen.late_ms),
        "withdrawn": seen.withdrawn,
        "wrong": seen.wrong,
    }


def picture(found: Report) -> str:
    rows: list[list[object]] = [[name, count] for name, count in found["counts"].items()]
    late = found["key to right suggestion, ms"]
    rows += [[f"key to right suggestion, {rank}", late[rank]] for rank in ("n", "p50", "p95")]
    about = f"{found['model']['name']} at {found['commit']}, {found['machine']}, load {found['load']}"
    return f"{about}, {found['minutes']} min\n\n" + table(("", found["editor"]), rows)


def main() -> None:
    known = replays()
    parser = argparse.ArgumentParser(description="Writing files in a real editor, with its suggestions.")
    parser.add_argument("editor", choices=EDITORS)
    parser.add_argument("--editors", type=Path, required=True, metavar="FOLDER", help="with bin/nvim in it")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--replay", choices=[one.name for one in known], action="append", help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, help="default: bench/results/replays-EDITOR.json")
    options = parser.parse_args()
    chosen = [one for one in known if one.name in (options.replay or [one.name])]
    found = measure(options.editor, options.editors.resolve(), chosen, options.model)
    save(found, options.out or HERE / "results" / f"replays-{options.editor}.json")
    print(json.dumps(found) if options.json else picture(found))


if __name__ == "__main__":
    main()
