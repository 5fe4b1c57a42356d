--- What differs between Neovim 0.10, 0.11 and 0.12. No other file asks for a version.

local M = {}

local has_methods = vim.fn.has("nvim-0.11") == 1 -- clients are called `client:request`, no longer `client.request`

M.has_enable = vim.lsp.enable ~= nil -- 0.11
M.has_inline_completion = vim.lsp.inline_completion ~= nil -- 0.12

--- The client as the user has configured it.
---@return vim.lsp.ClientConfig
function M.config()
  return M.has_enable and vim.lsp.config.caesura or require("caesura.client")
end

local function call(client, name, ...)
  if has_methods then
    return client[name](client, ...)
  end
  return client[name](...)
end

--- The id of the request, or nil where the server is gone. Edits that were not sent yet go before it.
---@param client vim.lsp.Client
---@param handler fun(err?: lsp.ResponseError, result: any)
---@return integer?
function M.request(client, method, params, handler, buf)
  local sent, id = call(client, "request", method, params, handler, buf)
  return sent and id or nil
end

function M.notify(client, method, params)
  call(client, "notify", method, params)
end

function M.cancel(client, id)
  call(client, "cancel_request", id)
end

function M.stop(client)
  call(client, "stop")
end

function M.is_stopped(client)
  return call(client, "is_stopped")
end

--- How many bytes the first `units` of a text are, in a position encoding.
---@param encoding "utf-8"|"utf-16"|"utf-32"
function M.bytes(text, encoding, units)
  if encoding == "utf-8" then
    return math.min(units, #text)
  elseif has_methods then
    return vim.str_byteindex(text, encoding, units, false)
  end
  local ok, bytes = pcall(vim.str_byteindex, text, units, encoding == "utf-16")
  return ok and bytes or #text
end

--- The other way round.
---@param encoding "utf-8"|"utf-16"|"utf-32"
function M.units(text, encoding, bytes)
  if encoding == "utf-8" then
    return math.min(bytes, #text)
  elseif has_methods then
    return vim.str_utfindex(text, encoding, bytes, false)
  end
  local points, units = vim.str_utfindex(text, math.min(bytes, #text))
  return encoding == "utf-16" and units or points
end

M.diff = vim.text and vim.text.diff or vim.diff ---@diagnostic disable-line: deprecated

function M.log_path()
  return vim.lsp.log and vim.lsp.log.get_filename and vim.lsp.log.get_filename() or vim.lsp.get_log_path()
end

return M
