--- Next edits: the server carries the user's last edit over to a similar place of the document. It is drawn there until
--- the text changes, and keys apply or dismiss it.

local Change = require("caesura.next_edit.change")
local accept = require("caesura.accept")
local asking = require("caesura.next_edit.asking")
local dismissed = require("caesura.next_edit.dismissed")
local drawing = require("caesura.next_edit.drawing")
local options = require("caesura.options")
local wire = require("caesura.next_edit.wire")

local M = {}

local NORMAL_MS, TYPING_MS = 100, 400 -- after a change in Normal mode, and after a key in Insert mode

---@class caesura.Shown
---@field client vim.lsp.Client
---@field edit caesura.Edit
---@field change caesura.Change
---@field mode string in which it was drawn
---@field jumped boolean Tab has brought the cursor to the edit

local shown ---@type caesura.Shown?
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

--- Nothing is shown or asked for.
function M.clear()
  asking.cancel()
  if shown then
    drawing.clear(shown.change.buf)
    shown = nil
  end
end

---@param edit caesura.Edit
---@return boolean whether it is drawn
local function show(client, edit)
  local change = Change.of(vim.api.nvim_get_current_buf(), edit, client.offset_encoding)
  if not change or dismissed.has(change) then
    return false
  end
  M.clear()
  shown = { client = client, edit = edit, change = change, mode = mode(), jumped = false }
  drawing.draw(change, edit.why or "")
  wire.tell(client, "textDocument/didShowInlineEdit", edit)
  return true
end

local function plan(pause_ms)
  asking.plan(pause_ms, show)
end

-- What happens in the editor

local function changed()
  if vim.api.nvim_buf_get_changedtick(0) == applied_tick then
    return -- the next edit is asked for already
  end
  if shown and not shown.change:fits() then
    M.clear()
  end
  cursor_row = cursor()
  plan(mode() == "n" and NORMAL_MS or TYPING_MS)
end

local function moved()
  local row = cursor()
  local is_elsewhere = row ~= cursor_row
  cursor_row = row
  if shown then
    shown.jumped = shown.jumped and shown.change:touches(row)
    drawing.point(shown.change, shown.edit.why or "")
  elseif is_elsewhere then
    plan(TYPING_MS)
  end
end

local function scrolled()
  if shown and vim.api.nvim_get_current_buf() == shown.change.buf then
    drawing.point(shown.change, shown.edit.why or "")
  end
end

--- Esc, or any other way out of Insert mode.
local function left_insert()
  if shown and shown.mode == "i" then
    M.dismiss()
  end
  plan(NORMAL_MS)
end

local group = vim.api.nvim_create_augroup("caesura.next_edit", {})

local function start()
  vim.api.nvim_clear_autocmds({ group = group })
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
  if options.get().next_edit then
    start()
  else
    vim.api.nvim_clear_autocmds({ group = group })
  end
end

-- What the user does. Each says whether there was something to do.

--- Whether a next edit is shown and the keys are free for it.
function M.is_shown()
  return shown ~= nil
    and shown.change:fits()
    and shown.change.buf == vim.api.nvim_get_current_buf()
    and asking.is_free()
end

---@param it caesura.Shown
local function jump(it)
  local row, column = it.change:inside(it.change.start)
  it.jumped = true
  cursor_row = row
  vim.cmd("mark '") -- and not with |m|, which would leave Insert mode
  vim.api.nvim_win_set_cursor(0, { row + 1, column })
  if vim.fn.foldclosed(row + 1) > 0 then
    vim.cmd("foldopen!")
  end
  drawing.point(it.change, it.edit.why or "")
end

---@param it caesura.Shown
local function apply(it)
  M.clear()
  local function change()
    if not it.change:fits() then
      return
    end
    local row, column = it.change:apply()
    cursor_row, applied_tick = row, vim.api.nvim_buf_get_changedtick(it.change.buf)
    vim.api.nvim_win_set_cursor(0, { row + 1, column })
    wire.tell_taken(it.client, it.edit)
    asking.ask_unasked(show)
  end
  if mode() == "i" then
    accept.as_one_step(change)
  else
    change()
  end
end

--- Go to the edit, or apply it if the cursor is there.
function M.take()
  if not M.is_shown() then
    return false
  end
  if shown.change:touches((cursor())) then
    apply(shown)
  else
    jump(shown)
  end
  return true
end

--- The same for a key that indents after blanks: there the edit must have been gone to.
function M.take_by_key()
  local _, column = cursor()
  local indents = mode() == "i" and not vim.api.nvim_get_current_line():sub(1, column):find("%S")
  if indents and not (shown and shown.jumped) then
    return false
  end
  return M.take()
end

--- Never show this edit in this place again.
function M.dismiss()
  if not shown then
    return false
  end
  dismissed.add(shown.change)
  wire.tell(shown.client, "caesura/didDismissInlineEdit", shown.edit)
  M.clear()
  return true
end

--- Ask, because the user wants it.
function M.next()
  M.clear()
  local client = asking.client()
  if not client then
    local text = "Caesura: there are no next edits here; see :help caesura-next-edit."
    vim.notify(text, vim.log.levels.INFO)
    return false
  end
  asking.ask(client, function(_, edit)
    if not (edit and show(client, edit)) then
      vim.notify("Caesura: there is no next edit for this place.", vim.log.levels.INFO)
    end
  end)
  return true
end

return M
