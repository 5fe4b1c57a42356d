--- When the server is asked for a next edit: after a pause, while nothing else is going on, once at a time.

local compat = require("caesura.compat")
local menu = require("caesura.menu")
local options = require("caesura.options")
local status = require("caesura.status")
local view = require("caesura.view")
local wire = require("caesura.next_edit.wire")

local M = {}

local timer = assert(vim.uv.new_timer())
local flight ---@type {client: vim.lsp.Client, id?: integer}?

--- The server's setting `nextEdit`.
---@return "off"|"quiet"|"eager"|"manual"
local function setting(client)
  local given = vim.tbl_extend("force", options.get().settings, client.config.init_options or {})
  return given.nextEdit or "quiet"
end

--- The client of the current buffer, if the user wants next edits there.
---@return vim.lsp.Client?
function M.client()
  local client = options.get().next_edit and status.enabled() and wire.client(vim.api.nvim_get_current_buf())
  return client and setting(client) ~= "off" and client or nil
end

--- Whether keys are the user's own, in Normal or Insert mode, and neither a popup, a suggestion nor a snippet's.
function M.is_free()
  local mode = vim.api.nvim_get_mode().mode
  if not vim.bo.modifiable or vim.fn.reg_recording() ~= "" or vim.fn.reg_executing() ~= "" then
    return false
  end
  return mode == "n" or mode == "i" and not (menu.is_open() or view.get().is_shown() or vim.snippet.active())
end

--- Whether the user types in the middle of a word.
local function is_in_word()
  local column = vim.api.nvim_win_get_cursor(0)[2]
  local line = vim.api.nvim_get_current_line()
  return vim.fn.mode() == "i" and vim.fn.match(line:sub(1, column), [[\k$]]) >= 0
    and vim.fn.match(line:sub(column + 1), [[^\k]]) >= 0
end

function M.cancel()
  timer:stop()
  if flight and flight.id then
    compat.cancel(flight.client, flight.id)
  end
  flight = nil
end

--- Ask in place of what was asked before.
---@param client vim.lsp.Client
---@param invoked boolean the user asks
---@param answered fun(client: vim.lsp.Client, edit?: caesura.Edit) called where the user is still in the same buffer
function M.ask(client, invoked, answered)
  M.cancel()
  local buf, this = vim.api.nvim_get_current_buf(), { client = client }
  flight = this
  this.id = wire.ask(client, invoked, function(edit)
    if flight == this then
      flight = nil
      if vim.api.nvim_get_current_buf() == buf then
        answered(client, edit)
      end
    end
  end)
end

--- Ask at once, if nothing else is going on then and when the answer is there.
---@param show fun(client: vim.lsp.Client, edit: caesura.Edit)
function M.ask_unasked(show)
  local client = M.client()
  if not client or setting(client) == "manual" or not M.is_free() or is_in_word() then
    return
  end
  M.ask(client, false, function(_, edit)
    if edit and M.is_free() and not is_in_word() then
      show(client, edit)
    end
  end)
end

--- Ask after a pause, which this begins again.
---@param show fun(client: vim.lsp.Client, edit: caesura.Edit)
function M.plan(pause_ms, show)
  M.cancel()
  timer:start(pause_ms, 0, vim.schedule_wrap(function()
    M.ask_unasked(show)
  end))
end

return M
