--- Caesura: the lines that a gap leaves out, while you type. |caesura.txt|

local compat = require("caesura.compat")
local options = require("caesura.options")
local view = require("caesura.view")

local M = {}

--- Attach the server to all files that are open, as far as they get suggestions.
function M.start()
  local config = compat.config()
  for _, buf in ipairs(vim.tbl_filter(vim.api.nvim_buf_is_loaded, vim.api.nvim_list_bufs())) do
    config.root_dir(buf, function(root)
      vim.lsp.start(vim.tbl_extend("force", config, { root_dir = root }), { bufnr = buf })
    end)
  end
end

--- Start with these options. |caesura-setup|
---@param given? table
function M.setup(given)
  vim.cmd.runtime("plugin/caesura.lua") -- also where the runtime path came later than Neovim's own plugins
  options.set(given)
  require("caesura.keymaps").set(options.get().keymaps, options.get().next_edit)
  require("caesura.next_edit").set()
  if compat.has_enable then
    return vim.lsp.enable("caesura")
  end
  vim.api.nvim_create_autocmd("FileType", {
    group = vim.api.nvim_create_augroup("caesura.enable", {}),
    callback = M.start,
  })
  M.start()
end

-- Each says whether there was something to do, so that a key can do something else where there was not.

function M.accept()
  return view.get().take("all")
end

function M.accept_word()
  return view.get().take("word")
end

function M.accept_line()
  return view.get().take("line")
end

function M.next()
  return view.get().choose(1)
end

function M.previous()
  return view.get().choose(-1)
end

function M.dismiss()
  return view.get().dismiss()
end

function M.trigger()
  view.get().trigger()
  return true
end

--- A word or two for a statusline. |caesura-status|
---@return string
function M.status()
  return require("caesura.status").text()
end

return M
