--- Whether a completion menu is open: Neovim's own, or that of nvim-cmp or blink.cmp.

local M = {}

local function loaded(name)
  local plugin = package.loaded[name]
  return type(plugin) == "table" and plugin or nil
end

---@return boolean
function M.is_open()
  local cmp, blink = loaded("cmp"), loaded("blink.cmp")
  return vim.fn.pumvisible() == 1
    or (cmp ~= nil and cmp.core ~= nil and cmp.core.view:visible()) -- `cmp.visible()` may wait for a whole second
    or (blink ~= nil and blink.is_menu_visible())
end

--- Call back when a menu opens or closes, which it also does without a key that changes the text.
---@param group integer
---@param callback fun()
function M.follow(group, callback)
  vim.api.nvim_create_autocmd("CompleteDone", { group = group, callback = vim.schedule_wrap(callback) })
  vim.api.nvim_create_autocmd("User", {
    group = group,
    pattern = { "BlinkCmpMenuOpen", "BlinkCmpMenuClose" },
    callback = callback,
  })
  local follows_cmp = false
  vim.api.nvim_create_autocmd("InsertEnter", {
    group = group,
    callback = function()
      local cmp = loaded("cmp")
      if cmp and cmp.event and not follows_cmp then
        follows_cmp = true
        cmp.event:on("menu_opened", callback)
        cmp.event:on("menu_closed", callback)
      end
    end,
  })
end

return M
