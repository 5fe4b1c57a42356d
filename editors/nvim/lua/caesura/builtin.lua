--- The view "builtin": |vim.lsp.inline_completion| of Neovim 0.12 asks and draws. Added is what it leaves out:
--- superseded requests are cancelled, what was typed before a suggestion is taken counts, and parts can be taken.

local Proposal = require("caesura.proposal")
local accept = require("caesura.accept")
local compat = require("caesura.compat")
local options = require("caesura.options")

local M = {}

local METHOD = "textDocument/inlineCompletion"
local AUTOMATIC = 2

local group = vim.api.nvim_create_augroup("caesura.builtin", {})

--- Neovim's own object of a buffer. It is private: nil where a later version has none such.
local function completor(buf)
  local found, capability = pcall(require, "vim.lsp._capability")
  local own = found and vim.tbl_get(capability, "all", "inline_completion", "active", buf)
  return own and own.request and own.reset_timer and own
end

local function changed(client, buf)
  for id, request in pairs(client.requests) do
    if request.method == METHOD and request.bufnr == buf and request.type == "pending" then
      compat.cancel(client, id)
    end
  end
  local own = options.get().eager and completor(buf)
  if own then
    own:reset_timer()
    own:request(AUTOMATIC)
  end
end

function M.start() end

function M.attach(client, buf)
  vim.lsp.inline_completion.enable(true, { bufnr = buf })
  vim.api.nvim_clear_autocmds({ group = group, buffer = buf })
  vim.api.nvim_create_autocmd({ "TextChangedI", "TextChangedP" }, {
    group = group,
    buffer = buf,
    callback = function()
      changed(client, buf)
    end,
  })
end

function M.detach(buf)
  vim.api.nvim_clear_autocmds({ group = group, buffer = buf })
end

--- What Neovim shows, as far as it is typed already.
---@param item vim.lsp.inline_completion.Item
local function proposed(item)
  local place, cursor = Proposal.here()
  local row, from, _, to = item.range:to_extmark()
  if row ~= place.row or type(item.insert_text) ~= "string" then
    return nil
  end
  local text = item.insert_text:gsub("\r", "")
  local client = assert(vim.lsp.get_client_by_id(item.client_id))
  local asked_at = math.max(from, math.min(cursor, to)) -- what was behind the cursor then is behind it now
  return Proposal.new(client, place, from, cursor + to - asked_at, { text }, item.command)
end

function M.is_shown()
  local space = vim.api.nvim_create_namespace("nvim.lsp.inline_completion")
  return #vim.api.nvim_buf_get_extmarks(0, space, 0, -1, { limit = 1 }) > 0
end

function M.take(part)
  return vim.lsp.inline_completion.get({
    on_accept = function(item)
      local proposal = proposed(item)
      if proposal then
        accept.take(proposal, part)
      end
    end,
  })
end

function M.choose(count)
  vim.lsp.inline_completion.select({ count = count })
  return true
end

function M.dismiss()
  return vim.lsp.inline_completion.get({ on_accept = function() end })
end

function M.trigger()
  local own = completor(vim.api.nvim_get_current_buf())
  if own then
    own:request(1)
  end
end

return M
