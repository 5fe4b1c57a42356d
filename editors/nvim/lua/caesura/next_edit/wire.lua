--- The messages of next edits: Copilot's, and one of our own. docs/protocol.md

local compat = require("caesura.compat")

local M = {}

---@class caesura.Edit
---@field text string
---@field textDocument {uri: string, version: integer}
---@field range lsp.Range
---@field command lsp.Command
---@field why? string

--- The server of a buffer, if it gives next edits.
---@return vim.lsp.Client?
function M.client(buf)
  local client = vim.lsp.get_clients({ name = "caesura", bufnr = buf })[1]
  local experimental = client and client.server_capabilities.experimental
  return vim.tbl_get(experimental or {}, "caesura", "nextEdit") == true and client or nil
end

--- Ask for the cursor of the current buffer. `answered` gets the edit, or nil: there is none, or the text has changed.
---@param client vim.lsp.Client
---@param invoked boolean the user asks
---@param answered fun(edit?: caesura.Edit)
---@return integer? id of the request
function M.ask(client, invoked, answered)
  local buf = vim.api.nvim_get_current_buf()
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local line, uri, version = vim.api.nvim_get_current_line(), vim.uri_from_bufnr(buf), vim.lsp.util.buf_versions[buf]
  local params = {
    textDocument = { uri = uri, version = version },
    position = { line = row - 1, character = compat.units(line, client.offset_encoding, column) },
    context = { triggerKind = invoked and 1 or 2 },
  }
  return compat.request(client, "textDocument/copilotInlineEdit", params, function(_, result)
    local edit = vim.tbl_get(result or {}, "edits", 1)
    local of = edit and edit.textDocument
    local fits = of and of.uri == uri and of.version == version and vim.lsp.util.buf_versions[buf] == version
    answered(fits and edit or nil)
  end, buf)
end

--- Report that an edit is drawn, or that the user has dismissed it.
---@param method "textDocument/didShowInlineEdit"|"caesura/didDismissInlineEdit"
---@param edit caesura.Edit
function M.tell(client, method, edit)
  compat.notify(client, method, { item = { command = { arguments = edit.command.arguments } } })
end

--- Report that an edit is in the text.
---@param edit caesura.Edit
function M.tell_taken(client, edit)
  local command = { command = edit.command.command, arguments = edit.command.arguments }
  compat.request(client, "workspace/executeCommand", command, function() end)
end

--- Report which document the user is in.
function M.tell_focus(client, buf)
  compat.notify(client, "textDocument/didFocus", { textDocument = { uri = vim.uri_from_bufnr(buf) } })
end

return M
