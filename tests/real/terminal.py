"""A terminal in memory with an editor in it: keys in, the screen as a person would see it out."""

import fcntl
import html
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .browser import chromium

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = 24, 90
FRONT, BACK = "#d8d8d8", "#1e1e24"
LIGHT_FRONT, LIGHT_BACK = "#2a2a30", "#f6f6f8"
COLOURS = {  # the names that a terminal has for its colours
    **{"black": "#1e1e24", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "blue": "#61afef"},
    **{"magenta": "#c678dd", "cyan": "#56b6c2", "white": "#d8d8d8"},
    **{"brightblack": "#7f7f8a", "brightred": "#ff7b85", "brightgreen": "#7bbf4e", "brightbrown": "#c79a2b"},
    **{"brightblue": "#3d8fe0", "brightmagenta": "#b05fd0", "brightcyan": "#2f9fb0", "brightwhite": "#ffffff"},
}
ESCAPE, ENTER, TAB = "\x1b", "\r", "\t"
WAIT_S = 120.0  # for what surely comes: it is only reached where it does not
TRY_S, TRIES = 15.0, 10  # for what has to be asked for again where it does not come

SOURCE = (
    "def area(width, height):\n    \n\n\ndef volume(width, height, depth):\n    return area(width, height) * depth\n"
)
# Its last word is to be filled: the lines above say what belongs there, and any model has something to say.
VOLUME = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return None\n"
PEOPLE = '{\n  "people": [\n    {"name": "Ada", "born": 1815},\n    {"name": "Grace", "born": 1906}\n  ]\n}\n'


def _screen(answer: Callable[[str], object]) -> tuple[Any, Any]:
    """A screen and the stream that feeds it. It answers what programs ask of a terminal, and passes over the sequences
    that pyte stumbles at."""
    import pyte  # of the extra `real`: the suite collects this file without it

    class Screen(pyte.Screen):
        write_process_input = staticmethod(answer)

        def report_device_status(self, mode: int = 0, **private: bool) -> None:
            if not private:
                super().report_device_status(mode)

        def select_graphic_rendition(self, *attributes: int, **private: bool) -> None:
            if not private:
                super().select_graphic_rendition(*attributes)

    screen = Screen(COLUMNS, ROWS)
    return screen, pyte.ByteStream(screen)


class Terminal:
    """`screen` is what a terminal of ROWS by COLUMNS shows now."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._screen, self._stream = _screen(lambda text: os.write(self._pty, text.encode()))
        self._lock = threading.Lock()
        self._process, self._pty = pty.fork()
        if not self._process:
            os.execvpe(command[0], list(command), dict(env))
        fcntl.ioctl(self._pty, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def lines(self) -> list[str]:
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    @property
    def screen(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str, pause_s: float = 0.0) -> None:
        """Send keys, with a pause behind each for an editor that takes a quick succession for something else."""
        for key in re.findall(r"\x1b.|.", keys, re.DOTALL) if pause_s else [keys]:
            os.write(self._pty, key.encode())
            time.sleep(pause_s)

    @property
    def cursor(self) -> tuple[int, int]:
        """Its row and column, from 0."""
        with self._lock:
            return self._screen.cursor.y, self._screen.cursor.x

    def wait(self, shown: str | Callable[[str], object]) -> str:
        """The screen, once it has the text `shown`, or `shown` is true of it."""
        if (found := self.seen(shown, WAIT_S)) is None:
            raise AssertionError(f"waited in vain for {shown!r}:\n{self.screen}")
        return found

    def seen(self, shown: str | Callable[[str], object], timeout_s: float = TRY_S) -> str | None:
        """The same; None where it never came."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            screen = self.screen
            if shown in screen if isinstance(shown, str) else shown(screen):
                return screen
            time.sleep(0.02)
        return None

    def saved(self, file: Path, keys: str) -> str:
        """The text that the editor writes into a file at these keys. Editors make a file first and then fill it, one as
        short as ours in one piece: it is whole once it has its last line break."""
        file.unlink()
        self.type(keys)
        self.wait(lambda screen: file.exists() and file.read_bytes().endswith(b"\n"))
        return file.read_text()

    def picture(self, path: Path, rows: int = ROWS) -> None:
        """The upper rows of the screen as a PNG, where pictures are asked for: it takes a browser."""
        if not os.environ.get("CAESURA_PICTURES"):
            return
        with chromium() as browser:
            page = browser.new_page()
            page.set_content(f'<body style="margin:0;background:{BACK}">{self.page(rows)}')
            page.locator("pre").screenshot(path=str(path))

    def page(self, rows: int = ROWS, columns: int = COLUMNS, front: str = FRONT, back: str = BACK) -> str:
        """The upper rows of the screen as HTML, on a ground of these colours."""
        with self._lock:
            screen, cursor = self._screen.buffer, (self._screen.cursor.y, self._screen.cursor.x)
            cells = [[_cell(screen[y][x], (y, x) == cursor, front, back) for x in range(columns)] for y in range(rows)]
        lines = "\n".join(map("".join, cells))
        style = f"font:15px/20px 'DejaVu Sans Mono',monospace;color:{front};margin:0;display:inline-block"
        return f'<pre style="{style};background:{back}">{lines}</pre>'

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._pty)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._pty, 1 << 16)
            except OSError:  # the editor has gone
                return
            if not data:
                return
            with self._lock:
                self._stream.feed(data)


def _cell(cell: Any, under_cursor: bool, given_front: str, given_back: str) -> str:
    front, back = (
        COLOURS.get(name, f"#{name}") if name != "default" else given
        for name, given in ((cell.fg, given_front), (cell.bg, given_back))
    )
    if cell.reverse != under_cursor:
        front, back = back, front
    style = f"color:{front};background:{back};display:inline-block;height:20px"
    style += ";font-style:italic" if cell.italics else ""
    return f'<span style="{style}">{html.escape(cell.data)}</span>'


@contextmanager
def terminal(command: Sequence[str], **env: str) -> Iterator[Terminal]:
    found = Terminal(command, os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"} | env)
    try:
        yield found
    finally:
        found.close()


def pasted(page: str, language: str, number: int = 0) -> str:
    """What a person copies from a page of editors/: its fenced block of a language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "editors" / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > number, f"editors/{page} has no such block of {language}"
    return str(blocks[number])


def body(text: str) -> str:
    """The second line, where all others are as they were."""
    first, second, *rest = text.split("\n")
    assert [first, "    ", *rest] == SOURCE.split("\n")
    return second


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """`caesura` is on the PATH of what is started next, and its home is `folder`."""
    (folder / "bin").mkdir()
    (folder / "bin" / "caesura").symlink_to(Path(sys.executable).with_name("caesura"))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(folder))
