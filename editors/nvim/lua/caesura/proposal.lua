--- A text proposed for a place in a buffer, and how much of it is still to come after what was typed since. It reads
--- the buffer and changes nothing.

---@class caesura.Place where something was asked for; rows, columns and texts are of that moment, columns in bytes
---@field buf integer
---@field row integer from 0
---@field line string
---@field lines integer of the buffer

---@class caesura.Proposal
---@field client vim.lsp.Client whose it is
---@field place caesura.Place
---@field column integer where the text begins in the line
---@field replaced string what it replaces: nothing, or what the editor has closed by itself
---@field tail string the line behind that
---@field texts string[] to choose from, best first
---@field chosen integer which of them
---@field command? lsp.Command for the server, once the text was taken
local Proposal = {}
Proposal.__index = Proposal

---@param client vim.lsp.Client
---@param place caesura.Place
---@param column integer
---@param finish integer the end of what is replaced
---@param texts string[]
---@param command? lsp.Command
function Proposal.new(client, place, column, finish, texts, command)
  return setmetatable({
    client = client,
    place = place,
    column = column,
    replaced = place.line:sub(column + 1, finish),
    tail = place.line:sub(finish + 1),
    texts = texts,
    chosen = 1,
    command = command,
  }, Proposal)
end

--- The place of the cursor.
---@return caesura.Place, integer column
function Proposal.here()
  local buf = vim.api.nvim_get_current_buf()
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local line = vim.api.nvim_get_current_line()
  return { buf = buf, row = row - 1, line = line, lines = vim.api.nvim_buf_line_count(buf) }, column
end

--- Where the characters of `part` stand in `text`, in order, as far to the right as they can; nil where they do not.
---@return integer[]?
function Proposal.within(part, text)
  local found, limit = {}, #text
  for index = #part, 1, -1 do
    local at = limit
    while at > 0 and text:byte(at) ~= part:byte(index) do
      at = at - 1
    end
    if at == 0 then
      return nil
    end
    found[index], limit = at, at - 1
  end
  return found
end

local function is_closing(text)
  return not text:find("[^%)%]}>\"'`]")
end

---@class caesura.Rest
---@field text string what is still to come at the cursor
---@field typed integer bytes of the proposal that stand there already
---@field place caesura.Place
---@field column integer of the cursor
---@field replaced string behind the cursor: what the text brings along by itself
---@field tail string behind that

--- What is left at the cursor; nil where the buffer says something else by now, or nothing is left.
---@return caesura.Rest?
function Proposal:rest()
  local here, column = Proposal.here()
  local asked = self.place
  if here.buf ~= asked.buf or here.row < asked.row or here.lines - asked.lines ~= here.row - asked.row then
    return nil
  end
  if here.row == asked.row and column < self.column then
    return nil
  end
  local first = vim.api.nvim_buf_get_lines(here.buf, asked.row, asked.row + 1, true)[1]
  if first:sub(1, self.column) ~= asked.line:sub(1, self.column) then
    return nil
  end
  local lines = vim.api.nvim_buf_get_text(here.buf, asked.row, self.column, here.row, column, {})
  local typed, text = table.concat(lines, "\n"), self.texts[self.chosen]
  local behind = here.line:sub(column + 1)
  if not vim.startswith(text, typed) or #text == #typed or not vim.endswith(behind, self.tail) then
    return nil
  end
  -- Typing puts closing brackets behind the cursor, or goes over those that stand there: the text brings its own.
  local replaced = behind:sub(1, #behind - #self.tail)
  local left = text:sub(#typed + 1)
  if not (vim.endswith(self.replaced, replaced) or is_closing(replaced)) or not Proposal.within(replaced, left) then
    return nil
  end
  return {
    text = left,
    typed = #typed,
    place = here,
    column = column,
    replaced = replaced,
    tail = self.tail,
  }
end

return Proposal
