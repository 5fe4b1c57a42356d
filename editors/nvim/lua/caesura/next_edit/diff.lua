--- The words that differ between two texts whose lines end with "\n". It reads no buffer.

local compat = require("caesura.compat")

local M = {}

---@class caesura.Hunk `text` replaces the bytes of the old text after `start`, up to `finish`
---@field start integer
---@field finish integer
---@field text string

--- The words, blanks, line ends and single signs of a text. A byte beyond ASCII counts as part of a word.
local function words_of(text)
  local found, at = {}, 1
  while at <= #text do
    local word = text:match("^[%w_\128-\255]+", at) or text:match("^[ \t]+", at) or text:sub(at, at)
    table.insert(found, word)
    at = at + #word
  end
  return found
end

--- A word on each line: the empty line stands for a line end.
local function as_lines(words)
  local lines = vim.tbl_map(function(word)
    return word == "\n" and "" or word
  end, words)
  return #lines == 0 and "" or table.concat(lines, "\n") .. "\n"
end

--- Where each word ends, in bytes, from the index 0 on.
local function ends_of(words)
  local ends = { [0] = 0 }
  for index, word in ipairs(words) do
    ends[index] = ends[index - 1] + #word
  end
  return ends
end

--- Hunks with only blanks between them are one: two words with a kept blank between them are hard to read.
---@param hunks caesura.Hunk[]
local function joined(before, hunks)
  local found = {} ---@type caesura.Hunk[]
  for _, hunk in ipairs(hunks) do
    local last = found[#found]
    local gap = last and before:sub(last.finish + 1, hunk.start)
    if gap and not gap:find("[^ \t]") then
      last.finish, last.text = hunk.finish, last.text .. gap .. hunk.text
    else
      table.insert(found, hunk)
    end
  end
  return found
end

--- New lines in front of an indented line are whole lines, not the rest of one and the next one's indentation.
---@param hunk caesura.Hunk
local function whole_lines(before, hunk)
  local indent = before:sub(1, hunk.start):match("[^\n]*$")
  if hunk.start == hunk.finish and indent:find("^[ \t]+$") and vim.endswith(hunk.text, "\n" .. indent) then
    hunk.start = hunk.start - #indent
    hunk.finish = hunk.start
    hunk.text = indent .. hunk.text:sub(1, -#indent - 1)
  end
  return hunk
end

--- The hunks that turn `before` into `after`, in order, with at least one kept word between two of them.
---@return caesura.Hunk[]
function M.words(before, after)
  local removed, added = words_of(before), words_of(after)
  local old, new = ends_of(removed), ends_of(added)
  local hunks = {}
  local options = { result_type = "indices", algorithm = "minimal" }
  for _, pair in ipairs(compat.diff(as_lines(removed), as_lines(added), options)) do
    local from, count, fresh, fresh_count = unpack(pair)
    local start = count == 0 and from or from - 1 -- without a word, the index is the one before
    local first = fresh_count == 0 and fresh or fresh - 1
    local text = after:sub(new[first] + 1, new[first + fresh_count])
    table.insert(hunks, { start = old[start], finish = old[start + count], text = text })
  end
  return vim.tbl_map(function(hunk)
    return whole_lines(before, hunk)
  end, joined(before, hunks))
end

return M
