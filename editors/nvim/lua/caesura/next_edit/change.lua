--- What a next edit changes in a buffer: the least of it, word by word.

local compat = require("caesura.compat")
local diff = require("caesura.next_edit.diff")

---@class caesura.Spot rows and columns from 0, columns in bytes; the row after the last one is empty, as for the server
---@field row integer
---@field column integer

---@class caesura.Part `text` replaces what stands from `start` to `finish`
---@field start caesura.Spot
---@field finish caesura.Spot
---@field text string

---@class caesura.Change
---@field buf integer
---@field tick integer of the buffer's text
---@field start caesura.Spot of the first part
---@field finish caesura.Spot of the last part
---@field parts caesura.Part[]
---@field old string what stands from `start` to `finish`
---@field new string what will stand there
local Change = {}
Change.__index = Change

local LINE_ENDS = { dos = "\r\n", mac = "\r" }

--- A text of the server with the line ends that Neovim has inside.
local function unified(buf, text)
  local line_end = LINE_ENDS[vim.bo[buf].fileformat]
  return line_end and (text:gsub(line_end, "\n")) or text
end

---@param position lsp.Position
---@return caesura.Spot
local function spot(buf, position, encoding)
  local line = vim.api.nvim_buf_get_lines(buf, position.line, position.line + 1, false)[1]
  if not line then
    return { row = vim.api.nvim_buf_line_count(buf), column = 0 }
  end
  return { row = position.line, column = compat.bytes(line, encoding, position.character) }
end

---@param from caesura.Spot
---@param to caesura.Spot
local function text_between(buf, from, to)
  local lines = vim.api.nvim_buf_get_lines(buf, from.row, to.row + 1, false)
  if to.row >= vim.api.nvim_buf_line_count(buf) then
    table.insert(lines, "")
  end
  lines[#lines] = lines[#lines]:sub(1, to.column)
  lines[1] = lines[1]:sub(from.column + 1)
  return table.concat(lines, "\n")
end

--- The spot after `text`, which begins at `from`.
---@param from caesura.Spot
---@return caesura.Spot
local function after(from, text)
  local _, count = text:gsub("\n", "")
  local last = #text:match("[^\n]*$")
  return { row = from.row + count, column = count == 0 and from.column + last or last }
end

--- The change that an edit of the server makes; nil where it makes none.
---@param edit {text: string, range: lsp.Range}
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return caesura.Change?
function Change.of(buf, edit, encoding)
  local from, to = spot(buf, edit.range.start, encoding), spot(buf, edit.range["end"], encoding)
  local old, new = text_between(buf, from, to), unified(buf, edit.text)
  local hunks = diff.words(old, new)
  local first, last = hunks[1], hunks[#hunks]
  if not first then
    return nil
  end
  local parts = vim.tbl_map(function(hunk)
    local start, finish = after(from, old:sub(1, hunk.start)), after(from, old:sub(1, hunk.finish))
    return { start = start, finish = finish, text = hunk.text }
  end, hunks)
  return setmetatable({
    buf = buf,
    tick = vim.api.nvim_buf_get_changedtick(buf),
    start = parts[1].start,
    finish = parts[#parts].finish,
    parts = parts,
    old = old:sub(first.start + 1, last.finish),
    new = new:sub(first.start + 1, #new - (#old - last.finish)),
  }, Change)
end

--- Whether the buffer still has the text for which the change was made.
function Change:fits()
  return vim.api.nvim_buf_is_valid(self.buf) and vim.api.nvim_buf_get_changedtick(self.buf) == self.tick
end

--- A spot that is in the buffer: the empty row after the last one is the end of that.
---@param place caesura.Spot
---@return integer row, integer column
function Change:inside(place)
  local count = vim.api.nvim_buf_line_count(self.buf)
  if place.row < count then
    return place.row, place.column
  end
  return count - 1, #vim.api.nvim_buf_get_lines(self.buf, count - 1, count, true)[1]
end

--- Whether a cursor in that row is at a part of the change: a renaming leaves the rows between its places alone.
function Change:touches(row)
  return vim.iter(self.parts):any(function(part)
    return self:inside(part.start) <= row and row <= self:inside(part.finish)
  end)
end

--- Put one part in. In the row after the last one the line end goes before a text, not after it.
---@param part caesura.Part
function Change:put(part)
  local text, count = part.text, vim.api.nvim_buf_line_count(self.buf)
  local row, column = self:inside(part.start)
  local last_row, last_column = self:inside(part.finish)
  if part.start.row == count then
    text = "\n" .. text:gsub("\n$", "")
  elseif part.finish.row == count and vim.endswith(text, "\n") then
    text = text:sub(1, -2)
  elseif part.finish.row == count and text == "" and column == 0 and row > 0 then
    row = row - 1
    column = #vim.api.nvim_buf_get_lines(self.buf, row, row + 1, true)[1]
  end
  vim.api.nvim_buf_set_text(self.buf, row, column, last_row, last_column, vim.split(text, "\n", { plain = true }))
  return after({ row = row, column = column }, text)
end

--- Change the buffer, part by part, so that marks between them stay. The spot after the last part.
---@return integer row, integer column
function Change:apply()
  local space = vim.api.nvim_create_namespace("caesura.next_edit.end")
  local mark
  for index = #self.parts, 1, -1 do
    local place = self:put(self.parts[index])
    mark = mark or vim.api.nvim_buf_set_extmark(self.buf, space, place.row, place.column, {})
  end
  local row, column = unpack(vim.api.nvim_buf_get_extmark_by_id(self.buf, space, mark, {}))
  vim.api.nvim_buf_del_extmark(self.buf, space, mark)
  return row, column
end

return Change
