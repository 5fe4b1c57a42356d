--- |:checkhealth| caesura

local compat = require("caesura.compat")
local keymaps = require("caesura.keymaps")
local options = require("caesura.options")
local program = require("caesura.program")
local status = require("caesura.status")

local health = vim.health
local M = {}

-- Others that draw ghost text at the cursor, by what tells that they are loaded.
local OTHERS = {
  ["copilot.vim"] = function()
    return vim.g.loaded_copilot
  end,
  ["copilot.lua"] = function()
    return package.loaded["copilot.suggestion"]
  end,
  ["supermaven-nvim"] = function()
    return package.loaded["supermaven-nvim"]
  end,
  ["windsurf.vim"] = function()
    return vim.g.loaded_codeium
  end,
  ["minuet-ai.nvim"] = function()
    return package.loaded["minuet.virtualtext"]
  end,
  ["llama.vim"] = function()
    return vim.g.loaded_llama
  end,
}

local function check_neovim()
  local version = tostring(vim.version())
  if vim.fn.has("nvim-0.10") == 0 then
    health.error("Neovim " .. version .. " is too old", "Neovim 0.10 or later is needed")
  elseif options.get().view == "builtin" and not compat.has_inline_completion then
    health.warn(("Neovim %s has no view of its own"):format(version), 'Leave out view = "builtin"')
  else
    health.ok(("Neovim %s, view %q"):format(version, options.get().view))
  end
end

local function check_program()
  local command, missing = program.command()
  if not command then
    local where = ("Looked for: %s, caesura on PATH. Name another: :help caesura-setup"):format(program.OWN)
    return health.error(missing, where)
  end
  local ran = vim.system({ command[1], "--version" }, { text = true, timeout = 20000 }):wait()
  if ran.code == 0 then
    health.ok(("%s (%s)"):format(table.concat(command, " "), vim.trim(ran.stdout)))
  else
    health.error(table.concat(command, " ") .. " does not run", vim.trim(ran.stderr or ""))
  end
end

local function check_servers()
  local clients = vim.lsp.get_clients({ name = "caesura" })
  if #clients == 0 then
    return health.warn("No server runs", {
      'Call require("caesura").setup {} or vim.lsp.enable("caesura")',
      "Open a file: buffers without one, and file types that are off, get none",
      "Start it anew where it has ended: :Caesura restart",
    })
  end
  for _, client in ipairs(clients) do
    local buffers = vim.tbl_keys(client.attached_buffers)
    local root = client.config.root_dir or "no folder"
    health.ok(("A server in %s: %d buffers, positions in %s"):format(root, #buffers, client.offset_encoding))
    local found = status.get(buffers[1])
    local told = ("The engine is %s"):format(found.state)
    if found.state == "ready" then
      health.ok(("%s: %s on %s"):format(told, found.model, found.device))
    elseif found.state == "unavailable" then
      health.error(("%s: %s"):format(told, found.message), "Run `caesura doctor`")
    else
      health.info(told)
    end
  end
end

local function check_others()
  for name, is_loaded in pairs(OTHERS) do
    if is_loaded() then
      health.warn(name .. " draws suggestions at the cursor too", "Switch one of the two off")
    end
  end
  for _, client in ipairs(vim.lsp.get_clients()) do
    local draws = vim.tbl_get(client, "server_capabilities", "inlineCompletionProvider")
      and compat.has_inline_completion
      and vim.lsp.inline_completion.is_enabled()
    if client.name ~= "caesura" and draws then
      health.warn(client.name .. " draws suggestions at the cursor too", "Switch one of the two off")
    end
  end
end

local function check_keymaps()
  local wanted = options.get().keymaps
  if not wanted then
    return health.info("No keys are mapped by setup; see :help caesura-keymaps")
  end
  for name, key in vim.spairs(type(wanted) == "table" and wanted or keymaps.DEFAULTS) do
    local now = key and vim.fn.maparg(key, "i", false, true)
    if now and not vim.startswith(now.desc or "", "Caesura") then
      local remedy = "Call setup later, or take another key"
      health.warn(("%s (%s) was mapped to something else since"):format(key, name), remedy)
    elseif now then
      health.ok(("%s: %s"):format(key, name))
    end
  end
end

function M.check()
  health.start("Caesura")
  check_neovim()
  check_program()
  check_servers()
  check_others()
  check_keymaps()
end

return M
