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

local function raw(keys)
  return vim.api.nvim_replace_termcodes(keys, true, true, true)
end

--- Give what a key does by now, a map or the key itself, another name. Maps of a buffer are in front of ours anyway.
local function rename(key, name)
  for _, map in ipairs(vim.api.nvim_get_keymap("i")) do
    if map.lhsraw == raw(key) or map.lhsrawalt == raw(key) then
      map.lhs, map.lhsraw, map.lhsrawalt = name, raw(name), nil
      return vim.fn.mapset("i", false, map)
    end
  end
  vim.keymap.set("i", name, key)
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
      local before, own = ("<Plug>(caesura-before-%s)"):format(name), ("<Plug>(caesura-%s)"):format(name)
      rename(key, before)
      vim.keymap.set("i", own, function()
        if not require("caesura")[name]() then
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
  end
end

return M
