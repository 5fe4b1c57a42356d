"""Ghost text in terminal programs on a screen in memory: Xvfb, which `import` and `montage` of ImageMagick look at."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..neovim import PLUGIN
from ..terminal import BACK, FRONT, LIGHT_BACK, LIGHT_FRONT, TRY_S, WAIT_S
from .test_colours import INIT, SCRIPTED

pytestmark = pytest.mark.real

PROGRAMS = {
    "xterm": "xterm -fa DejaVuSansMono -fs 11 -fg {front} -bg {back} -geometry 32x6 -e",
    "kitty": "kitty --config NONE -o foreground={front} -o background={back} -o font_family=DejaVuSansMono"
    " -o remember_window_size=no -o initial_window_width=32c -o initial_window_height=6c",
    "urxvt": "urxvt +sb -fn xft:DejaVuSansMono:size=11 -fg {front} -bg {back} -geometry 32x6 -e",
}
GROUNDS = {"dark": (FRONT, BACK), "light": (LIGHT_FRONT, LIGHT_BACK)}
MARKS = "luaeval(\"#vim.api.nvim_buf_get_extmarks(0, -1, 0, -1, {})\") .. ' ' .. v:lua.require'caesura'.status()"
# A message that waits for Enter would hold up what Neovim is asked.
QUIET = 'vim.cmd("set laststatus=0 messagesopt=wait:0,history:9")'
FONT = "DejaVu-Sans"
DRAW_S = 2.0  # from what Neovim has said to what its terminal shows


@pytest.fixture(scope="module")
def screen() -> Iterator[dict[str, str]]:
    """The environment of programs on a screen of their own."""
    needed = ["Xvfb", "import", "montage", *PROGRAMS]
    if missing := [name for name in needed if not shutil.which(name)]:
        pytest.skip(f"not on PATH: {', '.join(missing)}")
    command = ["Xvfb", "-displayfd", "1", "-screen", "0", "600x200x24", "-nolisten", "tcp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout
        number = server.stdout.readline().strip()
        try:
            yield {**os.environ, "DISPLAY": f":{number}", "LIBGL_ALWAYS_SOFTWARE": "1"}
        finally:
            server.terminate()


def test_pictures(
    editor: Callable[[str], str],
    pictures: Path,
    screen: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ghost text in three terminal programs, on two grounds: kept in docs/pictures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.py").write_text("def sums():  # typed\n    # lines\n")
    setup = json.dumps({"cmd": [sys.executable, "-P", SCRIPTED]})
    (tmp_path / "init.lua").write_text(QUIET + INIT % (PLUGIN, setup))
    nvim, panels = editor("nvim"), list[str]()
    for ground, (front, back) in GROUNDS.items():
        for name, command in PROGRAMS.items():
            socket, shot = f"./{name}-{ground}", f"{name}-{ground}.png"
            edit = [nvim, "--clean", "-n", "-i", "NONE", "-u", "init.lua", "--listen", socket, "sums.py"]
            edit[1:1] = ["--cmd", f"set background={ground}"]
            with running([*command.format(front=front, back=back).split(), *edit], screen):
                wait(nvim, socket, r"\d+ caesura")
                remote(nvim, socket, "--remote-send", "<C-l>Go")
                wait(nvim, socket, r"[1-9]\d* caesura")
                time.sleep(DRAW_S)
                subprocess.run(
                    ["import", "-window", "root", "-trim", "+repage", shot], env=screen, check=True, timeout=TRY_S
                )
            panels += ["-label", f"{name}, {ground}", shot]
    picture = pictures / "neovim-terminals.png"
    layout = ["-font", FONT, "-tile", "3x2", "-geometry", "+4+2", "-strip", "-colors", "64"]
    subprocess.run(["montage", *panels, *layout, picture], env=screen, check=True, timeout=TRY_S)
    assert picture.stat().st_size < 100_000


@contextmanager
def running(command: list[str], env: dict[str, str]) -> Iterator[None]:
    with subprocess.Popen(command, env=env) as program:
        try:
            yield
        finally:
            program.terminate()


def remote(nvim: str, socket: str, *arguments: str) -> str:
    command = [nvim, "--server", socket, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TRY_S).stdout


def wait(nvim: str, socket: str, state: str) -> None:
    end = time.monotonic() + WAIT_S
    while not re.fullmatch(state, found := remote(nvim, socket, "--remote-expr", MARKS).strip()):
        assert time.monotonic() < end, found
        time.sleep(0.2)
