--- How Neovim runs the server: a |vim.lsp.ClientConfig|, as `lsp/caesura.lua` gives it to Neovim 0.11 and setup() to
--- Neovim 0.10.

local fill = require("caesura.fill")
local options = require("caesura.options")
local program = require("caesura.program")
local status = require("caesura.status")
local stream = require("caesura.stream")
local view = require("caesura.view")

local MAX_BYTES = 8000000 -- the server leaves larger documents alone, and Neovim need not send them

local capabilities = vim.lsp.protocol.make_client_capabilities()
capabilities.textDocument.inlineCompletion = { dynamicRegistration = false }
-- Code actions come as commands, so that fill.lua shows how they get on and why there is none.
capabilities.textDocument.codeAction.dataSupport = false
capabilities.experimental = { caesura = { status = true, stream = true } }

--- Whether a buffer is a file that gets suggestions.
local function wanted(buf)
  local bytes = vim.api.nvim_buf_get_offset(buf, vim.api.nvim_buf_line_count(buf))
  return vim.bo[buf].buftype == "" and options.wants(vim.bo[buf].filetype) and bytes <= MAX_BYTES
end

view.follow_clients()

---@type vim.lsp.ClientConfig
return {
  name = "caesura",
  cmd = function(dispatchers)
    local command, missing = program.command()
    return vim.lsp.rpc.start(assert(command, missing), dispatchers)
  end,
  root_dir = function(buf, on_dir)
    local command, missing = program.command()
    if not command then
      vim.notify_once(missing, vim.log.levels.WARN)
    elseif wanted(buf) then
      on_dir(vim.fs.root(buf, ".git") or vim.fs.dirname(vim.api.nvim_buf_get_name(buf)))
    end
  end,
  capabilities = capabilities,
  flags = { debounce_text_changes = 20 }, -- the server computes from the first edit on; a flood of them is sent as one
  before_init = function(params)
    local settings = vim.tbl_extend("force", options.get().settings, params.initializationOptions or {})
    if not status.enabled() then
      settings.enable = false
    end
    params.initializationOptions = next(settings) and settings or vim.empty_dict()
  end,
  on_init = function(client)
    client.server_capabilities.codeActionProvider.resolveProvider = false
  end,
  on_exit = vim.schedule_wrap(function(_, _, client_id)
    fill.ended(client_id)
  end),
  commands = fill.commands,
  handlers = {
    ["$/progress"] = function(err, params, context, config)
      if not stream.value(params) then
        fill.progress(params)
        vim.lsp.handlers["$/progress"](err, params, context, config)
      end
    end,
    ["window/logMessage"] = function(err, params, context, config)
      if params.type == vim.lsp.protocol.MessageType.Warning then -- a setting that is wrong, which Neovim only logs
        vim.notify_once("Caesura: " .. params.message, vim.log.levels.WARN)
      end
      return vim.lsp.handlers["window/logMessage"](err, params, context, config)
    end,
    ["caesura/status"] = status.told,
    ["didChangeStatus"] = status.busy,
  },
}
