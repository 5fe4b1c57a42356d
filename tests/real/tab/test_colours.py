"""Ghost text is told from comments and from typed text: in 16, 256 and true colours, on dark and on light ground, in
every colour scheme that Neovim brings."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..browser import chromium
from ..neovim import PLUGIN, Neovim, neovim
from ..terminal import BACK, FRONT, LIGHT_BACK, LIGHT_FRONT, terminal

pytestmark = pytest.mark.real

SCRIPTED = str(Path(__file__).parents[1] / "scripted.py")
GROUNDS = {"dark": (FRONT, BACK), "light": (LIGHT_FRONT, LIGHT_BACK)}
# Debian has a terminal of sixteen colours in a package of its own only.
SIXTEEN = r"""sixteen|a terminal of sixteen colours,
 colors#16, use=xterm-256color,
 setab=\E[%?%p1%{8}%<%t%p1%{40}%+%e%p1%{92}%+%;%dm,
 setaf=\E[%?%p1%{8}%<%t%p1%{30}%+%e%p1%{82}%+%;%dm,
"""
TERMINALS = {
    "16 colours": {"TERM": "sixteen", "COLORTERM": ""},
    "256 colours": {"TERM": "xterm-256color", "COLORTERM": ""},
    "true colour": {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
}
INIT = """
vim.cmd("set rtp^=%s noruler noshowcmd noshowmode shortmess+=I statusline=%%{v:lua.require'caesura'.status()}")
vim.cmd("autocmd User CaesuraStatus redrawstatus")
require("caesura").setup(vim.json.decode([[%s]]))
"""
LOOK = """
local found = {}
for _, name in ipairs({ "CaesuraGhost", "Comment", "Normal" }) do
  found[name] = vim.api.nvim_get_hl(0, { name = name, link = false })
end
return found
"""
SCHEMES = "return vim.fn.getcompletion('', 'color')"


def look(vim: Neovim, before: str) -> dict[str, dict[str, Any]]:
    vim.command(before)
    return vim.lua(LOOK)  # type: ignore[no-any-return]


@pytest.mark.parametrize("background", ["dark", "light"])
@pytest.mark.parametrize("colors", [8, 16, 256])
@pytest.mark.parametrize("program", ["nvim", "nvim-0.10"])
def test_ghost_text_differs_from_comments_and_from_typed_text(
    program: str, colors: int, background: str, editor: Callable[[str], str]
) -> None:
    with neovim(editor(program), colors=colors) as vim:
        vim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
        for scheme in vim.lua(SCHEMES):
            groups = look(vim, f"set background={background} | colorscheme {scheme}")
            ghost = groups.pop("CaesuraGhost")
            assert ghost["italic"], scheme
            assert ghost["cterm"] == {"italic": True}, scheme
            assert ghost["ctermfg"] < colors, scheme
            for name, other in groups.items():
                assert ghost["fg"] not in (other.get("fg"), other.get("bg")), f"{scheme}, {name}"
                assert ghost["ctermfg"] not in (other.get("ctermfg"), other.get("ctermbg")), f"{scheme}, {name}"


def test_a_comment_of_the_same_colour_moves_it(editor: Callable[[str], str]) -> None:
    with neovim(editor("nvim")) as vim:
        vim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
        ghost = look(vim, "set background=light")["CaesuraGhost"]
        same = f"guifg=#{ghost['fg']:06x} ctermfg={ghost['ctermfg']}"
        moved = look(vim, f"highlight Comment {same} | doautocmd ColorScheme")["CaesuraGhost"]
        assert moved["fg"] != ghost["fg"]
        assert moved["ctermfg"] != ghost["ctermfg"]


@pytest.mark.parametrize(
    "own", ["CaesuraGhost guifg=#123456 ctermfg=3", "CaesuraGhost gui=underline", "link CaesuraGhost Question"]
)
def test_a_colour_of_ones_own_stays(own: str, editor: Callable[[str], str]) -> None:
    asked = "local mine = vim.api.nvim_get_hl(0, { name = 'CaesuraGhost' }) mine.default = nil return mine"
    with neovim(editor("nvim")) as vim:
        vim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua | highlight! {own}")
        mine = vim.lua(asked)
        vim.command("set background=light | doautocmd ColorScheme")
        assert vim.lua(asked) == mine


def test_pictures(
    editor: Callable[[str], str], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ghost text after a comment and typed text, in three terminals and on two grounds: kept in docs/pictures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sixteen").write_text(SIXTEEN)
    subprocess.run(["tic", "-x", "-o", tmp_path, tmp_path / "sixteen"], check=True)
    (tmp_path / "sums.py").write_text("def sums():  # typed\n    # lines\n")
    setup = json.dumps({"cmd": [sys.executable, "-P", SCRIPTED]})
    (tmp_path / "init.lua").write_text(INIT % (PLUGIN, setup))
    panels = []
    for ground, (front, back) in GROUNDS.items():
        for name, variables in TERMINALS.items():
            ground_set = f"set background={ground}"
            command = [editor("nvim"), "--clean", "-n", "-i", "NONE", "-u", "init.lua", "--cmd", ground_set, "sums.py"]
            with terminal(command, TERMINFO=str(tmp_path), **variables) as shown:
                shown.wait("caesura")
                shown.type("\x0cGo", pause_s=0.2)  # drawn anew, without what the terminal in memory took for text
                shown.wait("third = 3")
                panels.append(f"<div>{name}, {ground}<br>{shown.page(5, 34, front, back)}</div>")
    style = "display:grid;grid-template-columns:repeat(3,auto);gap:8px;width:max-content;font:12px sans-serif"
    with chromium() as browser:
        tab = browser.new_page()
        tab.set_content(f'<body style="margin:8px"><main style="{style}">{"".join(panels)}</main>')
        picture = pictures / "neovim-colours.png"
        tab.locator("main").screenshot(path=picture)
        assert picture.stat().st_size < 100_000
