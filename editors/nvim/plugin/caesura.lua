-- What is there before anything is asked for: the command, the <Plug> maps, the colours. Nothing starts here.

if vim.g.loaded_caesura then
  return
end
vim.g.loaded_caesura = true

vim.api.nvim_create_user_command("Caesura", function(call)
  require("caesura.command").run(call)
end, {
  nargs = "*",
  range = true,
  complete = function(lead, line)
    return require("caesura.command").complete(lead, line)
  end,
  desc = "Caesura: fill, holes, edit, repair, another, keep, cancel, toggle, status, restart, log",
})

for name, what in pairs({
  accept = "take the suggestion",
  ["accept-word"] = "take its next word",
  ["accept-line"] = "take its next line",
  next = "show the next suggestion",
  previous = "show the suggestion before",
  dismiss = "put the suggestion away",
  trigger = "ask for a suggestion",
}) do
  vim.keymap.set("i", ("<Plug>(caesura-%s)"):format(name), function()
    require("caesura")[name:gsub("-", "_")]()
  end, { desc = "Caesura: " .. what })
end
for name, what in pairs({
  take = "go to the next edit, or apply it there",
  dismiss = "put the next edit away",
  next = "ask for the next edit",
}) do
  vim.keymap.set({ "n", "i" }, ("<Plug>(caesura-edit-%s)"):format(name), function()
    require("caesura.next_edit")[name]()
  end, { desc = "Caesura: " .. what })
end
vim.keymap.set("x", "<Plug>(caesura-fill)", ":Caesura fill<CR>", { silent = true, desc = "Caesura: fill this" })

require("caesura.colours").set()
vim.api.nvim_create_autocmd({ "ColorScheme", "OptionSet", "UIEnter" }, {
  group = vim.api.nvim_create_augroup("caesura.colours", {}),
  callback = function(call)
    if call.event ~= "OptionSet" or call.match == "background" then
      require("caesura.colours").set()
    end
  end,
})
vim.api.nvim_set_hl(0, "CaesuraCount", { default = true, link = "MoreMsg" })
vim.api.nvim_set_hl(0, "CaesuraAdded", { default = true, link = "CaesuraGhost" })
vim.api.nvim_set_hl(0, "CaesuraSign", { default = true, link = "MoreMsg" })
vim.api.nvim_set_hl(0, "CaesuraFilling", { default = true, link = "Visual" })

-- The tags of the help, which no package manager makes where the plugin lies in a folder of a repository.
local help = vim.api.nvim_get_runtime_file("doc/caesura.txt", false)[1]
if help and vim.fn.getftime(vim.fs.dirname(help) .. "/tags") < vim.fn.getftime(help) then
  pcall(vim.cmd.helptags, vim.fn.fnameescape(vim.fs.dirname(help)))
end
