"""`caesura serve`: the engine over HTTP, for editors and plugins that do not speak LSP."""
