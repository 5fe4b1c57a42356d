--- Taking a suggestion, all of it or its next part: one step to undo, and `.` repeats it as if it had been typed.

local Proposal = require("caesura.proposal")
local compat = require("caesura.compat")

local M = {}

local taking ---@type fun()?

--- What `take` may be asked for, by name: how much of a text that is.
M.parts = {
  all = function(text)
    return text
  end,
  word = function(text)
    return vim.fn.matchstr(text, [[^\_s*\%(\k\@!\S\)\?\k*]])
  end,
  line = function(text)
    return text:match("^[^\n]+") or text:match("^\n[^\n]*")
  end,
}

--- Run between two breaks of the undo chain, when no mapping forbids changes any more.
---@param change fun() of Insert mode
function M.as_one_step(change)
  taking = change
  local keys = "<C-g>u<Cmd>lua require('caesura.accept').commit()<CR><C-g>u"
  vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes(keys, true, false, true), "in", false)
end

function M.commit()
  local change = taking
  taking = nil
  if change then
    change()
  end
end

--- How many bytes of what stands behind the cursor a part replaces: as few as the rest of the text can do without.
local function eaten(rest, part)
  local left = rest.text:sub(#part + 1)
  for bytes = 0, #rest.replaced do
    if Proposal.within(rest.replaced:sub(bytes + 1), left) then
      return bytes
    end
  end
  return #rest.replaced
end

--- Tell the server, which needs no more than the edit, but learns from this what was meant.
local function tell(proposal, upto)
  local client, text = proposal.client, proposal.texts[proposal.chosen]
  if upto == #text then
    local command = { command = proposal.command.command, arguments = proposal.command.arguments }
    compat.request(client, "workspace/executeCommand", command, function() end, proposal.place.buf)
  else
    local item = { insertText = text, command = proposal.command }
    local length = compat.units(text:sub(1, upto), "utf-16", upto)
    compat.notify(client, "textDocument/didPartiallyAcceptCompletion", { item = item, acceptedLength = length })
  end
end

--- Insert what is left of a proposal, or a part of that. Whether there is anything to insert.
---@param proposal caesura.Proposal
---@param part "all"|"word"|"line"
function M.take(proposal, part)
  if not proposal:rest() then
    return false
  end
  M.as_one_step(function()
    local rest = proposal:rest() -- an <expr> map runs before fast typed keys are in the buffer: now they are
    if not rest then
      return
    end
    local text = M.parts[part](rest.text)
    local row, column = rest.place.row, rest.column
    vim.api.nvim_buf_set_text(rest.place.buf, row, column, row, column + eaten(rest, text), {})
    vim.api.nvim_paste(text, false, -1)
    if proposal.command then
      tell(proposal, rest.typed + #text)
    end
  end)
  return true
end

return M
