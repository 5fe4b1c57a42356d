--- What `setup` was given. A value that is wrong keeps its default, and is told of once.

local M = {}

---@class caesura.Options
---@field cmd? string[] the server, e.g. { "/path/to/caesura", "lsp" }; see program.lua for the default
---@field view "stream"|"builtin" who draws: this plugin, as soon as a part is sure, or Neovim 0.12 when all is
---@field eager boolean with the builtin view, ask at each key and not 200 ms after it
---@field menu boolean suggest while a completion menu is open
---@field keymaps boolean|table<string, string|false> see keymaps.lua
---@field next_edit boolean|table<string, string|false> whether to show next edits, and their keys: see keymaps.lua
---@field filetypes table<string, boolean> "*" stands for all others
---@field settings table the server's settings
local defaults = {
  cmd = nil,
  view = "stream",
  eager = false,
  menu = false,
  keymaps = false,
  next_edit = true,
  filetypes = { ["*"] = true, gitcommit = false, gitrebase = false },
  settings = {},
}

--- Whether a value is a table from names to what fits.
local function maps(value, fits)
  return type(value) == "table"
    and vim.iter(pairs(value)):all(function(name, of)
      return type(name) == "string" and fits(of)
    end)
end

--- Whether a value is a boolean or names keys.
local function has_keys(value)
  return type(value) == "boolean"
    or maps(value, function(key)
      return key == false or type(key) == "string"
    end)
end

local valid = {
  cmd = function(value)
    return vim.islist(value) and #value > 0, 'a list, such as { "/path/to/caesura", "lsp" }'
  end,
  view = function(value)
    return value == "stream" or value == "builtin", '"stream" or "builtin"'
  end,
  keymaps = function(value)
    return has_keys(value), 'true, false or a table, such as { accept = "<Tab>" }'
  end,
  next_edit = function(value)
    return has_keys(value), 'true, false or a table, such as { take = "<Tab>" }'
  end,
  filetypes = function(value)
    local function is_boolean(wanted)
      return type(wanted) == "boolean"
    end
    return maps(value, is_boolean), "a table, such as { python = true }"
  end,
}

---@type caesura.Options
local current = vim.deepcopy(defaults)

---@return caesura.Options
function M.get()
  return current
end

---@param given? table
function M.set(given)
  current = vim.deepcopy(defaults)
  local problems = {}
  for name, value in pairs(given or {}) do
    local check = valid[name]
    if not check and defaults[name] == nil then
      table.insert(problems, ("there is no option '%s'"):format(name))
    else
      local fits, wanted = type(value) == type(defaults[name]), "a " .. type(defaults[name])
      if check then
        fits, wanted = check(value)
      end
      if fits then
        current[name] = name == "filetypes" and vim.tbl_extend("force", defaults.filetypes, value) or value
      else
        table.insert(problems, ("'%s' must be %s"):format(name, wanted))
      end
    end
  end
  if #problems > 0 then
    table.sort(problems)
    vim.notify("Caesura: " .. table.concat(problems, "; ") .. ". See :help caesura-setup.", vim.log.levels.WARN)
  end
end

--- Whether a file type gets suggestions.
function M.wants(filetype)
  local wanted = current.filetypes[filetype]
  if wanted == nil then
    wanted = current.filetypes["*"]
  end
  return wanted ~= false
end

return M
