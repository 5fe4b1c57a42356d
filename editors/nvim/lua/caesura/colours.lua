--- The colour of ghost text: italic, and unlike comments and typed text in every colour scheme and terminal; and the
--- look of text that a next edit removes. A scheme or a user who sets CaesuraGhost or CaesuraRemoved is followed.

local M = {}

local FAR = 60 -- between two colours that nobody takes for each other: the distance in RGB

--- Readable colours, the best first, for true colour and for terminals of 256 and of 16 colours.
local CHOICES = {
  dark = { { 0x80868F, 244, 8 }, { 0x5F97D0, 68, 6 }, { 0xA884C8, 140, 5 } },
  light = { { 0x70767F, 243, 8 }, { 0x2F6FA8, 25, 4 }, { 0x8A5AA8, 97, 5 } },
}
-- The first sixteen as xterm has them, and the steps of the cube after them.
-- stylua: ignore
local SIXTEEN = {
  0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x0000EE, 0xCD00CD, 0x00CDCD, 0xE5E5E5,
  0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF,
}
local CUBE = { 0, 95, 135, 175, 215, 255 }

local set = {} ---@type table<string, table>  what this file has set, as Neovim tells it

--- The RGB of one of a terminal's 256 colours.
local function rgb(index)
  if index < 16 then
    return SIXTEEN[index + 1]
  elseif index >= 232 then
    return (8 + 10 * (index - 232)) * 0x010101
  end
  local at = index - 16
  return CUBE[math.floor(at / 36) + 1] * 0x10000 + CUBE[math.floor(at / 6) % 6 + 1] * 0x100 + CUBE[at % 6 + 1]
end

local function distance(one, other)
  local sum = 0
  for _, shift in ipairs({ 16, 8, 0 }) do
    local apart = bit.band(bit.rshift(one, shift), 0xFF) - bit.band(bit.rshift(other, shift), 0xFF)
    sum = sum + apart * apart
  end
  return math.sqrt(sum)
end

--- The first choice that is far from all of the others, else the one that is furthest.
local function pick(choices, others, to_rgb)
  local best, furthest
  for _, choice in ipairs(choices) do
    local nearest = math.huge
    for _, other in pairs(others) do
      nearest = math.min(nearest, distance(to_rgb(choice), to_rgb(other)))
    end
    if nearest >= FAR then
      return choice
    elseif not furthest or nearest > furthest then
      best, furthest = choice, nearest
    end
  end
  return best
end

local function group(name)
  return vim.api.nvim_get_hl(0, { name = name, link = false })
end

--- What the group of ghost text is by default.
local function ghost()
  local comment, normal = group("Comment"), group("Normal")
  local count = tonumber(vim.fn.eval("&t_Co"))
  local gui, terminal = {}, {}
  for _, choice in ipairs(CHOICES[vim.o.background]) do
    local index = choice[count >= 256 and 2 or 3]
    table.insert(gui, choice[1])
    table.insert(terminal, index < count and index or nil) -- old ones have eight colours only
  end
  return {
    default = true,
    force = true, -- what was ours before
    italic = true,
    cterm = { italic = true },
    fg = pick(gui, { comment.fg, normal.fg, normal.bg }, function(color)
      return color
    end),
    ctermfg = pick(terminal, { comment.ctermfg, normal.ctermfg, normal.ctermbg }, rgb),
  }
end

--- A stroke, and the background of what a diff deletes, as some terminals have no strokes; its colour where it has no
--- background. Schemes that have both often hide the text.
local function removed()
  local deleted = group("DiffDelete")
  return {
    default = true,
    force = true,
    strikethrough = true,
    cterm = { strikethrough = true },
    bg = deleted.bg,
    fg = not deleted.bg and deleted.fg or nil,
    ctermbg = deleted.ctermbg,
    ctermfg = not deleted.ctermbg and deleted.ctermfg or nil,
  }
end

local function current(name)
  local found = vim.api.nvim_get_hl(0, { name = name })
  found.default = nil -- Neovim forgets it with a new background
  return found
end

--- Set them, unless somebody else has.
function M.set()
  for name, default in pairs({ CaesuraGhost = ghost, CaesuraRemoved = removed }) do
    local now = current(name)
    if next(now) == nil or vim.deep_equal(now, set[name]) then
      vim.api.nvim_set_hl(0, name, default())
      set[name] = current(name)
    end
  end
end

return M
