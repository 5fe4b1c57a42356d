"""A real Neovim over its `--embed` RPC, with the screen that a user would see: a grid of cells, and every frame of it.

Neovim sends what it draws as redraw events; a frame is what stands there at a `flush`.
"""

from __future__ import annotations

import html
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

PLUGIN = Path(__file__).parents[2] / "editors" / "nvim"
GHOST = ("CaesuraGhost", "ComplHint")
RPC_S = WAIT_S = 120.0  # limits are reached only where something is wrong

Cell = tuple[str, int]  # what is drawn, and the number of its highlight


@dataclass(frozen=True)
class Frame:
    """The screen at a flush. `ghosts` are the pieces of virtual text: (row, column, text, highlight group)."""

    at: float
    rows: tuple[str, ...]
    ghosts: tuple[tuple[int, int, str, str], ...]

    @property
    def ghost(self) -> str:
        """The ghost as it reads, a line for each row."""
        rows = itertools.groupby(self.ghosts, key=lambda piece: piece[0])
        return "\n".join("".join(text for _, _, text, _ in pieces) for _, pieces in rows)

    def of(self, group: str) -> str:
        return "".join(text for _, _, text, name in self.ghosts if name == group)


class Screen:
    """The grid, kept by the redraw events of `ext_linegrid`."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells: list[list[Cell]] = []
        self.highlights: dict[int, tuple[dict[str, int], tuple[str, ...]]] = {0: ({}, ())}
        self.default = {"foreground": 0xE0E2EA, "background": 0x14161B}
        self.cursor = (0, 0)
        self.frames: list[Frame] = []
        self.grid_clear(1)

    def redraw(self, events: Sequence[Any]) -> None:
        for name, *calls in events:
            if handler := getattr(self, name, None):
                for arguments in calls:
                    handler(*arguments)

    def grid_resize(self, _: int, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.grid_clear(1)

    def grid_clear(self, _: int) -> None:
        self.cells = [[(" ", 0)] * self.width for _ in range(self.height)]

    def grid_cursor_goto(self, _: int, row: int, column: int) -> None:
        self.cursor = row, column

    def default_colors_set(self, foreground: int, background: int, *_: object) -> None:
        self.default = {"foreground": foreground, "background": background}

    def hl_attr_define(self, number: int, rgb: dict[str, int], _: object, info: Sequence[dict[str, Any]]) -> None:
        names = tuple(str(entry.get("hi_name") or entry.get("ui_name")) for entry in info)
        self.highlights[number] = rgb, names

    def grid_line(self, _: int, row: int, column: int, cells: Sequence[Sequence[Any]], *__: object) -> None:
        highlight = 0
        for text, *more in cells:
            highlight = more[0] if more else highlight
            for _ in range(more[1] if len(more) > 1 else 1):
                self.cells[row][column] = (text, highlight)
                column += 1

    def grid_scroll(self, _: int, top: int, bottom: int, left: int, right: int, rows: int, __: int) -> None:
        order = range(top, bottom - rows) if rows > 0 else range(bottom - 1, top - rows - 1, -1)
        for row in order:
            self.cells[row][left:right] = self.cells[row + rows][left:right]

    def flush(self) -> None:
        rows = tuple("".join(text for text, _ in row).rstrip() for row in self.cells)
        self.frames.append(Frame(time.monotonic(), rows, tuple(self._ghosts())))

    def _ghosts(self) -> Iterator[tuple[int, int, str, str]]:
        for number, row in enumerate(self.cells):
            column = 0
            for group, cells in itertools.groupby(row, key=lambda cell: self._group(cell[1])):
                text = "".join(text for text, _ in cells)
                if group:
                    yield number, column, text, group
                column += len(text)

    def _group(self, highlight: int) -> str:
        names = self.highlights[highlight][1]
        return next((name for name in GHOST if name in names), "")

    def page(self) -> str:
        """The screen as HTML."""
        lines = []
        for number, row in enumerate(self.cells):
            cells = []
            for column, (text, highlight) in enumerate(row):
                rgb = self.default | self.highlights[highlight][0]
                front, back = rgb["foreground"], rgb["background"]
                if rgb.get("reverse") or (number, column) == self.cursor:
                    front, back = back, front
                style = f"color:#{front:06x};background:#{back:06x}" + (
                    ";font-style:italic" if rgb.get("italic") else ""
                )
                cells.append(f'<span style="{style}">{html.escape(text)}</span>')
            lines.append("".join(cells))
        back = f"#{self.default['background']:06x}"
        font = "font:15px/20px 'DejaVu Sans Mono',monospace"
        return (
            f'<body style="margin:0;background:{back}"><pre style="{font};padding:12px;margin:0;display:inline-block">'
            + "\n".join(lines)
        )


class Neovim:
    """A process of its own, without anybody's configuration; ended by `close`."""

    def __init__(
        self, program: str, width: int = 80, height: int = 16, arguments: Sequence[str] = (), colors: int = 256
    ) -> None:
        command = [program, "--clean", "-n", "-i", "NONE", "--embed", *arguments]
        environment = {**os.environ, "LANG": "C.UTF-8", "NVIM_LOG_FILE": os.devnull}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[Any, Any]] = {}
        self._news = threading.Condition()
        self.screen = Screen(width, height)
        threading.Thread(target=self._read, daemon=True).start()
        options = {"rgb": True, "ext_linegrid": True, "ext_hlstate": True, "term_colors": colors}
        self.call("nvim_ui_attach", width, height, options)

    def _read(self) -> None:
        assert self._process.stdout
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="replace", ext_hook=_number)
        while received := os.read(self._process.stdout.fileno(), 1 << 20):
            unpacker.feed(received)
            with self._news:
                for kind, *message in unpacker:
                    if kind == 1:
                        number, error, result = message
                        self._answers[number] = error, result
                    elif kind == 2 and message[0] == "redraw":
                        self.screen.redraw(message[1])
                self._news.notify_all()
        with self._news:
            self._answers = {}
            self._process.wait()
            self._news.notify_all()

    def send(self, method: str, *arguments: Any) -> int:
        """Without waiting for the answer."""
        assert self._process.stdin
        number = next(self._numbers)
        self._process.stdin.write(msgpack.packb([0, number, method, arguments]))
        self._process.stdin.flush()
        return number

    def call(self, method: str, *arguments: Any) -> Any:
        number = self.send(method, *arguments)
        with self._news:
            ended = self._news.wait_for(lambda: number in self._answers or self._process.poll() is not None, RPC_S)
            assert ended, f"Neovim does not answer {method}{arguments}"
            assert number in self._answers, "Neovim has ended"
            error, result = self._answers.pop(number)
        assert not error, f"{method}: {error}"
        return result

    def lua(self, code: str, *arguments: Any) -> Any:
        return self.call("nvim_exec_lua", code, list(arguments))

    def command(self, command: str) -> None:
        self.call("nvim_command", command)

    def input(self, keys: str) -> None:
        self.call("nvim_input", keys)

    @property
    def lines(self) -> list[str]:
        return list(self.call("nvim_buf_get_lines", 0, 0, -1, True))

    @property
    def frame(self) -> Frame:
        with self._news:
            return self.screen.frames[-1]

    @property
    def ghost(self) -> str:
        return self.frame.ghost

    @property
    def frames(self) -> list[Frame]:
        with self._news:
            return list(self.screen.frames)

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        """What `condition` gives, as soon as it is true."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}; the screen:\n" + "\n".join(self.frame.rows))
            time.sleep(0.005)
        return found

    def settle(self) -> None:
        """Let Neovim do what it was told and what is scheduled by that."""
        for _ in range(3):
            self.lua("return true")

    def page(self) -> str:
        with self._news:
            return self.screen.page()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _number(_: int, data: bytes) -> int:
    """Buffers and windows are numbers."""
    return int(msgpack.unpackb(data))


@contextmanager
def neovim(program: str, **options: Any) -> Iterator[Neovim]:
    found = Neovim(program, **options)
    try:
        yield found
    finally:
        found.close()
