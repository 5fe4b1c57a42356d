"""A real Helix, set up as editors/helix.md says: the popup's item, and fills by code actions."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from caesura.ipc import rendezvous

from .scripted import LINES
from .terminal import ENTER, ESCAPE, PEOPLE, SOURCE, TAB, TRIES, VOLUME, Terminal, body, on_path, pasted, terminal

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("warm")]

OPTIONS, PATIENT = "deadlineMs = 1000", "deadlineMs = 9000, minConfidence = 0"
COMMAND = 'command = "caesura"\n'
ASK = "\x18"
ITEM = "text"  # the kind that Helix writes behind the label
INSERT = " INS "  # its mode, in the status line
SCRIPTED = Path(__file__).with_name("scripted.py")

Start = Callable[..., AbstractContextManager["Helix"]]


class Helix:
    """Helix with one file open."""

    def __init__(self, shown: Terminal, file: Path) -> None:
        self.shown, self.file = shown, file

    def saved(self) -> str:
        """The text, as Helix writes it."""
        if INSERT in self.shown.screen:
            self.shown.type(ESCAPE)  # alone, as it makes a meta key of the next one
            self.shown.wait(lambda screen: INSERT not in screen)
        return self.shown.saved(self.file, f":w{ENTER}")

    def item(self, typed: str) -> str:
        """Type this, again if need be, until there is an item; its label."""
        for _ in range(TRIES):
            self.shown.type(typed, pause_s=0.1)
            if self.shown.seen(lambda screen: labels(screen)):
                return labels(self.shown.screen)[0]
            self.shown.type("\x7f" * len(typed), pause_s=0.05)
        raise AssertionError(f"no item:\n{self.shown.screen}")

    def take(self, label: str, picture: Path | None = None) -> None:
        """Select the item and take it. A list that has come anew has nothing selected."""
        for _ in range(TRIES):
            self.shown.type(TAB)  # then it is in the text, in the popup and beside it
            if self.shown.seen(lambda screen: screen.count(label.rstrip("…")) > 2):
                break
        if picture:
            self.shown.picture(picture, rows=9)
        self.shown.type(ENTER)
        self.shown.wait(lambda screen: not labels(screen))


def labels(screen: str) -> list[str]:
    found = [line.removesuffix(ITEM) for line in screen.split("\n") if line.endswith(ITEM)]
    return [line.lstrip(" ~0123456789").rstrip() for line in found]


@pytest.fixture
def helix(editor: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Opens a file in Helix with the block of the page, however unsure the model is of the example."""
    program = editor("hx")
    on_path(monkeypatch, tmp_path)
    settings = pasted("helix.md", "toml")
    assert OPTIONS in settings, "editors/helix.md has other options"
    assert COMMAND in settings
    settings = settings.replace(OPTIONS, PATIENT).replace(COMMAND, f"{COMMAND}timeout = 120\n")
    (tmp_path / "helix").mkdir()
    (tmp_path / "helix" / "languages.toml").write_text(settings)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    @contextmanager
    def start(name: str, text: str, server: Path | None = None) -> Iterator[Helix]:
        if server:
            (tmp_path / "bin" / "caesura").unlink()
            (tmp_path / "bin" / "caesura").write_text(f"#!/bin/sh\nexec {sys.executable} -P {server}\n")
            (tmp_path / "bin" / "caesura").chmod(0o700)
        file = tmp_path / name
        file.write_text(text)
        log = tmp_path / "log"
        with terminal([program, "-v", "--log", str(log), str(file)]) as shown:
            shown.wait(lambda screen: log.exists() and b"textDocument/didOpen" in log.read_bytes())
            yield Helix(shown, file)

    return start


def test_an_item_is_taken_and_undone_in_one_step(helix: Start, pictures: Path) -> None:
    with helix("area.py", SOURCE) as found:
        found.shown.type("jA")
        label = found.item("ret")
        found.take(label, pictures / "helix-popup.png")
        assert body(found.saved()) == "    " + label
        found.shown.type("u")
        found.shown.wait(lambda screen: label not in screen)
        assert body(found.saved()) == "    ret"


def test_an_item_stays_while_it_is_typed(helix: Start) -> None:
    with helix("area.py", SOURCE) as found:
        found.shown.type("jA")
        label = found.item("ret")
        found.shown.type(label[3:5], pause_s=0.1)
        found.shown.wait(lambda screen: screen.split("\n")[1].endswith(f" {label[:5]}") and label in labels(screen))
        found.take(label)
        assert body(found.saved()) == "    " + label


def test_enter_is_a_line_break_with_the_popup_open(helix: Start) -> None:
    with helix("area.py", SOURCE) as found:
        found.shown.type("jA")
        found.item("ret")
        found.shown.type(ENTER, pause_s=0.3)
        assert found.saved().split("\n")[1] == "    ret"


def test_an_item_of_several_lines_is_taken_as_it_is(helix: Start) -> None:
    text = SOURCE.replace("    \n", "    # lines\n    \n", 1)
    with helix("area.py", text, SCRIPTED) as found:
        found.shown.type("jjA")
        assert found.item(ASK) == "first = 1…"
        found.shown.type("fi", pause_s=0.1)
        found.shown.wait(lambda screen: "    fi\n" in screen and "first = 1…" in labels(screen))
        found.take("first = 1…")
        assert found.saved() == text.replace("    \n", "".join(f"    {line.strip()}\n" for line in LINES), 1)


def test_a_killed_engine_comes_back(helix: Start) -> None:
    with helix("area.py", SOURCE) as found:
        found.shown.type("jA")
        found.item("ret")
        for place in rendezvous.running():
            if holder := place.holder():
                rendezvous.kill(holder)
        found.shown.type("\x7f\x7f\x7f", pause_s=0.1)
        found.item("ret")


def test_the_selection_is_filled(helix: Start) -> None:
    with helix("volume.py", VOLUME) as found:
        found.shown.type("6Gglmiw", pause_s=0.1)
        found.shown.type(" a", pause_s=0.3)
        found.shown.wait("Infill selection")
        found.shown.type(ENTER)
        found.shown.wait(lambda screen: "return None" not in screen)
        assert found.saved().startswith(VOLUME.rpartition("None")[0])
        found.shown.type("u")
        found.shown.wait("return None")
        assert found.saved() == VOLUME


def test_json_stays_json(helix: Start) -> None:
    with helix("people.json", PEOPLE) as found:
        found.shown.type("4G0", pause_s=0.1)
        found.shown.type(" a", pause_s=0.3)
        found.shown.wait("Add an element like its siblings")
        found.shown.type(ENTER)
        found.shown.wait(lambda screen: screen.count('"born"') == 3)
        assert len(json.loads(found.saved())["people"]) == 3
