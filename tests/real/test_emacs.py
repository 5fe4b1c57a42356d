"""A real Emacs, set up as editors/emacs.md says: ghost text in lsp-mode, completion in eglot, fills in both."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from caesura.ipc import rendezvous

from .terminal import ENTER, PEOPLE, SOURCE, TAB, TRIES, VOLUME, Terminal, body, on_path, pasted, terminal

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("warm")]

DOWN, END, UNDO, COMMAND, MARK, COMPLETE, SAVE = "\x0e", "\x05", "\x1f", "\x1bx", "\x00", "\x1b\t", "\x18\x13"
LAST_LINE = "\x1b>\x10"
REGION = LAST_LINE + MARK + "\x1b>"  # the last line; Emacs undoes only what is in it, as long as it is active
GHOST = "Accept: [TAB"
DRAWN = re.compile(r"^ *(ret\S.*?)$", re.MULTILINE)
SETTINGS = """(setq frame-background-mode 'dark make-backup-files nil auto-save-default nil create-lockfiles nil
                    lsp-auto-guess-root t lsp-enable-suggest-server-download nil lsp-enabled-clients '(caesura)
                    lsp-response-timeout 120 eglot-connect-timeout 120 jsonrpc-default-request-timeout 120)"""
DARK = "(frame-set-background-mode (selected-frame))"  # as the terminal of the pictures is
LSP_MODE, EGLOT = 0, 1  # the blocks of the page
OPTIONS = {LSP_MODE: ':popup "off"', EGLOT: ":deadlineMs 1000"}
PATIENT = {LSP_MODE: ':popup "off" :minConfidence 0', EGLOT: ":deadlineMs 9000 :minConfidence 0"}

Start = Callable[[int, str, str], AbstractContextManager["Emacs"]]


class Emacs:
    """Emacs with one file open."""

    def __init__(self, shown: Terminal, file: Path) -> None:
        self.shown, self.file = shown, file

    def command(self, name: str) -> None:
        self.shown.type(f"{COMMAND}{name}{ENTER}")

    def saved(self) -> str:
        """The text, as Emacs writes it."""
        return self.shown.saved(self.file, SAVE)

    def ghost(self) -> str:
        """Type `ret` in the empty body until ghost text stands behind it; the line as it is drawn then."""
        for _ in range(TRIES):
            self.shown.type("ret", pause_s=0.1)
            if screen := self.shown.seen(lambda screen: GHOST in screen and DRAWN.search(screen)):
                found = DRAWN.search(screen)
                assert found
                return found[1]
            self.shown.type("\x7f\x7f\x7f", pause_s=0.1)
        raise AssertionError(f"no ghost text:\n{self.shown.screen}")


@pytest.fixture
def emacs(editor: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Opens a file in Emacs with a block of the page, however unsure the model is of the example."""
    program = editor("emacs")
    on_path(monkeypatch, tmp_path)
    (tmp_path / ".git").mkdir()

    @contextmanager
    def start(block: int, name: str, text: str) -> Iterator[Emacs]:
        lisp = pasted("emacs.md", "elisp", block)
        assert OPTIONS[block] in lisp, "editors/emacs.md has other options"
        (tmp_path / "init.el").write_text(lisp.replace(OPTIONS[block], PATIENT[block]))
        file = tmp_path / name
        file.write_text(text)
        loads = ("-l", "lsp-mode-autoloads", "-l", str(tmp_path / "init.el"))
        with terminal([program, "-nw", "-Q", "--eval", SETTINGS, "--eval", DARK, *loads, str(file)]) as shown:
            if block == EGLOT:
                shown.wait(name)
                shown.type(f"{COMMAND}eglot{ENTER}")
            shown.wait("initialized successfully" if block == LSP_MODE else "Connected!")
            yield Emacs(shown, file)

    return start


def test_ghost_text_is_taken_with_tab_and_undone_in_one_step(emacs: Start, pictures: Path) -> None:
    with emacs(LSP_MODE, "area.py", SOURCE) as found:
        found.shown.type(DOWN + END)
        drawn = found.ghost()
        found.shown.picture(pictures / "emacs-ghost-text.png", rows=8)
        found.shown.type(TAB)
        found.shown.wait(lambda screen: GHOST not in screen)
        assert body(found.saved()).strip() == drawn
        found.shown.type(UNDO)
        found.shown.wait("Undo")
        assert body(found.saved()) == "    ret"


def test_typing_on_along_the_ghost_text_doubles_nothing(emacs: Start) -> None:
    with emacs(LSP_MODE, "area.py", SOURCE) as found:
        found.shown.type(DOWN + END)
        drawn = found.ghost()
        row, column = found.shown.cursor
        found.shown.type(drawn[3:6], pause_s=0.05)
        found.shown.wait(lambda screen: found.shown.cursor == (row, column + 3) and GHOST in screen)
        found.shown.type(TAB)
        found.shown.wait(lambda screen: GHOST not in screen)
        assert body(found.saved()).strip().startswith(drawn)


def test_a_killed_engine_comes_back_and_nothing_is_said_of_it(emacs: Start) -> None:
    with emacs(LSP_MODE, "area.py", SOURCE) as found:
        found.shown.type(DOWN + END)
        found.ghost()
        for place in rendezvous.running():
            if holder := place.holder():
                rendezvous.kill(holder)
        found.shown.type("\x7f\x7f\x7f", pause_s=0.1)
        found.ghost()
        assert not [line for line in found.shown.lines if "rror" in line]


def test_tab_indents_where_there_is_no_ghost_text_and_the_region_is_filled(emacs: Start) -> None:
    with emacs(LSP_MODE, "volume.py", VOLUME.replace("    return None", "return None")) as found:
        found.shown.type(LAST_LINE + TAB)
        found.shown.wait("    return None")
        found.shown.type(REGION)
        found.command("lsp-execute-code-action")
        found.shown.wait(lambda screen: "return None" not in screen)
        assert found.saved().startswith(VOLUME.rpartition("    return")[0])
        found.shown.type(UNDO)
        found.shown.wait("return None")
        assert found.saved() == VOLUME


def test_json_stays_json(emacs: Start) -> None:
    with emacs(LSP_MODE, "people.json", PEOPLE) as found:
        found.shown.type(LAST_LINE + "\x10\x10")
        found.command("lsp-execute-code-action")
        found.shown.wait("Select code action")
        found.shown.type(f"Add an element{ENTER}")
        found.shown.wait(lambda screen: screen.count('"born"') == 3)
        assert len(json.loads(found.saved())["people"]) == 3


def test_eglot_completes_and_undoes_it_in_one_step(emacs: Start) -> None:
    with emacs(EGLOT, "area.py", SOURCE) as found:
        found.shown.type(DOWN + END)
        for _ in range(TRIES):
            found.shown.type("ret", pause_s=0.1)
            found.shown.type(COMPLETE)
            if found.shown.seen(lambda screen: screen.count("return") == 2):
                break
            found.shown.type("\x7f\x7f\x7f")
        taken = body(found.saved())
        assert taken.startswith("    return ")
        found.shown.type(UNDO)
        found.shown.wait("Undo")
        assert body(found.saved()) == "    ret"


def test_eglot_fills_the_region(emacs: Start) -> None:
    with emacs(EGLOT, "volume.py", VOLUME) as found:
        found.shown.type(REGION)
        found.command("eglot-code-actions")
        found.shown.wait("Infill selection")
        found.shown.type(ENTER)
        found.shown.wait(lambda screen: "return None" not in screen)
        assert found.saved().startswith(VOLUME.rpartition("    return")[0])
