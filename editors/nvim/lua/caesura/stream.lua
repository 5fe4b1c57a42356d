--- The view "stream": asked for at each key, drawn by ghost.lua as soon as a part is sure. There is one cursor to type
--- at, so there is one request and one ghost. What is drawn stays until the user does something else: the server only
--- appends to it.

local Proposal = require("caesura.proposal")
local accept = require("caesura.accept")
local compat = require("caesura.compat")
local ghost = require("caesura.ghost")
local menu = require("caesura.menu")
local options = require("caesura.options")

local M = {}

local METHOD = "caesura/inlineCompletionStream"
local INVOKED, AUTOMATIC = 1, 2
local MOVED_MS = 75 -- a cursor that only moves through the text asks where it comes to rest

---@class caesura.Request
---@field token string
---@field id integer
---@field client vim.lsp.Client
---@field place caesura.Place
---@field column integer
---@field tick integer
---@field version integer

local asked ---@type caesura.Request?  the last request, also when it is answered
local proposal ---@type caesura.Proposal?  what is drawn
local dismissed ---@type {place: caesura.Place, tick: integer}?  where a suggestion was put away
local tokens = 0
local moving = assert(vim.uv.new_timer())

local function is_inserting()
  return vim.startswith(vim.api.nvim_get_mode().mode, "i")
end

--- Whether there is to be a ghost: not in a macro either, which would be played without it.
local function is_wanted()
  return is_inserting()
    and (options.get().menu or not menu.is_open())
    and vim.fn.reg_recording() == ""
    and vim.fn.reg_executing() == ""
end

local function clear()
  proposal = nil
  ghost.clear()
end

local function cancel()
  moving:stop()
  if asked and asked.id then
    compat.cancel(asked.client, asked.id)
  end
  asked = nil
end

--- Draw what is left of the proposal; hide it where it is not wanted now, and forget it where the text says something
--- else by now.
local function refresh(count)
  local rest = proposal and proposal:rest()
  if not rest then
    clear()
  elseif is_wanted() then
    ghost.draw(rest, count)
  else
    ghost.clear()
  end
end

--- Draw what items propose for the place that was asked for.
---@param items {insertText: string, range: lsp.Range, command?: lsp.Command}[]
local function propose(items)
  local encoding, line = asked.client.offset_encoding, asked.place.line
  local range = items[1].range
  local texts = vim.tbl_map(function(item)
    return (item.insertText:gsub("\r", ""))
  end, items)
  local from = compat.bytes(line, encoding, range.start.character)
  local to = compat.bytes(line, encoding, range["end"].character)
  proposal = Proposal.new(asked.client, asked.place, from, to, texts, items[1].command)
  refresh()
end

--- The answer, with all there is to choose from; `null` where there is no new one, and what is shown stays.
local function answered(token, result)
  if not asked or asked.token ~= token then
    return
  end
  asked.id = nil
  local items = result and (result.items or result)
  if not items then
    return
  elseif #items == 0 or not is_inserting() then
    return clear()
  end
  local before = proposal and proposal.command
  propose(items)
  if proposal and proposal.command and not vim.deep_equal(before, proposal.command) then
    local item = { insertText = items[1].insertText, range = items[1].range, command = proposal.command }
    compat.notify(asked.client, "textDocument/didShowCompletion", { item = item })
  end
end

--- Whether a suggestion was put away in this line, and the text has not changed since.
local function is_dismissed(place)
  return dismissed ~= nil
    and dismissed.place.buf == place.buf
    and dismissed.place.row == place.row
    and dismissed.tick == vim.api.nvim_buf_get_changedtick(place.buf)
end

local function ask(kind)
  cancel()
  local place, column = Proposal.here()
  local client = vim.lsp.get_clients({ name = "caesura", bufnr = place.buf })[1]
  if not client or (kind == AUTOMATIC and is_dismissed(place)) then
    return clear()
  elseif not is_wanted() then
    return
  end
  tokens = tokens + 1
  local token = "caesura-stream-" .. tokens
  local params = {
    textDocument = { uri = vim.uri_from_bufnr(place.buf) },
    position = { line = place.row, character = compat.units(place.line, client.offset_encoding, column) },
    context = { triggerKind = kind },
    partialResultToken = token,
  }
  local id = compat.request(client, METHOD, params, function(_, result)
    answered(token, result)
  end, place.buf)
  asked = {
    token = token,
    id = id,
    client = client,
    place = place,
    column = column,
    tick = vim.api.nvim_buf_get_changedtick(place.buf),
    version = vim.lsp.util.buf_versions[place.buf],
  }
end

--- A value of `$/progress`: what may be shown already. The last one is the answer, which comes as such too. Whether it
--- is one of ours.
function M.value(params)
  local token, value = params.token, params.value
  if type(token) ~= "string" or not vim.startswith(token, "caesura-stream-") then
    return false
  end
  if asked and asked.token == token and value.version == asked.version and not value.done and is_inserting() then
    propose(value.items)
  end
  return true
end

-- What happens in the buffer

local function changed()
  refresh()
  ask(AUTOMATIC)
end

local function moved()
  local place, column = Proposal.here()
  local tick = vim.api.nvim_buf_get_changedtick(place.buf)
  if asked and asked.tick ~= tick then
    return -- by typing: the change itself is told next
  elseif asked and asked.place.buf == place.buf and asked.place.row == place.row and asked.column == column then
    return
  end
  refresh()
  cancel()
  moving:start(MOVED_MS, 0, vim.schedule_wrap(function()
    if is_inserting() then
      ask(AUTOMATIC)
    end
  end))
end

local function leave()
  cancel()
  clear()
end

local group = vim.api.nvim_create_augroup("caesura.stream", {})

function M.start()
  vim.api.nvim_create_autocmd("ModeChanged", { group = group, pattern = "i*:[^i]*", callback = leave })
  menu.follow(group, function()
    if is_inserting() and not options.get().menu then
      refresh()
      moved()
    end
  end)
end

function M.attach(_, buf)
  M.detach(buf)
  local on = { [{ "TextChangedI", "TextChangedP" }] = changed, [{ "InsertEnter", "CursorMovedI" }] = moved }
  for events, callback in pairs(on) do
    vim.api.nvim_create_autocmd(events, { group = group, buffer = buf, callback = callback })
  end
  vim.api.nvim_create_autocmd("BufLeave", { group = group, buffer = buf, callback = leave })
  if vim.api.nvim_get_current_buf() == buf and is_inserting() then
    ask(AUTOMATIC)
  end
end

function M.detach(buf)
  vim.api.nvim_clear_autocmds({ group = group, buffer = buf })
  if asked and asked.place.buf == buf then
    leave()
  end
end

-- What the user does

function M.is_shown()
  return proposal ~= nil and is_wanted()
end

function M.take(part)
  return M.is_shown() and accept.take(proposal, part)
end

function M.choose(count)
  if not M.is_shown() then
    return false
  elseif #proposal.texts > 1 then
    proposal.chosen = (proposal.chosen - 1 + count) % #proposal.texts + 1
    refresh((" (%d/%d)"):format(proposal.chosen, #proposal.texts))
  end
  return true
end

function M.dismiss()
  local was_shown = M.is_shown()
  local place = Proposal.here()
  dismissed = { place = place, tick = vim.api.nvim_buf_get_changedtick(place.buf) }
  leave()
  return was_shown
end

function M.trigger()
  ask(INVOKED)
end

return M
