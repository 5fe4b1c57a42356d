"""A real Neovim with the plugin: what is on its screen while somebody types, takes, fills and undoes.

Those tests that are about what is shown have a scripted engine behind the real server, as a model says what it likes;
the others have the shipped model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from caesura import model_store
from caesura.ipc import rendezvous
from caesura.server.ghost.feedback import SEEN_S

from .neovim import PLUGIN, Frame, Neovim, neovim

pytestmark = pytest.mark.real

TESTS = Path(__file__).parents[1]
CAESURA = [sys.executable, "-P", "-m", "caesura", "lsp"]
SCRIPTED = [sys.executable, "-P", str(TESTS / "support" / "processes" / "lsp_server.py")]
COLORS = {"CaesuraGhost": 0x9B9EA4, "ComplHint": 0x9B9EA4}
SETTINGS = {"minConfidence": 0, "speculate": False}  # however unsure a text is, and nothing that was not asked for
TRIES, TRY_S = 10, 15.0
ENGINE_S = 300.0
AREA = "def area(width, height):\n    \n\n\ndef volume(width, height, depth):\n    return area(width, height) * depth\n"
STACK = """class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
    def pop(self):
        
    def __len__(self):
        return len(self.items)
    def __bool__(self):
        return len(self.items) > 0
"""
ENGINE = """
local client = vim.lsp.get_clients({ name = "caesura" })[1]
told = nil
require("caesura.compat").request(client, "test/engine", ..., function(err, answer) told = err or answer end, 0)
"""

ONE_ANSWER = """
vim.lsp.config("caesura", { cmd = function()
  local open = true
  return {
    request = function(method, params, answer)
      local result = { capabilities = { codeActionProvider = {} } }
      if method ~= "initialize" then
        local range = { start = params.position, ["end"] = params.position }
        result = { items = { { insertText = "idth,\\n        height,\\n    ", range = range } } }
      end
      vim.schedule(function() answer(nil, result) end)
      return true, 1
    end,
    notify = function() return true end,
    is_closing = function() return not open end,
    terminate = function() open = false end,
  }
end })
"""

FLOATING = """
local texts = {}
for _, window in ipairs(vim.api.nvim_list_wins()) do
  if vim.api.nvim_win_get_config(window).relative ~= "" then
    vim.list_extend(texts, vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(window), 0, -1, false))
  end
end
return table.concat(texts, " ")
"""

Open = Callable[..., "Editing"]


class Editing:
    """A Neovim with the plugin and a file."""

    def __init__(self, vim: Neovim) -> None:
        self.vim = vim

    def type(self, keys: str) -> None:
        """One after the other, as fast as Neovim takes them."""
        for key in re.findall(r"<[^>]+>|.", keys, re.DOTALL):
            self.vim.input({"\n": "<CR>", "<": "<lt>"}.get(key, key))

    def shows(self, ghost: str) -> Frame:
        """Wait for a ghost."""
        return self.vim.wait(lambda: self.vim.ghost == ghost and self.vim.frame, f"the ghost {ghost!r}")  # type: ignore[no-any-return]

    def shows_after(self, keys: str, ghost: str) -> Frame:
        """Press keys until a ghost is there: the other choices may come later than the first."""
        for _ in range(TRIES):
            self.type(keys)
            deadline = time.monotonic() + TRY_S
            while time.monotonic() < deadline:
                if (frame := self.vim.frame).ghost == ghost:
                    return frame
                time.sleep(0.02)
        return self.shows(ghost)

    def has(self, line: int, text: str) -> None:
        """Wait for a line, from 1."""
        self.vim.wait(lambda: self.vim.lines[line - 1 : line] == [text], f"line {line} to be {text!r}")

    def says(self, text: str) -> None:
        self.vim.wait(lambda: text in self.vim.lua("return vim.fn.execute('messages')"), f"the message {text!r}")

    # The scripted engine

    def engine(self, **order: Any) -> dict[str, Any]:
        self.vim.lua(ENGINE, order or {"text": ""})
        return self.vim.wait(lambda: self.vim.lua("return told"), "the engine")  # type: ignore[no-any-return]

    def asked(self, prefix: str) -> None:
        """Wait until the engine has a job for what ends so. One for fewer keys says nothing, and gives way to it."""

        def newest() -> bool:
            known = self.engine()
            jobs = known["jobs"]
            if not jobs or jobs[-1]["prefix"].endswith(prefix):
                return bool(jobs)
            if jobs[-1]["id"] not in known["cancelled"]:
                self.engine(choices=[[""]], done=True)
            return False

        self.vim.wait(newest, f"a job behind {prefix!r}")

    def answer(self, prefix: str, text: str, *others: str) -> None:
        """What the engine proposes behind `prefix`, for good."""
        self.asked(prefix)
        self.engine(choices=[[text], *([other] for other in others)], done=True)

    # The shipped model

    def proposal(self, keys: str) -> str:
        """The ghost behind what is typed at the end of line 2; the model may have nothing to say at once."""
        self.vim.input("<Esc>2GA")
        self.type(keys)
        for _ in range(TRIES):
            deadline = time.monotonic() + TRY_S
            while time.monotonic() < deadline:
                suggestion = self.vim.frame.of("CaesuraGhost") or self.vim.frame.of("ComplHint")
                if suggestion and suggestion == self.vim.ghost.replace("\n", ""):
                    time.sleep(0.3)  # until the answer, if this is not it
                    if self.vim.ghost.replace("\n", "") == suggestion:
                        return self.vim.ghost
                time.sleep(0.02)
            self.vim.input("<BS>" + keys[-1])
        raise AssertionError("no ghost text")


@contextmanager
def editing(program: str, file: Path, text: str, server: str = "", **setup: Any) -> Iterator[Editing]:
    """`server`: Lua that puts another in the place of `cmd`."""
    file.write_text(text)
    with neovim(program, width=120) as vim:
        vim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
        vim.lua("for name, color in pairs(...) do vim.api.nvim_set_hl(0, name, { fg = color }) end", COLORS)
        vim.command(f"filetype on | set ignorecase shortmess+=I expandtab shiftwidth=4 | edit {file}")
        vim.lua(server)
        setup = {"cmd": CAESURA, "settings": SETTINGS, **setup}
        vim.lua("require('caesura').setup(...)", setup)
        ready = "return #vim.lsp.get_clients({ bufnr = 0, name = 'caesura' }) == 1"
        vim.wait(lambda: vim.lua(ready), "the server to attach")
        if setup["cmd"] == CAESURA:
            status = "return require('caesura.status').get().state"
            vim.wait(lambda: vim.lua(status) == "ready", "the engine", ENGINE_S)
        yield Editing(vim)


@pytest.fixture
def scripted(editor: Callable[[str], str], tmp_path: Path) -> Iterator[Open]:
    """Opens an editor with the scripted engine."""
    yield from _open(editor("nvim"), tmp_path, cmd=SCRIPTED, keymaps=True)


@pytest.fixture(params=["nvim", "nvim-0.10"])
def each(request: pytest.FixtureRequest, editor: Callable[[str], str], tmp_path: Path) -> Iterator[Open]:
    """The same in the newest and in the oldest Neovim."""
    yield from _open(editor(request.param), tmp_path, cmd=SCRIPTED, keymaps=True)


@pytest.fixture
def real(editor: Callable[[str], str], warm: None, tmp_path: Path) -> Iterator[Open]:
    yield from _open(editor("nvim"), tmp_path, keymaps=True)


def _open(program: str, folder: Path, **standing: Any) -> Iterator[Open]:
    stack = []

    def start(text: str = AREA, name: str = "area.py", **setup: Any) -> Editing:
        stack.append(editing(program, folder / name, text, **{**standing, **setup}))
        return stack[-1].__enter__()

    yield start
    for context in stack:
        context.__exit__(None, None, None)


def without_ghost(frames: list[Frame]) -> int:
    """Frames without a ghost between the first that has one and the last."""
    shown = [bool(frame.ghost) for frame in frames]
    return shown[shown.index(True) :].count(False) if any(shown) else len(shown)


# What is shown


def test_a_suggestion_grows_without_a_frame_between(each: Open) -> None:
    area = each()
    area.vim.input("2GA")
    area.type("ret")
    area.asked("    ret")
    seen = len(area.vim.frames)
    area.engine(text="urn height", locked=0, done=False)  # a guess, which comes to nothing
    area.engine(text="urn width\n    # so", locked=10, done=False)
    area.shows("urn width")
    area.engine(text="urn width\n    # so far", locked=21, done=True)
    area.shows("urn width\n    # so far")
    frames = area.vim.frames[seen:]
    assert without_ghost(frames) == 0
    assert {frame.ghost for frame in frames} <= {"", "urn width", "urn width\n    # so far"}


def test_typing_through_a_streamed_answer_loses_nothing(each: Open) -> None:
    area = each()
    area.vim.input("2GA")
    area.type("ret")
    area.asked("    ret")
    area.engine(text="urn width\n    # so", locked=10, done=False)
    area.shows("urn width")
    seen = len(area.vim.frames)
    area.type("urn")
    area.shows(" width")
    area.engine(text="urn width\n    area", locked=10, done=False)
    area.type(" wi")
    area.shows("dth")
    area.engine(text="urn height", locked=10, done=True)  # another one at last
    area.type("dt")
    area.shows("h")
    time.sleep(0.5)
    assert {frame.rows[1] for frame in area.vim.frames[seen:]} == {"    return width"}
    area.type("<Tab>")
    area.has(2, "    return width")


def test_an_engine_that_ends_on_the_way_takes_nothing_away(each: Open) -> None:
    area = each()
    area.vim.input("2GA")
    area.type("ret")
    area.asked("    ret")
    area.engine(text="urn width\n    # so", locked=10, done=False)
    area.shows("urn width")
    seen = len(area.vim.frames)
    area.engine(lost=True)
    time.sleep(0.5)
    assert all(frame.ghost == "urn width" for frame in area.vim.frames[seen:])
    area.type("<Tab>")
    area.has(2, "    return width")
    assert area.vim.lua("return vim.v.errmsg") == ""


def test_an_engine_that_ends_takes_nothing_away_that_was_sure(each: Open) -> None:
    """Asked for by hand, behind a suggestion that was refused: the server begins anew and the old one stands."""
    area = each()
    area.vim.input("2GA")
    area.type("re")
    area.answer("    re", "turn width")
    area.shows("turn width")
    time.sleep(1.5 * SEEN_S)
    area.type("s")
    area.answer("    res", "ult = 1")
    area.shows("ult = 1")
    jobs = len(area.engine()["jobs"])
    area.type("<M-Bslash>")
    area.vim.wait(lambda: len(area.engine()["jobs"]) > jobs, "a job of its own")
    seen = len(area.vim.frames)
    area.engine(text="ult = 12", locked=0, done=False)
    area.engine(lost=True)
    time.sleep(0.5)
    assert all(frame.ghost == "ult = 1" for frame in area.vim.frames[seen:])
    area.type("<Tab>")
    area.has(2, "    result = 1")


def test_a_ghost_is_typed_through_and_the_rest_is_taken(each: Open) -> None:
    area = each()
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width * height")
    area.shows("urn width * height")
    seen = len(area.vim.frames)
    area.type("urn wi")
    area.shows("dth * height")
    assert without_ghost(area.vim.frames[seen:]) == 0
    area.type("dt<Tab>")
    area.has(2, "    return width * height")
    assert area.vim.lines == AREA.replace("    \n", "    return width * height\n", 1).splitlines()


@pytest.mark.parametrize(("keys", "line"), [("ur<Tab>", "    return width * height"), ("x<Tab>", "    retx" + 4 * " ")])
def test_a_key_typed_just_before_tab_counts(each: Open, keys: str, line: str) -> None:
    area = each()
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width * height")
    area.shows("urn width * height")
    area.vim.input(keys)
    area.has(2, line)


def test_typing_something_else_leaves_nothing_stale(scripted: Open) -> None:
    area = scripted()
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width * height")
    area.shows("urn width * height")
    seen = len(area.vim.frames)
    area.type("urns = [width]")
    area.vim.wait(lambda: area.vim.frame.rows[1] == "    returns = [width]", "the typed line")
    area.answer("[width]", " * 2")
    area.shows(" * 2")
    wanted = "    return width * height", "    returns = [width] * 2"
    for frame in area.vim.frames[seen:]:
        assert not frame.ghost or frame.rows[1] in wanted, f"stale: {frame.rows[1]}"


def test_a_late_answer_is_not_drawn(scripted: Open) -> None:
    area = scripted()
    area.vim.input("2GA")
    area.type("ret")
    area.asked("    ret")
    seen = len(area.vim.frames)
    area.engine(text="urn width", locked=9, done=False)
    area.type("x")
    area.asked("    retx")
    area.vim.settle()
    assert all(frame.rows[1] in ("    ret", "    return width", "    retx") for frame in area.vim.frames[seen:])
    assert area.vim.frame.rows[1] == "    retx"


def test_a_superseded_request_is_cancelled(scripted: Open) -> None:
    area = scripted()
    area.vim.input("2GA")
    area.type("re")
    area.asked("    re")
    area.vim.lua(
        """
        local compat = require("caesura.compat")
        cancelled = 0
        local cancel = compat.cancel
        compat.cancel = function(...) cancelled = cancelled + 1; return cancel(...) end
        """
    )
    area.type("t")
    area.asked("    ret")
    assert area.vim.lua("return cancelled") == 1


def test_several_lines_inside_a_line(scripted: Open) -> None:
    """What is behind the cursor then stands behind the last of them, also on the screen. The server proposes no such
    thing, so another one does."""
    area = scripted("def area(width, height):\n    return sum()  # all\n", server=ONE_ANSWER)
    area.vim.input("2G$F)i")
    area.type("w")
    area.vim.wait(lambda: area.vim.frame.rows[3:4] == ("    )  # all",), "what is behind the cursor, below")
    assert area.vim.frame.rows[1:4] == ("    return sum(width,", "        height,", "    )  # all")
    area.type("<Tab>")
    area.vim.wait(lambda: len(area.vim.lines) == 4, "the lines")
    assert area.vim.lines[1:] == ["    return sum(width,", "        height,", "    )  # all"]


def test_a_bracket_that_was_closed_by_itself(scripted: Open) -> None:
    """A pairs plugin puts the bracket there; the fill brings its own, and there is one in the end."""
    area = scripted()
    area.vim.lua("vim.keymap.set('i', '(', '()<C-g>U<Left>')")
    area.vim.input("2GA")
    area.type("sum(")
    area.answer("sum(", "width, height)")
    area.vim.wait(lambda: area.vim.frame.rows[1] == "    sum(width, height)", "the ghost around the bracket")
    area.type("wi<Tab>")
    area.has(2, "    sum(width, height)")


# Taking and undoing


def test_tab_takes_it_and_it_is_one_step_to_undo(each: Open) -> None:
    area = each()
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width * height")
    area.shows("urn width * height")
    area.type("<Tab>")
    area.has(2, "    return width * height")
    area.type(" * 2<Esc>")
    area.has(2, "    return width * height * 2")
    for line in ("    return width * height", "    ret", "    "):
        area.vim.command("undo")
        assert area.vim.lines[1] == line
    assert area.vim.lines == AREA.splitlines()


def test_a_dot_repeats_what_was_taken(scripted: Open) -> None:
    area = scripted("one = 1\ntwo = 2\n")
    area.vim.input("1GA")
    area.type(" ")
    area.answer("one = 1 ", "+ 1")
    area.shows("+ 1")
    area.type("<Tab><Esc>")
    area.has(1, "one = 1 + 1")
    area.vim.input("j.")
    area.has(2, "two = 2 + 1")


def test_words_and_lines_are_taken_one_by_one(each: Open) -> None:
    area = each()
    area.vim.input("2GA")
    area.answer("    ", "total = width\n    return total\n")
    area.shows("total = width\n    return total")
    seen = len(area.vim.frames)
    area.type("<M-Right>")
    area.shows(" = width\n    return total")
    area.type("<M-C-Right>")
    area.has(2, "    total = width")
    area.vim.wait(lambda: area.vim.frame.rows[2] == "    return total", "the rest below")
    area.type("<M-C-Right>")
    area.has(3, "    return total")
    assert without_ghost(area.vim.frames[seen:-1]) <= 1  # the last, with nothing left


def test_the_next_suggestion(scripted: Open) -> None:
    area = scripted()
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width", "urn height")
    area.vim.wait(lambda: area.vim.frame.of("CaesuraGhost") == "urn width", "the answer")
    assert area.shows_after("<M-]>", "urn height").rows[1].endswith("urn height (2/2)")
    area.type("<M-]>")
    area.shows("urn width")
    area.type("<M-[>")
    area.shows("urn height")
    area.type("<Tab>")
    area.has(2, "    return height")


def test_tab_is_a_tab_where_nothing_is_shown(scripted: Open) -> None:
    area = scripted()
    area.vim.input("4GA")
    area.type("<Tab>x")
    area.has(4, "    x")


def test_tab_does_what_it_did_before_where_nothing_is_shown(scripted: Open) -> None:
    area = scripted(keymaps=False)
    area.vim.lua("vim.keymap.set('i', '<Tab>', function() return 'mine' end, { expr = true })")
    area.vim.lua("require('caesura').setup({ cmd = ..., keymaps = { accept = '<Tab>' } })", SCRIPTED)
    area.vim.input("4GA")
    area.type("<Tab>")
    area.has(4, "mine")


def test_a_key_that_was_mapped_to_a_special_key_still_moves(each: Open) -> None:
    """What a Vim expression gives has the key as bytes of Neovim's own."""
    area = each(keymaps=False)
    area.vim.command(r'inoremap <expr> <Tab> "\<Right>"')
    area.vim.lua("require('caesura').setup({ cmd = ..., keymaps = { accept = '<Tab>' } })", SCRIPTED)
    area.vim.input("4GAab<Left><Left><Tab>x")
    area.has(4, "axb")


def test_a_suggestion_is_put_away_until_the_next_key(scripted: Open) -> None:
    area = scripted()
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width")
    area.shows("urn width")
    area.type("<C-]>")
    area.shows("")
    area.type("<Tab>x")
    area.has(2, "    ret x")
    area.vim.input("<Esc>")


def test_a_suggestion_ends_with_insert_mode(scripted: Open) -> None:
    area = scripted()
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width")
    area.shows("urn width")
    area.type("<Esc>")
    area.shows("")
    assert area.vim.lines[1] == "    ret"


def test_no_suggestion_beside_a_menu_or_in_a_macro(scripted: Open) -> None:
    area = scripted(AREA + "# returned returns\n")
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width")
    area.shows("urn width")
    area.type("<C-n>")
    area.vim.wait(lambda: area.vim.lua("return vim.fn.pumvisible()") == 1 and not area.vim.ghost, "only the menu")
    area.type("<C-e>")
    area.answer("    ret", "urn width")
    area.shows("urn width")
    area.type("<Esc>qq4GAret<Tab><Esc>q")
    area.has(4, "ret ")
    area.vim.settle()
    assert not area.vim.ghost


def test_replace_mode_has_none(scripted: Open) -> None:
    area = scripted()
    area.vim.input("2G$R")
    area.type("ret")
    area.vim.settle()
    assert area.engine()["jobs"] == []
    assert not area.vim.ghost


def test_in_two_windows_and_after_the_buffer_is_gone(scripted: Open) -> None:
    area = scripted()
    area.vim.command("vsplit")
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width")
    area.vim.wait(lambda: area.vim.ghost.startswith("urn width"), "the ghost")
    area.type("<Esc>")
    area.vim.command("enew! | bdelete! area.py")
    area.type("iret")
    area.vim.settle()
    assert not area.vim.ghost
    assert area.vim.lua("return vim.v.errmsg") == ""


def test_off_and_on_again(each: Open) -> None:
    area = each()
    area.vim.command("Caesura toggle")
    area.says("Caesura is off.")
    area.vim.wait(lambda: area.vim.lua("return require('caesura').status()") == "caesura off", "the status")
    area.vim.input("2GA")
    area.type("ret")
    assert area.engine()["jobs"] == []
    area.vim.command("Caesura toggle")
    area.type("u")
    area.answer("    retu", "rn width")
    area.shows("rn width")


def test_the_server_is_started_anew(each: Open) -> None:
    area = each()
    before = area.vim.lua("return vim.lsp.get_clients({ name = 'caesura' })[1].id")
    area.vim.command("Caesura restart")
    same = "local c = vim.lsp.get_clients({ name = 'caesura', bufnr = 0 })[1] return c and c.id"
    area.vim.wait(lambda: (area.vim.lua(same) or before) != before, "another server")
    area.vim.input("2GA")
    area.type("ret")
    area.answer("    ret", "urn width")
    area.shows("urn width")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"filetypes": ["python"]}, "'filetypes' must be a table, such as { python = true }"),
        ({"keymaps": {"accept": 9}}, "'keymaps' must be true, false or a table"),
        ({"keymaps": {"acept": "<Tab>"}}, "there is no keymap 'acept'"),
        ({"veiw": "stream"}, "there is no option 'veiw'"),
        ({"settings": {"deadlineM": 9}}, "Unknown setting 'deadlineM'"),
    ],
)
def test_an_option_that_is_wrong_is_told(wrong: dict[str, Any], told: str, each: Open) -> None:
    each(**wrong).says(told)


# Asked for


def test_a_selection_is_filled(scripted: Open) -> None:
    area = scripted("one = 1\ntwo = wrong + 2\n")
    area.vim.input("2Gwwve")
    area.type(":Caesura fill\n")
    area.vim.wait(lambda: area.engine()["jobs"], "the job")
    assert "CaesuraFilling" in area.vim.lua(
        "local space = vim.api.nvim_create_namespace('caesura.fill')"
        "return vim.inspect(vim.api.nvim_buf_get_extmarks(0, space, 0, -1, { details = true }))"
    )
    area.engine(choices=[["one"]], done=True)
    area.has(2, "two = one + 2")
    area.vim.command("undo")
    area.has(2, "two = wrong + 2")


def test_a_block_is_filled_as_several_places(each: Open) -> None:
    area = each("one = x\ntwo = x\n")
    area.vim.input("1G$<C-v>j")
    area.type(":Caesura fill\n")
    area.vim.wait(lambda: area.engine()["jobs"], "the job")
    area.engine(choices=[["1", "2"]], done=True)
    area.has(2, "two = 2")
    assert area.vim.lines == ["one = 1", "two = 2"]
    area.vim.command("undo")
    assert area.vim.lines == ["one = x", "two = x"]


def test_a_block_to_the_ends_of_its_lines(each: Open) -> None:
    area = each("one = x\ntwo = xyz\nsix = x\n")
    area.vim.input("1G$<C-v>jj$")
    area.type(":Caesura fill\n")
    area.vim.wait(lambda: area.engine()["jobs"], "the job")
    area.engine(choices=[["1", "2", "6"]], done=True)
    area.has(2, "two = 2")
    assert area.vim.lines == ["one = 1", "two = 2", "six = 6"]


def test_a_server_that_ends_in_a_fill_leaves_no_mark(each: Open) -> None:
    area = each("one = 1\ntwo = wrong\n")
    area.vim.command("2Caesura fill")
    area.vim.wait(lambda: area.engine()["live"] == 1, "the job")
    area.vim.lua("require('caesura.compat').stop(vim.lsp.get_clients({ name = 'caesura' })[1])")
    area.says("Caesura: the server has ended")
    space = "vim.api.nvim_create_namespace('caesura.fill')"
    assert area.vim.lua(f"return #vim.api.nvim_buf_get_extmarks(0, {space}, 0, -1, {{}})") == 0
    assert area.vim.lines == ["one = 1", "two = wrong"]


def test_a_fill_is_cancelled_and_a_refusal_is_one_sentence(each: Open) -> None:
    area = each("one = 1\ntwo = wrong\n")
    area.vim.input("2Gwwve")
    area.type(":Caesura fill\n")
    area.vim.wait(lambda: area.engine()["live"] == 1, "the job")
    area.vim.command("Caesura cancel")
    area.vim.wait(lambda: area.engine()["live"] == 0, "the engine to be free")
    area.vim.command("Caesura holes")
    area.says("Caesura: There is no marker <FILL> here")
    area.vim.command("Caesura fill")
    area.says("select what is to be filled")
    assert area.vim.lines == ["one = 1", "two = wrong"]


def test_a_code_action_runs_as_the_command_does(each: Open) -> None:
    area = each("one = <FILL>\n")
    area.vim.lua("vim.lsp.buf.code_action({ apply = true, filter = function(a) return a.title:find('Infill') end })")
    area.vim.wait(lambda: area.engine()["jobs"], "the job")
    area.engine(choices=[["1"]], done=True)
    area.has(1, "one = 1")


def test_the_command_completes_its_words(scripted: Open) -> None:
    vim = scripted().vim
    assert vim.call("nvim_exec_lua", "return vim.fn.getcompletion('Caesura re', 'cmdline')", []) == [
        "repair",
        "restart",
    ]
    vim.command("Caesura nonsense")
    assert "There is no :Caesura nonsense" in vim.lua("return vim.fn.execute('messages')")


# The shipped model


def test_the_model_in_the_editor(real: Open) -> None:
    area = real()
    shown = area.proposal("ret")
    area.type("<Tab>")
    area.has(2, "    ret" + shown)
    area.vim.input("<Esc>")
    area.vim.command("undo")
    assert area.vim.lines == AREA.replace("    \n", "    ret\n", 1).splitlines()


def test_pictures(real: Open, pictures: Path) -> None:
    """A suggestion in colours: kept in docs/pictures."""
    from .browser import chromium

    area = real(STACK, "stack.py")
    area.vim.command("syntax on | setlocal signcolumn=yes number laststatus=0 noruler noshowmode")
    area.vim.command("highlight Statement guifg=NvimLightMagenta")  # Neovim's own colours have it in bold only
    page = ""
    for _ in range(TRIES):
        area.vim.input("<Esc>7G0D")
        area.vim.wait(lambda: not area.vim.ghost, "an empty line")
        area.type("A        ret")
        deadline = time.monotonic() + TRY_S
        while time.monotonic() < deadline and not page:
            frame, drawn = area.vim.frame, area.vim.page()
            if frame.of("CaesuraGhost"):
                page = drawn
        if page:
            break
    assert page, "the model had nothing to say"
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 600, "height": 300}, device_scale_factor=2)
        tab.set_content(page)
        picture = pictures / "neovim-suggestion.png"
        tab.screenshot(path=picture, clip={"x": 0, "y": 0, "width": 560, "height": 244})
        assert picture.stat().st_size < 150_000


def test_the_builtin_view(real: Open) -> None:
    area = real(view="builtin")
    shown = area.proposal("ret")
    area.vim.input(shown[:2] + "<Tab>")  # in one go, before Neovim asks again
    area.has(2, "    ret" + shown)
    area.vim.input("<Esc>")
    area.vim.command("undo")
    assert area.vim.lines[1] == "    ret" + shown[:2]


def test_the_builtin_view_asks_at_once_if_it_may(real: Open) -> None:
    area = real(view="builtin", eager=True)
    area.vim.lua(
        "requests = 0; vim.api.nvim_create_autocmd('LspRequest', { callback = function(call)"
        " local r = call.data.request"
        " if r.type == 'pending' and r.method:find('inlineCompletion') then requests = requests + 1 end end })"
    )
    area.vim.input("2GA")
    area.type("ret")
    area.vim.wait(lambda: area.vim.lua("return requests") >= 1, "a request")
    shown = area.proposal("u")
    area.type("<M-Right>")
    word = re.match(r"\s*[^\w\s]?\w*", shown)
    assert word
    area.has(2, "    retu" + word[0])


def test_holes_and_another(real: Open) -> None:
    area = real("def area(width, height):\n    return <FILL>\n\n\ndef greet(name):\n    print(<FILL>)\n")
    before = area.vim.lines
    area.vim.command("Caesura holes")
    area.vim.wait(lambda: "<FILL>" not in "".join(area.vim.lines), "the holes to be filled")
    first = area.vim.lines
    area.vim.command("Caesura another")
    area.vim.wait(lambda: area.vim.lines != first, "another fill")
    area.vim.command("undo")
    assert area.vim.lines == first
    area.vim.command("undo")
    assert area.vim.lines == before


def test_a_json_edit_chosen_from_a_list(real: Open) -> None:
    text = '{\n  "servers": [\n    {"name": "one", "port": 80},\n    {"name": "two", "port": 81}\n  ]\n}\n'
    area = real(text, "servers.json")
    area.vim.lua(
        "vim.ui.select = function(titles, _, choose) offered = titles"
        " for _, title in ipairs(titles) do if title:find('element') then return choose(title) end end end"
    )
    area.vim.command("normal! 3G$")
    area.vim.command("Caesura edit")
    area.vim.wait(lambda: "".join(area.vim.lines) != text.replace("\n", ""), "the edit")
    servers = json.loads("\n".join(area.vim.lines))["servers"]
    assert len(servers) == 3, area.vim.lua("return offered")
    assert all(list(server) == ["name", "port"] for server in servers)
    area.says("valid form, guessed values")
    area.vim.command("undo")
    assert "\n".join(area.vim.lines) + "\n" == text


def test_a_killed_engine_comes_back(real: Open) -> None:
    area = real()
    area.proposal("ret")
    for place in rendezvous.running():
        holder = place.holder()
        assert holder
        os.kill(holder.pid, signal.SIGKILL)
    area.type("u")
    area.vim.wait(
        lambda: area.vim.lua("return require('caesura.status').get().state") == "ready", "the engine", ENGINE_S
    )
    assert area.proposal("r")
    assert area.vim.lua("return vim.v.errmsg") == ""


def test_health(real: Open) -> None:
    area = real()
    area.vim.command("checkhealth caesura")
    text = "\n".join(area.vim.lines)
    assert f"{model_store.resolve(model_store.DEFAULT)} on cpu" in text
    assert "ERROR" not in text
    assert "<Tab>: accept" in text
    assert "deprecated" not in area.vim.lua("return vim.fn.execute('messages')")


def test_without_a_program_there_is_one_sentence(editor: Callable[[str], str], tmp_path: Path) -> None:
    with neovim(editor("nvim")) as vim:
        vim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
        vim.lua("require('caesura').setup({ cmd = { 'no-such-caesura' } })")
        for name in ("one.py", "two.py"):
            (tmp_path / name).write_text(AREA)
            vim.command(f"filetype on | edit {tmp_path / name}")
        told = "return select(2, vim.fn.execute('messages'):gsub('no%-such%-caesura', ''))"
        vim.wait(lambda: vim.lua(told), "the sentence")
        vim.settle()
        assert vim.lua(told) == 1


def test_a_program_that_vim_lsp_config_names(editor: Callable[[str], str], tmp_path: Path) -> None:
    plugin = tmp_path / "nvim"
    shutil.copytree(PLUGIN, plugin)  # where there is no .venv
    (tmp_path / "area.py").write_text(AREA)
    with neovim(editor("nvim")) as vim:
        vim.command(f"set rtp^={plugin} | let $PATH = '/usr/bin:/bin' | filetype on | edit {tmp_path / 'area.py'}")
        vim.lua("vim.lsp.config('caesura', { cmd = ... }); vim.lsp.enable('caesura')", SCRIPTED)
        vim.wait(lambda: vim.lua("return #vim.lsp.get_clients({ name = 'caesura' }) == 1"), "the server to attach")
        assert "not found" not in vim.lua("return vim.fn.execute('messages')")


# Installing


def test_the_help_is_found(editor: Callable[[str], str], tmp_path: Path) -> None:
    shutil.copytree(PLUGIN / "doc", tmp_path / "doc")
    with neovim(editor("nvim")) as vim:
        vim.command(f"set rtp^={tmp_path} | helptags {tmp_path / 'doc'} | help caesura-setup")
        assert "setup" in vim.call("nvim_get_current_line")


def clone(home: Path) -> None:
    """~/caesura, with the plugin and a program that answers as ours does."""
    place = home / "caesura"
    shutil.copytree(PLUGIN, place / "editors" / "nvim", ignore=shutil.ignore_patterns("tags"))
    for command in ("init -q -b main", "add .", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", "-C", place, *command.split()], check=True)
    program = place / ".venv" / "bin" / "caesura"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexec " + " ".join(SCRIPTED) + "\n")
    program.chmod(0o755)


def from_readme(way: str) -> str:
    found = re.search(rf"<!-- {re.escape(way)} -->\n```lua\n(.*?)```", (PLUGIN / "README.md").read_text(), re.DOTALL)
    assert found, way
    return found[1]


def test_why_there_is_no_suggestion(each: Open) -> None:
    area = each(settings={"minConfidence": 0.95, "leastKeys": 4})
    area.vim.input("2GA")
    area.type("return ")
    area.asked("return ")
    area.engine(choices=[["width * height"]], done=True)
    area.vim.input("<Esc>")
    area.vim.command("Caesura why")
    area.vim.wait(lambda: "0.95 is needed." in (told := area.vim.lua(FLOATING)) and "width * height" in told, "why")
    area.vim.input("0")
    area.vim.command("Caesura toggle")
    area.vim.command("Caesura why")
    area.vim.wait(lambda: ":Caesura toggle" in area.vim.lua(FLOATING), "the reason that it is off")


LAZY = """
vim.opt.rtp:prepend(vim.env.LAZY_NVIM)
require("lazy").setup({ spec = { SPEC }, rocks = { enabled = false }, checker = { enabled = false } })
"""


@pytest.mark.parametrize("way", ["by hand", "vim.pack", "lazy.nvim"])
def test_installed_as_the_readme_says(
    way: str, editor: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "lazy.nvim" and not os.environ.get("LAZY_NVIM"):
        pytest.skip("$LAZY_NVIM names no clone of lazy.nvim")
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    clone(tmp_path)
    lua = from_readme(way)
    (tmp_path / "area.py").write_text(AREA)
    with neovim(editor("nvim")) as vim:
        vim.lua("vim.fn.confirm = function() return 1 end")  # yes, install it
        vim.lua(LAZY.replace("SPEC", lua) if way == "lazy.nvim" else lua)
        vim.command(f"filetype on | edit {tmp_path / 'area.py'}")
        vim.wait(lambda: vim.lua("return #vim.lsp.get_clients({ name = 'caesura' }) == 1"), "the server to attach")
        assert vim.call("nvim_get_commands", {}).get("Caesura")
        assert vim.lua("return vim.fn.maparg('<Tab>', 'i', false, true).desc") == "Caesura: accept"
        vim.command("help caesura-setup")
