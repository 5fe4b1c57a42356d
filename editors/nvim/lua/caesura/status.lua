--- How the engine is, as the server tells it, and whether suggestions are on. A statusline that shows it is drawn anew
--- at `User CaesuraStatus`.

local compat = require("caesura.compat")

local M = {}

---@class caesura.Status
---@field state "stopped"|"connecting"|"loading"|"ready"|"unavailable"|"off"
---@field model string
---@field device string
---@field message string
---@field busy boolean

local enabled = true
local by_client = {} ---@type table<integer, caesura.Status>

function M.enabled()
  return enabled
end

function M.changed()
  vim.api.nvim_exec_autocmds("User", { pattern = "CaesuraStatus", modeline = false })
end

local function update(client_id, values)
  local before = by_client[client_id]
  local after = vim.tbl_extend("force", before or M.NONE, values)
  if not vim.deep_equal(before, after) then
    by_client[client_id] = after
    M.changed()
  end
end

M.NONE = { state = "stopped", model = "", device = "", message = "", busy = false }

--- The handler of `caesura/status`. A trouble is told once.
function M.told(_, params, context)
  update(context.client_id, params)
  if params.state == "unavailable" and params.message ~= "" then
    vim.notify_once("Caesura gives no suggestions: " .. params.message, vim.log.levels.WARN)
  end
end

--- The handler of `didChangeStatus`, of which `caesura/status` leaves out `busy`.
function M.busy(_, params, context)
  update(context.client_id, { busy = params.busy })
end

--- Of the server of a buffer.
---@param buf? integer
---@return caesura.Status
function M.get(buf)
  local client = vim.lsp.get_clients({ name = "caesura", bufnr = buf or 0 })[1]
  return client and by_client[client.id] or M.NONE
end

--- A word or two for a statusline; nothing where there is no server.
---@return string
function M.text()
  local status = M.get()
  local words = {
    stopped = "",
    ready = status.busy and "caesura …" or "caesura",
    connecting = "caesura starting",
  }
  return words[status.state] or ("caesura " .. status.state)
end

--- Suggestions on or off, everywhere: off, the server computes nothing.
function M.enable(on)
  enabled = on
  for _, client in ipairs(vim.lsp.get_clients({ name = "caesura" })) do
    client.settings = vim.tbl_deep_extend("force", client.settings or {}, { caesura = { enable = on } })
    compat.notify(client, "workspace/didChangeConfiguration", { settings = client.settings })
  end
  require("caesura.view").get().dismiss()
  require("caesura.next_edit").clear()
end

return M
