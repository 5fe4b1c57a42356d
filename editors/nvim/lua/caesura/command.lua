--- `:Caesura {subcommand}`.

local compat = require("caesura.compat")
local fill = require("caesura.fill")
local program = require("caesura.program")
local status = require("caesura.status")

local M = {}

--- Where the character ends that begins in a column, from 1.
local function end_of(line, column)
  return math.min(#line, column - 1 + #vim.fn.strpart(line, column - 1, 1, true))
end

--- Whether a position is behind its line, as those of a block that was extended with `$` are.
local function is_behind(position)
  local line = vim.fn.getline(position[2])
  return line ~= "" and position[3] > #line
end

--- Each line of a block between two positions of |getpos()|, as far as it reaches into the block.
local function block(from, to)
  local left = vim.fn.virtcol({ from[2], from[3] }, true)
  local right = vim.fn.virtcol({ to[2], to[3] }, true)
  local first, last = math.min(left[1], right[1]), math.max(left[2], right[2])
  if is_behind(from) or is_behind(to) then
    last = vim.v.maxcol
  end
  local found = {}
  for row = from[2], to[2] do
    local line = vim.fn.getline(row)
    if vim.fn.strdisplaywidth(line) >= first then
      local start, finish = vim.fn.virtcol2col(0, row, first), vim.fn.virtcol2col(0, row, last)
      table.insert(found, { row - 1, start - 1, row - 1, end_of(line, finish) })
    end
  end
  return found
end

--- What the command's range says, in bytes: the last selection where it is that, else whole lines. Nil without a range.
---@return integer[][]?
local function ranges(call)
  if call.range == 0 then
    return nil
  end
  local from, to, mode = vim.fn.getpos("'<"), vim.fn.getpos("'>"), vim.fn.visualmode()
  local last = vim.fn.getline(call.line2)
  if from[2] ~= call.line1 or to[2] ~= call.line2 or call.range < 2 or mode == "V" then
    return { { call.line1 - 1, 0, call.line2 - 1, #last } }
  elseif mode == "v" then
    return { { from[2] - 1, from[3] - 1, to[2] - 1, end_of(last, math.min(to[3], #last + 1)) } }
  end
  return block(from, to)
end

local function at_cursor()
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  return { { row - 1, column, row - 1, column } }
end

local function report()
  local found = status.get()
  local command, missing = program.command()
  local state = status.enabled() and found.state or "off"
  local lines = {
    "state   " .. state .. (found.message ~= "" and ": " .. found.message or ""),
    "model   " .. (found.model ~= "" and ("%s on %s"):format(found.model, found.device) or "none loaded"),
    "view    " .. require("caesura.options").get().view,
    "server  " .. (command and table.concat(command, " ") or missing),
  }
  vim.api.nvim_echo({ { table.concat(lines, "\n") } }, false, {})
end

local function restart()
  fill.cancel()
  local clients = vim.lsp.get_clients({ name = "caesura" })
  vim.iter(clients):each(compat.stop)
  local function start()
    if vim.iter(clients):all(compat.is_stopped) then
      require("caesura").start()
    else
      vim.defer_fn(start, 50)
    end
  end
  start()
end

--- `:Caesura edit` of these names is about the next edit, and of others about a structured edit.
local function next_edits()
  local next_edit = require("caesura.next_edit")
  return { next = next_edit.next, take = next_edit.take, dismiss = next_edit.dismiss }
end

local subcommands = {
  fill = function(_, selected)
    if not selected then
      return vim.notify("Caesura: select what is to be filled, then :'<,'>Caesura fill.", vim.log.levels.INFO)
    end
    fill.start("caesura.fillSelection", selected)
  end,
  holes = function(_, selected)
    fill.start("caesura.fillHoles", selected)
  end,
  repair = function(_, selected)
    fill.start("caesura.repair", selected or at_cursor())
  end,
  edit = function(argument, selected)
    local act = next_edits()[argument]
    if not act then
      return fill.edit(selected or at_cursor(), argument)
    elseif not act() and argument ~= "next" then
      vim.notify("Caesura: no next edit is shown; :Caesura edit next asks for one.", vim.log.levels.INFO)
    end
  end,
  another = function()
    fill.start("caesura.another")
  end,
  keep = function(_, selected)
    fill.start("caesura.keep", selected or at_cursor())
  end,
  cancel = function()
    fill.cancel()
  end,
  toggle = function()
    status.enable(not status.enabled())
    vim.notify("Caesura is " .. (status.enabled() and "on." or "off."))
  end,
  status = report,
  why = function()
    require("caesura.why").ask()
  end,
  restart = restart,
  log = function()
    vim.cmd.tabedit(vim.fn.fnameescape(compat.log_path()))
    vim.cmd.normal({ "G", bang = true })
  end,
}

function M.run(call)
  local name, argument = call.args:match("^(%S*)%s*(.-)%s*$")
  local subcommand = subcommands[name == "" and "status" or name]
  if not subcommand then
    return vim.notify(("There is no :Caesura %s; see :help :Caesura."):format(name), vim.log.levels.WARN)
  end
  subcommand(argument ~= "" and argument or nil, ranges(call))
end

function M.complete(lead, line)
  local before = line:match("Caesura!?%s+(%S+)%s")
  local names = not before and subcommands or before == "edit" and next_edits() or {}
  local found = vim.tbl_filter(function(name)
    return vim.startswith(name, lead)
  end, vim.tbl_keys(names))
  table.sort(found)
  return found
end

return M
