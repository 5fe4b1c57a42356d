"""Next edits in a real Neovim: what is drawn, and what Tab and Esc do. The server is a fake of a few lines in Lua."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ..neovim import PLUGIN, Neovim, neovim

pytestmark = pytest.mark.real

WAIT_S = 20.0
PAUSE_S = 0.8  # more than the longest pause before a request
TEXT = "start(old, 1)\n\n\nstop(old, 1)\nlast = 1\n"
WHY = "like your edit in line 1"

SERVER = """
sent, held, edit, ghost = {}, nil, nil, nil
local function result(method, params)
  if method == "initialize" then
    return { capabilities = {
      codeActionProvider = {}, textDocumentSync = { openClose = true, change = 2 },
      experimental = { caesura = { nextEdit = true } },
    } }
  elseif method == "caesura/inlineCompletionStream" then
    local range = { start = params.position, ["end"] = params.position }
    return { items = ghost and { { insertText = ghost, range = range } } or {} }
  elseif method == "textDocument/copilotInlineEdit" then
    return { edits = { edit and vim.tbl_extend("force", { textDocument = params.textDocument }, edit) } }
  end
  return vim.NIL
end
require("caesura.client").cmd = function()
  local open = true
  return {
    request = function(method, params, answer)
      table.insert(sent, { method, params })
      local found = result(method, params)
      local function go()
        answer(nil, found)
      end
      if hold and method == "textDocument/copilotInlineEdit" then
        held = go
      else
        vim.schedule(go)
      end
      return true, #sent
    end,
    notify = function(method, params) table.insert(sent, { method, params }) return true end,
    is_closing = function() return not open end,
    terminate = function() open = false end,
  }
end
"""

MARKS = """
local found = {}
for name, space in pairs(vim.api.nvim_get_namespaces()) do
  if name == "caesura.next_edit" or name == "caesura.next_edit.hint" then
    for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, space, 0, -1, { details = true })) do
      local of = mark[4]
      for _, line in ipairs({ of.virt_text or {}, unpack(of.virt_lines or {}) }) do
        for _, piece in ipairs(line) do
          table.insert(found, { mark[2], piece[1] })
        end
      end
      if of.hl_group then
        table.insert(found, { mark[2], vim.api.nvim_buf_get_text(0, mark[2], mark[3], of.end_row, of.end_col, {})[1] })
      end
    end
  end
end
table.sort(found, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
return found
"""


def edit(text: str, start: tuple[int, int], end: tuple[int, int]) -> dict[str, Any]:
    """An edit as the server sends it; rows and columns from 0."""
    places = [{"line": line, "character": character} for line, character in (start, end)]
    command = {"title": "", "command": "caesura.nextEdit.accepted", "arguments": ["one"]}
    return {"text": text, "range": dict(zip(("start", "end"), places, strict=True)), "command": command, "why": WHY}


STOP = edit("stop(new, 1)", (3, 0), (3, 12))


class Editor:
    """A Neovim with a file, the plugin and the fake server."""

    def __init__(self, vim: Neovim) -> None:
        self.vim = vim

    def serves(self, found: dict[str, Any] | None, ghost: str | None = None) -> None:
        self.vim.lua("edit, ghost = ...; edit, ghost = edit or nil, ghost or nil", found or False, ghost or False)

    def press(self, keys: str) -> None:
        self.vim.input(keys)
        self.vim.settle()

    def told(self, method: str) -> list[Any]:
        code = "local n = ... return vim.iter(sent):filter(function(s) return s[1] == n end):totable()"
        return [params for _, params in self.vim.lua(code, method)]

    def waits(self, condition: Callable[[], Any], what: str) -> None:
        self.vim.wait(condition, what, WAIT_S)

    @property
    def asked(self) -> int:
        return len(self.told("textDocument/copilotInlineEdit"))

    @property
    def drawn(self) -> list[tuple[int, str]]:
        return [(row, text) for row, text in self.vim.lua(MARKS)]

    def shows(self, *drawn: tuple[int, str]) -> None:
        self.waits(lambda: self.drawn == list(drawn), f"{drawn} to be drawn")

    def stays(self, *drawn: tuple[int, str]) -> None:
        """The same is drawn after each pause that the plugin knows."""
        time.sleep(PAUSE_S)
        assert self.drawn == list(drawn)

    @property
    def cursor(self) -> tuple[int, int]:
        row, column = self.vim.call("nvim_win_get_cursor", 0)
        return row, column


Start = Callable[..., Editor]


@pytest.fixture(params=["nvim", "nvim-0.10"])
def start(request: pytest.FixtureRequest, editor: Callable[[str], str], tmp_path: Path) -> Iterator[Start]:
    """Starts an editor, in the newest and in the oldest Neovim. `before`: a command for the time before setup()."""
    with ExitStack() as stack:

        def started(text: str | bytes = TEXT, before: str = "", **setup: Any) -> Editor:
            file = tmp_path / "file.py"
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
            vim = stack.enter_context(neovim(editor(request.param), width=100))
            vim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
            vim.command(f"filetype on | set shortmess+=I expandtab shiftwidth=4 | edit {file}")
            vim.lua(SERVER)
            vim.command(before)
            vim.lua("require('caesura').setup(...)", {"cmd": [sys.executable], "keymaps": True, **setup})
            ready = "return #vim.lsp.get_clients({ bufnr = 0, name = 'caesura' }) == 1"
            vim.wait(lambda: vim.lua(ready), "the server to attach", WAIT_S)
            return Editor(vim)

        yield started


def changes(vim: Editor, found: dict[str, Any] = STOP) -> None:
    """The user changes a word of line 1 in Normal mode; the server has an edit for that."""
    vim.serves(found)
    vim.press("gg05lrX")


SHOWN = ((3, "new"), (3, "old"))


def test_two_tabs_go_to_an_edit_and_apply_it_as_one_step(start: Start) -> None:
    vim = start()
    changes(vim)
    vim.shows(*SHOWN)
    assert [shown["item"]["command"]["arguments"] for shown in vim.told("textDocument/didShowInlineEdit")] == [["one"]]
    vim.press("<Tab>")
    assert vim.cursor == (4, 5)
    assert vim.vim.lines[3] == "stop(old, 1)"
    vim.serves(None)
    vim.press("<Tab>")
    assert vim.vim.lines[3] == "stop(new, 1)"
    assert vim.cursor == (4, 8)
    vim.shows()
    assert [taken["arguments"] for taken in vim.told("workspace/executeCommand")] == [["one"]]
    vim.press("<C-o>")
    assert vim.cursor[0] == 1, "the jump list has the place before"
    vim.press("u")
    assert vim.vim.lines == ["startXold, 1)", "", "", "stop(old, 1)", "last = 1"]


def test_the_next_edit_comes_after_one_was_applied(start: Start) -> None:
    vim = start()
    changes(vim)
    vim.shows(*SHOWN)
    vim.serves(edit("first", (4, 0), (4, 4)))
    vim.press("<Tab><Tab>")
    vim.shows((4, "first"), (4, "last"))


def test_esc_dismisses_an_edit_for_good(start: Start) -> None:
    vim = start()
    changes(vim)
    vim.shows(*SHOWN)
    vim.press("<Esc>")
    vim.shows()
    assert [gone["item"]["command"]["arguments"] for gone in vim.told("caesura/didDismissInlineEdit")] == [["one"]]
    asked = vim.asked
    vim.press("rY")
    vim.waits(lambda: vim.asked > asked, "another request")
    vim.stays()
    vim.serves(edit("stop(other, 1)", (3, 0), (3, 12)))
    vim.press("rZ")
    vim.shows((3, "old"), (3, "other"))


def test_a_dismissed_place_moves_with_the_text(start: Start) -> None:
    vim = start()
    changes(vim)
    vim.shows(*SHOWN)
    vim.press("<Esc>")
    vim.serves(edit("stop(new, 1)", (4, 0), (4, 12)))
    asked = vim.asked
    vim.press("yyp")
    vim.waits(lambda: vim.asked > asked, "another request")
    vim.stays()


def test_a_change_of_the_text_removes_an_edit(start: Start) -> None:
    vim = start()
    changes(vim)
    vim.shows(*SHOWN)
    vim.serves(None)
    vim.press("rY")
    vim.shows()


def test_insert_mode_removes_what_normal_mode_has_shown(start: Start) -> None:
    vim = start()
    changes(vim)
    vim.shows(*SHOWN)
    vim.press("i")
    vim.stays()


def test_an_answer_for_an_older_text_is_dropped(start: Start) -> None:
    vim = start()
    vim.vim.lua("hold = true")
    changes(vim)
    vim.waits(lambda: vim.vim.lua("return held ~= nil"), "a request")
    vim.serves(None)
    vim.vim.lua("hold = false; vim.api.nvim_buf_set_lines(0, 1, 2, true, { 'more' }); held()")
    vim.stays()


def test_tab_in_insert_mode_goes_to_an_edit_and_applies_it(start: Start) -> None:
    vim = start()
    vim.serves(STOP)
    vim.press("A;")
    vim.shows(*SHOWN)
    vim.press("<Tab>")
    assert vim.cursor == (4, 5)
    vim.serves(None)
    vim.press("<Tab>")
    vim.waits(lambda: vim.vim.lines[3] == "stop(new, 1)", "the edit")
    assert vim.cursor == (4, 8)
    vim.press("<Esc>u")
    assert vim.vim.lines[0] == "start(old, 1);"
    assert vim.vim.lines[3] == "stop(old, 1)"


def test_tab_indents_after_blanks_unless_it_has_gone_to_the_edit(start: Start) -> None:
    vim = start()
    vim.serves(STOP)
    vim.press("jA  ")
    vim.shows(*SHOWN)
    vim.press("<Tab>")
    assert vim.vim.lines[1] == "    "


def test_ghost_text_has_tab_first(start: Start) -> None:
    vim = start()
    vim.serves(STOP, ghost="ghost")
    vim.press("A;")
    vim.waits(lambda: vim.vim.ghost == "ghost", "the ghost")
    time.sleep(PAUSE_S)
    assert not vim.asked
    vim.vim.lua("require('caesura').dismiss()")
    vim.vim.command("Caesura edit next")
    vim.shows(*SHOWN)
    vim.vim.lua("require('caesura').trigger()")
    vim.waits(lambda: "ghost" in vim.vim.ghost, "the ghost again")
    vim.press("<Tab>")
    vim.waits(lambda: vim.vim.lines[0] == "start(old, 1);ghost", "the ghost in the text")


def test_leaving_insert_mode_dismisses_what_it_has_shown(start: Start) -> None:
    vim = start()
    vim.serves(STOP)
    vim.press("A;")
    vim.shows(*SHOWN)
    vim.press("<Esc>")
    vim.stays()
    assert len(vim.told("caesura/didDismissInlineEdit")) == 1


@pytest.mark.parametrize(
    "keys", ["i", "a<C-x><C-n>", "qqi;", "A;<Cmd>lua vim.snippet.expand('($1, $2)')<CR>", "wviw"], ids=str
)
def test_nothing_is_asked_while_something_else_goes_on(start: Start, keys: str) -> None:
    """In the middle of a word, with a popup, in a macro, in a snippet and with a selection."""
    vim = start("alpha = alps\nalp\n")
    vim.serves(STOP)
    vim.press({"i": "2lix", "a<C-x><C-n>": "jA<C-x><C-n>"}.get(keys, keys))
    time.sleep(PAUSE_S)
    assert not vim.asked


def test_a_popup_that_opens_over_an_edit_has_tab(start: Start) -> None:
    keys = "set completeopt=menuone,noinsert | inoremap <expr> <Tab> pumvisible() ? '<C-y>' : '<Tab>'"
    vim = start("stop = 1\n\n\nstop(old, 1)\n", before=keys)
    vim.serves(STOP)
    vim.press("jAst")
    vim.shows(*SHOWN)
    vim.press("<C-x><C-n>")
    vim.waits(lambda: vim.vim.lua("return vim.fn.pumvisible() == 1"), "the popup")
    vim.press("<Tab>")
    assert vim.vim.lines == ["stop = 1", "stop", "", "stop(old, 1)"]


def test_keys_do_what_they_did_before_without_an_edit(start: Start) -> None:
    vim = start(before="nnoremap <Tab> 3l| nnoremap <Esc> $")
    vim.press("gg0<Tab>")
    assert vim.cursor == (1, 3)
    vim.press("0<Esc>")
    assert vim.cursor == (1, 12)
    vim.press("A<Tab>;")
    assert vim.vim.lines[0] == "start(old, 1)   ;"


def test_a_count_reaches_what_the_key_did_before(start: Start) -> None:
    vim = start(before="nnoremap <Tab> l")
    vim.press("gg04<Tab>")
    assert vim.cursor == (1, 4)


def test_a_hint_says_where_an_edit_is_that_is_not_in_the_window(start: Start) -> None:
    vim = start(TEXT + "\n" * 60 + "stop(old, 1)\n")
    changes(vim, edit("stop(new, 1)", (65, 0), (65, 12)))
    vim.shows((0, f"    next edit in line 66 ↓, {WHY}"), (65, "new"), (65, "old"))
    vim.press("j")
    vim.shows((1, f"    next edit in line 66 ↓, {WHY}"), (65, "new"), (65, "old"))
    vim.press("<Tab>")
    vim.shows((65, "new"), (65, "old"))
    assert vim.cursor == (66, 5)


def test_new_lines_are_drawn_as_lines(start: Start) -> None:
    vim = start("def f():\n    a = 1\n    c = 3\n")
    changes(vim, edit("    b = 2\n", (2, 0), (2, 0)))
    vim.shows((1, "    b = 2"))
    vim.press("<Tab><Tab>")
    assert vim.vim.lines[1:] == ["    a = 1", "    b = 2", "    c = 3"]


def test_an_edit_of_several_lines_keeps_what_it_does_not_change(start: Start) -> None:
    vim = start("x\na = old\nmiddle\nb = old\n")
    vim.press("3G03lmb")
    changes(vim, edit("a = new\nmiddle\nb = newer\n", (1, 0), (4, 0)))
    vim.shows((1, "new"), (1, "old"), (3, "newer"), (3, "old"))
    vim.press("<Tab><Tab>")
    assert vim.vim.lines[1:] == ["a = new", "middle", "b = newer"]
    assert vim.cursor == (4, 8)
    assert vim.vim.call("nvim_buf_get_mark", 0, "b") == [3, 3]


@pytest.mark.parametrize(
    ("text", "found", "after"),
    [
        (b"one\r\ntwo\r\n", edit("two\r\nthree\r\n", (1, 0), (2, 0)), b"onX\r\ntwo\r\nthree\r\n"),
        (b"one\ntwo", edit("\nthree", (1, 3), (1, 3)), b"onX\ntwo\nthree"),
        (b"one\ntwo\n", edit("three\n", (2, 0), (2, 0)), b"onX\ntwo\nthree\n"),
        (b"one\ntwo\n", edit("", (1, 0), (2, 0)), b"onX\n"),
        ("one\n𝒳 = old\n".encode(), edit("new", (1, 5), (1, 8)), "onX\n𝒳 = new\n".encode()),
    ],
    ids=["CRLF", "no last newline", "after the end", "last line deleted", "UTF-16"],
)
def test_an_edit_fits_every_kind_of_file(
    start: Start, tmp_path: Path, text: bytes, found: dict[str, Any], after: bytes
) -> None:
    vim = start(text, before="set nofixeol")
    vim.serves(found)
    vim.press("gg2lrX")
    vim.waits(lambda: vim.told("textDocument/didShowInlineEdit"), "the edit")
    vim.press("<Tab><Tab>")
    vim.vim.command("write")
    assert (tmp_path / "file.py").read_bytes() == after


def test_manual_asks_only_on_request_and_off_never(start: Start) -> None:
    vim = start(settings={"nextEdit": "manual"})
    changes(vim)
    time.sleep(PAUSE_S)
    assert not vim.asked
    vim.vim.command("Caesura edit next")
    vim.shows(*SHOWN)
    vim.vim.command("Caesura edit take")
    assert vim.cursor == (4, 5)
    vim.vim.command("Caesura edit dismiss")
    vim.shows()
    vim.vim.lua("require('caesura').setup { keymaps = true, next_edit = false }")
    vim.vim.command("Caesura edit next")
    time.sleep(PAUSE_S)
    assert len(vim.told("textDocument/copilotInlineEdit")) == 1


def test_other_keys_may_be_named(start: Start) -> None:
    vim = start(keymaps=False, next_edit={"take": "<M-e>", "dismiss": "<M-d>", "next": "<M-n>"})
    changes(vim)
    vim.shows(*SHOWN)
    vim.press("<M-e><M-e>")
    assert vim.vim.lines[3] == "stop(new, 1)"


def test_the_server_learns_which_document_the_user_is_in(start: Start, tmp_path: Path) -> None:
    vim = start()
    other = tmp_path / "other.py"
    other.write_text("x = 1\n")
    vim.vim.command(f"edit {other}")
    uri = other.as_uri()
    vim.waits(lambda: {"textDocument": {"uri": uri}} in vim.told("textDocument/didFocus"), "the focus")


def test_a_server_without_next_edits_is_not_asked(start: Start) -> None:
    vim = start()
    vim.vim.lua("vim.lsp.get_clients({ name = 'caesura' })[1].server_capabilities.experimental = nil")
    changes(vim)
    time.sleep(PAUSE_S)
    assert not vim.asked
