--- The edits that the user has dismissed, by place and text. Extended marks move the places with the text around them;
--- a place that was written in is another place.

local M = {}

local space = vim.api.nvim_create_namespace("caesura.next_edit.dismissed")
local edits = {} ---@type table<integer, table<integer, {old: string, new: string}>>  by buffer and mark

---@param change caesura.Change
function M.add(change)
  local row, column = change:inside(change.start)
  local mark = vim.api.nvim_buf_set_extmark(change.buf, space, row, column, {})
  edits[change.buf] = edits[change.buf] or {}
  edits[change.buf][mark] = { old = change.old, new = change.new }
end

---@param change caesura.Change
---@return boolean
function M.has(change)
  local row, column = change:inside(change.start)
  local place = { row, column }
  return vim.iter(vim.api.nvim_buf_get_extmarks(change.buf, space, place, place, {})):any(function(mark)
    local edit = vim.tbl_get(edits, change.buf, mark[1])
    return edit ~= nil and edit.old == change.old and edit.new == change.new
  end)
end

return M
