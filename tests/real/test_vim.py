"""A real Vim with ALE, set up as editors/vim.md says: the popup's item, and fills by code actions."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from .terminal import ENTER, ESCAPE, PEOPLE, SOURCE, Terminal, body, on_path, pasted, terminal

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("warm")]

OPTIONS, PATIENT = "deadlineMs: 2000", "deadlineMs: 9000, minConfidence: 0"
ITEM = "v Caesura"  # the kind and the detail of an item, behind its text
NEXT, TAKE = "\x0e", "\x19"

Start = Callable[[str, str], AbstractContextManager["Vim"]]


class Vim:
    """Vim with one file open."""

    def __init__(self, shown: Terminal, file: Path) -> None:
        self.shown, self.file = shown, file

    def saved(self) -> str:
        """The text, as Vim writes it."""
        self.file.unlink()
        self.shown.type(ESCAPE, pause_s=0.3)
        self.shown.type(f":write!{ENTER}")
        self.shown.wait(lambda screen: self.file.exists() and self.file.stat().st_size)
        return self.file.read_text()

    def item(self, typed: str) -> None:
        """Type this, again if need be, until there is an item."""
        for _ in range(5):
            self.shown.type(typed, pause_s=0.1)
            if self.shown.seen(ITEM, 10):
                return
            self.shown.type("\x7f" * len(typed), pause_s=0.05)
        raise AssertionError(f"no item:\n{self.shown.screen}")

    def action(self, title: str) -> None:
        """Choose the code action of that title; ALE offers some once the server has started."""
        for _ in range(10):
            self.shown.type(f":ALECodeAction{ENTER}")
            if screen := self.shown.seen(title, 3):
                number = next(line.partition(")")[0] for line in screen.split("\n") if title in line)
                self.shown.type(f"{number.strip()}{ENTER}")
                return
        raise AssertionError(f"no action {title!r}:\n{self.shown.screen}")


@pytest.fixture
def vim(editor: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Opens a file in Vim with the blocks of the page, however unsure the model is of the example."""
    program = editor("vim")
    on_path(monkeypatch, tmp_path)
    before, after = pasted("vim.md", "vim", 0), pasted("vim.md", "vim", 1)
    assert OPTIONS in after, "editors/vim.md has other options"
    quiet = "set nocompatible noswapfile viminfo= shortmess+=I\nfiletype plugin on\nexecute 'set rtp^=' . $ALE\n"
    only = "let g:ale_linters_explicit = 1\nlet g:ale_linters = #{python: ['caesura'], json: ['caesura']}\n"
    load = "runtime plugin/ale.vim\n"
    (tmp_path / "vimrc").write_text(quiet + only + before + load + after.replace(OPTIONS, PATIENT))

    @contextmanager
    def start(name: str, text: str) -> Iterator[Vim]:
        file = tmp_path / name
        file.write_text(text)
        with terminal([program, "-u", str(tmp_path / "vimrc"), str(file)]) as shown:
            shown.wait(name)
            yield Vim(shown, file)

    return start


def test_an_item_is_taken_and_undone(vim: Start) -> None:
    with vim("area.py", SOURCE) as found:
        found.shown.type("2GA", pause_s=0.1)
        found.item("ret")
        found.shown.type(NEXT + TAKE, pause_s=0.3)
        assert body(found.saved()).startswith("    return ")
        found.shown.type("u")
        found.shown.wait("before #")
        assert found.saved() == SOURCE


def test_enter_is_a_line_break_with_the_popup_open(vim: Start) -> None:
    with vim("area.py", SOURCE) as found:
        found.shown.type("2GA", pause_s=0.1)
        found.item("ret")
        found.shown.type(ENTER, pause_s=0.3)
        assert found.saved().split("\n")[1] == "    ret"


def test_the_selection_is_filled_and_undone_in_one_step(vim: Start) -> None:
    with vim("area.py", SOURCE) as found:
        found.shown.type("6GV", pause_s=0.1)
        found.action("Infill selection")
        found.shown.wait(lambda screen: "area(width, height) * depth" not in screen and "Code Fixes" not in screen)
        assert found.saved().startswith(SOURCE.rpartition("    return")[0])
        found.shown.type("u")
        found.shown.wait("area(width, height) * depth")
        assert found.saved() == SOURCE


def test_json_stays_json(vim: Start) -> None:
    with vim("people.json", PEOPLE) as found:
        found.shown.type("4G0", pause_s=0.1)
        found.action("Add an element like its siblings")
        found.shown.wait(lambda screen: screen.count('"born"') == 3)
        assert len(json.loads(found.saved())["people"]) == 3
