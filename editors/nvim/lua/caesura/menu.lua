--- Whether a completion menu is open: Neovim's own, or that of nvim-cmp, blink.cmp or coc.nvim.

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
    or (vim.g.coc_service_initialized == 1 and vim.fn["coc#pum#visible"]() == 1)
end

--- Call back when a menu has opened or closed, which it also does without a key that changes the text. nvim-cmp says
--- so at each key, and a menu of Neovim's own whenever its selection changes.
---@param group integer
---@param callback fun()
function M.follow(group, callback)
  local was_open = false
  local told = vim.schedule_wrap(function()
    local open = M.is_open()
    if open ~= was_open then
      was_open = open
      callback()
    end
  end)
  vim.api.nvim_create_autocmd({ "CompleteChanged", "CompleteDone" }, { group = group, callback = told })
  vim.api.nvim_create_autocmd("User", {
    group = group,
    pattern = { "BlinkCmpMenuOpen", "BlinkCmpMenuClose" },
    callback = told,
  })
  vim.api.nvim_create_autocmd({ "InsertEnter", "TextChangedI" }, { -- it may be loaded as late as that
    group = group,
    callback = function()
      local cmp = loaded("cmp")
      if cmp and cmp.event then
        cmp.event:on("menu_opened", told)
        cmp.event:on("menu_closed", told)
        return true -- once
      end
    end,
  })
end

return M
