"""The LSP process: never imports torch."""
