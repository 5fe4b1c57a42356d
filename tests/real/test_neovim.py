"""A real Neovim, set up as README says: ghost text while typing, taken with Tab. `$NVIM`, else the one on PATH."""

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caesura.server.engine import Engine

pytestmark = pytest.mark.real

README = Path(__file__).parents[2] / "README.md"
ENGINE_S = 120.0
GHOST_S = 3.0
TRIES = 5  # README's deadline is for a machine at rest
SOURCE = (
    "def area(width, height):\n    \n\n\ndef volume(width, height, depth):\n    return area(width, height) * depth\n"
)
GHOST = """
local found = {}
for name, space in pairs(vim.api.nvim_get_namespaces()) do
  if name:find("inline_completion") then
    for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, space, 0, -1, { details = true })) do
      for _, chunk in ipairs(mark[4].virt_text or {}) do
        table.insert(found, chunk[1])
      end
    end
  end
end
return table.concat(found)
"""


@pytest.fixture(scope="module")
def program() -> str:
    found = os.environ.get("NVIM") or shutil.which("nvim")
    if not found:
        pytest.fail("Neovim 0.12 is needed: put nvim on PATH or set NVIM to its path.", pytrace=False)
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.match(r"NVIM v(\d+)\.(\d+)", told)
    if not version or (int(version[1]), int(version[2])) < (0, 12):
        pytest.fail(f"Neovim 0.12 is needed; {found} is {told.splitlines()[0]}.", pytrace=False)
    return found


@pytest.fixture(scope="module")
def warm(runtime: Path) -> None:
    """The shared engine with its model loaded, as it is after the first minute of a day."""

    async def start() -> None:
        engine = Engine(client="test")
        await engine.start()
        await engine.ready(ENGINE_S)
        await engine.close()

    asyncio.run(start())


@pytest.fixture
def neovim(program: str, warm: None, tmp_path: Path) -> Iterator[Any]:
    """Neovim with README's configuration, an unfinished file open."""
    if importlib.util.find_spec("pynvim") is None:
        pytest.fail("pynvim is needed: pip install -e '.[real]'", pytrace=False)
    import pynvim

    source = tmp_path / "area.py"
    source.write_text(SOURCE)
    found = pynvim.attach("child", argv=[program, "--clean", "-n", "-i", "NONE", "--embed"])
    try:
        found.ui_attach(80, 16, rgb=True)  # without a screen no key moves the cursor visibly, and nothing is asked for
        found.exec_lua(configuration())
        found.command("filetype on")
        found.command(f"edit {source}")
        wait(lambda: found.exec_lua("return #vim.lsp.get_clients({ bufnr = 0 })") == 1, "the server to attach")
        yield found
    finally:
        found.close()


def configuration() -> str:
    """The Lua of README, with the caesura of this Python, and however unsure the model is of this example."""
    lua = re.search(r"```lua\n(.*?)```", README.read_text(), re.DOTALL)
    assert lua, "README.md has no Lua"
    command = ", ".join(json.dumps(word) for word in (sys.executable, "-P", "-m", "caesura"))
    path = 'vim.fn.expand("~/caesura/.venv/bin/caesura")'
    options = "deadlineMs = 250"
    assert path in lua[1], "README.md names another command"
    assert options in lua[1], "README.md has other options"
    return lua[1].replace(path, command).replace(options, f"{options}, minConfidence = 0")


def wait(condition: Any, what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def ghost(neovim: Any) -> str:
    """What is shown after GHOST_S at the latest."""
    deadline = time.monotonic() + GHOST_S
    while not (shown := neovim.exec_lua(GHOST)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return str(shown)


def typed(neovim: Any) -> str:
    """The ghost text behind `ret` in the empty body."""
    neovim.input("2GA")
    for key in "ret":
        neovim.input(key)
        time.sleep(0.12)
    for _ in range(TRIES):
        if shown := ghost(neovim):
            return shown
        neovim.input("<BS>t")
    raise AssertionError("no ghost text")


def the_rest_is_untouched(neovim: Any) -> bool:
    after = SOURCE.splitlines()
    return [neovim.current.buffer[0], *neovim.current.buffer[2:]] == [after[0], *after[2:]]


def test_ghost_text_while_typing_and_tab_takes_it(neovim: Any) -> None:
    shown = typed(neovim)
    neovim.input("<Tab>")
    wait(lambda: neovim.current.buffer[1] != "    ret", "the accepted text")
    assert neovim.current.buffer[1] == "    ret" + shown
    assert the_rest_is_untouched(neovim)


def test_taking_it_right_after_typing_a_part_doubles_nothing(neovim: Any) -> None:
    shown = typed(neovim)
    neovim.input(shown[:2] + "<Tab>")  # before the editor asks again
    wait(lambda: len(neovim.current.buffer[1]) >= len("    ret" + shown), "the accepted text")
    assert neovim.current.buffer[1] == "    ret" + shown
    assert the_rest_is_untouched(neovim)


def test_taking_it_word_by_word(neovim: Any) -> None:
    shown = typed(neovim)
    word = re.match(r"\s*[^\w\s]?\w*", shown)
    assert word
    neovim.input("<M-w>")
    wait(lambda: neovim.current.buffer[1] != "    ret", "the accepted word")
    assert neovim.current.buffer[1] == "    ret" + word[0]
    assert ghost(neovim), "the rest is gone"
    assert the_rest_is_untouched(neovim)
