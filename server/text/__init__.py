"""Open documents: text, syntax trees, tokens, notebooks."""
