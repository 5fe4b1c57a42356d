--- Which of the two views draws, and the buffers that it draws in.

local compat = require("caesura.compat")
local options = require("caesura.options")

local M = {}

local started = {}

local function name()
  local wanted = options.get().view
  if wanted == "builtin" and not compat.has_inline_completion then
    vim.notify_once('Caesura: the view "builtin" needs Neovim 0.12; "stream" is used.', vim.log.levels.WARN)
    return "stream"
  end
  return wanted
end

---@class caesura.View
---@field start fun()
---@field attach fun(client: vim.lsp.Client, buf: integer)
---@field detach fun(buf: integer)
---@field is_shown fun(): boolean
---@field take fun(part: "all"|"word"|"line"): boolean whether there was something to take
---@field choose fun(count: integer): boolean
---@field dismiss fun(): boolean
---@field trigger fun()

---@return caesura.View
function M.get()
  local view = require("caesura." .. name())
  if not started[view] then
    started[view] = true
    view.start()
  end
  return view
end

--- Draw wherever the server is attached, however it was started.
function M.follow_clients()
  local group = vim.api.nvim_create_augroup("caesura", {})
  local function on(event, handle)
    vim.api.nvim_create_autocmd(event, {
      group = group,
      callback = function(call)
        local client = vim.lsp.get_client_by_id(call.data.client_id)
        if client and client.name == "caesura" then
          handle(client, call.buf)
        end
      end,
    })
  end
  on("LspAttach", function(client, buf)
    M.get().attach(client, buf)
    require("caesura.status").changed()
  end)
  on("LspDetach", function(_, buf)
    M.get().detach(buf)
    vim.schedule(require("caesura.status").changed)
  end)
end

return M
