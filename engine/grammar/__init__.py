"""The texts that a hole may contain: grammars over bytes, and the best whole fill among those they allow."""
