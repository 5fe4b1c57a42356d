"""The language server protocol: the only folder that imports pygls and lsprotocol."""
