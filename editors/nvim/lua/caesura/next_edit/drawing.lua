--- A next edit on the screen, by extended marks: old words struck through, new words inline, new lines as lines.

local M = {}

local space = vim.api.nvim_create_namespace("caesura.next_edit")
local hints = vim.api.nvim_create_namespace("caesura.next_edit.hint")

--- Tabs as blanks: virtual text has none.
local function piece(buf, text)
  return { (text:gsub("\t", (" "):rep(vim.bo[buf].tabstop))), "CaesuraAdded" }
end

local function mark(buf, row, column, options)
  options.undo_restore = false
  vim.api.nvim_buf_set_extmark(buf, space, row, column, options)
end

--- New lines after a row.
local function block(buf, row, lines)
  local shown = vim.tbl_map(function(line)
    return { piece(buf, line) }
  end, lines)
  mark(buf, row, 0, { virt_lines = shown })
end

---@param change caesura.Change
---@param part caesura.Part
local function removed(change, part)
  local row, column = change:inside(part.start)
  local last_row, last_column = change:inside(part.finish)
  if row < last_row or column < last_column then
    local range = { end_row = last_row, end_col = last_column, hl_group = "CaesuraRemoved", priority = 300 }
    mark(change.buf, row, column, range)
  end
end

---@param change caesura.Change
---@param part caesura.Part
local function added(change, part)
  local buf, start, finish = change.buf, part.start, part.finish
  local lines = vim.split(part.text, "\n", { plain = true })
  local is_insertion = start.row == finish.row and start.column == finish.column
  local is_after = start.row == vim.api.nvim_buf_line_count(buf)
  if is_insertion and start.column == 0 and start.row > 0 and (is_after or lines[#lines] == "") then
    if lines[#lines] == "" then
      table.remove(lines)
    end
    return block(buf, start.row - 1, lines)
  end
  local row, column = change:inside(finish)
  local here = table.remove(lines, 1)
  if here ~= "" then
    mark(buf, row, column, { virt_text = { piece(buf, here) }, virt_text_pos = "inline", hl_mode = "replace" })
  end
  if #lines > 0 then
    block(buf, row, lines)
  end
end

---@param change caesura.Change
---@param why string
function M.draw(change, why)
  for _, part in ipairs(change.parts) do
    removed(change, part)
    added(change, part)
  end
  local row = change:inside(change.start)
  mark(change.buf, row, 0, { sign_text = "»", sign_hl_group = "CaesuraSign" })
  M.point(change, why)
end

--- Say at the end of the cursor's line where the edit is, if its place is not in the window.
---@param change caesura.Change
---@param why string
function M.point(change, why)
  local row, cursor = change:inside(change.start), vim.api.nvim_win_get_cursor(0)[1] - 1
  vim.api.nvim_buf_clear_namespace(change.buf, hints, 0, -1)
  if vim.fn.line("w0") <= row + 1 and row + 1 <= vim.fn.line("w$") then
    return
  end
  local text = ("next edit in line %d %s"):format(row + 1, row > cursor and "↓" or "↑")
  local shown = { { "    " .. text .. (why ~= "" and ", " .. why or ""), "CaesuraSign" } }
  vim.api.nvim_buf_set_extmark(change.buf, hints, cursor, 0, { virt_text = shown, undo_restore = false })
end

function M.clear(buf)
  if vim.api.nvim_buf_is_valid(buf) then
    vim.api.nvim_buf_clear_namespace(buf, space, 0, -1)
    vim.api.nvim_buf_clear_namespace(buf, hints, 0, -1)
  end
end

return M
