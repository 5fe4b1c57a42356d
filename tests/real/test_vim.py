"""A real Vim with ALE, set up as editors/vim.md says: the popup's item, and fills by code actions."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from .terminal import ENTER, ESCAPE, PEOPLE, SOURCE, TRIES, VOLUME, Terminal, body, on_path, pasted, terminal

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
        self.shown.type(ESCAPE)
        self.shown.wait(lambda screen: "-- INSERT --" not in screen)
        return self.shown.saved(self.file, f":write!{ENTER}")

    def item(self, typed: str) -> None:
        """Type this, again if need be, until there is an item."""
        for _ in range(TRIES):
            self.shown.type(typed, pause_s=0.1)
            if self.shown.seen(ITEM):
                return
            self.shown.type("\x7f" * len(typed), pause_s=0.05)
        raise AssertionError(f"no item:\n{self.shown.screen}")

    def take(self, begins: str) -> None:
        """Select the item and take it; it stands in line 2 then. A popup that has come anew has nothing selected."""
        for _ in range(TRIES):
            self.shown.type(NEXT)
            if self.shown.seen(lambda screen: self.shown.lines[1].startswith(begins)):
                self.shown.type(TAKE)
                self.shown.wait(lambda screen: ITEM not in screen)
                return
        raise AssertionError(f"no item was taken:\n{self.shown.screen}")

    def action(self, place: str, title: str) -> None:
        """Choose the code action of that title at a place; ALE offers some once the server has started."""
        for _ in range(TRIES):
            self.shown.type(f"{place}:ALECodeAction{ENTER}", pause_s=0.02)
            if screen := self.shown.seen(title):
                number = next(line.partition(")")[0] for line in screen.split("\n") if title in line)
                self.shown.type(f"{number.strip()}{ENTER}")
                return
        raise AssertionError(f"no action {title!r}:\n{self.shown.screen}")


@pytest.fixture
def vim(editor: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Opens a file in Vim with the blocks of the page, however unsure the model is of the example."""
    program = editor("vim")
    on_path(monkeypatch, tmp_path)
    before, after = pasted("vim.md", "vim", 1), pasted("vim.md", "vim", 2)
    assert OPTIONS in after, "editors/vim.md has other options"
    quiet = "set nocompatible noswapfile viminfo= shortmess+=I\nfiletype plugin on\nexecute 'set rtp^=' . $ALE\n"
    only = "call map(g:ale_linters, {_, names -> filter(names, 'v:val ==# \"caesura\"')})\n"  # not what else is here
    load = "runtime plugin/ale.vim\n"
    (tmp_path / "vimrc").write_text(quiet + before + only + load + after.replace(OPTIONS, PATIENT))

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
        found.take("    return ")
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
    with vim("volume.py", VOLUME) as found:
        found.action("6Gwve", "Infill selection")
        found.shown.wait(lambda screen: "return None" not in screen and "Code Fixes" not in screen)
        assert found.saved().startswith(VOLUME.rpartition("None")[0])
        found.shown.type("u")
        found.shown.wait("return None")
        assert found.saved() == VOLUME


def test_json_stays_json(vim: Start) -> None:
    with vim("people.json", PEOPLE) as found:
        found.action("4G0", "Add an element like its siblings")
        found.shown.wait(lambda screen: screen.count('"born"') == 3)
        assert len(json.loads(found.saved())["people"]) == 3
