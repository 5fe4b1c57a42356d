"""What a hole may contain: grammars over bytes, and the best whole fill among what they allow."""
