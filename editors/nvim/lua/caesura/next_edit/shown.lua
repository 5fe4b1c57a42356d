--- The next edit that is drawn, and what the user does with it.

local Change = require("caesura.next_edit.change")
local accept = require("caesura.accept")
local dismissed = require("caesura.next_edit.dismissed")
local drawing = require("caesura.next_edit.drawing")
local wire = require("caesura.next_edit.wire")

local M = {}

---@class caesura.Shown
---@field client vim.lsp.Client
---@field edit caesura.Edit
---@field change caesura.Change
---@field mode string in which it was drawn
---@field jumped boolean the key has brought the cursor to the edit

local shown ---@type caesura.Shown?

local function mode()
  return vim.api.nvim_get_mode().mode
end

--- Whether an edit is drawn in the current buffer, for the text that stands there.
function M.is_there()
  return shown ~= nil and shown.change:fits() and shown.change.buf == vim.api.nvim_get_current_buf()
end

--- Whether Tab has brought the cursor to the edit.
function M.has_jumped()
  return shown ~= nil and shown.jumped
end

--- Whether it was drawn in Insert mode.
function M.is_of_insert()
  return shown ~= nil and shown.mode == "i"
end

function M.clear()
  if shown then
    drawing.clear(shown.change.buf)
    shown = nil
  end
end

--- Draw an edit in the current buffer, in the place of what was drawn. Returns true if it is drawn.
---@param client vim.lsp.Client
---@param edit caesura.Edit
function M.show(client, edit)
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

--- The cursor is in that row, or the window shows other lines.
function M.moved(row)
  shown.jumped = shown.jumped and shown.change:touches(row)
  drawing.point(shown.change, shown.edit.why or "")
end

---@param it caesura.Shown
local function jump(it)
  local row, column = it.change:inside(it.change.start)
  it.jumped = true
  vim.cmd("mark '") -- and not with |m|, which would leave Insert mode
  vim.api.nvim_win_set_cursor(0, { row + 1, column })
  if vim.fn.foldclosed(row + 1) > 0 then
    vim.cmd("foldopen!")
  end
  drawing.point(it.change, it.edit.why or "")
end

---@param it caesura.Shown
---@param applied fun()
local function apply(it, applied)
  M.clear()
  local function change()
    if it.change:fits() then
      local row, column = it.change:apply()
      vim.api.nvim_win_set_cursor(0, { row + 1, column })
      wire.tell_taken(it.client, it.edit)
      applied()
    end
  end
  if mode() == "i" then
    accept.as_one_step(change)
  else
    change()
  end
end

--- Go to the edit, or apply it if the cursor is there.
---@param applied fun() called when it is in the text
function M.take(applied)
  if shown.change:touches(vim.api.nvim_win_get_cursor(0)[1] - 1) then
    apply(shown, applied)
  else
    jump(shown)
  end
end

--- Never draw this edit in this place again. Returns true if there was one.
function M.dismiss()
  if not shown then
    return false
  end
  if shown.change:fits() then
    dismissed.add(shown.change)
  end
  wire.tell(shown.client, "caesura/didDismissInlineEdit", shown.edit)
  M.clear()
  return true
end

return M
