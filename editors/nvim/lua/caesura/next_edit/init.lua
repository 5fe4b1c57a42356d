--- Next edits: the server carries the user's last edit over to a similar place of the document. It is drawn there until
--- the text changes, and keys apply or dismiss it.

local asking = require("caesura.next_edit.asking")
local options = require("caesura.options")
local shown = require("caesura.next_edit.shown")
local wire = require("caesura.next_edit.wire")

local M = {}

local NORMAL_MS, TYPING_MS = 100, 400 -- after a change in Normal mode, and after a key in Insert mode

local cursor_row ---@type integer?
local applied_tick ---@type integer?  of the text after the last edit that was applied

local function mode()
  return vim.api.nvim_get_mode().mode
end

--- The row and column of the cursor, from 0.
local function cursor()
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  return row - 1, column
end

local function plan(pause_ms)
  asking.plan(pause_ms, shown.show)
end

--- Nothing is shown or asked for.
function M.clear()
  asking.cancel()
  shown.clear()
end

-- What happens in the editor

local function changed()
  if vim.api.nvim_buf_get_changedtick(0) == applied_tick then
    return -- the next edit is asked for already
  end
  if not shown.is_there() then
    shown.clear()
  end
  cursor_row = cursor()
  plan(mode() == "n" and NORMAL_MS or TYPING_MS)
end

local function moved()
  local row = cursor()
  local is_elsewhere = row ~= cursor_row
  cursor_row = row
  if shown.is_there() then
    shown.moved(row)
  elseif is_elsewhere then
    plan(TYPING_MS)
  end
end

local function scrolled()
  if shown.is_there() then
    shown.moved((cursor()))
  end
end

--- Esc, or any other way out of Insert mode.
local function left_insert()
  if shown.is_of_insert() then
    shown.dismiss()
  end
  plan(NORMAL_MS)
end

local function applied()
  cursor_row, applied_tick = cursor(), vim.api.nvim_buf_get_changedtick(0)
  asking.ask_unasked(shown.show)
end

local group = vim.api.nvim_create_augroup("caesura.next_edit", {})

local function follow()
  vim.api.nvim_create_autocmd("ModeChanged", { group = group, pattern = "i*:n", callback = left_insert })
  local function on(events, callback)
    vim.api.nvim_create_autocmd(events, { group = group, callback = callback })
  end
  on({ "TextChanged", "TextChangedI", "TextChangedP" }, changed)
  on({ "CursorMoved", "CursorMovedI" }, moved)
  on("WinScrolled", scrolled)
  on({ "InsertEnter", "BufLeave", "WinLeave", "LspDetach" }, M.clear)
  on({ "BufEnter", "LspAttach" }, function(call)
    local client = call.buf == vim.api.nvim_get_current_buf() and wire.client(call.buf)
    if client then
      wire.tell_focus(client, call.buf)
    end
  end)
end

--- Begin or stop, as the option says.
function M.set()
  M.clear()
  vim.api.nvim_clear_autocmds({ group = group })
  if options.get().next_edit then
    follow()
  end
end

-- What the user does. Each says whether there was something to do.

--- Whether a next edit is shown and the keys are free for it.
function M.is_shown()
  return shown.is_there() and asking.is_free()
end

--- Go to the edit, or apply it if the cursor is there.
function M.take()
  local is_shown = M.is_shown()
  if is_shown then
    asking.cancel()
    shown.take(applied)
  end
  return is_shown
end

--- The same for a key that indents after blanks: there the edit must have been gone to.
function M.take_by_key()
  local _, column = cursor()
  local indents = not vim.api.nvim_get_current_line():sub(1, column):find("%S")
  return (not indents or shown.has_jumped()) and M.take()
end

--- Never show this edit in this place again.
function M.dismiss()
  asking.cancel()
  return shown.dismiss()
end

--- Ask, because the user wants it.
function M.next()
  M.clear()
  local client = asking.client()
  if not client then
    vim.notify("Caesura: there are no next edits here; see :help caesura-next-edit.", vim.log.levels.INFO)
    return false
  end
  asking.ask(client, true, function(_, edit)
    if not (edit and shown.show(client, edit)) then
      vim.notify("Caesura: there is no next edit for this place.", vim.log.levels.INFO)
    end
  end)
  return true
end

return M
