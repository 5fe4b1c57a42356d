--- The keys of setup { keymaps = ..., next_edit = ... }. Where none are named, copilot.vim's keys are mapped. Without a
--- suggestion or a next edit each does what it did before.

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

--- The keys of next edits, for Normal and for Insert mode. Esc leaves Insert mode, and dismisses an edit by that.
M.NEXT_EDIT = { take = "<Tab>", dismiss = "<Esc>", next = false }

local set = {} ---@type table<string, true>  the modes, names and keys that are mapped

local function raw(keys)
  return vim.api.nvim_replace_termcodes(keys, true, true, true)
end

--- Give what a key does by now, a map or the key itself, another name. Maps of a buffer are in front of ours anyway.
local function rename(mode, key, name)
  for _, map in ipairs(vim.api.nvim_get_keymap(mode)) do
    if map.lhsraw == raw(key) or map.lhsrawalt == raw(key) then
      map.lhs, map.lhsraw, map.lhsrawalt = name, raw(name), nil
      return vim.fn.mapset(mode, false, map)
    end
  end
  vim.keymap.set(mode, name, key)
end

--- The name of what a key did before, unless the key is mapped so already.
local function kept(mode, name, key)
  local this = mode .. name .. key
  if set[this] then
    return nil
  end
  set[this] = true
  local before = ("<Plug>(caesura-before-%s)"):format(name)
  rename(mode, key, before)
  return before
end

--- Map a key of Insert mode. `act` says whether there was something to do.
---@param act fun(): boolean
local function insert(name, key, act)
  local before, own = kept("i", name, key), ("<Plug>(caesura-%s)"):format(name)
  if not before then
    return
  end
  vim.keymap.set("i", own, function()
    if not act() then
      vim.api.nvim_feedkeys(raw(before), "im", false)
    end
  end)
  -- With <expr>, since blink.cmp runs other maps after the next keys. It runs before fast typed keys are in the
  -- buffer, so it only says what comes after them.
  vim.keymap.set("i", key, function()
    vim.api.nvim_feedkeys(raw(own), "im", false)
    return ""
  end, { expr = true, desc = "Caesura: " .. name:gsub("_", " ") })
end

--- Map a key of Normal mode. With <expr>, since a count or a register may be typed for what the key did before.
---@param is_ours fun(): boolean
---@param act fun(): boolean
local function normal(name, key, is_ours, act)
  local before, own = kept("n", name, key), ("<Plug>(caesura-%s)"):format(name)
  if not before then
    return
  end
  vim.keymap.set("n", own, act)
  vim.keymap.set("n", key, function()
    return is_ours() and own or before
  end, { expr = true, remap = true, desc = "Caesura: " .. name:gsub("_", " ") })
end

--- The keys that an option names, of those that there are.
---@param wanted table<string, string|false>
---@param known table<string, string|false>
---@return table<string, string>
local function named(wanted, known)
  local found = {}
  for name, key in pairs(wanted) do
    if known[name] == nil then
      vim.notify(("Caesura: there is no keymap '%s'. See :help caesura-keymaps."):format(name), vim.log.levels.WARN)
    elseif key then
      found[name] = key
    end
  end
  return found
end

---@param keys table<string, string>
local function set_next_edit(keys)
  local next_edit = require("caesura.next_edit")
  if keys.take then
    normal("take_edit", keys.take, next_edit.is_shown, next_edit.take)
    insert("take_edit", keys.take, next_edit.take_by_key)
  end
  if keys.dismiss then
    normal("dismiss_edit", keys.dismiss, next_edit.is_shown, next_edit.dismiss)
  end
  if keys.next then
    vim.keymap.set({ "n", "i" }, keys.next, next_edit.next, { desc = "Caesura: next edit" })
  end
end

---@param wanted boolean|table<string, string|false>
---@param next_edit boolean|table<string, string|false> `true`: with the keys below, where `wanted` asks for keys
function M.set(wanted, next_edit)
  if next_edit and (wanted or type(next_edit) == "table") then
    set_next_edit(named(type(next_edit) == "table" and next_edit or M.NEXT_EDIT, M.NEXT_EDIT))
  end
  if not wanted then
    return
  end
  for name, key in pairs(named(type(wanted) == "table" and wanted or M.DEFAULTS, M.DEFAULTS)) do
    insert(name, key, function()
      return require("caesura")[name]()
    end)
  end
end

return M
