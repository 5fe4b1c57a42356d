"""Ghost text in a real Vim by coc.nvim, set up as editors/vim.md says.

coc.nvim is in no registry in a form that runs: these tests need a clone of its branch `release` in
.editors/plugins/coc.nvim, and a Node that it accepts.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ..conftest import EDITORS
from ..terminal import ENTER, ESCAPE, TAB, TRIES, VOLUME, Terminal, on_path, pasted, terminal

pytestmark = pytest.mark.real

COC = EDITORS / "plugins" / "coc.nvim"
SCRIPTED = Path(__file__).parents[1] / "scripted.py"
WORD, CANCEL, UP, LEFT, RIGHT = "\x0c", "\x05", "\x1b[A", "\x1b[D", "\x1b[C"
SUMS = "def sums(alpha, beta):\n    first = 1\n    # say\n    \n"
GHOST = "    total = alpha + beta"

Start = Callable[[str, str], AbstractContextManager[Terminal]]


@pytest.fixture
def vim(editor: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Opens a file in Vim with the blocks of the page."""
    if not (COC / "build" / "index.js").is_file():
        pytest.skip(f"there is no coc.nvim with a build in {COC}: clone its branch `release` there")
    on_path(monkeypatch, tmp_path)
    settings = tmp_path / ".vim" / "coc-settings.json"
    settings.parent.mkdir()
    settings.write_text(pasted("vim.md", "json"))
    quiet = "set nocompatible noswapfile viminfo= shortmess+=I encoding=utf-8 sw=4 et\nfiletype plugin indent on\n"
    leader = "let mapleader = ' '\n"
    for node in (EDITORS / "code-server" / "node" / "node_modules" / "node" / "bin").resolve().glob("node"):
        leader += f"let g:coc_node_path = '{node}'\n"
    load = f"set rtp^={COC}\n"
    (tmp_path / "vimrc").write_text(quiet + leader + pasted("vim.md", "vim") + load)

    @contextmanager
    def start(name: str, text: str) -> Iterator[Terminal]:
        file = tmp_path / name
        file.write_text(text)
        with terminal([editor("vim"), "-u", str(tmp_path / "vimrc"), str(file)]) as shown:
            shown.wait(name)
            shown.wait(lambda screen: ready(shown))
            try:
                yield shown
            finally:  # coc's Node ends with a Vim that says goodbye, and outlives one that is killed
                shown.type(f"{ESCAPE}:call coc#rpc#kill(){ENTER}", pause_s=0.05)
                shown.type(f":qall!{ENTER}")
                time.sleep(1)

    return start


def ready(shown: Terminal) -> bool:
    """Whether the server runs, by coc's own word."""
    shown.type(f":echo get(g:, 'coc_service_initialized') CocAction('services')[0].state{ENTER}")
    return bool(shown.seen("1 running", 2))


@pytest.fixture
def sums(vim: Start, tmp_path: Path) -> Iterator[Terminal]:
    """Vim with the scripted engine, in the line after `# say`."""
    program = tmp_path / "bin" / "caesura"
    program.unlink()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -P {SCRIPTED}\n")
    program.chmod(0o755)
    with vim("sums.py", SUMS) as shown:
        yield shown


def suggested(shown: Terminal) -> None:
    shown.type("4GA")
    shown.type("t", pause_s=0.1)
    shown.wait(lambda screen: shown.lines[3] == GHOST)


def test_tab_takes_it_and_it_is_one_step_to_undo(sums: Terminal, pictures: Path) -> None:
    suggested(sums)
    sums.picture(pictures / "vim-ghost-text.png", rows=5)
    sums.type(TAB)
    sums.wait(lambda screen: sums.cursor == (3, len(GHOST)))
    sums.type(f"{ESCAPE}u", pause_s=0.2)
    sums.wait(lambda screen: sums.lines[3] == "    t")


def test_it_is_typed_through_and_taken_by_words(sums: Terminal) -> None:
    suggested(sums)
    sums.type("ot", pause_s=0.2)
    sums.wait(lambda screen: sums.lines[3] == GHOST)
    sums.type(WORD)
    sums.wait(lambda screen: sums.lines[3] == GHOST and sums.cursor == (3, len("    total")))


def test_what_was_put_away_stays_away_until_a_change(sums: Terminal) -> None:
    suggested(sums)
    sums.type(CANCEL)
    sums.wait(lambda screen: sums.lines[3] == "    t")
    sums.type(LEFT + RIGHT, pause_s=0.2)
    assert not sums.seen(GHOST, 1)
    sums.type("o")
    sums.wait(lambda screen: sums.lines[3] == GHOST)


def test_it_goes_when_the_cursor_moves_away(sums: Terminal) -> None:
    suggested(sums)
    sums.type(LEFT)
    sums.wait(lambda screen: sums.lines[3] == "    t")
    sums.type(f"{RIGHT}{TAB}o", pause_s=0.1)
    sums.wait(lambda screen: sums.lines[3].startswith("    t   o"))


def test_tab_takes_the_popup_s_item_and_then_the_suggestion(sums: Terminal) -> None:
    """While the popup is open coc draws what follows its selected item."""
    sums.type("2Gcc")
    sums.type(f"total = 1{ESCAPE}4GA", pause_s=0.05)
    sums.type("to", pause_s=0.1)
    sums.wait("total      [")
    sums.type(TAB)
    sums.wait(lambda screen: "[" not in screen and sums.lines[3] == GHOST)
    assert sums.cursor == (3, len("    total"))
    sums.type(TAB)
    sums.wait(lambda screen: sums.cursor == (3, len(GHOST)))


@pytest.mark.usefixtures("warm")
def test_the_shipped_model_fills_the_selection(vim: Start) -> None:
    with vim("volume.py", VOLUME) as shown:
        for _ in range(TRIES):
            shown.type("6Gwve a", pause_s=0.1)
            if shown.seen("Infill selection"):
                break
            shown.type(ESCAPE)
        while not shown.seen(lambda screen: "Infill" not in screen, 2):
            shown.type(ENTER)  # the dialog may be drawn before it takes keys
        shown.wait(lambda screen: "return None" not in screen)
        shown.type("u")
        shown.wait("return None")
