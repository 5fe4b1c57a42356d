--- `:Caesura why`: why there is no suggestion at the cursor. What Neovim decides itself comes first, then the server.

local compat = require("caesura.compat")
local options = require("caesura.options")
local status = require("caesura.status")

local M = {}

--- In a window at the cursor, which closes when the cursor moves: a longer message would wait for Enter.
local function say(text)
  local lines = vim.split(text, "\n")
  vim.lsp.util.open_floating_preview(lines, "plaintext", { wrap = true, max_width = 72, focus_id = "caesura.why" })
end

--- Where the user typed last: Esc moves the cursor one character to the left.
local function place()
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local left = vim.api.nvim_buf_get_mark(0, "^")
  local line = vim.api.nvim_get_current_line()
  if vim.fn.mode() == "n" and left[1] == row and left[2] == column + #vim.fn.strpart(line, column, 1, true) then
    column = left[2]
  end
  return row - 1, column, line
end

function M.ask()
  local client = vim.lsp.get_clients({ name = "caesura", bufnr = 0 })[1]
  if not options.wants(vim.bo.filetype) then
    return say(("The file type '%s' is off; `filetypes` of setup() turns it on."):format(vim.bo.filetype))
  elseif not client then
    return say("The server does not run here; :checkhealth caesura says why.")
  elseif not status.enabled() then
    return say("Caesura is off; :Caesura toggle turns it on.")
  end
  local row, column, line = place()
  local params = {
    command = "caesura.why",
    arguments = {
      {
        uri = vim.uri_from_bufnr(0),
        position = { line = row, character = compat.units(line, client.offset_encoding, column) },
      },
    },
  }
  compat.request(client, "workspace/executeCommand", params, function(err, answer)
    if err or not answer then
      return say("The server gave no answer; :Caesura log says why.")
    end
    say(answer.message .. (answer.text and "\n\n" .. answer.text or ""))
  end, vim.api.nvim_get_current_buf())
end

return M
