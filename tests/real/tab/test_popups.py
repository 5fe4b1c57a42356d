"""Popup menus of blink.cmp and nvim-cmp next to ghost text: Tab is the popup's while it is open, ours after that."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..conftest import EDITORS
from ..test_neovim import SCRIPTED, Editing, editing, without_ghost

pytestmark = pytest.mark.real

SET_UP = {
    "blink.cmp": """
        require("blink.cmp").setup {
          keymap = { preset = "super-tab" },
          fuzzy = { implementation = "lua" },
          sources = { default = { "buffer" } },
        }""",
    "nvim-cmp": """
        local cmp = require("cmp")
        vim.cmd.runtime { "after/plugin/cmp_buffer.lua", bang = true }
        cmp.setup {
          sources = { { name = "buffer" } },
          mapping = cmp.mapping.preset.insert {
            ["<Tab>"] = function(fallback)
              if cmp.visible() then cmp.confirm { select = true } else fallback() end
            end,
          },
        }""",
    "Neovim 0.12": """
        vim.opt.autocomplete = true
        vim.opt.completeopt = { "menuone", "noselect" }
        vim.keymap.set("i", "<Tab>", function()
          return vim.fn.pumvisible() == 1 and "<C-n><C-y>" or "<Tab>"
        end, { expr = true })""",
}
NEEDED = {"blink.cmp": ["blink.cmp"], "nvim-cmp": ["nvim-cmp", "cmp-buffer"], "Neovim 0.12": []}
TEXT = "def f(reticule):\n    \n"
MENU = "return require('caesura.menu').is_open()"


@pytest.fixture(params=list(SET_UP))
def area(request: pytest.FixtureRequest, editor: Callable[[str], str], tmp_path: Path) -> Iterator[Editing]:
    load = ""
    for name in NEEDED[request.param]:
        place = EDITORS / "plugins" / name
        if not place.is_dir():
            pytest.skip(f"there is no clone of {name} in {place}")
        load += f"vim.opt.rtp:prepend('{place}')\n"
    load += SET_UP[request.param]
    with editing(editor("nvim"), tmp_path / "area.py", TEXT, cmd=SCRIPTED, server=load, keymaps=True) as found:
        yield found


@pytest.fixture
def alone(editor: Callable[[str], str], tmp_path: Path) -> Iterator[Editing]:
    """Without a plugin for popups."""
    with editing(editor("nvim"), tmp_path / "area.py", TEXT, cmd=SCRIPTED, keymaps=True) as found:
        yield found


def is_open(area: Editing, wanted: bool = True) -> None:
    area.vim.wait(lambda: area.vim.lua(MENU) == wanted, f"the menu {'open' if wanted else 'closed'}")


def test_tab_takes_the_popup_s_item_and_then_the_suggestion(area: Editing) -> None:
    area.vim.input("2GA")
    area.type("ret")
    is_open(area)
    area.vim.settle()
    assert not area.vim.ghost
    area.type("<Tab>")
    area.has(2, "    reticule")
    is_open(area, False)
    area.answer("    reticule", ".size")
    area.shows(".size")
    area.type("<Tab>")
    area.has(2, "    reticule.size")


def test_no_ghost_over_an_open_popup_and_it_comes_back(area: Editing) -> None:
    area.vim.input("2GA")
    area.type("ret")
    is_open(area)
    area.type("i")
    is_open(area)
    area.vim.settle()
    assert not area.vim.ghost
    area.type("<C-e>")
    is_open(area, False)
    area.answer("    reti", "cule.size")
    area.shows("cule.size")
    area.type("<Tab>")
    area.has(2, "    reticule.size")


def test_no_frame_without_it_while_it_is_typed_through_and_taken_by_words(area: Editing) -> None:
    area.vim.input("2GA")
    area.type("xy")
    area.answer("    xy", "zuvw = width * 2")
    area.shows("zuvw = width * 2")
    seen = len(area.vim.frames)
    for key, rest in (("z", "uvw = width * 2"), ("u", "vw = width * 2"), ("<M-Right>", " = width * 2")):
        area.type(key)
        area.shows(rest)
        time.sleep(0.3)  # until a plugin has looked for items
    assert without_ghost(area.vim.frames[seen:]) == 0


def test_keys_right_after_tab_come_after_it(area: Editing) -> None:
    area.vim.input("2GA")
    area.type("xy")
    area.answer("    xy", "z = width")
    area.shows("z = width")
    area.vim.input("<Tab> + 1")
    area.has(2, "    xyz = width + 1")
    area.vim.input("<Esc>1GO<Tab>a<Tab>b")
    area.has(1, "    a   b")


def test_next_to_an_open_popup_if_that_is_wanted(area: Editing) -> None:
    area.vim.lua("require('caesura').setup(...)", {"cmd": SCRIPTED, "menu": True, "keymaps": True})
    area.vim.input("2GA")
    area.type("ret")
    is_open(area)
    area.answer("    ret", "urn width")
    area.shows("urn width")
    assert area.vim.lua(MENU)
    area.type("<M-Right>")
    area.has(2, "    return")
    area.shows(" width")


def test_moving_away_takes_it_and_coming_back_brings_it(alone: Editing) -> None:
    alone.vim.input("2GA")
    alone.type("ret")
    alone.answer("    ret", "urn width")
    alone.shows("urn width")
    for away, back in (("<Left>", "<Right>"), ("<Up>", "<Down>"), ("<Home>", "<End>")):
        alone.type(away)
        alone.shows("")
        alone.type(back)
        alone.shows("urn width")
    alone.type("<Tab>")
    alone.has(2, "    return width")


def test_what_was_put_away_stays_away_until_a_change(alone: Editing) -> None:
    alone.vim.input("2GA")
    alone.type("ret")
    alone.answer("    ret", "urn width")
    alone.shows("urn width")
    alone.type("<C-]>")
    alone.shows("")
    seen = len(alone.vim.frames)
    alone.type("<Left><Right>")
    time.sleep(1)
    assert not any(frame.ghost for frame in alone.vim.frames[seen:])
    alone.type("u")
    alone.shows("rn width")


def test_a_part_is_one_step_to_undo(alone: Editing) -> None:
    alone.vim.input("2GA")
    alone.answer("    ", "total = width\n    return total")
    alone.shows("total = width\n    return total")
    alone.type("<M-Right>")
    alone.shows(" = width\n    return total")
    alone.type("<M-C-Right>")
    alone.has(2, "    total = width")
    alone.type("<Tab>")
    alone.has(3, "    return total")
    alone.type("<Esc>")
    for lines in (["    total = width"], ["    total"], ["    "]):
        alone.vim.command("undo")
        assert alone.vim.lines[1:] == lines


def test_a_popup_that_opens_by_itself_hides_it(alone: Editing) -> None:
    alone.vim.command("set completeopt=menuone,noselect,noinsert")
    alone.vim.input("2GA")
    alone.type("ret")
    alone.answer("    ret", "urn width")
    alone.shows("urn width")
    alone.vim.lua("vim.schedule(function() vim.fn.complete(5, { 'retina', 'retort' }) end)")
    is_open(alone)
    alone.vim.settle()
    alone.shows("")
    alone.type("<C-e>")
    alone.answer("    ret", "urn width")
    alone.shows("urn width")
