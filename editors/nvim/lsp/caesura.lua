-- For `vim.lsp.enable("caesura")`, Neovim 0.11 and later; |lsp-config| says what may be overridden.
return require("caesura.client")
