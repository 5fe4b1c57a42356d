"""Records the sessions of tests/data/sessions again, in real editors; see tests/support/processes/sessions.py.

    python -m tests.real.recordings.record neovim

Not a test. An answer that a real clock gave otherwise than the clock of the replay is printed: what the editor said
after it would make no sense in a replay, so record again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...support.processes.sessions import FOLDER, PLACE, Event, Names, Session, differences, labelled, read, write
from ..conftest import EDITORS

SERVER = Path(__file__).with_name("recording.py")
KEY_S, REST_S = 0.07, 0.6
AREA = "def area(width, height):\n    \n\n\n"
AREAS = f"{AREA}def volume(width, height, depth):\n    \n\n\ndef other(width, height):\n    \n"
SECRET = 'user = "me"\napi_key = "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"\n\n\n'
ITEMS = """class Basket:
    def __init__(self):
        self.items = []

    def add(self, item):
        pass

    def total(self):
        total = count = 0
        
        return total
"""
SERVERS = """{
  "servers": [
    {"name": "one", "port": 80},
    {"name": "two", "port": 81}
  ],
  "limits": {"high": 9, "low": 1}
}
"""
SCHEMA = """{
  "type": "object",
  "properties": {
    "name": {"type": "string"}, "port": {"type": "integer"}, "open": {"type": "boolean"}
  },
  "required": ["name", "port"],
  "additionalProperties": false
}
"""
NOTES = """# Notes

The first sentence says little.

- first item of the list
- 

| name | port |
| ---- | ---- |
| one  | 80   |

1. one
3. two
"""
CELLS = json.dumps(
    {
        "cells": [
            {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
            for source in ("width = 2\nheight = 3", "print(width)")
        ],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 2,
    }
)
FILES: Mapping[str, str] = {
    ".git/HEAD": "",
    ".caesuraignore": "hidden.py\n",
    "area.py": AREAS,
    "basket.py": ITEMS,
    "main.py": "from area import area\n\nkey = <FILL>\nother = <FILL>\nprint(key, other)\n",
    "shapes.ts": "function area(width: number, height: number) {\n  \n}\n\nexport { area };\n",
    "servers.json": SERVERS,
    "one.json": '{\n  "$schema": "./one.schema.json",\n  "name": "one"\n}\n',
    "one.schema.json": SCHEMA,
    "notes.md": NOTES,
    "lib.rs": "fn area(width: u32, height: u32) -> u32 {\r\n    \r\n}\r\n",
    "config.yaml": "name: app\nimage: reg\n",
    "umlaut.py": "größe = 'ä😀'\n",
    "settings.py": SECRET + AREA,
    "hidden.py": AREA,
    "cells.ipynb": CELLS,
    ".env": "TOKEN=abcdef0123456789\n",
}


def lay(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, newline="")


def neovim(program: str, folder: Path, log: Path) -> str:
    """The plugin as its users have it, with keys."""
    from ..test_neovim import editing

    command = [sys.executable, "-P", str(SERVER), str(log)]
    with editing(program, folder / "area.py", AREAS, cmd=command, keymaps=True, settings={}) as area:
        vim = area.vim
        version = vim.lua("return tostring(vim.version())")
        vim.lua("vim.keymap.set('i', '(', '()<C-g>U<Left>')")

        def rest(seconds: float = REST_S) -> None:
            vim.settle()
            time.sleep(seconds)

        def keys(text: str) -> None:
            for key in text:
                area.type(key)
                time.sleep(KEY_S)

        def press(key: str) -> None:
            area.type(key)
            rest()

        def run(command: str, *before: str) -> None:
            for each in before:
                vim.input(each)
            rest(0.2)
            vim.command(command)
            rest(1.0)

        def edit(name: str, *before: str) -> None:
            vim.input("<Esc>")
            vim.command(f"edit! {folder / name}")
            rest()
            for each in before:
                vim.input(each)
            rest(0.3)

        # Ghost text: the whole, through typing, a word, undone, refused, another choice
        vim.input("2GA")
        keys("ret")
        area.shows("urn width * height")
        rest()
        press("<Tab>")
        vim.input("<Esc>u6GA")
        keys("ret")
        area.shows("urn width * height")
        press("<M-]>")
        press("<M-Right>")
        keys(" are")
        press("<M-Right>")
        press("<M-C-Right>")
        vim.input("<Esc>10GA")
        keys("sum(")
        rest()
        keys("wi")
        press("<Tab>")
        press("\n")
        keys("result = ")
        press("<M-Bslash>")
        press("<C-]>")
        keys("<BS><BS>")
        keys("slow_")
        press("<M-Bslash>")
        rest(2.0)
        press("<Tab>")
        press("<Esc>uu")

        edit("basket.py", "6GccSpace<BS><BS><BS><BS><BS>")
        keys("self.it")
        rest()
        keys("ems.app")
        press("<Tab>")
        vim.input("<Esc>10GA")
        keys("for item")
        rest()
        press("<M-C-Right>")
        press("<Tab>")
        press("<Esc>u")
        for name, place, typed in (
            ("shapes.ts", "2GA", "const tot"),
            ("lib.rs", "2GA", "let tot"),
            ("notes.md", "4GA", "The second"),
            ("config.yaml", "2GA", "istry/"),
            ("umlaut.py", "Go", "resu"),
            ("settings.py", "6GA", "ret"),
            ("hidden.py", "2GA", "ret"),
            (".env", "Go", "ret"),
            ("servers.json", "6GA", ' "he'),
        ):
            edit(name, place)
            keys(typed)
            rest()
            press("<Tab>")
            press("<Esc>")

        # Fills and edits that are asked for
        edit("settings.py")
        run("Caesura holes")
        run("2Caesura fill")
        edit("settings.py", ":edit!\n5Gw")
        keys("ve:Caesura fill\n")
        rest(1.0)
        edit("main.py")
        run("Caesura holes")
        run("Caesura another")
        keys("3G$vhh:Caesura keep\n")
        rest(1.0)
        run("undo")
        keys("5Gwve:Caesura fill\n")
        rest(1.0)
        edit("area.py", "Godef broken(:<CR>    return (1<Esc>")
        run("Caesura repair")
        for name, place in (
            ("servers.json", "3G$"),
            ("servers.json", "3G0f{"),
            ("servers.json", "3G$F8"),
            ("servers.json", "6G$"),
            ("one.json", "3G0"),
            ("notes.md", "6G$"),
            ("notes.md", "10G$"),
            ("notes.md", "12G"),
            ("notes.md", "3G"),
        ):
            for number in (1, 2):
                edit(name, f":edit!\n{place}")
                run(f"Caesura edit {number}")
        edit("servers.json", ":edit!\n3G0f:wvf,h")
        keys(":Caesura edit 1\n")
        rest(1.0)
        edit("servers.json", ":edit!\n4G")
        vim.lua("vim.lsp.buf.code_action({ apply = true, filter = function(a) return a.title:find('dd') end })")
        rest(1.0)

        # Settings, other windows, closing, starting anew
        edit("basket.py", "10GA")
        vim.lua(
            "for _, client in ipairs(vim.lsp.get_clients({ name = 'caesura' })) do"
            " client:notify('workspace/didChangeConfiguration',"
            " { settings = { caesura = { mode = 'eager', maxTokens = 'many', nonsense = 1 } } }) end"
        )
        keys("for item")
        rest()
        press("<Esc>u")
        vim.command("Caesura toggle")
        vim.input("10GA")
        keys("for")
        press("<Esc>u")
        vim.command("Caesura toggle")
        vim.input("10GA")
        keys("for item")
        press("<Esc>u")
        vim.command(f"bdelete! {folder / 'area.py'}")
        edit("area.py", "6GA")
        keys("return ar")
        press("<Tab>")
        press("<Esc>")
        vim.command("%substitute/width/breadth/g")
        rest()
        vim.command("undo")
        vim.command("%delete")
        rest()
        vim.command("undo")
        rest()
        vim.lua("require('caesura.compat').stop(vim.lsp.get_clients({ name = 'caesura' })[1])")
        rest(1.5)
        return f"Neovim {version}"


def code_server(program: str, folder: Path, log: Path) -> str:
    """VS Code with the extension, on the web."""
    from . import vscode
    from .browser import chromium

    scratch = log.parent / "code"
    scratch.mkdir()
    server = vscode.code_server(program, vscode.build(scratch), scratch / "server", started(scratch, log))
    with server as running, chromium() as browser, running.window(browser, folder) as code:
        code.page.set_default_timeout(30_000)

        def rest(seconds: float = REST_S) -> None:
            time.sleep(seconds)

        def press(*keys: str) -> None:
            code.press(*keys)
            rest()

        def run(title: str) -> None:
            code.command(title)
            rest(1.5)

        code.open("area.py", AREAS, (2, 5))
        code.type("ret")
        code.wait_for_ghost("urn width * height")
        press("Tab")
        press("Control+z")
        code.type("ur")
        press("Control+ArrowRight")
        code.open("basket.py", ITEMS, (9, 9))
        code.type("self.items.append(i")
        press("Tab")
        press("Enter")
        code.type("for item")
        press("Alt+]")
        press("Tab")
        press("Control+z")
        code.type(" i")
        press("Escape")
        press("Control+Space")
        press("ArrowDown")
        press("Enter")
        for name, at, typed in (
            ("shapes.ts", (2, 3), "const t"),
            ("settings.py", (6, 5), "ret"),
            ("hidden.py", (2, 5), "ret"),
            ("notes.md", (4, 1), "The sec"),
            ("config.yaml", (2, 11), "istry"),
        ):
            code.open(name, FILES[name], at)
            code.type(typed)
            rest()
            press("Tab")
        code.open("main.py", FILES["main.py"], (1, 1))
        run("Caesura: Infill Holes")
        run("Caesura: Another Fill")
        code.open("servers.json", SERVERS, (4, 34))
        run("Caesura: Edit JSON or Markdown Here...")
        press("Enter")
        rest(2.0)
        press("Control+Enter")
        rest(2.0)
        code.open("lib.rs", FILES["lib.rs"], (1, 4))
        press("Shift+End")
        run("Caesura: Infill Selection")
        run("Caesura: Toggle Suggestions")
        code.open("umlaut.py", FILES["umlaut.py"], (2, 1))
        code.type("resu")
        run("Caesura: Toggle Suggestions")
        code.page.mouse.click(800, 450)
        code.type("\nsum(wi")
        rest()
        press("Tab")
        press("Control+F4")
        press("Control+p")
        code._pick("cells.ipynb", f"{folder}/")
        cell = code.page.locator(".notebookOverlay .cell .view-lines")
        cell.first.wait_for(state="visible")
        cell.last.click()
        press("Control+End")
        code.type("\nresult = ")
        rest()
        press("Tab")
        press("Control+F4")
        return "VS Code in code-server"


def helix(program: str, folder: Path, log: Path) -> str:
    """Set up as editors/helix.md says: the completion popup, and code actions."""
    from .terminal import ENTER, ESCAPE, TAB, pasted, terminal

    os.environ["PATH"] = f"{started(log.parent, log).parent}{os.pathsep}{os.environ['PATH']}"
    settings = Path(os.environ["XDG_CONFIG_HOME"], "helix", "languages.toml")
    settings.parent.mkdir(parents=True)
    settings.write_text(pasted("helix.md", "toml"))
    with terminal([program, "-w", str(folder), str(folder / "area.py")]) as shown:

        def keys(text: str, seconds: float = REST_S) -> None:
            shown.type(text, pause_s=KEY_S)
            time.sleep(seconds)

        shown.wait(lambda screen: log.exists() and "didOpen" in log.read_text())
        keys("jA")
        keys("ret")
        keys(TAB)
        keys(ENTER)
        keys(ENTER)
        keys("sum(wi")
        keys(TAB)
        keys(ENTER + ESCAPE)
        keys("u")
        for name, typed in (("settings.py", "5jAretu"), ("shapes.ts", "jAconst t"), ("hidden.py", "jAretu")):
            keys(f":o {folder / name}{ENTER}")
            keys(typed)
            keys(TAB + ENTER + ESCAPE)
        keys(f":o {folder / 'main.py'}{ENTER}")
        keys(" a", 2.0)
        keys(ENTER, 2.0)
        keys(f":o {folder / 'servers.json'}{ENTER}")
        keys("3jgl a", 2.0)
        keys(ENTER, 2.0)
        keys(f":bc!{ENTER}")
        keys(f":qa!{ENTER}", 2.0)
    return "Helix"


def started(folder: Path, log: Path) -> Path:
    """A program `caesura` that is the server which keeps its messages."""
    program = folder / "bin" / "caesura"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -P '{SERVER}' '{log}'\n")
    program.chmod(0o755)
    return program


RECORDERS: Mapping[str, tuple[str, Callable[[str, Path, Path], str]]] = {
    "neovim": ("nvim", neovim),
    "vscode": ("code-server", code_server),
    "helix": ("hx", helix),
}


def recorded(log: Path, folder: Path) -> list[Event]:
    """What the editor said and heard, with names for what is made up in each run."""
    names, events = Names(), list[Event]()
    written = log.read_text("utf-8").replace(str(folder), PLACE).replace(str(folder.parent), "/elsewhere")
    for line in written.splitlines():
        event: dict[str, Any] = json.loads(line)
        if "out" in event:
            event["out"] = names.out(event["out"])
        else:
            event["in"] = [names.heard(message) for message in event["in"]]
            for message in event["in"]:
                if message.get("method") == "initialize":
                    message["params"]["processId"] = None  # whose end would be that of the server
        events.append(event)
    return events


def otherwise(live: list[Event], played: list[Event]) -> list[str]:
    """The answers that the clock has changed, but for those that the editor did not wait for."""
    left = {label for label, said in labelled(live) if "error" in said}
    known = [event for event in live if "error" not in event.get("out", {})]
    found = [event for event in played if "job" not in event and "left" not in event and "stats" not in event]
    told = differences(known, found)
    return [one for one in told if "$/progress" not in one.split("\n")[0] and not any(each in one for each in left)]


def record(name: str) -> None:
    editor, recorder = RECORDERS[name]
    program = shutil.which(editor, path=EDITORS / "bin") or shutil.which(editor)
    assert program, f"{editor} is needed: `make editors` installs it."
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary).resolve()
        folder, log = scratch / "project", scratch / "log"
        for kind in ("STATE", "DATA", "CONFIG", "CACHE"):
            os.environ[f"XDG_{kind}_HOME"] = str(scratch / kind.lower())
        lay(folder)
        version = recorder(program, folder, log)
        live = recorded(log, folder)
    path = FOLDER / f"{name}.jsonl.gz"
    write(path, Session(version, FILES, live))
    subprocess.run([sys.executable, "-m", "tests.support.processes.sessions", name, "--write"], check=True)
    told = otherwise(live, read(path).events)
    print(f"{name}: {len(dict(labelled(live)))} answers, {len(told)} otherwise on the clock of the replay")
    print("\n\n".join(told))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.real.recordings.record")
    parser.add_argument("names", nargs="+", choices=RECORDERS)
    for chosen in parser.parse_args().names:
        record(chosen)
