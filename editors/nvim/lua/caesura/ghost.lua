--- The ghost on the screen: extended marks that hold virtual text, moved and filled anew in place, so that no frame is
--- without them while a text grows.

local Proposal = require("caesura.proposal")

local M = {}

local space = vim.api.nvim_create_namespace("caesura.ghost")
local drawn = { buf = -1, marks = 0 } -- the marks have the ids from 1

--- Tabs as the window would show them, for text that begins in a screen column.
local function spread(text, width)
  local tabstop = vim.bo.tabstop
  return (text:gsub("[^\t]*\t", function(part)
    local before = part:sub(1, -2)
    width = width + vim.fn.strdisplaywidth(before)
    local spaces = tabstop - width % tabstop
    width = width + spaces
    return before .. (" "):rep(spaces)
  end))
end

--- A piece of the ghost that begins in a screen column, and the column after it.
local function piece(text, width)
  local shown = spread(text, width)
  return { shown, "CaesuraGhost" }, width + vim.fn.strdisplaywidth(shown)
end

--- Where each line of a text begins and ends, in bytes.
local function lines_of(text)
  local found, start = {}, 1
  for line in vim.gsplit(text, "\n", { plain = true }) do
    table.insert(found, { start, start + #line - 1 })
    start = start + #line + 1
  end
  return found
end

--- The first line around what it replaces: virtual text before, between and behind those characters.
---@param rest caesura.Rest
---@param last integer the end of the first line in `rest.text`
---@param places integer[]
local function around(rest, last, places, width)
  local marks, from = {}, 1
  for index = 1, #places + 1 do
    local to = (places[index] or last + 1) - 1
    if from <= to or index == 1 then -- the first mark bears the lines below, if it has no text of its own
      local text
      text, width = piece(rest.text:sub(from, to), width)
      table.insert(marks, { column = rest.column + index - 1, virt_text = { text }, virt_text_pos = "inline" })
    end
    from, width = to + 2, width + 1
  end
  return marks
end

--- The first line over all that stands behind the cursor, which then follows the last line.
---@param rest caesura.Rest
local function over(rest, last, width)
  local text, shown = piece(rest.text:sub(1, last), width)
  local hidden = vim.fn.strdisplaywidth(rest.replaced .. rest.tail, width)
  local over_tail = { (" "):rep(math.max(0, width + hidden - shown)) }
  return { { column = rest.column, virt_text = { text, over_tail }, virt_text_pos = "overlay" } }
end

--- The marks of a ghost: of its first line, and of those below it.
---@param rest caesura.Rest
local function marks_of(rest)
  local lines = lines_of(rest.text)
  local last = lines[1][2]
  local width = vim.fn.strdisplaywidth(rest.place.line:sub(1, rest.column))
  local places = Proposal.within(rest.replaced, rest.text:sub(1, last))
  local apart = #lines > 1 and not (places and vim.trim(rest.tail) == "") -- the tail moves below the first line
  local marks = apart and over(rest, last, width) or around(rest, last, places, width)
  local below = {}
  for index = 2, #lines do
    local text, shown = piece(rest.text:sub(lines[index][1], lines[index][2]), 0)
    table.insert(below, { text, apart and index == #lines and { spread(rest.tail, shown), "Normal" } or nil })
  end
  return marks, below
end

--- Draw what is left of a proposal at the cursor, in the place of what was drawn.
---@param rest caesura.Rest
---@param count? string which of several it is
function M.draw(rest, count)
  local buf = rest.place.buf
  local marks, below = marks_of(rest)
  if drawn.buf ~= buf then
    M.clear()
  end
  if count then
    table.insert(#below > 0 and below[#below] or marks[#marks].virt_text, { count, "CaesuraCount" })
  end
  for id, mark in ipairs(marks) do
    vim.api.nvim_buf_set_extmark(buf, space, rest.place.row, mark.column, {
      id = id,
      virt_text = mark.virt_text,
      virt_text_pos = mark.virt_text_pos,
      virt_lines = id == 1 and #below > 0 and below or nil,
      hl_mode = "replace", -- and not the colour of a bracket that the cursor is behind
      undo_restore = false,
    })
  end
  for id = #marks + 1, drawn.marks do
    vim.api.nvim_buf_del_extmark(buf, space, id)
  end
  drawn = { buf = buf, marks = #marks }
end

function M.clear()
  if vim.api.nvim_buf_is_valid(drawn.buf) then
    vim.api.nvim_buf_clear_namespace(drawn.buf, space, 0, -1)
  end
  drawn = { buf = -1, marks = 0 }
end

return M
