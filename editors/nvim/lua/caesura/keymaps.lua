--- The keys of setup { keymaps = ... }: those of copilot.vim, unless others are named. Without a suggestion each does
--- what it did before.

local M = {}

M.DEFAULTS = {
  accept = "<Tab>",
  accept_word = "<M-Right>",
  accept_line = "<M-C-Right>",
  next = "<M-]>",
  previous = "<M-[>",
  dismiss = "<C-]>",
  trigger = "<M-\\>",
}

local set = {} ---@type table<string, true>  the keys that are mapped

local function type_keys(keys, remap)
  vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes(keys, true, true, true), remap and "im" or "in", false)
end

--- What a key did before it was mapped here.
local function run(key, before)
  if vim.tbl_isempty(before) then
    type_keys(key, false)
  elseif before.expr == 1 then
    local keys = before.callback and before.callback() or vim.api.nvim_eval(before.rhs)
    type_keys(keys or "", before.noremap == 0)
  elseif before.callback then
    before.callback()
  else
    type_keys(before.rhs, before.noremap == 0)
  end
end

---@param wanted boolean|table<string, string|false>
function M.set(wanted)
  if not wanted then
    return
  end
  local keys = type(wanted) == "table" and wanted or M.DEFAULTS
  for name, key in pairs(keys) do
    if not M.DEFAULTS[name] then
      vim.notify(("Caesura: there is no keymap '%s'. See :help caesura-keymaps."):format(name), vim.log.levels.WARN)
    elseif key and not set[key] then
      set[key] = true
      local before = vim.fn.maparg(key, "i", false, true)
      vim.keymap.set("i", key, function()
        if not require("caesura")[name]() then
          run(key, before)
        end
      end, { desc = "Caesura: " .. name:gsub("_", " ") })
    end
  end
end

return M
