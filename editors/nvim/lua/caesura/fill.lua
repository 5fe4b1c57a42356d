--- Fills that are asked for: of a selection, of holes, of what is broken, of a place in a structured document. One runs
--- at a time; it is marked in the text while it does, and ends with the edit or with one sentence.

local compat = require("caesura.compat")
local status = require("caesura.status")

local M = {}

local space = vim.api.nvim_create_namespace("caesura.fill")
local running ---@type {token: string, title: string, client: vim.lsp.Client, id: integer, buf: integer}?
local tokens = 0

local LEVELS = {
  valid = "valid form, guessed values",
  checked = "checked against the schema",
  parses = "parses",
}

local function say(text, level)
  vim.notify("Caesura: " .. text, level or vim.log.levels.INFO)
end

--- The server of the current buffer, ready to fill; nil and a sentence on the screen without it.
---@return vim.lsp.Client?
local function server()
  local client = vim.lsp.get_clients({ name = "caesura", bufnr = 0 })[1]
  if not client then
    say("the server does not run here; :checkhealth caesura says why.", vim.log.levels.WARN)
  elseif not status.enabled() then
    say("it is off; :Caesura toggle switches it on.")
    return nil
  end
  return client
end

---@param client vim.lsp.Client
---@param ranges integer[][] {row, column, end row, end column}, from 0, in bytes
local function to_lsp(client, ranges)
  local function position(row, column)
    local line = vim.api.nvim_buf_get_lines(0, row, row + 1, false)[1] or ""
    return { line = row, character = compat.units(line, client.offset_encoding, column) }
  end
  return vim.tbl_map(function(range)
    return { start = position(range[1], range[2]), ["end"] = position(range[3], range[4]) }
  end, ranges)
end

local function mark(client, buf, ranges)
  for _, range in ipairs(ranges) do
    local function column(position)
      local line = vim.api.nvim_buf_get_lines(buf, position.line, position.line + 1, false)[1] or ""
      return compat.bytes(line, client.offset_encoding, position.character)
    end
    vim.api.nvim_buf_set_extmark(buf, space, range.start.line, column(range.start), {
      end_row = range["end"].line,
      end_col = column(range["end"]),
      hl_group = "CaesuraFilling",
    })
  end
end

local function finish()
  if running and vim.api.nvim_buf_is_valid(running.buf) then
    vim.api.nvim_buf_clear_namespace(running.buf, space, 0, -1)
  end
  if running and running.echoed then
    vim.api.nvim_echo({ { "" } }, false, {})
  end
  running = nil
end

local function answered(token, err, answer)
  if not running or running.token ~= token then
    return
  end
  finish()
  if err or not answer then
    say(err and err.message or "the server gave no answer.", vim.log.levels.WARN)
  elseif not answer.applied then
    say(answer.message or "nothing was changed.", vim.log.levels.WARN)
  elseif answer.message or answer.level then
    say(table.concat(vim.tbl_filter(function(part)
      return part
    end, { answer.level and ("the edit is %s."):format(LEVELS[answer.level]) or false, answer.message or false }), " "))
  end
end

--- Have a command carried out by the server: an argument as docs/protocol.md has it.
---@param client vim.lsp.Client
local function run(client, title, command, order)
  M.cancel()
  local buf = vim.uri_to_bufnr(order.uri)
  tokens = tokens + 1
  local token = "caesura-fill-" .. tokens
  local params = { command = command, arguments = { order }, workDoneToken = token }
  running = { token = token, title = title, client = client, buf = buf }
  mark(client, buf, order.ranges or {})
  running.id = compat.request(client, "workspace/executeCommand", params, function(err, answer)
    answered(token, err, answer)
  end, buf)
end

local function order(client, ranges)
  local buf = vim.api.nvim_get_current_buf()
  return {
    uri = vim.uri_from_bufnr(buf),
    version = vim.lsp.util.buf_versions[buf],
    ranges = ranges and to_lsp(client, ranges) or nil,
  }
end

local TITLES = {
  ["caesura.fillSelection"] = "filling the selection",
  ["caesura.fillHoles"] = "filling the holes",
  ["caesura.repair"] = "repairing",
  ["caesura.another"] = "looking for another fill",
  ["caesura.keep"] = "filling the rest",
  ["caesura.edit"] = "editing",
}

---@param command string
---@param ranges? integer[][]
function M.start(command, ranges)
  local client = server()
  if client then
    run(client, TITLES[command], command, order(client, ranges))
  end
end

--- A structured edit: the one of that number or title, else one of those that there are.
---@param ranges integer[][]
---@param wanted? string
function M.edit(ranges, wanted)
  local client = server()
  if not client then
    return
  end
  local asked = order(client, ranges)
  local function with(offer)
    run(client, TITLES["caesura.edit"], "caesura.edit", vim.tbl_extend("force", asked, { offer = offer }))
  end
  if wanted then
    local number = tonumber(wanted)
    return with(number and number - 1 or wanted)
  end
  local params = {
    textDocument = { uri = asked.uri },
    range = asked.ranges[1],
    context = { diagnostics = {}, only = { "refactor.rewrite" }, triggerKind = 1 },
  }
  compat.request(client, "textDocument/codeAction", params, function(_, actions)
    local titles = {}
    for _, action in ipairs(actions or {}) do
      if action.command.command == "caesura.edit" then
        table.insert(titles, action.title)
      end
    end
    if #titles == 0 then
      return say("there is no structured edit here.")
    end
    vim.ui.select(titles, { prompt = "Caesura" }, function(title)
      if title then
        with(title)
      end
    end)
  end, vim.api.nvim_get_current_buf())
end

--- Whether something ran.
function M.cancel()
  local was = running
  finish()
  if was then
    compat.cancel(was.client, was.id)
  end
  return was ~= nil
end

--- A server has ended, and what it was to fill stays as it is.
---@param client_id integer
function M.ended(client_id)
  if running and running.client.id == client_id then
    finish()
    say("the server has ended; :Caesura restart starts it anew.", vim.log.levels.WARN)
  end
end

--- A value of `$/progress`: ours is shown below the text.
function M.progress(params)
  if running and params.token == running.token and params.value.kind ~= "end" then
    running.echoed = true
    local done = params.value.percentage or 0
    local text = ("Caesura: %s, %d %%  (:Caesura cancel)"):format(running.title, done)
    vim.api.nvim_echo({ { text:sub(1, vim.v.echospace) } }, false, {}) -- a longer one would wait for Enter
  end
end

--- What code actions run: the same, so that they are shown the same.
M.commands = {}
for command, title in pairs(TITLES) do
  M.commands[command] = function(call, context)
    local client = assert(vim.lsp.get_client_by_id(context.client_id))
    run(client, title, command, call.arguments[1])
  end
end

return M
