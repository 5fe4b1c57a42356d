"""The engine: never imports pygls, lsprotocol or tree_sitter."""
