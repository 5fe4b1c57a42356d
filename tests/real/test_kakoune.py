"""A real Kakoune, set up as editors/kakoune.md says for one without a plugin: the selection is filled by the shell."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from .terminal import ENTER, VOLUME, Terminal, on_path, pasted, terminal

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("warm")]

SELECT = "6ggl\x1biw"  # the last word
DEBUG = f":buffer *debug*{ENTER}"

Start = Callable[[], AbstractContextManager[Terminal]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "area.py"
    found.write_text(VOLUME)
    return found


@pytest.fixture
def kakoune(editor: Callable[[str], str], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    program = editor("kak")
    on_path(monkeypatch, tmp_path)
    (tmp_path / "kak").mkdir()
    (tmp_path / "kak" / "kakrc").write_text(pasted("kakoune.md", "kak", 0))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    @contextmanager
    def start() -> Iterator[Terminal]:
        with terminal([program, str(file)]) as shown:
            shown.wait("area.py")
            yield shown

    return start


def test_the_selection_is_filled_and_undone_in_one_step(kakoune: Start, file: Path) -> None:
    with kakoune() as shown:
        shown.type(f"{SELECT} f", pause_s=0.2)
        shown.wait(lambda screen: "return None" not in screen)
        before, _, filled = shown.saved(file, f":write{ENTER}").rpartition("return ")
        assert before == VOLUME.rpartition("return ")[0]
        assert filled.count("\n") == 1
        assert shown.saved(file, f"u:write{ENTER}") == VOLUME


def test_a_trouble_leaves_the_text_and_is_told_in_the_debug_buffer(kakoune: Start, file: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "caesura").unlink()
    (tmp_path / "bin" / "caesura").write_text("#!/bin/sh\necho no model >&2; exit 1\n")
    (tmp_path / "bin" / "caesura").chmod(0o700)
    with kakoune() as shown:
        shown.type(f"{SELECT} f", pause_s=0.2)
        shown.type(f":write{ENTER}{DEBUG}", pause_s=0.05)
        shown.wait("no model")
        assert file.read_text() == VOLUME
