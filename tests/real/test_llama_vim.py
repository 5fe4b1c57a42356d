"""llama.vim in a real Neovim, set up as editors/http.md says, at a real `caesura serve` with the shipped model."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .neovim import Neovim, neovim
from .terminal import pasted

pytestmark = pytest.mark.real

PLUGIN = Path(__file__).with_name("llama.vim")
TOKEN = "TOKEN_FILE"
AREA = "def area(width, height):\n    \n\n\nprint(area(2, 3))\n"
HINT = "vt_fim"  # the namespace of its ghost text
TRIES, TRY_S = 10, 5.0


@pytest.fixture(scope="module")
def served(warm: None) -> Iterator[tuple[str, str]]:
    """The address of a door that is open, and the file with its token."""
    command = [sys.executable, "-P", "-m", "caesura", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert address
        yield address[0], process.stdout.readline().removeprefix("Its token is in ").strip()
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def editor_at_the_door(
    editor: Callable[[str], str], served: tuple[str, str], tmp_path: Path
) -> Iterator[tuple[Neovim, Path]]:
    editor("curl")  # by which the plugin asks
    address, token = served
    page = pasted("http.md", "vim")
    assert TOKEN in page
    settings = tmp_path / "settings.vim"
    settings.write_text(page.replace("http://127.0.0.1:8012", address).replace(TOKEN, token))
    file = tmp_path / "area.py"
    file.write_text(AREA)
    with neovim(editor("nvim"), arguments=["--cmd", f"source {settings}", "--cmd", f"set rtp+={PLUGIN}"]) as nvim:
        nvim.command(f"runtime plugin/llama.vim | edit {file}")
        yield nvim, file


def hint(nvim: Neovim) -> str:
    """The ghost text of its extmarks."""
    marks = nvim.lua(
        "return vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_create_namespace(...), 0, -1, { details = true })", HINT
    )
    return "".join(text for mark in marks for text, _ in mark[3].get("virt_text", []))


def test_llama_vim_shows_a_fill_of_our_engine_and_takes_it(editor_at_the_door: tuple[Neovim, Path]) -> None:
    nvim, _ = editor_at_the_door
    nvim.command("call cursor(2, 5)")
    nvim.input("A")
    for _ in range(TRIES):
        nvim.input("ret")
        try:
            nvim.wait(lambda: hint(nvim).startswith("urn "), "ghost text", TRY_S)
            break
        except AssertionError:
            nvim.input("<BS><BS><BS>")
    shown = hint(nvim)
    assert shown.startswith("urn ")
    nvim.wait(lambda: any(f"ret{shown}" in row for row in nvim.frame.rows), "it on the screen")
    nvim.input("<Tab>")
    nvim.wait(lambda: nvim.lines[1] == f"    ret{shown}", "the text to be taken")
    first, _, *rest = nvim.lines
    assert [first, *rest] == AREA.rstrip("\n").split("\n")[:1] + AREA.rstrip("\n").split("\n")[2:]


def test_llama_vim_says_nothing_of_errors(editor_at_the_door: tuple[Neovim, Path]) -> None:
    """It tells of each `curl` that fails."""
    nvim, file = editor_at_the_door
    nvim.command("call cursor(2, 5)")
    nvim.input("Aretu")
    nvim.wait(lambda: nvim.lua("return vim.fn.len(vim.g.cache_lru_order) > 0"), "an answer")
    nvim.input("<Esc>")
    nvim.command(f"write | edit {file}")
    nvim.settle()
    assert nvim.call("nvim_exec2", "messages", {"output": True})["output"].count("failed") == 0
