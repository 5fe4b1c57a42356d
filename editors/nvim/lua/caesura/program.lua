--- Which program is the server: the one that |vim.lsp.config()| or `setup` names, else the one of the clone that this
--- plugin lies in, else the one on PATH.

local compat = require("caesura.compat")
local options = require("caesura.options")

local M = {}

local this = vim.uv.fs_realpath(debug.getinfo(1, "S").source:sub(2))
local clone = vim.fs.dirname(this):gsub("/editors/nvim/lua/caesura$", "")

M.OWN = clone .. "/.venv/bin/caesura"

local MISSING = "Caesura's server was not found; :checkhealth caesura says where." -- a longer one would wait for Enter

--- The command, or nil and a sentence.
---@return string[]?, string?
function M.command()
  local configured = compat.config().cmd
  if type(configured) == "table" then
    return configured
  end
  local given = options.get().cmd
  if given then
    local program = vim.fn.exepath(vim.fn.expand(given[1]))
    if program == "" then
      return nil, ("Caesura's server %s, which `cmd` names, cannot be run."):format(given[1])
    end
    return { program, unpack(given, 2) }
  end
  for _, name in ipairs({ M.OWN, "caesura" }) do
    local program = vim.fn.exepath(name)
    if program ~= "" then
      return { program, "lsp" }
    end
  end
  return nil, MISSING
end

return M
